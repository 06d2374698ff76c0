"""What one wait costs by a plan, in closed form: enough to rank what an engine offers."""

from typing import Final

from shmsim.units import FOREVER_NS, MS, S
from shmsim.wait import (
    DOZE,
    NAP,
    PARK,
    POLL,
    REHEARSE,
    SCHEDULER_RECV,
    SPIN,
    YIELD,
    StageCpu,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
)

#: A decode step, and an idle period, where no workload is given; one of these for 99 of those.
STEP_NS: Final = 2 * MS
IDLE_NS: Final = 1 * S
_STEPS_PER_IDLE: Final = 99
_TRAINING: Final = 40


def context(costs: WaitCosts, since_seen_ns: int = 0, *, pending: bool = True) -> WaitContext:
    """A wait for a reply, with one sequence in decode."""
    return WaitContext(SCHEDULER_RECV, 0, since_seen_ns, pending, 1, 0, 1_000, 0.5, costs)


def trained(policy: WaitPolicy, costs: WaitCosts, step_ns: int = STEP_NS) -> WaitPolicy:
    """The policy after some equal waits for a step."""
    for _ in range(_TRAINING):
        outcome = WaitOutcome(step_ns, step_ns, 0, StageCpu(0, 0, 0, 0), 0, False, 0)
        policy = policy.after(context(costs), outcome)
    return policy


def price_of_wait(plan: WaitPlan, wait_ns: int, costs: WaitCosts) -> float:
    """CPU time plus delay price times delay of one wait, nanoseconds of a core.

    A timed sleep and a park cost ``block_cpu_ns`` each, whoever sleeps when the event comes is late
    by ``wake_latency_ns``, and who sleeps deafly by what is left of the sleep too.

    Parameters
    ----------
    plan
        How to wait.
    wait_ns
        When the event comes, from the start of the wait.
    costs
        Prices.
    """
    cpu_ns = delay_ns = 0.0
    began_ns = 0
    for stage in plan:
        ends_ns = began_ns if stage.kind == REHEARSE else max(stage.until_ns, began_ns)
        here_ns = min(ends_ns, wait_ns) - began_ns
        is_last = wait_ns < ends_ns or ends_ns >= FOREVER_NS
        if stage.kind in (SPIN, YIELD):
            cpu_ns += max(here_ns, 0)
        elif stage.kind == REHEARSE:
            cpu_ns += costs.rehearsal_ns
        elif here_ns > 0 or is_last:
            looks = 1.0
            if stage.kind == POLL or (stage.kind == PARK and stage.period_ns):
                looks += max(here_ns, 0) // stage.period_ns
            cpu_ns += looks * costs.block_cpu_ns
            if is_last and stage.kind == NAP:
                delay_ns += ends_ns - wait_ns + costs.timer_overshoot_ns
            elif is_last and stage.kind == POLL:
                delay_ns += stage.period_ns / 2 + costs.timer_overshoot_ns
            elif is_last and stage.kind in (DOZE, PARK):
                delay_ns += costs.wake_latency_ns
        if is_last:
            break
        began_ns = ends_ns
    return cpu_ns + costs.delay_price * delay_ns


def typical_price(policy: WaitPolicy, costs: WaitCosts) -> float:
    """Mean price of a wait for a step, one idle period among a hundred; nanoseconds of a core."""
    learnt = trained(policy, costs)
    step = price_of_wait(learnt.plan(context(costs)), STEP_NS, costs)
    idle = price_of_wait(learnt.plan(context(costs, pending=False)), IDLE_NS, costs)
    return (_STEPS_PER_IDLE * step + idle) / (_STEPS_PER_IDLE + 1)
