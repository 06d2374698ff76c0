"""Whether two policies do the same, whatever they are called, and how long one looks."""

from itertools import product
from typing import Final

from shmsim.export.price import context, trained
from shmsim.units import FOREVER_NS, MS, S
from shmsim.wait import PARK, SPIN, YIELD, Stage, WaitContext, WaitCosts, WaitPlan, WaitPolicy

_SINCE_SEEN_NS: Final = (0, 1 * MS, 100 * MS, 2 * S, 20 * S)


def plan_alike(a: WaitPolicy, b: WaitPolicy, costs: WaitCosts) -> bool:
    """Whether two policies answer alike, fresh and trained, rechecks of a park aside."""
    return all(
        _core(first.plan(ctx)) == _core(second.plan(ctx))
        for first, second in ((a, b), (trained(a, costs), trained(b, costs)))
        for ctx in _contexts(costs)
    )


def window_of(policy: WaitPolicy, costs: WaitCosts) -> int | None:
    """How long a policy looks before it parks, if that is all it does.

    Returns
    -------
    int or None
        Nanoseconds, 0 for parking at once, `FOREVER_NS` for never; None if it does anything else,
        or looks longer in one wait than in another.
    """
    found = {_window(_core(p.plan(c))) for p in _both(policy, costs) for c in _contexts(costs)}
    return found.pop() if len(found) == 1 else None


def awake_until(policy: WaitPolicy, costs: WaitCosts) -> int:
    """Until when a policy is not yet parked in a wait for a step, trained; `FOREVER_NS` if ever."""
    bounded = [
        stage.until_ns
        for stage in _core(trained(policy, costs).plan(context(costs)))
        if stage.kind != PARK
    ]
    return min(max(bounded, default=0), FOREVER_NS)


def _both(policy: WaitPolicy, costs: WaitCosts) -> tuple[WaitPolicy, WaitPolicy]:
    return policy, trained(policy, costs)


def _contexts(costs: WaitCosts) -> list[WaitContext]:
    return [
        context(costs, since_ns, pending=pending)._replace(call=call, uniform=uniform)
        for since_ns, pending, call, uniform in product(
            _SINCE_SEEN_NS, (True, False), (0, 1), (0.1, 0.9)
        )
    ]


def _core(plan: WaitPlan) -> tuple[Stage, ...]:
    """The stages that can be reached and last, without the rechecks of a park."""
    core: list[Stage] = []
    reached_ns = 0
    for stage in plan:
        if stage.until_ns > reached_ns:
            core.append(stage._replace(period_ns=0) if stage.kind == PARK else stage)
            reached_ns = stage.until_ns
        if stage.until_ns >= FOREVER_NS:
            break
    return tuple(core)


def _window(core: tuple[Stage, ...]) -> int | None:
    looked_ns = 0
    for stage in core:
        if stage.kind == PARK:
            return looked_ns
        if stage.kind not in (SPIN, YIELD):
            return None
        looked_ns = stage.until_ns
    return FOREVER_NS
