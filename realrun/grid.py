"""Runs every cell of a grid on the machine, and holds the model against each.

Every tape is run twice: what two runs of the very same thing differ by is the noise that no model
can be better than (A/A). A sweep goes once through all cells in an order of its own, so that the
two runs of a tape are as far apart as any others, and a slow minute meets all cells alike. As a
machine drifts in minutes, each sweep may have a profile of its own, measured right before it.

The machine's runs are stored one by one, and a later call continues with what is missing. The model
is cheap and always runs anew: after a change of it, the same measurements judge it again.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from realrun.cells import Cell, Grid
from realrun.equivalence import Estimate, Verdict, aa_spread
from realrun.host import usable_cores
from realrun.run import make_spec, run_once
from realrun.spec import RunSpec
from realrun.validate import predict
from shmsim.metrics import summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords

#: Largest errors of a prediction that holds, fixed before the first run: a share of what was
#: measured (of TPOT, or the A/A spread if that is more), and for CPU a share of a core.
TPOT_MARGIN: Final = 0.03
ITL_MARGIN: Final = 0.10
CPU_MARGIN: Final = 0.03
#: Share of a run that a thread with a core of its own may wait for it: beyond, somebody else was
#: there for as long as the largest error allowed of its CPU.
DISTURBED: Final = CPU_MARGIN
_RUNS_PER_TAPE: Final = 2

#: Told how many runs are done, of how many, and what runs now.
Progress = Callable[[int, int, str], None]


class Figures(NamedTuple):
    """What is compared of one run.

    Parameters
    ----------
    tpot_p50_ns, itl_p99_ns
        Over the requests, and over all gaps between two tokens.
    cores
        CPU time over wall time of each process, by its name.
    queue_share
        Time that its processes were ready to run without a core, over the wall time; of the one
        with most. With a core for each process it says that somebody else was there.
    """

    tpot_p50_ns: float
    itl_p99_ns: float
    cores: dict[str, float]
    queue_share: float

    @classmethod
    def of(cls, records: RunRecords) -> "Figures":
        """Work them out."""
        summary = summarize(records)
        return cls(
            summary.tpot.p50,
            summary.itl.p99,
            {p.process: p.cpu_ns / p.wall_ns for p in records.processes},
            max(p.run_queue_ns / p.wall_ns for p in records.processes),
        )


class TapeRuns(NamedTuple):
    """One tape in both worlds: two runs of the machine, and the prediction of each."""

    model: tuple[Figures, Figures]
    machine: tuple[Figures, Figures]


class Finding(NamedTuple):
    """One quantity of one cell in both worlds.

    Parameters
    ----------
    quantity
        ``"tpot_p50"``, ``"itl_p99"`` or ``"cpu"``.
    process
        Whose CPU; empty for the others.
    predicted, measured
        Means over all runs: nanoseconds, or cores.
    error
        Of the prediction, tape by tape: a share of what was measured, or cores.
    margin
        The largest error allowed, in the same unit.
    spread
        A/A: root mean square difference of two runs, in the same unit.
    verdict
        What the interval of the error says about the margin.
    """

    quantity: str
    process: str
    predicted: float
    measured: float
    error: Estimate
    margin: float
    spread: float
    verdict: Verdict


class CellResult(NamedTuple):
    """What came out for one cell.

    Parameters
    ----------
    cell
        Which.
    oversubscribed
        Whether its processes outnumber the cores of the box.
    tapes
        Every run.
    findings
        TPOT, ITL and the CPU of each process, in this order.
    """

    cell: Cell
    oversubscribed: bool
    tapes: tuple[TapeRuns, ...]
    findings: tuple[Finding, ...]

    @property
    def has_a_core_each(self) -> bool:
        """Whether each thread has a core; async, a worker's two threads share one."""
        return not self.oversubscribed and self.cell.config.engine.scheduling == "sync"

    def worst(self, quantity: str) -> Finding:
        """The finding of a quantity that is furthest off, counted in margins."""
        return max(
            (f for f in self.findings if f.quantity == quantity),
            key=lambda f: (_SEVERITY[f.verdict], abs(f.error.value) / f.margin),
        )


_SEVERITY: Final = {Verdict.HOLDS: 0, Verdict.CANNOT_TELL: 1, Verdict.MISSES: 2}


def run_grid(
    grid: Grid,
    profile_before: Callable[[int], MachineProfile],
    folder: Path,
    progress: Progress | None = None,
) -> list[CellResult]:
    """Run what is missing on the machine, then the model on the same tapes, and compare.

    Parameters
    ----------
    grid
        What to run.
    profile_before
        On which costs a sweep, counted from 0, is predicted; asked right before it.
    folder
        Where the records are, ``FOLDER/CELL/TAPE-RUN``, and where new ones are stored. What the
        processes of a run said that failed is in ``FOLDER/logs``.
    progress
        Told about each run.

    Raises
    ------
    realrun.run.RunFailed
        If a run on the machine did not finish. What was finished before is kept.
    ValueError
        If the folder holds runs of something else.
    """
    report = progress or (lambda _done, _total, _label: None)
    n_real = len(grid.cells) * grid.repeats * _RUNS_PER_TAPE
    n_runs = n_real + len(grid.cells) * grid.repeats
    real: dict[tuple[str, int, int], Figures] = {}
    profiles: dict[tuple[int, int], MachineProfile] = {}
    for sweep, (tape, run, cells) in enumerate(sweeps(grid)):
        report(len(real), n_runs, f"profile for sweep {sweep + 1}")
        profile = profiles[tape, run] = profile_before(sweep)
        for cell in cells:
            report(len(real), n_runs, f"machine: {cell.name}, tape {tape + 1}, run {run + 1}")
            records = _stored_or_run(cell, tape, run, profile, folder)
            real[cell.name, tape, run] = Figures.of(records)
    results = []
    n_cores = len(usable_cores())
    for i, cell in enumerate(grid.cells):
        tapes = []
        for tape in range(grid.repeats):
            report(n_real + i * grid.repeats + tape, n_runs, f"model: {cell.name}")
            first, second = profiles[tape, 0], profiles[tape, 1]
            model = _predicted(cell, tape, first)
            again = model if second is first else _predicted(cell, tape, second)
            machine = real[cell.name, tape, 0], real[cell.name, tape, 1]
            tapes.append(TapeRuns((model, again), machine))
        results.append(judge(cell, tapes, oversubscribed=cell.is_oversubscribed(n_cores)))
    report(n_runs, n_runs, "done")
    return results


def _predicted(cell: Cell, tape: int, profile: MachineProfile) -> Figures:
    return Figures.of(predict(cell.config, cell.config.policies[0].policy, profile, tape))


def sweeps(grid: Grid) -> Iterator[tuple[int, int, list[Cell]]]:
    """Every run on the machine: the tape and run of each sweep, and its cells in shuffled order."""
    for sweep in range(grid.repeats * _RUNS_PER_TAPE):
        run, tape = divmod(sweep, grid.repeats)
        yield tape, run, random.Random(sweep).sample(grid.cells, len(grid.cells))


def judge(cell: Cell, tapes: Sequence[TapeRuns], *, oversubscribed: bool) -> CellResult:
    """Compare both worlds on every quantity of one cell."""
    tpots = [_pair(t.machine, lambda f: f.tpot_p50_ns) for t in tapes]
    itls = [_pair(t.machine, lambda f: f.itl_p99_ns) for t in tapes]
    tpot_margin = max(TPOT_MARGIN, aa_spread(tpots))
    model_tpots = [_mean(_pair(t.model, lambda f: f.tpot_p50_ns)) for t in tapes]
    model_itls = [_mean(_pair(t.model, lambda f: f.itl_p99_ns)) for t in tapes]
    findings = [
        _relative("tpot_p50", model_tpots, tpots, tpot_margin),
        _relative("itl_p99", model_itls, itls, ITL_MARGIN),
    ]
    for process in tapes[0].model[0].cores:
        cores = partial(_cores_of, process)
        model = [_mean(_pair(t.model, cores)) for t in tapes]
        pairs = [_pair(t.machine, cores) for t in tapes]
        measured = [_mean(pair) for pair in pairs]
        error = Estimate.of([m - found for m, found in zip(model, measured, strict=True)])
        # In cores here, because a share of a process that hardly runs says nothing.
        spread = (sum((a - b) ** 2 for a, b in pairs) / len(pairs)) ** 0.5
        findings.append(
            Finding(
                "cpu",
                process,
                sum(model) / len(model),
                sum(measured) / len(measured),
                error,
                CPU_MARGIN,
                spread,
                error.verdict(CPU_MARGIN),
            )
        )
    return CellResult(cell, oversubscribed, tuple(tapes), tuple(findings))


def _pair(runs: tuple[Figures, Figures], of: Callable[[Figures], float]) -> tuple[float, float]:
    return of(runs[0]), of(runs[1])


def _mean(pair: tuple[float, float]) -> float:
    return (pair[0] + pair[1]) / 2


def _cores_of(process: str, figures: Figures) -> float:
    return figures.cores[process]


def _relative(
    quantity: str, model: list[float], pairs: list[tuple[float, float]], margin: float
) -> Finding:
    measured = [_mean(pair) for pair in pairs]
    error = Estimate.of([m / found - 1 for m, found in zip(model, measured, strict=True)])
    return Finding(
        quantity,
        "",
        sum(model) / len(model),
        sum(measured) / len(measured),
        error,
        margin,
        aa_spread(pairs),
        error.verdict(margin),
    )


def _stored_or_run(
    cell: Cell, tape: int, run: int, profile: MachineProfile, folder: Path
) -> RunRecords:
    """The records of one run on the machine, which is run if it was not before."""
    spec = make_spec(cell.config, cell.config.policies[0].policy, profile, tape)
    place = folder / cell.name / f"{tape}-{'ab'[run]}"
    if place.is_dir():
        if RunSpec.read(place / "spec.json") != spec:
            raise ValueError(
                f"{place} holds another run than the one asked for: its cell, the profile or the "
                "cores of this box have changed since; store the new runs in another folder"
            )
        return RunRecords.read(place)
    records = run_once(spec, logs=folder / "logs")
    unfinished = place.with_name(f"{place.name}.unfinished-{os.getpid()}")
    try:
        records.write(unfinished)
        spec.write(unfinished / "spec.json")
        # At once, so that what an interruption leaves is never taken for a run.
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return records
