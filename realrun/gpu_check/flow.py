"""One command for a machine with a GPU: calibration, the loop by every policy that matters, tests.

Cells come in the order of what they answer, and run until the time is over; what was left out is
said. Nothing here loads torch: whatever needs a GPU is a process of its own, so that this one has
no context on it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.calibrate import calibrate
from realrun.calibrate_gpu import measure_gpu, with_gpu
from realrun.gpu_check.asked import MODEL, Cell, Figures, Row, cells, config_of, name_of, row_of
from realrun.gpu_check.predictions import predict_cell
from realrun.run import make_spec, run_once
from shmsim.config import DeviceConfig, parse_policy
from shmsim.profile import MachineProfile

#: How long the whole may take.
LIMIT_S: Final = 480.0
#: The part that is left out where the tests, or pytest, are not.
TESTS: Final = "tests"
_GPU_LIMIT_S: Final = 100.0  # for its calibration
_TESTS_LIMIT_S: Final = 180.0
_TESTS: Final = Path(__file__).parents[2] / "tests" / "gpu"

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
    """

    rows: list[Row]
    predicted: dict[Cell, Figures]
    not_run: list[Cell]
    failures: list[str]


class Found(NamedTuple):
    """All that a check found out.

    Parameters
    ----------
    tests
        Exit code of the tests that need a GPU; -1 if there are none here, or they did not end.
    gpu
        Facts of its calibration, by part (`realrun.calibrate_gpu.with_gpu`).
    rows, predicted, not_run, failures
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
) -> Ran:
    """Predict and run cells until an instant of the monotonic clock.

    Parameters
    ----------
    profile, path
        By which policies and the model know this box, and where it is stored.
    """
    ran = Ran([], {}, [], [])
    longest_s = 0.0
    for index, cell in enumerate(wanted):
        begun_s = time.monotonic()
        if begun_s + longest_s > deadline_s:
            return ran._replace(not_run=list(wanted[index:]))
        progress(f"{index + 1}/{len(wanted)} {name_of(cell)}")
        policy = parse_policy(cell.policy).policy
        if not cell.repeat:
            try:  # before the run: it is a prediction
                ran.predicted[cell] = predict_cell(cell, device, profile, path)
            except ValueError as error:
                ran.failures.append(f"model, {name_of(cell)}: {error}")
        try:
            records = run_once(make_spec(config_of(cell, device), policy, profile, 0))
        except RuntimeError as error:
            ran.failures.append(f"{name_of(cell)}: {error}")
        else:
            ran.rows.append(row_of(cell, records))
        longest_s = max(longest_s, time.monotonic() - begun_s)
    return ran


def check(folder: Path, progress: Progress) -> Found:
    """Calibrate, run the loop and the tests, within `LIMIT_S`; the profile is left in a folder.

    Raises
    ------
    RuntimeError
        If there is no GPU that works; says why.
    """
    has_tests = _TESTS.is_dir() and find_spec("pytest") is not None
    clock = Clock(LIMIT_S, _TESTS_LIMIT_S if has_tests else 0.0)
    # First the GPU: without one there is nothing to check.
    reported = measure_gpu(0, lambda label, _: progress(label, clock.share), _GPU_LIMIT_S)
    clock.note("calibration of the GPU", _GPU_LIMIT_S)
    box = calibrate(lambda label, _: progress(label, clock.share), "futex", 1)
    profile = with_gpu(box, reported)
    path = folder / "profile.json"
    profile.write(path)
    clock.note("calibration of the box", clock.before_last_s)
    device = DeviceConfig(kind="cuda", model=MODEL)
    limit_s = clock.before_last_s
    deadline_s = time.monotonic() + limit_s
    ran = run_cells(
        cells(), device, profile, path, deadline_s, lambda label: progress(label, clock.share)
    )
    clock.note("cells", limit_s)
    # Tests last: what they leave no time for, 'pytest -m gpu' runs by itself.
    tests, failures = -1, list(ran.failures)
    if has_tests:
        progress("tests that need a GPU", clock.share)
        limit_s = max(clock.left_s, 10.0)
        done = _run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(_TESTS)], limit_s)
        tests = done.returncode
        if tests:
            said = done.stdout.strip() or done.stderr.strip() or "no output"
            failures.append("tests: " + said.splitlines()[-1])
        clock.note(TESTS, limit_s)
    return Found(
        tests,
        profile.machine["gpu"],
        ran.rows,
        ran.predicted,
        ran.not_run,
        failures,
        tuple(clock.spent),
    )


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
        "spent": [spent._asdict() for spent in found.spent],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _run(command: list[str], limit_s: float) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        what = " ".join(command[1:4])
        return subprocess.CompletedProcess(command, -1, "", f"{what}: no end after {limit_s:.0f} s")
