"""Look for some time, then give up the core: what servers ship today."""

import math
from typing import NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import (
    ASLEEP,
    POLL,
    SPIN,
    YIELD,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    then_park,
)


class SpinThenPark(NamedTuple):
    """Spin for a window counted from the start of the wait, then park.

    With the window at the block penalty B it costs at most twice the clairvoyant optimum (ski
    rental); for step gaps longer than the window it pays the spin *and* the wake-up. folly spins
    for 2 us, Seastar for 200 us, AMD's ROCr for 200 us before it blocks.

    Parameters
    ----------
    window_ns
        How long to spin; negative chooses B from the calibrated costs.
    """

    window_ns: int = -1

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for the window, then park."""
        if self.window_ns < 0:
            return then_park(SPIN, block_penalty_ns(ctx.costs), 0)
        return then_park(SPIN, self.window_ns, 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "SpinThenPark":
        """Learn nothing."""
        return self


class CompetitiveSpin(NamedTuple):
    """Spin for a share of the block penalty B, then park.

    A share of 1 is 2-competitive, the best that a deterministic rule can promise (Karlin, Manasse,
    Rudolph, Sleator 1988). Against exponential waits of any mean 0.542 is 1.582-competitive,
    against uniform ones 0.618 is 1.618-competitive (Lim and Agarwal 1993). On steps longer than
    the window it pays for both.

    Parameters
    ----------
    share
        Window over B, from 0 to 100.
    """

    share: float = 1.0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for the share of B, then park."""
        return then_park(SPIN, int(self.share * block_penalty_ns(ctx.costs)), 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "CompetitiveSpin":
        """Learn nothing."""
        return self


class KarlinRandom(NamedTuple):
    """Spin for a random window of at most the block penalty B, then park.

    The window has the density ``e^(t/B) / (B (e - 1))`` on [0, B]: e/(e-1) = 1.582-competitive
    against an adversary who does not see the draw (Karlin, Manasse, McGeoch, Owicki 1990). It
    learns nothing, so on equal steps it is as wrong the thousandth time as the first.
    """

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for the window that this wait's random number gives, then park."""
        share = math.log(1.0 + ctx.uniform * (math.e - 1.0))
        return then_park(SPIN, int(share * block_penalty_ns(ctx.costs)), 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "KarlinRandom":
        """Learn nothing."""
        return self


class GraceThenPark(NamedTuple):
    """Yield until a window **since the last read** has passed, then park.

    vLLM's ``SpinCondition`` (#28053): its window is 1 s, so a server in decode spins for ever;
    forks set 2 ms. The recheck is its 5 s cap against lost notifications (#45224).

    Parameters
    ----------
    window_ns
        How long after the last read to keep looking, at least 0.
    recheck_ns
        How often a parked waiter looks by itself; 0 is never.
    """

    window_ns: int = S
    recheck_ns: int = 5 * S

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Yield for what is left of the window, then park."""
        left_ns = self.window_ns - ctx.since_seen_ns
        return then_park(YIELD, left_ns if left_ns > 0 else 0, self.recheck_ns)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "GraceThenPark":
        """Learn nothing."""
        return self


class GraceThenPoll(NamedTuple):
    """Yield until a window since the last read has passed, then sleep between looks.

    vLLM's opt-in of 2025-06 (#16226): after 3 s without a message, one look every 100 ms, which
    adds up to 100 ms to the first token after an idle period.

    Parameters
    ----------
    window_ns
        How long after the last read to keep looking, at least 0.
    period_ns
        Sleep between two looks afterwards, at least 1.
    """

    window_ns: int = 3 * S
    period_ns: int = 100 * MS

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Yield for what is left of the window, then poll."""
        left_ns = self.window_ns - ctx.since_seen_ns
        return WaitPlan(
            Stage(YIELD, left_ns if left_ns > 0 else 0, 0),
            Stage(POLL, FOREVER_NS, self.period_ns),
            ASLEEP,
            ASLEEP,
        )

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "GraceThenPoll":
        """Learn nothing."""
        return self


class AdaptiveTick(NamedTuple):
    """Yield in bursts of work; once idle, look at ticks that grow up to 100 ms.

    After the second variant in the seed discussion (vLLM #24618, branch ``zmq_tick2``), of which
    the discussion says that readers sleep only after idle and that the change back to work takes
    up to 100 ms, inconsistently. The two tick lengths and when idle begins are ours.

    Parameters
    ----------
    window_ns
        How long after the last read to keep looking, at least 0.
    period_ns
        First tick, at least 1.
    settled_ns
        Once idle for that long, ticks are long; at least ``window_ns``.
    last_period_ns
        Long tick, at least 1.
    """

    window_ns: int = 10 * MS
    period_ns: int = MS
    settled_ns: int = S
    last_period_ns: int = 100 * MS

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Yield for what is left of the window, then tick shortly, then tick at length."""
        left_ns = self.window_ns - ctx.since_seen_ns
        if left_ns < 0:
            left_ns = 0
        short_ns = self.settled_ns - ctx.since_seen_ns
        if short_ns < left_ns:
            short_ns = left_ns
        return WaitPlan(
            Stage(YIELD, left_ns, 0),
            Stage(POLL, short_ns, self.period_ns),
            Stage(POLL, FOREVER_NS, self.last_period_ns),
            ASLEEP,
        )

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "AdaptiveTick":
        """Learn nothing."""
        return self


class AsyncGated(NamedTuple):
    """Park at once where asynchronous scheduling hides the wake-up, else look as vLLM does.

    The way out that the maintainer of the seed discussion names (vLLM #24618): with two batches
    in flight the level trigger cost 60 us a step there, without 570 us. Where the two waits of a
    step are not both hidden it still pays the wake-up.

    Parameters
    ----------
    asynchronous
        Whether the engine schedules asynchronously.
    window_ns
        Without: how long after the last read to keep looking.
    """

    asynchronous: bool = True
    window_ns: int = S

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Park, or yield for what is left of the window first."""
        if self.asynchronous:
            return PARK_ONLY
        left_ns = self.window_ns - ctx.since_seen_ns
        return then_park(YIELD, left_ns if left_ns > 0 else 0, 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "AsyncGated":
        """Learn nothing."""
        return self


class Ladder(NamedTuple):
    """Spin, then yield, then sleep between looks, then longer or on the doorbell.

    What general-purpose libraries ship. They count rounds, which are 3-47 ms for a million
    depending on the core (onnxruntime #27916), so each is given here as time at 40 ns a pause and
    1 us a yield. Four rungs stand for ladders that double: `PRESETS` says which. They know
    nothing of steps, so each step climbs the ladder anew.

    Parameters
    ----------
    spin_ns
        Until when to spin.
    yield_ns
        Until when to yield, at least ``spin_ns``.
    period_ns
        Sleep between two looks afterwards, at least 1.
    settled_ns
        Until when to sleep so, at least ``yield_ns``.
    last_period_ns
        Sleep between looks from then on; 0 parks on the doorbell.
    """

    spin_ns: int = 400
    yield_ns: int = 5_400
    period_ns: int = 30 * US
    settled_ns: int = 1_500 * US
    last_period_ns: int = MS

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Climb down the ladder."""
        last = ASLEEP
        if self.last_period_ns > 0:
            last = Stage(POLL, FOREVER_NS, self.last_period_ns)
        return WaitPlan(
            Stage(SPIN, self.spin_ns, 0),
            Stage(YIELD, self.yield_ns, 0),
            Stage(POLL, self.settled_ns, self.period_ns),
            last,
        )

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Ladder":
        """Learn nothing."""
        return self
