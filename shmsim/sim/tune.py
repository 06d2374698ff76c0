"""Chooses a policy in the model: search, selection, a check on tapes it was never chosen on.

What tapes are for what matters: a policy is searched on some, chosen on others, and its figures
are those of a third kind, so that no luck it was chosen for is in them.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np

from shmsim.config import NamedPolicy, PayloadConfig, RunConfig
from shmsim.profile import MachineProfile
from shmsim.run_costs import costs_of_run
from shmsim.sim.cluster import Cluster
from shmsim.sim.tune_geometry import geometries
from shmsim.sim.tune_profiles import WAITING, at_ends, n_exact, redrawn
from shmsim.sim.tune_runs import (
    HELD_OUT,
    SEARCH,
    SELECT,
    Bench,
    Candidate,
    Progress,
    Runs,
    at,
    shortened,
)
from shmsim.stats.compare import paired_difference
from shmsim.stats.estimate import Estimate, Float64Array, mean_of_replications
from shmsim.stats.multiplicity import Comparison, against_reference
from shmsim.stats.selection import Choice, Sample, select
from shmsim.tape import Tape
from shmsim.tuner import Goal, Judged, coarse, distinct, neighbours

_OF_A_KIND: Final = 2  # finalists of one policy class, at most


class Budget(NamedTuple):
    """How much is run.

    Parameters
    ----------
    few
        Whether to start from a short list of policies, and move no cost by itself in the end.
    refined
        Candidates whose parameters are changed in each round.
    steps
        Of one run, about, at most: fewer requests are served if the config has more.
    search_tapes
        On which everything is tried.
    factors
        By which parameters of the best are changed, round by round.
    finalists
        Candidates that are chosen among, beside the default.
    probability
        Of choosing right among them.
    least, most
        Tapes of the selection before its first look, and at which it gives up.
    held_out
        Tapes of the final figures.
    profiles
        Bootstrapped profiles that the choice is tried on.
    """

    few: bool
    refined: int
    steps: int
    search_tapes: int
    factors: tuple[float, ...]
    finalists: int
    probability: float
    least: int
    most: int
    held_out: int
    profiles: int


FULL: Final = Budget(False, 2, 3000, 2, (2.0, 1.4), 5, 0.95, 10, 40, 20, 10)
QUICK: Final = Budget(True, 1, 700, 1, (1.4,), 2, 0.9, 4, 6, 4, 2)


class Searched(NamedTuple):
    """A candidate of the search, with the means of its figures over the tapes of the search."""

    candidate: Candidate
    figures: dict[str, float]
    judged: Judged


class Finalist(NamedTuple):
    """A candidate on tapes it was not chosen on.

    Parameters
    ----------
    candidate
        Which.
    figures
        By name, means over runs with intervals.
    more
        By name, how much more than the default's on the same tapes.
    objective
        Its difference to the default, paired; None for the default.
    excess
        How much above each limit; empty for the default. With `objective`, all hold jointly.
    alike
        Names of the other candidates that did just the same: whose figures were equal on every tape
        of the search. It stands for them.
    """

    candidate: Candidate
    figures: dict[str, Estimate]
    more: dict[str, Estimate]
    objective: Comparison | None
    excess: tuple[Comparison, ...]
    alike: tuple[str, ...]


class Sensitivity(NamedTuple):
    """Whether another calibration would have led to another choice.

    Each profile is run on one tape. What counts is by how much figures differ from those of the
    measured profile on that tape, on top of what they are on the tapes held out: the luck of the
    one tape, which may lie near a limit, says nothing about the calibration.

    Parameters
    ----------
    measured_rival
        Who is better on the measured profile itself, on the tapes held out; mostly nobody, and the
        text is empty.
    n_profiles, n_stands
        Bootstrapped profiles, and those on which no finalist is better than the chosen one by more
        than the goal's zone.
    rivals
        Who was better where it does not stand.
    costs
        Costs of waiting that change the choice when moved to an end of what was measured, and who
        is better then.
    n_costs, n_exact
        All costs of the profile, and those of which nobody knows how sure they are.
    """

    measured_rival: str
    n_profiles: int
    n_stands: int
    rivals: tuple[str, ...]
    costs: dict[str, str]
    n_costs: int
    n_exact: int


class Tuned(NamedTuple):
    """What a tuning found.

    Parameters
    ----------
    config
        What was run: the config, perhaps with fewer requests.
    goal
        Without limits on figures that the workload has no value of.
    default
        Name of the candidate that is kept unless another is surely better.
    searched
        All candidates, the best first.
    choice
        Of the selection, indices into `finalists`.
    finalists
        The default first.
    chosen
        What to take.
    reason
        Why the default is kept; empty if it is not.
    sensitivity
        Of the choice to the profile.
    """

    config: RunConfig
    goal: Goal
    default: str
    searched: tuple[Searched, ...]
    choice: Choice
    finalists: tuple[Finalist, ...]
    chosen: Candidate
    reason: str
    sensitivity: Sensitivity


def tune(
    config: RunConfig,
    profile: MachineProfile,
    goal: Goal,
    folder: Path | None = None,
    *,
    budget: Budget = FULL,
    jobs: int = 0,
    cluster: Cluster | None = None,
    progress: Progress = lambda _label, _share: None,
) -> Tuned:
    """Search policies, their parameters, and for bulk its routes and arena, for a goal.

    Parameters
    ----------
    config
        What to run; its first policy is the default, which limits are counted from.
    profile
        On which costs.
    goal
        What is better.
    folder
        Keeps every run, so that the same call goes on where it was interrupted; None keeps none.
    budget, jobs, cluster, progress
        How much, on how many processes (0: one for each core) or whose workers, and who is told.

    Raises
    ------
    ValueError
        If the workload has no value of the figure that is to be least.
    """
    if folder is None:
        with TemporaryDirectory() as name:
            return tune(
                config,
                profile,
                goal,
                Path(name),
                budget=budget,
                jobs=jobs,
                cluster=cluster,
                progress=progress,
            )
    profile = costs_of_run(config, profile)
    bench = Bench(shortened(config, budget.steps), profile, folder, jobs, progress, cluster)
    default = bench.candidate(config.policies[0].policy)
    goal, searched = _search(bench, goal, default, budget, config.policies)
    groups = _alike(searched, default)
    finalists = [default, *_finalists(groups, default, budget.finalists)]
    choice = _select(bench, goal, finalists, budget)
    held = bench.run(finalists, HELD_OUT, budget.held_out, "tapes held out")
    judged = [
        _finalist(goal, c, default, held, config.seed)._replace(alike=groups[c]) for c in finalists
    ]
    best = finalists[choice.best or 0]
    reason = _reason_to_stay(goal, judged[choice.best or 0])
    chosen = default if reason else best
    sensitivity = _sensitivity(bench, goal, default, chosen, finalists, held, budget)
    return Tuned(
        bench.config,
        goal,
        default.name,
        tuple(searched),
        choice,
        tuple(judged),
        chosen,
        reason,
        sensitivity,
    )


def _search(
    bench: Bench,
    goal: Goal,
    default: Candidate,
    budget: Budget,
    given: Sequence[NamedPolicy],
) -> tuple[Goal, list[Searched]]:
    """Try the library, then the best ones with other parameters; the best first."""
    n = budget.search_tapes
    tried = bench.run([default], SEARCH, n, "default")
    goal = _answerable(goal, tried[default.name])
    payload = _best_payload(bench, goal, default, n)
    listed = [named.policy for named in given] if not budget.few else []
    todo = [bench.candidate(p, payload) for p in distinct([*listed, *coarse(budget.few)])]
    found = {default: tried[default.name]}
    for number, factor in enumerate((*budget.factors, 0.0)):
        new = [_unlike(c, default) for c in todo if c not in found]
        runs = bench.run(new, SEARCH, n, f"search, round {number + 1}") if new else {}
        found |= {candidate: runs[candidate.name] for candidate in new}
        ranked = _ranked(goal, found, default)
        if factor:
            best = [s.candidate for s in ranked if neighbours(s.candidate.policy, factor)]
            todo = [
                bench.candidate(policy, payload)
                for candidate in best[: budget.refined]
                for policy in neighbours(candidate.policy, factor)
            ]
    return goal, _ranked(goal, found, default)


def _alike(searched: list[Searched], default: Candidate) -> dict[Candidate, tuple[str, ...]]:
    """Candidates that differ in what they do, the best first, with the names of those that do not.

    A parameter may play no part in a workload: then its values would fill the list of finalists,
    and look like a choice.
    """
    first: dict[tuple[object, ...], Candidate] = {}
    names: dict[Candidate, list[str]] = {}
    for s in sorted(searched, key=lambda s: s.candidate != default):  # which stands for its like
        # As texts, in which what is no number equals itself.
        one = first.setdefault((s.candidate.payload, *map(repr, s.figures.values())), s.candidate)
        names.setdefault(one, []).append(s.candidate.name)
    return {one: tuple(name for name in names[one] if name != one.name) for one in names}


def _finalists(
    groups: dict[Candidate, tuple[str, ...]], default: Candidate, n: int
) -> list[Candidate]:
    """The best of the search, few of each kind: neighbours of one another tell little new."""
    of_kind: Counter[type] = Counter()
    found = []
    for candidate in [c for c in groups if c != default]:
        kind = type(candidate.policy)
        if of_kind[kind] < _OF_A_KIND:
            of_kind[kind] += 1
            found.append(candidate)
    return found[:n]


def _unlike(candidate: Candidate, default: Candidate) -> Candidate:
    """The candidate under another name, if it is the default with other ways for bulk."""
    if candidate.name == default.name:
        return candidate._replace(name=f"{candidate.name}, other routes")
    return candidate


def _answerable(goal: Goal, runs: Runs) -> Goal:
    """The goal without limits on what the workload has no value of."""
    lacking = {name for name in goal.figures if np.isnan(runs[name]).any()}
    goal = goal.without(lacking)
    if lacking & set(goal.figures):
        raise ValueError(
            f"the workload has no value of {', '.join(sorted(lacking))}, which is to be least; "
            "serve more or longer requests, or set another goal"
        )
    return goal


def _best_payload(bench: Bench, goal: Goal, default: Candidate, n: int) -> PayloadConfig:
    """Routes and arena that do best with the default policy; those of the config without bulk."""
    ways = geometries(bench.config, bench.profile)
    if len(ways) == 1:
        return bench.config.payload
    named = {
        name: Candidate(f"{default.name}, {name}", default.policy, payload)
        for name, payload in ways.items()
    }
    tried = bench.run([default, *named.values()], SEARCH, n, "routes and arenas")
    found = {c: tried[c.name] for c in [default, *named.values()]}
    return _ranked(goal, found, default)[0].candidate.payload


def _ranked(goal: Goal, found: dict[Candidate, Runs], default: Candidate) -> list[Searched]:
    searched = [
        Searched(
            candidate,
            {name: float(values.mean()) for name, values in runs.items()},
            mean_judged(goal, runs, found[default]),
        )
        for candidate, runs in found.items()
    ]
    return sorted(searched, key=lambda s: goal.rank(s.judged))


def judged_by_tape(goal: Goal, runs: Runs, default: Runs) -> tuple[Float64Array, Float64Array]:
    """Objectives, shape ``(n_tapes,)``, and excesses, shape ``(n_tapes, n_limits)``."""
    n = len(runs["n_steps"])
    each = [goal.judge(at(runs, tape), at(default, tape)) for tape in range(n)]
    objective = np.array([judged.objective for judged in each])
    excess = np.array([judged.excess for judged in each]).reshape(n, len(goal.limits))
    return objective, excess


def mean_judged(goal: Goal, runs: Runs, default: Runs) -> Judged:
    """The mean over tapes of how a goal judges a candidate."""
    objective, excess = judged_by_tape(goal, runs, default)
    return Judged(float(objective.mean()), tuple(excess.mean(axis=0).tolist()))


def _select(bench: Bench, goal: Goal, finalists: list[Candidate], budget: Budget) -> Choice:
    default = finalists[0]

    def run(alive: Sequence[int], first: int, last: int) -> Sample:
        candidates = [finalists[i] for i in alive]
        runs = bench.run(
            list(dict.fromkeys([default, *candidates])), SELECT, last, f"selection, {last} tapes"
        )
        both = [judged_by_tape(goal, runs[c.name], runs[default.name]) for c in candidates]
        objective = np.stack([o[first:last] for o, _ in both], axis=1)
        excess = np.stack([e[first:last] for _, e in both], axis=1)
        return Sample(objective, excess)

    return select(
        run,
        len(finalists),
        zone=goal.zone,
        tolerances=[limit.tolerance for limit in goal.limits],
        probability=budget.probability,
        least=budget.least,
        most=budget.most,
    )


def _finalist(
    goal: Goal, candidate: Candidate, default: Candidate, held: dict[str, Runs], seed: int
) -> Finalist:
    runs, base = held[candidate.name], held[default.name]
    figures = {name: mean_of_replications(values, seed=seed) for name, values in runs.items()}
    more = {name: paired_difference(runs[name], base[name], seed=seed) for name in runs}
    if candidate == default:
        return Finalist(candidate, figures, more, None, (), ())
    objective, excess = judged_by_tape(goal, runs, base)
    standard, _ = judged_by_tape(goal, base, base)
    columns = np.column_stack([objective - standard, excess])
    gain, *above = against_reference(columns, seed=seed)
    return Finalist(candidate, figures, more, gain, tuple(above), ())


def _reason_to_stay(goal: Goal, best: Finalist) -> str:
    """Why the default is kept; empty if the best is surely better on the tapes held out."""
    if best.objective is None:
        return "the selection found nothing better"
    name, gain = best.candidate.name, best.objective.difference
    for limit, comparison in zip(goal.limits, best.excess, strict=True):
        above = comparison.difference
        if above.low > 0 or above.value > limit.tolerance:
            return f"{name} breaks '{limit.text()}' on the tapes held out"
    if gain.high >= 0:
        return f"{name} is not significantly better on the tapes held out"
    return ""


def _sensitivity(
    bench: Bench,
    goal: Goal,
    default: Candidate,
    chosen: Candidate,
    finalists: list[Candidate],
    held: dict[str, Runs],
    budget: Budget,
) -> Sensitivity:
    rng = Tape(bench.config.seed).generator("tune", "profiles")
    drawn = {f"draw {i}": redrawn(bench.profile, rng) for i in range(budget.profiles)}
    moved: dict[str, MachineProfile] = {}
    if not budget.few:
        for name in WAITING:
            ends = at_ends(bench.profile, name)
            moved |= {f"{name} {i}": profile for i, profile in enumerate(ends)}
    measured = {c.name: mean_judged(goal, held[c.name], held[default.name]) for c in finalists}
    one_tape = bench.run(finalists, SELECT, 1, "other profiles")
    found = bench.run_on({**drawn, **moved}, finalists, SELECT, 1, "other profiles")
    better = {
        place: _better(goal, chosen, _moved(goal, default, measured, one_tape, runs))
        for place, runs in found.items()
    }
    rivals = [better[name] for name in drawn if better[name]]
    costs = {name.split()[0]: better[name] for name in moved if better[name]}
    return Sensitivity(
        _better(goal, chosen, measured),
        len(drawn),
        len(drawn) - len(rivals),
        tuple(dict.fromkeys(rivals)),
        costs,
        len(bench.profile.costs),
        n_exact(bench.profile),
    )


def _moved(
    goal: Goal,
    default: Candidate,
    measured: dict[str, Judged],
    before: dict[str, Runs],
    after: dict[str, Runs],
) -> dict[str, Judged]:
    """What is known of candidates, moved by what another profile changes on the same tape."""
    found = {}
    for name, judged in measured.items():
        was, now = (mean_judged(goal, runs[name], runs[default.name]) for runs in (before, after))
        found[name] = Judged(
            judged.objective + now.objective - was.objective,
            tuple(
                above + more - less
                for above, more, less in zip(judged.excess, now.excess, was.excess, strict=True)
            ),
        )
    return found


def _better(goal: Goal, chosen: Candidate, judged: dict[str, Judged]) -> str:
    """Name of a finalist that beats the chosen one by more than the zone; empty if none does."""
    best = min(judged, key=lambda name: goal.rank(judged[name]))
    own = judged[chosen.name]
    is_beaten = goal.breaks(own) or own.objective > judged[best].objective + goal.zone
    return best if is_beaten and best != chosen.name else ""
