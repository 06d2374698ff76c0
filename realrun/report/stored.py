"""What a folder of results holds, checked as it is read: it may be from anybody.

Nothing in it is run: JSON and Parquet are read, and of a policy's class only one of this project's.
"""

import json
import math
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.equivalence import Verdict
from realrun.validate import FIGURES, Comparison
from shmsim.plots import Judged
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords, role
from shmsim.wait import WaitPolicy

VALIDATION, GRID, META = "validation.json", "grid.json", "meta.json"

_OURS: Final = re.compile(r"shmsim\.(policies(\.[a-z]+)*|wait)")
_LARGEST_BYTES: Final = 64 << 20  # of a JSON file; those of a day of runs have a few hundred KB


class StoredRun(NamedTuple):
    """The records of one run, and its name."""

    name: str
    records: RunRecords


class StoredValidation(NamedTuple):
    """A validation: one config, several policies, both worlds.

    Parameters
    ----------
    folder
        Where it is.
    content
        What ``validation.json`` says of machine, config and dates.
    table
        By policy and figure.
    """

    folder: Path
    content: dict[str, Any]
    table: dict[str, dict[str, Comparison]]

    @property
    def n_workers(self) -> int:
        """Workers of the engine."""
        return int(self.content["config"]["engine"]["workers"])

    @property
    def n_repeats(self) -> int:
        """How often each policy was run in each world."""
        return int(self.content["config"]["repeats"])

    def cores(self, policy: str, world: str) -> float:
        """CPU of scheduler and workers together; world is ``"simulated"`` or ``"measured"``."""
        scheduler, worker = (self.table[policy][f"{p}_cores"] for p in ("scheduler", "worker"))
        total: float = getattr(scheduler, world) + self.n_workers * getattr(worker, world)
        return total

    def runs(self, world: str) -> list[Path]:
        """Folders of the runs of one world: ``"model"`` or ``"machine"``."""
        return sorted(p for p in (self.folder / "records").glob(f"*-{world}") if p.is_dir())

    def folders_of(self, policy: str) -> list[Path]:
        """Folders of the runs of a policy on the machine, repeat by repeat.

        Repeats that an earlier validation left in the same folder, beyond those of this one, are
        no part of it.
        """
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in policy)
        ours = re.compile(rf"{re.escape(name)}-(\d+)-machine")
        found = {int(m[1]): p for p in self.runs("machine") if (m := ours.fullmatch(p.name))}
        return [found[repeat] for repeat in sorted(found) if repeat < self.n_repeats]

    def run_of(self, policy: str) -> StoredRun | None:
        """The first run of a policy on the machine; None if its records are not there."""
        folders = self.folders_of(policy)
        return StoredRun(policy, read_records(folders[0])) if folders else None


class StoredGrid(NamedTuple):
    """Many cells, each with findings: by quantity and process, as ``grid.json`` has them.

    ``profiles`` says when each was measured, and how often each cost.
    """

    folder: Path
    content: dict[str, Any]
    findings: dict[str, list[Judged]]
    profiles: str


def read_validation(folder: Path) -> StoredValidation:
    """Read what `realrun.validate.Validation.write` stored.

    Raises
    ------
    ValueError
        If it is missing or damaged.
    """
    path = folder / VALIDATION
    content = _read_json(path)
    try:
        table = {
            str(policy): {name: _comparison(figures[name]) for name in FIGURES}
            for policy, figures in content["table"].items()
        }
        stored = StoredValidation(folder, content, table)
        if stored.n_repeats < 1 or stored.n_workers < 1:
            raise ValueError("it has no repeat or no worker")
        _check_machine(content)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no validation of this program: {error!r}") from None
    if not table:
        raise ValueError(f"{path} holds no policy that was run in both worlds; run it again")
    return stored


def read_grid_results(folder: Path) -> StoredGrid:
    """Read what `realrun.grid_report.write_record` stored.

    Raises
    ------
    ValueError
        If it is missing or damaged.
    """
    path = folder / GRID
    content = _read_json(path)
    findings: dict[str, list[Judged]] = {}
    try:
        for cell in content["cells"]:
            for found in cell["findings"]:
                error = found["error"]
                name = str(cell["name"]) + (f", {found['process']}" if found["process"] else "")
                value, low, high = (_number(error[end]) for end in ("value", "low", "high"))
                verdict, margin = Verdict(found["verdict"]), _number(found["margin"])
                findings.setdefault(str(found["quantity"]), []).append(
                    Judged(name, value, low, high, margin, str(verdict))
                )
        profiles = ", ".join(
            f"{p['measured_at']} ({p['replicates']} replicates of each cost)"
            for p in content["profiles"]
        )
        _check_machine(content)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no result of a grid of this version: {error!r}; run "
            "'realrun validate --grid' again with the same folder, which keeps its runs"
        ) from None
    if not findings:
        raise ValueError(f"{path} holds no finding; run 'realrun validate --grid' again")
    return StoredGrid(folder, content, findings, profiles)


def read_records(folder: Path) -> RunRecords:
    """Read the records of one run, and that they are those of a run.

    Raises
    ------
    ValueError
        If a file is missing or damaged, or there is no scheduler, worker, or finished request.
    """
    meta = _read_json(folder / META)
    records = RunRecords.read(folder)
    records.meta = meta
    roles = {role(row.process) for row in records.processes}
    if not {"scheduler", "worker0"} <= roles or not records.requests:
        raise ValueError(f"{folder} holds no scheduler, no worker or no finished request")
    return records


def profile_of(folder: Path) -> MachineProfile | None:
    """The profile beside a result; None if there is none."""
    path = folder / "profile.json"
    return MachineProfile.read(path) if path.exists() else None


def policy_of(content: Any) -> WaitPolicy | None:
    """The policy that a record names; None unless its class is one of this project's.

    `realrun.spec.policy_from_json` imports whatever module a file names; a report is made of files
    from anybody.
    """
    found = _value_of(content)
    policy: WaitPolicy | None = (
        found if hasattr(found, "plan") and hasattr(found, "after") else None
    )
    return policy


def _value_of(content: Any) -> Any:
    try:
        if _OURS.fullmatch(content["module"]) is None:
            return None
        kind = getattr(import_module(content["module"]), content["name"])
        if not (isinstance(kind, type) and hasattr(kind, "_fields")):
            return None
        return kind(**{name: _field(value) for name, value in content["fields"].items()})
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return None


def _field(value: Any) -> Any:
    if isinstance(value, dict):
        inner = _value_of(value)
        if inner is None:
            raise ValueError(f"{value.get('name')!r} is no value of this project")
        return inner
    return tuple(map(_field, value)) if isinstance(value, list) else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(
                f"{path} has {path.stat().st_size >> 20} MiB; results of this program have at most "
                f"{_LARGEST_BYTES >> 20}"
            )
        content = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no result of this program: it holds no table")
    return content


def _comparison(figures: dict[str, Any]) -> Comparison:
    return Comparison(*(_number(figures[n], or_nan=True) for n in Comparison.__annotations__))


def _number(value: Any, *, or_nan: bool = False) -> float:
    number = float(value)
    if not math.isfinite(number) and not (or_nan and math.isnan(number)):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _check_machine(content: dict[str, Any]) -> None:
    if not isinstance(content["machine"], dict):
        raise TypeError("machine is no table")
