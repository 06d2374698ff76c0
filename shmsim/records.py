"""The rows both worlds write, and their files.

Model and machine fill the same rows, so that whatever reads records (metrics, plots, notebooks)
cannot tell, and need not know, which world they come from. Instants are nanoseconds from the start
of the run. Files are Parquet and JSON; nothing here is pickle. Where pyarrow is not installed, as
on a node that has only what runs the loop, rows are JSON too.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmsim.whole import whole, write_whole

if TYPE_CHECKING:
    import pyarrow as pa


class StepRow(NamedTuple):
    """One step as the scheduler sees it.

    Parameters
    ----------
    step
        Running number from 0.
    n_decode, n_prefill_tokens
        Work in the batch.
    scheduled_ns, published_ns
        When the scheduler began to form the batch, and when it published the first call.
    launched_ns, done_ns
        When the last worker had launched, and when the device was done.
    replied_ns, seen_ns
        When the output rank published its reply, and when the scheduler saw it.
    """

    step: int
    n_decode: int
    n_prefill_tokens: int
    scheduled_ns: int
    published_ns: int
    launched_ns: int
    done_ns: int
    replied_ns: int
    seen_ns: int


class WaitRow(NamedTuple):
    """One wait of one process.

    Parameters
    ----------
    process
        ``"scheduler"`` or ``"worker0"`` and so on, after ``"engine0/"`` where engines share a box.
    site, call
        As in `shmsim.wait.WaitContext`.
    step
        The step waited for.
    pending
        Whether the peer was at work on it; false for the wait until an arrival.
    started_ns, published_ns, seen_ns
        Instants.
    stage
        Stage of the plan in which it was seen.
    cpu_ns, overshoot_ns, belled, preempted
        As in `shmsim.wait.WaitOutcome`; CPU summed over the stages.
    stage_kind
        Kind of that stage, an index of `shmsim.wait.KIND_NAMES`; -1 where nobody noted it.
    """

    process: str
    site: int
    call: int
    step: int
    pending: bool
    started_ns: int
    published_ns: int
    seen_ns: int
    stage: int
    cpu_ns: int
    overshoot_ns: int
    belled: bool
    preempted: int
    stage_kind: int = -1


class RequestRow(NamedTuple):
    """One request.

    Parameters
    ----------
    request
        Running number from 0.
    arrival_ns
        When it arrived.
    after_idle
        Whether the engine had nothing to do when it arrived.
    prompt_tokens, output_tokens
        Its size.
    token_ns
        When each output token left the engine.
    """

    request: int
    arrival_ns: int
    after_idle: bool
    prompt_tokens: int
    output_tokens: int
    token_ns: list[int]


class ProcessRow(NamedTuple):
    """What one process consumed over the run.

    Parameters
    ----------
    process
        Its name.
    wall_ns, cpu_ns
        Length of the run, and CPU time of the process in it, emulation left out.
    emulation_cpu_ns
        CPU time that went into standing in for a device.
    run_queue_ns
        Time it was ready to run but had no core; 0 in a model without contention.
    voluntary, involuntary
        Context switches.
    notified, elided
        How often it rang a doorbell, and how often nobody was armed.
    spurious
        Rings that woke it for nothing.
    rescued
        Messages that only its own recheck found: a defect of the doorbell if not 0.
    late
        Replies to calls that were given up, which it dropped.
    unplaced_ns
        Part of ``cpu_ns`` that the model books to no core, such as falling asleep when that delays
        nobody; 0 on a machine.
    payloads
        Messages with bulk in them that it sent or received.
    inline, arena, socket
        Parts of these messages, the pickle stream among them, by route.
    fallbacks
        How many parts it sent another way than its policy wanted, for want of room.
    arena_released
        Slots of the arena that it let go of; of the writer, that came back to it.
    arena_most, arena_slots
        Of the writer: slots of the arena that were taken at once, at most, and those there are.
    """

    process: str
    wall_ns: int
    cpu_ns: int
    emulation_cpu_ns: int
    run_queue_ns: int
    voluntary: int
    involuntary: int
    notified: int
    elided: int
    spurious: int = 0
    rescued: int = 0
    late: int = 0
    unplaced_ns: int = 0
    payloads: int = 0
    inline: int = 0
    arena: int = 0
    socket: int = 0
    fallbacks: int = 0
    arena_released: int = 0
    arena_most: int = 0
    arena_slots: int = 0


def role(process: str) -> str:
    """What a process is, whichever engine of the box it belongs to.

    Examples
    --------
    >>> role("engine1/worker0"), role("scheduler")
    ('worker0', 'scheduler')
    """
    return process.rpartition("/")[2]


class SliceRow(NamedTuple):
    """One stay of a process's thread on a core; written only when a trace is asked for.

    Parameters
    ----------
    process
        Name of the process.
    core
        Which core, from 0.
    started_ns, ended_ns
        From when until when.
    """

    process: str
    core: int
    started_ns: int
    ended_ns: int


class CoreRow(NamedTuple):
    """What became of the time of one core: ``busy_ns + stolen_ns + idle_ns == wall_ns``.

    Parameters
    ----------
    core
        Which core, from 0.
    wall_ns
        Length of the run.
    busy_ns, stolen_ns, idle_ns
        While a process of the run was on it, while somebody else was, and while nobody was.
    """

    core: int
    wall_ns: int
    busy_ns: int
    stolen_ns: int
    idle_ns: int


_ROWS: Final[dict[str, type[Any]]] = {
    "steps": StepRow,
    "waits": WaitRow,
    "requests": RequestRow,
    "processes": ProcessRow,
    "slices": SliceRow,
    "cores": CoreRow,
}
_OPTIONAL: Final = {"slices", "cores"}  # no file means no rows
_NAMED: Final = 3  # runs that somebody may have meant
_JSON: Final = ".json"  # in place of .parquet


@dataclass
class RunRecords:
    """All rows of one run.

    Parameters
    ----------
    steps, waits, requests, processes
        The rows.
    slices, cores
        Rows of a world that accounts for its cores; else empty.
    meta
        What was run: world (``"model"`` or ``"machine"``), policy, seed, replication, and so on.
    """

    steps: list[StepRow] = field(default_factory=list)
    waits: list[WaitRow] = field(default_factory=list)
    requests: list[RequestRow] = field(default_factory=list)
    processes: list[ProcessRow] = field(default_factory=list)
    slices: list[SliceRow] = field(default_factory=list)
    cores: list[CoreRow] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> "pa.Table":
        """One table as an Arrow table, a column per field; ``.to_pandas()`` makes a data frame.

        Parameters
        ----------
        name
            ``"steps"``, ``"waits"``, ``"requests"``, ``"processes"``, ``"slices"`` or ``"cores"``.

        Raises
        ------
        ValueError
            If there is no such table.
        """
        if name not in _ROWS:
            raise ValueError(f"records have no table {name!r}; they have {', '.join(_ROWS)}")
        return _to_arrow(_ROWS[name], getattr(self, name))

    def write(self, folder: Path) -> None:
        """Store each table as `write_rows` does, and ``FOLDER/meta.json``.

        `slices` and `cores` have a file only if they have rows.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, row_type in _ROWS.items():
            path, rows = folder / f"{name}.parquet", getattr(self, name)
            if rows or name not in _OPTIONAL:
                write_rows(path, row_type, rows)
            else:
                for stored in (path, path.with_suffix(_JSON)):  # of the run stored here before
                    stored.unlink(missing_ok=True)
        write_whole(folder / "meta.json", json.dumps(self.meta, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "RunRecords":
        """Read what `write` stored.

        Raises
        ------
        ValueError
            If a file is missing (one of `slices` or `cores` may be) or has other columns.
        """
        try:
            meta = json.loads((folder / "meta.json").read_text())
        except OSError as error:
            raise ValueError(
                f"{folder} holds no records: {error.strerror}: {folder / 'meta.json'}"
                f"{_records_below(folder)}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{folder / 'meta.json'} is not JSON: {error}") from None
        rows = {
            name: read_rows(folder / f"{name}.parquet", row_type)
            for name, row_type in _ROWS.items()
            if name not in _OPTIONAL or _is_stored(folder / f"{name}.parquet")
        }
        return cls(**rows, meta=meta)


def _records_below(folder: Path) -> str:
    """What somebody may have meant who named the folder of several runs."""
    found = sorted(str(path.parent) for path in folder.glob("*/*/meta.json"))
    found += sorted(str(path.parent) for path in folder.glob("*/meta.json"))
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"; below it are {', '.join(found[:_NAMED])}{more}"


def write_rows(path: Path, row_type: type[Any], rows: Iterable[Any]) -> None:
    """Write rows of one type as Parquet, a column per field.

    Without pyarrow as ``NAME.json`` beside it: columns, and a list of values for each row. What of
    the two was there before is gone.
    """
    as_json = path.with_suffix(_JSON)
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        content = {"columns": row_type._fields, "rows": list(rows)}
        write_whole(as_json, json.dumps(content, default=int))  # of NumPy
        path.unlink(missing_ok=True)
    else:
        with whole(path) as unfinished:
            pq.write_table(_to_arrow(row_type, rows), unfinished, compression="zstd")
        as_json.unlink(missing_ok=True)


def _to_arrow(row_type: type[Any], rows: Iterable[Any]) -> "pa.Table":
    import pyarrow as pa

    types = {
        int: pa.int64(),
        bool: pa.bool_(),
        str: pa.string(),
        list[int]: pa.list_(pa.int64()),
    }
    schema = pa.schema([(n, types[t]) for n, t in row_type.__annotations__.items()])
    columns: list[Any] = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _is_stored(path: Path) -> bool:
    return path.exists() or path.with_suffix(_JSON).exists()


def read_rows(path: Path, row_type: type[Any]) -> list[Any]:
    """Read rows of one type, as `write_rows` stored them.

    Raises
    ------
    ValueError
        If the file is missing or its columns are not the fields of the row. A field with a default
        may lack its column, as in files from before it existed.
    """
    found, rows = _read_json(path) if _is_json(path) else _read_parquet(path)
    expected = [f for f in row_type._fields if f in found or f not in row_type._field_defaults]
    if found != expected:
        raise ValueError(
            f"{path} has the columns {', '.join(found)}; expected {', '.join(row_type._fields)}"
        )
    if len(found) == len(row_type._fields):
        return [row_type(*row) for row in rows]
    return [row_type(**dict(zip(found, row, strict=True))) for row in rows]


def _is_json(path: Path) -> bool:
    return not path.exists() and path.with_suffix(_JSON).exists()


def _read_json(path: Path) -> tuple[list[str], Iterable[Any]]:
    """Columns and rows."""
    path = path.with_suffix(_JSON)
    try:
        content = json.loads(path.read_text())
        return list(content["columns"]), list(content["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _read_parquet(path: Path) -> tuple[list[str], Iterable[Any]]:
    """Columns and rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    return table.column_names, zip(*(c.to_pylist() for c in table.columns), strict=True)


def column(rows: Iterable[Any], name: str) -> NDArray[np.int64]:
    """One integer field of many rows as an array, shape ``(n_rows,)``."""
    return np.fromiter(map(attrgetter(name), rows), dtype=np.int64)
