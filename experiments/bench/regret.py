"""What the tuner's choice costs more than the best candidate in hindsight, on tapes held out."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np

from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.profile import MachineProfile
from shmsim.sim.tune import QUICK, judged_by_tape, tune
from shmsim.sim.tune_runs import HELD_OUT, Bench, Candidate, Runs
from shmsim.stats import mean_of_replications
from shmsim.stats.estimate import Estimate, Float64Array
from shmsim.tuner import Goal, coarse, neighbours, parse_goal
from shmsim.units import MS

_RIVALS: Final = 6  # of the library, by their first tapes, and as many of the tuner's search
_SCREENED: Final = 2  # tapes
_FACTOR: Final = 1.4  # by which parameters of the choice are changed
_OTHER_TAPES: Final = (
    77  # added to the seed: the tuner's own tapes held out had a say in its choice
)

_OPEN: Final = WorkloadConfig(kind="open", requests=12, rate_per_s=4.0, max_output_tokens=100)

#: Closed decode, arrivals with idle periods, longer steps with more jitter, two batches in flight.
WORKLOADS: Final = {
    "closed": RunConfig(),
    "open": replace(RunConfig(), workload=_OPEN),
    "long": replace(RunConfig(), device=DeviceConfig(step_ns=10 * MS, jitter=0.1)),
    "async": replace(RunConfig(), engine=EngineConfig(scheduling="async")),
}


class Regret(NamedTuple):
    """Of one workload.

    Parameters
    ----------
    chosen, rivals
        The tuner's choice, and what hindsight chose among.
    estimate
        Price of the choice less that of the best rival of each tape, in cores.
    share
        The same over the mean price of the best.
    """

    chosen: str
    rivals: tuple[str, ...]
    estimate: Estimate
    share: float


def regret_of(config: RunConfig, profile: MachineProfile, price: float, n_tapes: int) -> Regret:
    """Tune, then run the choice and its rivals on tapes that the tuning never saw."""
    goal = parse_goal(f"price {price:g}")
    with TemporaryDirectory() as name:
        tuned = tune(config, profile, goal, Path(name), budget=QUICK)
        other = replace(tuned.config, seed=config.seed + _OTHER_TAPES)
        bench = Bench(other, profile, Path(name), 0, lambda _label, _share: None)
        default, chosen = tuned.finalists[0].candidate, tuned.chosen
        library = [bench.candidate(policy) for policy in coarse()]
        first = bench.run(_distinct([default, *library]), HELD_OUT, _SCREENED, "library")
        priced = {name: _costs(goal, first, name, default).mean() for name in first}
        best = sorted(library, key=lambda candidate: priced[candidate.name])
        rivals = _distinct(
            [
                default,
                chosen,
                *best[:_RIVALS],
                *(searched.candidate for searched in tuned.searched[:_RIVALS]),
                *(bench.candidate(policy) for policy in neighbours(chosen.policy, _FACTOR)),
            ]
        )
        runs = bench.run(rivals, HELD_OUT, n_tapes, "regret")
    costs = {name: _costs(goal, runs, name, default) for name in runs}
    least = np.min(list(costs.values()), axis=0)
    estimate = mean_of_replications(costs[chosen.name] - least, seed=config.seed)
    return Regret(
        chosen.name,
        tuple(rival.name for rival in rivals),
        estimate,
        estimate.value / float(least.mean()),
    )


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    return list({candidate.name: candidate for candidate in candidates}.values())


def _costs(goal: Goal, runs: dict[str, Runs], name: str, default: Candidate) -> Float64Array:
    """Price of a candidate on each tape."""
    return judged_by_tape(goal, runs[name], runs[default.name])[0]
