"""One command for a machine with a GPU: calibration, the loop by every policy that matters, tests.

Cells come in the order of what they answer, and run until the time is over; what was left out is
said. Nothing here loads torch: whatever needs a GPU is a process of its own, so that this one has
no context on it.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.calibrate import calibrate
from realrun.calibrate_gpu import measure_gpu, with_gpu
from realrun.gpu_check.asked import (
    MODEL,
    READERS,
    Cell,
    Figures,
    Row,
    cells,
    config_of,
    name_of,
    row_of,
)
from realrun.gpu_check.predictions import predict_cell
from realrun.host import CannotKeepAwake, energy_uj, kept_awake, usable_cores
from realrun.run import OutOfTime, make_spec, run_once
from shmsim.config import DeviceConfig, parse_policy
from shmsim.profile import MachineProfile
from shmsim.whole import write_whole

#: How long the whole may take.
LIMIT_S: Final = 480.0
#: Those of the tests that need a GPU which are marked ``quick``.
TESTS: Final = "quick tests"
_GPU_LIMIT_S: Final = 100.0  # for its calibration
_TESTS_LIMIT_S: Final = 75.0
_ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = _ROOT / "tests" / "gpu"
#: What the tests are run by.
_TESTED_BY: Final = ("pytest", "pytest_timeout", "hypothesis")

#: Told what is being done, and the share of the time that is over.
Progress = Callable[[str, float], None]


class Spent(NamedTuple):
    """Seconds that a part of the check had, and took."""

    part: str
    limit_s: float
    took_s: float


class Ran(NamedTuple):
    """What came of cells.

    Parameters
    ----------
    rows, predicted
        What was measured, and what the model had expected.
    not_run
        Cells that there was no time for.
    failures
        What went wrong.
    left_out
        What was not done or not finished, and why; no failures.
    """

    rows: list[Row]
    predicted: dict[Cell, Figures]
    not_run: list[Cell]
    failures: list[str]
    left_out: list[str]


class Found(NamedTuple):
    """All that a check found out.

    Parameters
    ----------
    tests
        Exit code of the quick tests that need a GPU; -1 if they were left out, or did not end.
    gpu
        Facts of its calibration, by part (`realrun.calibrate_gpu.with_gpu`).
    rows, predicted, not_run, failures, left_out
        See `Ran`.
    spent
        Time by part.
    """

    tests: int
    gpu: dict[str, Any]
    rows: list[Row]
    predicted: dict[Cell, Figures]
    not_run: list[Cell]
    failures: list[str]
    left_out: list[str]
    spent: tuple[Spent, ...] = ()


class Clock:
    """Shares out the time of a check, and notes what each part took.

    Parameters
    ----------
    limit_s
        For all.
    reserved_s
        Kept for the last part.
    now_s
        The clock.
    """

    def __init__(
        self, limit_s: float, reserved_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin now."""
        self._now_s = now_s
        self._limit_s = limit_s
        self._reserved_s = reserved_s
        self._began_s = self._begun_s = now_s()
        self.spent: list[Spent] = []

    @property
    def share(self) -> float:
        """Of the whole time that is over."""
        return min((self._now_s() - self._began_s) / self._limit_s, 1.0)

    @property
    def before_last_s(self) -> float:
        """Seconds left without what is kept for the last part; 0 if it has begun on that."""
        return max(self.left_s - self._reserved_s, 0.0)

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return max(self._limit_s - (self._now_s() - self._began_s), 0.0)

    def note(self, part: str, limit_s: float) -> None:
        """A part is over that was given so long."""
        now_s = self._now_s()
        self.spent.append(Spent(part, round(limit_s, 1), round(now_s - self._begun_s, 1)))
        self._begun_s = now_s


def run_cells(
    wanted: Sequence[Cell],
    device: DeviceConfig,
    profile: MachineProfile,
    path: Path,
    deadline_s: float,
    progress: Callable[[str], None],
    logs: Path,
) -> Ran:
    """Predict and run cells until an instant of the monotonic clock.

    Parameters
    ----------
    profile, path
        By which policies and the model know this box, and where it is stored.
    logs
        Folder for what the processes of cells that failed have said.
    """
    ran = Ran([], {}, [], [], [])
    longest_s = 0.0
    has_model = True
    for index, cell in enumerate(wanted):
        begun_s = time.monotonic()
        if begun_s + longest_s > deadline_s:
            ran.not_run.extend(wanted[index:])
            ran.left_out.append(f"{len(wanted) - index} cells, which there was no time for")
            return ran
        progress(f"{index + 1}/{len(wanted)} {name_of(cell)}")
        policy = parse_policy(cell.policy).policy
        # What was calibrated is the eager step without bulk, on CPUs that may sleep.
        is_known = not cell.awake and not cell.bulk and cell.kernels == "eager"
        if has_model and is_known and not cell.repeat:
            try:  # before the run: it is a prediction
                ran.predicted[cell] = predict_cell(cell, device, profile, path)
            except ModuleNotFoundError as error:
                has_model = False
                ran.left_out.append(f"predictions, since {error.name} is not installed")
            except ValueError as error:
                ran.failures.append(f"model, {name_of(cell)}: {error}")
        spec = make_spec(config_of(cell, device), policy, profile, 0)
        left_s = deadline_s - time.monotonic()
        before_uj, started_s = energy_uj(), time.monotonic()
        try:
            with ExitStack() as stack:
                if cell.awake:
                    stack.enter_context(kept_awake())
                records = run_once(spec, logs=logs / str(index + 1), limit_s=left_s)
        except CannotKeepAwake as error:
            ran.left_out.append(f"{name_of(cell)}: {error}")
            ran.not_run.append(cell)
        except OutOfTime as error:  # a hang, or a cell that is longer than those before
            ran.left_out.append(f"{name_of(cell)}: {error}")
            ran.not_run.append(cell)
        except RuntimeError as error:
            ran.failures.append(f"{name_of(cell)}: {error}")
        else:
            watts = watts_of(before_uj, energy_uj(), time.monotonic() - started_s)
            ran.rows.append(row_of(cell, records, watts))
        if cell.kernels == "eager":  # others are compiled first, and say nothing of what follows
            longest_s = max(longest_s, time.monotonic() - begun_s)
    return ran


def watts_of(before_uj: dict[str, int], after_uj: dict[str, int], seconds: float) -> float | None:
    """Power of the CPUs between two looks at what they have taken; None if nobody says.

    A counter that began anew between the two says nothing either.
    """
    taken = [after_uj[name] - uj for name, uj in before_uj.items() if name in after_uj]
    if not taken or min(taken) < 0:
        return None
    return sum(taken) / 1e6 / seconds


def check(folder: Path, progress: Progress) -> Found:
    """Calibrate, run the loop and the tests, within `LIMIT_S`; the profile is left in a folder.

    Raises
    ------
    RuntimeError
        If there is no GPU that works; says why.
    """
    no_tests = _why_no_tests()
    clock = Clock(LIMIT_S, 0.0 if no_tests else _TESTS_LIMIT_S)

    def say(label: str, _: float = 0.0) -> None:
        progress(label, clock.share)

    # First the GPU: without one there is nothing to check.
    reported = measure_gpu(0, say, _GPU_LIMIT_S, folder / "gpu.log")
    clock.note("calibration of the GPU", _GPU_LIMIT_S)
    box = calibrate(say, "futex", 1)
    profile = with_gpu(box, reported)
    path = folder / "profile.json"
    profile.write(path)
    clock.note("calibration of the box", clock.before_last_s)
    device = DeviceConfig(kind="cuda", model=MODEL)
    limit_s = clock.before_last_s
    deadline_s = time.monotonic() + limit_s
    n_cores = len(usable_cores())
    ran = run_cells(cells(n_cores), device, profile, path, deadline_s, say, folder / "logs")
    clock.note("cells", limit_s)
    left_out = list(ran.left_out)
    if n_cores <= READERS:
        left_out.append(f"{READERS} readers: they want {READERS + 1} cores, and have {n_cores}")
    # Tests last, and few of them: most of what the others ask, the cells have asked.
    tests, failures = -1, list(ran.failures)
    if not no_tests:
        say(TESTS)
        limit_s = clock.left_s
        tests, said = run_tests(_pytest("gpu and quick"), limit_s, folder / "tests.log")
        if tests > 0:
            failures.append(f"{TESTS}: {said}")
        no_tests = said if tests < 0 else ""
        clock.note(TESTS, limit_s)
    if no_tests:
        left_out.append(f"{TESTS}: {no_tests}")
    if _TESTS.is_dir():
        others = shlex.join(_pytest("gpu and not quick" if tests >= 0 else "gpu"))
        left_out.append(f"the tests that take minutes; run them in {_ROOT} by: {others}")
    return Found(
        *(tests, profile.machine["gpu"], ran.rows, ran.predicted, ran.not_run, failures, left_out),
        tuple(clock.spent),
    )


def _why_no_tests() -> str:
    """What the tests lack; empty if they can be run."""
    if not _TESTS.is_dir():
        return f"there is no {_TESTS}"
    for name in _TESTED_BY:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed"
    return ""


def _pytest(marked: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-m", marked, str(_TESTS)]


def run_tests(command: list[str], limit_s: float, log: Path) -> tuple[int, str]:
    """Run tests, and keep all that they say.

    Parameters
    ----------
    command
        Runs them.
    limit_s
        After which they are ended.
    log
        File for what they say.

    Returns
    -------
    tuple
        Exit code, and what there is to say about it; -1 if they did not end in time.
    """
    with log.open("w+", encoding="utf-8", errors="replace") as said:
        try:
            done = subprocess.run(
                command,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
                cwd=_ROOT,
            )
        except subprocess.TimeoutExpired:
            return -1, f"not finished in {limit_s:.0f} s; what they said until then is in {log}"
        said.seek(0)
        words = said.read().strip().splitlines()
    return done.returncode, f"{words[-1] if words else 'no output'}; all of it is in {log}"


def write_found(path: Path, found: Found) -> None:
    """Store everything as JSON."""
    rows = []
    for row in found.rows:
        figures = found.predicted.get(row.cell._replace(repeat=0))
        predicted = figures._asdict() if figures is not None else None
        plain = dict(zip(row._fields[1:], row[1:], strict=True))
        rows.append({**row.cell._asdict(), **plain, "predicted": predicted})
    content = {
        "gpu": found.gpu,
        "tests": found.tests,
        "rows": rows,
        "not_run": [name_of(cell) for cell in found.not_run],
        "failures": found.failures,
        "left_out": found.left_out,
        "spent": [spent._asdict() for spent in found.spent],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")
