"""The rows both worlds write, and their files.

Model and machine fill the same rows, so that whatever reads records (metrics, plots, notebooks)
cannot tell, and need not know, which world they come from. Instants are nanoseconds from the start
of the run. Files are Parquet and JSON; nothing here is pickle.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray


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
        ``"scheduler"`` or ``"worker0"`` and so on.
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


_ROWS: Final[dict[str, type[Any]]] = {
    "steps": StepRow,
    "waits": WaitRow,
    "requests": RequestRow,
    "processes": ProcessRow,
}
_ARROW_TYPES: Final = {
    int: pa.int64(),
    bool: pa.bool_(),
    str: pa.string(),
    list[int]: pa.list_(pa.int64()),
}


@dataclass
class RunRecords:
    """All rows of one run.

    Parameters
    ----------
    steps, waits, requests, processes
        The rows.
    meta
        What was run: world (``"model"`` or ``"machine"``), policy, seed, replication, and so on.
    """

    steps: list[StepRow] = field(default_factory=list)
    waits: list[WaitRow] = field(default_factory=list)
    requests: list[RequestRow] = field(default_factory=list)
    processes: list[ProcessRow] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Store as ``FOLDER/{steps,waits,requests,processes}.parquet`` and ``meta.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, row_type in _ROWS.items():
            write_rows(folder / f"{name}.parquet", row_type, getattr(self, name))
        (folder / "meta.json").write_text(json.dumps(self.meta, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "RunRecords":
        """Read what `write` stored.

        Raises
        ------
        ValueError
            If a file is missing or has other columns.
        """
        try:
            meta = json.loads((folder / "meta.json").read_text())
        except OSError as error:
            raise ValueError(f"{folder} holds no records: {error}") from None
        rows = {
            name: read_rows(folder / f"{name}.parquet", row_type)
            for name, row_type in _ROWS.items()
        }
        return cls(**rows, meta=meta)


def write_rows(path: Path, row_type: type[Any], rows: Iterable[Any]) -> None:
    """Write rows of one type as Parquet, a column per field."""
    schema = pa.schema([(n, _ARROW_TYPES[t]) for n, t in row_type.__annotations__.items()])
    columns: list[Any] = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    pq.write_table(pa.table(arrays, schema=schema), path, compression="zstd")


def read_rows(path: Path, row_type: type[Any]) -> list[Any]:
    """Read rows of one type.

    Raises
    ------
    ValueError
        If the file is missing or its columns are not the fields of the row.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if tuple(table.column_names) != row_type._fields:
        raise ValueError(
            f"{path} has the columns {', '.join(table.column_names)};"
            f" expected {', '.join(row_type._fields)}"
        )
    return [row_type(*row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def column(rows: Iterable[Any], name: str) -> NDArray[np.int64]:
    """One integer field of many rows as an array, shape ``(n_rows,)``."""
    return np.array([getattr(row, name) for row in rows], dtype=np.int64)
