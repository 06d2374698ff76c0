"""Policies round a policy: each hands the wait on and then limits the answer.

The inner policy is a field, so its state travels with the wrapper's, and a wrapper can wrap
another. `shmsim.sim.compiled` compiles the calls of its methods too.
"""

from typing import Generic, NamedTuple, TypeVar

from shmsim.policies.always import PARK_ONLY, BusySpin
from shmsim.policies.stepahead import StepAhead, is_crowded
from shmsim.units import FOREVER_NS, MS
from shmsim.wait import (
    ASLEEP,
    SPIN,
    YIELD,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    block_penalty_ns,
)

P = TypeVar("P", bound=WaitPolicy)


class Clamped(NamedTuple, Generic[P]):
    """Cut what a policy spins in one wait at a multiple of the block penalty B, then park.

    However wrong its predictions are, a wait then costs at most ``B / clamp`` of spinning, B, and
    what its timed sleeps take: robustness ``1 + 1 / clamp`` where it only spins (Purohit, Svitkina
    and Kumar 2018; clamping a distributional threshold: Kim and Fan 2026, arXiv 2603.29233).
    Naps that nothing can cut short are left as they are, and cost what they cost.

    Parameters
    ----------
    inner
        The policy.
    clamp
        B over the longest spin, in (0, 1].
    """

    inner: P = StepAhead()  # type: ignore[assignment]
    clamp: float = 0.25

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """What the policy says, its spinning cut."""
        plan = self.inner.plan(ctx)
        most_ns = block_penalty_ns(ctx.costs) / self.clamp
        left_ns = int(most_ns) if most_ns < FOREVER_NS else FOREVER_NS
        first = cut(plan.first, 0, left_ns)
        left_ns -= spins_ns(first, 0)
        second = cut(plan.second, first.until_ns, left_ns)
        left_ns -= spins_ns(second, first.until_ns)
        third = cut(plan.third, second.until_ns, left_ns)
        left_ns -= spins_ns(third, second.until_ns)
        fourth = plan.fourth
        if fourth.kind == SPIN or fourth.kind == YIELD:
            # A bounded spin and the park behind it would be a fifth stage.
            fourth = ASLEEP
        return WaitPlan(first, second, third, fourth)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Clamped[P]":
        """Let the policy learn."""
        return Clamped(self.inner.after(ctx, outcome), self.clamp)


def spins_ns(stage: Stage, begin_ns: int) -> int:
    """How long a stage spins at most."""
    if stage.kind == SPIN or stage.kind == YIELD:
        return stage.until_ns - begin_ns if stage.until_ns > begin_ns else 0
    return 0


def cut(stage: Stage, begin_ns: int, left_ns: int) -> Stage:
    """The stage, spinning for no longer than what is left."""
    if spins_ns(stage, begin_ns) <= left_ns:
        return stage
    return Stage(stage.kind, begin_ns + left_ns, 0)


class SpinBudget(NamedTuple, Generic[P]):
    """Park whenever spinning has taken more than a share of a core lately.

    A bucket fills with ``share`` of the time that passes, up to ``burst_ns``, and what stages that
    look take of the CPU flows out; while it is empty the wait parks. A cap on how many *processes*
    spin at once, as Go's scheduler has, needs to know of the others, which a policy does not.

    Parameters
    ----------
    inner
        The policy.
    share
        Of a core, in (0, 1].
    burst_ns
        What the bucket holds, at least 1.
    learnt_left_ns
        What is in it; negative when overdrawn.
    """

    inner: P = BusySpin()  # type: ignore[assignment]
    share: float = 0.25
    burst_ns: int = 20 * MS
    learnt_left_ns: float = 0.0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """What the policy says, or park when the budget is spent."""
        if self.learnt_left_ns <= 0.0:
            return PARK_ONLY
        return self.inner.plan(ctx)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "SpinBudget[P]":
        """Fill and drain the bucket, and let the policy learn."""
        cpu = outcome.cpu_ns
        cpu_ns = float(cpu.first) + float(cpu.second) + float(cpu.third) + float(cpu.fourth)
        passed_ns = float(ctx.since_seen_ns) + float(outcome.seen_after_ns)
        left_ns = self.learnt_left_ns + self.share * passed_ns - cpu_ns
        if left_ns > self.burst_ns:
            left_ns = float(self.burst_ns)
        if left_ns < -self.burst_ns:
            left_ns = -float(self.burst_ns)
        return SpinBudget(self.inner.after(ctx, outcome), self.share, self.burst_ns, left_ns)


class IfPreempted(NamedTuple, Generic[P]):
    """Park for some waits after the core was taken away from a waiter that looked.

    A taken core is the cheapest sign that there are more runnable threads than cores (folly's
    mutex and Go's scheduler use such signs); then a spinner holds up the very process it waits
    for. It counts where it cost more than parking (`is_crowded`, the guard of `StepAhead`): kernel
    threads take a core for some tens of microseconds on any box. The number of waits doubles while
    it happens again.

    Parameters
    ----------
    inner
        The policy.
    waits
        For how many waits to park at first, at least 1.
    most_waits
        And at most, at least ``waits``.
    learnt_hold, learnt_left
        For how many the last time, and how many of them are left.
    """

    inner: P = BusySpin()  # type: ignore[assignment]
    waits: int = 4
    most_waits: int = 256
    learnt_hold: int = 0
    learnt_left: int = 0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """What the policy says, or park for a while."""
        if self.learnt_left > 0:
            return PARK_ONLY
        return self.inner.plan(ctx)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "IfPreempted[P]":
        """Notice a taken core, and let the policy learn."""
        hold, left = self.learnt_hold, self.learnt_left
        if is_crowded(ctx.costs, outcome):
            hold = 2 * hold if hold > 0 else self.waits
            if hold > self.most_waits:
                hold = self.most_waits
            left = hold
        elif left > 0:
            left -= 1
        elif hold > 0:
            hold -= 1
        inner = self.inner.after(ctx, outcome)
        return IfPreempted(inner, self.waits, self.most_waits, hold, left)
