"""Replays recorded waits through a policy: what each would have cost.

The model's own interpreter carries the plans out (`shmsim.sim.waiter.VirtualWait`), on the same
random numbers for every policy. The gaps stay as they are: a step is not delayed by the one before
it, which a run of the model would show.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shmsim.bounds.trace import Int64Array, WaitTrace
from shmsim.policies.always import PARK_ONLY, SPIN_ONLY
from shmsim.profile import AT_DEVICE, MachineProfile
from shmsim.sim.deciding import Cold, Deciding, looks_of
from shmsim.sim.draws import Draws
from shmsim.sim.waiter import VirtualWait
from shmsim.tape import Tape
from shmsim.wait import (
    DEVICE_DONE,
    REHEARSE,
    SCHEDULER_RECV,
    SCHEDULER_SLOT,
    SPIN,
    YIELD,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    block_penalty_ns,
    check_plan,
    doze_spin_park,
)


class Replayed(NamedTuple):
    """What each wait cost, nanoseconds; arrays of shape ``(n_waits,)``.

    Parameters
    ----------
    delay_ns
        Publication, or start of the wait if later, to seen.
    cpu_ns
        CPU time of the wait and of the policy's own plan and after.
    slowness_ns
        Extra time of the work that follows, as its caches were left; not part of ``cost_ns``.
    alert_ns
        The same wait without mechanism: spinning costs its time, an event met asleep the block
        penalty, timers are exact and free. What is left is what the plan itself gave away.
    delay_price
        *r*.
    """

    delay_ns: Int64Array
    cpu_ns: Int64Array
    slowness_ns: Int64Array
    alert_ns: NDArray[np.float64]
    delay_price: float

    @property
    def cost_ns(self) -> NDArray[np.float64]:
        """J of each wait: CPU time and *r* times the delay."""
        return self.cpu_ns + self.delay_price * self.delay_ns


class Knowing(Protocol):
    """Something that knows the gap, which no `WaitPolicy` does: an oracle."""

    def plan_knowing(self, ctx: WaitContext, gap_ns: int) -> WaitPlan:
        """What to do in a wait of this length."""
        ...


class Clairvoyant(NamedTuple):
    """The oracle of ski rental: spin if that is cheaper than the block penalty, else park."""

    def plan_knowing(self, ctx: WaitContext, gap_ns: int) -> WaitPlan:
        """Spin or park, whichever is cheaper."""
        return SPIN_ONLY if gap_ns < block_penalty_ns(ctx.costs) else PARK_ONLY


class TimerOracle(NamedTuple):
    """The oracle that may also sleep on a timer, set so that its 99th percentile is in time."""

    def plan_knowing(self, ctx: WaitContext, gap_ns: int) -> WaitPlan:
        """Spin if the gap is shorter than the timer is late, else doze up to it, or park."""
        overshoot_ns = ctx.costs.timer_overshoot_ns
        penalty_ns = block_penalty_ns(ctx.costs)
        dozes_for_ns = ctx.costs.block_cpu_ns + overshoot_ns
        if gap_ns <= min(dozes_for_ns, penalty_ns):
            return SPIN_ONLY
        if dozes_for_ns >= penalty_ns:
            return PARK_ONLY
        return doze_spin_park(max(gap_ns - overshoot_ns, 0), gap_ns + overshoot_ns)


def replay(
    policy: WaitPolicy | Knowing,
    trace: WaitTrace,
    profile: MachineProfile,
    tape: Tape,
    delay_price: float = 10.0,
    site: int = SCHEDULER_RECV,
    penalty_ns: NDArray[np.float64] | None = None,
    awake_ns: float = 0.0,
    entity: str = "replay",
) -> Replayed:
    """Replay all waits of a trace, in order.

    Parameters
    ----------
    policy
        Start value, or an oracle.
    trace
        The waits.
    profile
        Costs of waiting.
    tape
        Random numbers: the same for every policy.
    delay_price
        *r*, of which policies are told.
    site
        Which wait of the step loop these are, of which policies are told.
    penalty_ns
        B of ``alert_ns`` for each wait, shape ``(n_waits,)``; None takes the calibrated one.
    awake_ns
        What an event met awake costs in ``alert_ns``.
    entity
        Name of the random numbers; with the name of a process of the model, its luck.

    Raises
    ------
    ValueError
        If a plan cannot be carried out.
    """
    costs = profile.wait_costs(delay_price)
    draws = Draws(profile, tape, entity, AT_DEVICE if site == DEVICE_DONE else "")
    # Schedulers and workers do other work after a wait, and rehearse it.
    whose = "" if site in (SCHEDULER_RECV, SCHEDULER_SLOT) else "worker_"
    uniform = tape.uniform(entity, "policy")
    deciding = Deciding(profile, tape, entity, policy)
    state = policy
    cold = Cold()
    rows = []
    alert = []
    if penalty_ns is None:
        penalty_ns = np.full(trace.n_waits, float(block_penalty_ns(costs)))
    for index, (gap_ns, n_decode, n_prefill, n_kv, pending, since_ns) in enumerate(
        zip(*(column.tolist() for column in trace), strict=True)
    ):
        ctx = WaitContext(
            site, 0, since_ns, pending, n_decode, n_prefill, n_kv, uniform.at(index), costs
        )
        plan = _plan(state, ctx, gap_ns)
        check_plan(plan)
        seen = VirtualWait(plan, draws, index, f"{whose}rehearsal").see(gap_ns)
        outcome = WaitOutcome(
            gap_ns, seen.seen_after_ns, seen.stage, seen.cpu_ns, seen.overshoot_ns, seen.belled, 0
        )
        cpu_ns = sum(seen.cpu_ns)
        if hasattr(state, "after"):
            looks = looks_of(state)
            state = state.after(ctx, outcome)
            cpu_ns += deciding.plan_ns(looks, index, cold.plan_ns)
            cold.plan_ns = cold.after_ns = 0
            cold.rest(seen.resumed_from, seen.rested_ns)
            cpu_ns += deciding.after_ns(looks, ctx.uniform, index, cold.after_ns)
        slow_ns = 0
        if seen.rested_ns > 0:
            slow_ns = max(
                0, draws.at(f"{whose}slow_after_{seen.resumed_from}", index, seen.rested_ns)
            )
        rows.append((seen.seen_after_ns - max(gap_ns, 0), cpu_ns, slow_ns))
        alert.append(alert_cost_ns(plan, gap_ns, float(penalty_ns[index]), awake_ns))
    delay, cpu, slow = np.array(rows, dtype=np.int64).T
    return Replayed(delay, cpu, slow, np.array(alert), delay_price)


def _plan(policy: WaitPolicy | Knowing, ctx: WaitContext, gap_ns: int) -> WaitPlan:
    if hasattr(policy, "plan_knowing"):
        return policy.plan_knowing(ctx, gap_ns)
    return policy.plan(ctx)


def alert_cost_ns(plan: WaitPlan, gap_ns: int, penalty_ns: float, awake_ns: float = 0.0) -> float:
    """Cost of a plan without mechanism: spinning by the time it takes, meeting the event asleep B.

    Deaf sleeps are taken as if the doorbell could end them; a rehearsal takes no time.
    """
    if gap_ns <= 0:
        return 0.0
    begin_ns, spun_ns = 0, 0
    for kind, until_ns, _ in plan:
        if kind == REHEARSE or until_ns <= begin_ns:
            continue
        if kind in (SPIN, YIELD):
            if gap_ns <= until_ns:
                return awake_ns + spun_ns + gap_ns - begin_ns
            spun_ns += until_ns - begin_ns
        elif gap_ns <= until_ns:
            return spun_ns + penalty_ns
        begin_ns = until_ns
    raise AssertionError("the last stage of a plan lasts for ever (check_plan)")
