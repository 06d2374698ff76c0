"""How right the model is about this machine, and how fast it is.

Usage: python experiments/bench/model.py [--quick] [--json FILE] [--runs FOLDER]
           [--parts {grid,speed,memory,growth} ...]

Runs the cells of model_cells.toml on the machine and in the model, with a calibration before each
sweep through them, and times the model. With --runs profiles and runs are kept, and a second call
continues.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import simulated
from parts import Part, calibrated, end_as_ctrl_c_does, finish, measured, options, told

from realrun import grid_report
from realrun.calibrate import N_THOROUGH
from realrun.cells import read_grid
from realrun.grid import run_grid
from shmsim.claims import Claim
from shmsim.config import CoresConfig
from shmsim.console import Bar
from shmsim.profile import MachineProfile

CELLS: Final = Path(__file__).with_name("model_cells.toml")
PARTS: Final = ("grid", "speed", "memory", "growth")
STEPS_PER_S: Final = 8000
#: What the times of the tokens of two sequences take, which the caller gets and the model keeps
#: until the request is over: an int and a pointer each, and half as much again for slack. Anything
#: that the model forgets to forget, an event or an entry by step, is larger.
BYTES_PER_STEP: Final = 120
#: Each worker and each request is the same work again; what grows faster is the heap of events, by
#: its logarithm, and Python's collector of garbage.
EXPONENT: Final = 1.15


class Effort(NamedTuple):
    """How much is measured."""

    replicates: int  # of each calibration; there is one before each of two sweeps a tape
    cells: tuple[str, ...]
    tapes: int
    speed_runs: int
    memory_steps: tuple[int, int]  # beyond the numbers that a tape keeps of each stream
    workers: tuple[int, ...]
    steps: int
    requests: tuple[int, ...]


FULL: Final = Effort(
    replicates=N_THOROUGH // 6,
    cells=(),
    tapes=3,  # six runs of each cell on the machine; `realrun validate --grid` does ten
    speed_runs=3,
    memory_steps=(20_000, 100_000),
    workers=(1, 2, 4, 8, 16, 32, 64),
    steps=400,
    requests=(100, 1_000, 10_000, 100_000, 1_000_000),
)
QUICK: Final = Effort(
    replicates=1,
    cells=("tp1-sync-4ms-10pct-spin", "tp1-sync-3ms-5pct-park", "tp2-sync-4ms-1pct-spin"),
    tapes=2,
    speed_runs=2,
    memory_steps=(20_000, 30_000),
    workers=(1, 4, 16),
    steps=200,
    requests=(100, 1_000, 10_000),
)


def measure_grid(effort: Effort, _profile: MachineProfile, folder: Path) -> Part:
    """The cells in both worlds, each sweep predicted on the calibration before it."""
    grid = replace(read_grid(CELLS), repeats=effort.tapes)
    if effort.cells:
        grid = grid.only(list(effort.cells))
    profiles = []

    def profile_before(sweep: int) -> MachineProfile:
        profiles.append(calibrated(folder / _profile_name(sweep), effort.replicates))
        return profiles[-1]

    with Bar() as bar:
        results = run_grid(
            grid,
            profile_before,
            folder,
            lambda done, total, label: bar.show(f"{done}/{total} {label}", done / total),
        )
    grid_report.print_table(results)
    print(grid_report.summary(results))
    return grid_report.claims(results), grid_report.record(results, profiles)


def _profile_name(sweep: int) -> str:
    return f"profile-{sweep}.json"


def measure_speed(effort: Effort, profile: MachineProfile, _folder: Path) -> Part:
    """Steps per second and core: of the claimed run, and of what sets it apart."""
    config = simulated.shape()
    variants = {
        "as claimed": (config, "wake-ahead"),
        "spin": (config, "spin"),
        "park": (config, "park"),
        "async": (replace(config, engine=replace(config.engine, scheduling="async")), "wake-ahead"),
        "a core for each thread": (replace(config, cores=CoresConfig()), "wake-ahead"),
    }
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(effort.speed_runs):
        for name, (variant, policy) in variants.items():
            run = simulated.timed(variant, profile, policy)
            speeds[name].append(run.n_steps / run.cpu_s)
    for name, found in speeds.items():
        print(
            f"  {name:<24} {np.median(found):8.0f} steps/s ({min(found):.0f} to {max(found):.0f})"
        )
    claimed = speeds["as claimed"]
    claim = Claim(
        "model/steps_per_s/simpy",
        float(np.median(claimed)),
        *(min(claimed), max(claimed), "1/s", STEPS_PER_S, ">=", len(claimed), config.seed),
    )
    return [claim], speeds


def measure_memory(effort: Effort, _profile: MachineProfile, folder: Path) -> Part:
    """What a longer run takes more, with the rows that the caller gets and without."""
    grown = {}
    for rows in ("drop", "keep"):
        few, many = (_peak(folder / _profile_name(0), n, rows) for n in effort.memory_steps)
        steps = many["n_steps"] - few["n_steps"]
        grown[rows] = (many["peak_bytes"] - few["peak_bytes"]) / steps
        print(f"  rows: {rows:<5} {grown[rows]:7.0f} bytes more for each step")
    claim = Claim(
        "model/bytes_per_step_without_rows",
        grown["drop"],
        *(grown["drop"], grown["drop"], "bytes", BYTES_PER_STEP, "<=", 1, simulated.shape().seed),
    )
    return [claim], grown


def _peak(profile: Path, n_steps: int, rows: str) -> dict[str, int]:
    script = str(Path(simulated.__file__))
    command = [sys.executable, script, str(profile), str(n_steps), rows]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def measure_growth(effort: Effort, profile: MachineProfile, _folder: Path) -> Part:
    """How the time grows with workers, and with requests."""
    found, table = [], {}
    by_workers = {n: simulated.with_workers(n, effort.steps) for n in effort.workers}
    by_requests = {n: simulated.with_requests(n) for n in effort.requests}
    for name, configs in (("workers", by_workers), ("requests", by_requests)):
        runs = {n: simulated.timed(config, profile) for n, config in configs.items()}
        for n, run in runs.items():
            print(
                f"  {n:>8} {name}: {run.cpu_s:8.2f} s, {1e6 * run.cpu_s / run.n_steps:8.1f} us a "
                f"step, {1e6 * run.cpu_s / run.n_requests:8.1f} us a request"
            )
        # The smallest ones are mostly what a run of any size costs.
        largest = list(runs.items())[-3:]
        power = simulated.exponent([n for n, _ in largest], [run.cpu_s for _, run in largest])
        print(f"  the time grows with {name} to the power of {power:.2f}")
        table[name] = {n: run._asdict() for n, run in runs.items()}
        seed = simulated.shape().seed
        found.append(
            Claim(
                f"model/growth_exponent/{name}",
                *(power, power, power, "power", EXPONENT, "<=", len(largest), seed),
            )
        )
    return found, table


def main() -> None:
    """Measure, tell, store."""
    assert __doc__ is not None, "it says what this is"
    parser = options(__doc__, "three cells, small runs: 2 minutes", PARTS)
    parser.add_argument("--runs", type=Path, help="where profile and runs are kept")
    arguments = parser.parse_args()
    end_as_ctrl_c_does()
    effort = QUICK if arguments.quick else FULL
    measure = {
        "grid": measure_grid,
        "speed": measure_speed,
        "memory": measure_memory,
        "growth": measure_growth,
    }
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.runs or Path(name)
        profile = calibrated(folder / _profile_name(0), effort.replicates)
        found, records = measured(
            arguments.parts, lambda part: measure[part](effort, profile, folder)
        )
    for claim in found:
        print(told(claim))
    finish(started_s, arguments.json, found, records)


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, ValueError) as error:  # such as a box too busy to calibrate
        sys.exit(f"failed: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
