"""A tuning for people: a table, what it rests on, and what goes into the policy file."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich import box
from rich.markup import escape
from rich.table import Table

from shmsim.figures import shown
from shmsim.profile import MachineProfile
from shmsim.sim.tune import Budget, Finalist, Tuned
from shmsim.stats.estimate import Estimate
from shmsim.tuner.goal import CORES, MEMORY, Limit
from shmsim.units import MS

_MIB: Final = 1 << 20
_NAMED: Final = 3  # of those that do just the same
_ALWAYS: Final = (CORES, "tpot_p99_ns", "ttft_after_idle_p50_ns")


def finalists_table(tuned: Tuned) -> Table:
    """Draw the finalists on the tapes held out; below each figure how much more it is, paired."""
    figures = _figures(tuned)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    names = [f.candidate.name.replace(",", ",\n  ") for f in tuned.finalists]
    longest = max(len(line) for name in names for line in name.splitlines())
    table.add_column("policy", no_wrap=True, min_width=longest + 2)
    for figure in figures:
        table.add_column(_unit(figure)[1], justify="right")
    table.add_column("objective,\nto default", justify="right", min_width=10)
    base = tuned.finalists[0]
    for finalist, name in zip(tuned.finalists, names, strict=True):
        mark = "→ " if finalist.candidate == tuned.chosen else "  "
        cells = [mark + escape(name)]
        for figure in figures:
            unit, _ = _unit(figure)
            estimate, other = finalist.figures[figure], base.figures[figure]
            if figure == MEMORY:  # the same in every run
                cells.append(f"{estimate.value / unit:.3g}")
                continue
            text = estimate.text(unit)
            if finalist is not base and other.value:
                more = finalist.more[figure].text(0.01 * other.value)
                text += f"\n[dim]{'' if more.startswith('-') else '+'}{more} %[/]"
            cells.append(text)
        table.add_row(*cells, _gain(finalist))
    return table


def _figures(tuned: Tuned) -> dict[str, None]:
    """What is shown: memory only where it may differ."""
    memory = [MEMORY] * tuned.config.payload.carries_bulk
    return dict.fromkeys((*_ALWAYS, *memory, *tuned.goal.figures))


def _unit(figure: str) -> tuple[float, str]:
    if figure == CORES:
        return 1.0, "CPU\ncores"
    if figure == MEMORY:
        return _MIB, "memory\nMiB"
    unit, label = shown(figure)
    return unit, label


def _gain(finalist: Finalist) -> str:
    if finalist.objective is None:
        return "default"
    difference = finalist.objective.difference
    sign = "" if difference.value < 0 else "+"
    star = " *" if finalist.objective.is_significant else "  "
    return f"{sign}{difference.text()}{star}"


def notes(tuned: Tuned, budget: Budget) -> Iterator[str]:
    """What the choice rests on, sentence by sentence."""
    yield f"goal: {tuned.goal.text()}; default: {tuned.default}"
    n = max(tuned.choice.n_tapes)
    ways = f"{len(tuned.searched)} candidates on {_tapes(budget.search_tapes)}"
    finals = f"the best {len(tuned.finalists) - 1} and the default on up to {n} others"
    yield f"searched: {ways}, then chosen among {finals}"
    for finalist in tuned.finalists:
        if finalist.alike:
            more = len(finalist.alike) - _NAMED
            others = ", ".join(finalist.alike[:_NAMED]) + f" and {more} more" * (more > 0)
            yield (
                f"{finalist.candidate.name} stands for {others} too: on this workload they do just "
                "the same, figure by figure"
            )
    sure = (
        f"with {100 * tuned.choice.probability:g} % the best of these, up to "
        f"{tuned.goal.zone:g} of the objective and the limits' tolerances"
        if tuned.choice.is_sure
        else f"not sure after {n} tapes: still in the race {_rivals(tuned)}"
    )
    yield f"selection: {sure}"
    yield (
        f"table: means and 95 % intervals over {_tapes(tuned.finalists[0].figures[CORES].n)} that "
        f"nothing was chosen on, {tuned.config.workload.requests} requests each; * significant, "
        "jointly with the limits"
    )
    for finalist in tuned.finalists:
        if finalist.candidate == tuned.chosen and finalist.objective is not None:
            for limit, above in zip(tuned.goal.limits, finalist.excess, strict=True):
                yield f"limit {limit.text()}: {_more(above.difference, limit)}"
    found = tuned.sensitivity
    stay = f"({found.n_exact} of {found.n_costs} costs have no interval and stay)"
    if found.measured_rival:
        yield (
            f"on the tapes held out {found.measured_rival} does better with this profile already, "
            "so other profiles cannot tell whether the choice stands; more tapes would, or a goal "
            "with more room"
        )
    else:
        stands = f"the choice stands on {found.n_stands} of {found.n_profiles} bootstrapped"
        rivals = f"; else {', '.join(found.rivals)}" if found.rivals else ""
        yield f"{stands} profiles{rivals} {stay}"
    if found.costs and not found.measured_rival:
        pairs = ", ".join(f"{cost} (then {name})" for cost, name in found.costs.items())
        yield f"it hangs on {pairs}"
    if tuned.reason:
        yield f"kept the default, {tuned.default}: {tuned.reason}"


def _tapes(n: int) -> str:
    return f"{n} tape{'s' * (n != 1)}"


def _rivals(tuned: Tuned) -> str:
    return ", ".join(tuned.finalists[i].candidate.name for i in tuned.choice.rivals)


def _more(excess: Estimate, limit: Limit) -> str:
    """How much more than the default's a figure is: the excess, and the limit it is above."""
    unit, name = (0.01, "%") if limit.is_share else (MS, "ms")
    low, value, high = (x + limit.amount for x in (excess.low, excess.value, excess.high))
    text = excess._replace(low=low, value=value, high=high).text(unit)
    return f"{'' if value < 0 else '+'}{text} {name}"


def found_of(tuned: Tuned, profile: MachineProfile) -> dict[str, Any]:
    """How the policy was found, for its file."""
    best = next(f for f in tuned.finalists if f.candidate == tuned.chosen)
    figures = _figures(tuned)
    found: dict[str, Any] = {
        "goal": tuned.goal.text(),
        "default": tuned.default,
        "kept_default_because": tuned.reason,
        "probability": tuned.choice.probability if tuned.choice.is_sure else None,
        "n_searched": len(tuned.searched),
        "n_held_out": best.figures[CORES].n,
        "held_out": {name: list(best.figures[name][:3]) for name in figures},
        "alike": list(best.alike),
        "seed": tuned.config.seed,
        "profile_measured_at": profile.measured_at,
    }
    if not tuned.sensitivity.measured_rival:  # else nobody can tell
        found["stands_on_profiles"] = [tuned.sensitivity.n_stands, tuned.sensitivity.n_profiles]
    if tuned.config.payload.carries_bulk:
        payload = asdict(tuned.chosen.payload)
        found["payload"] = {key: payload[key] for key in ("routes", "divert_bytes", "arena")}
    return found
