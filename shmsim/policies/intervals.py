"""Looks for a regular interval among the last waits."""

import math
from typing import NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.units import US
from shmsim.wait import (
    SPIN,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    doze_spin_park,
    then_park,
)

_N = 8
_LEAST_KEPT = 6


class Interval(NamedTuple):
    """A mean and its standard deviation, nanoseconds."""

    mean_ns: float
    sd_ns: float


class IntervalDetector(NamedTuple):
    """Doze until three deviations before the interval that the last eight waits show.

    The test of the Linux idle governor *menu*: accept the mean if the standard deviation is at
    most 20 us or a sixth of the mean, else leave out the value farthest from it and try again
    while three quarters remain. Without an interval it spins for B, then parks. Two lengths that
    alternate have no interval for it.

    Parameters
    ----------
    margin
        How many deviations before and after the interval to be awake, at least 0.
    learnt
        The last eight waits, nanoseconds, the newest last; negative where there was none yet.
    """

    margin: float = 3.0
    learnt: tuple[float, float, float, float, float, float, float, float] = (-1.0,) * 8

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Doze, spin round the interval, park; without an interval spin for B, then park."""
        if not ctx.pending:
            return PARK_ONLY
        interval = regular_interval(self.learnt)
        if interval.mean_ns < 0.0:
            return then_park(SPIN, block_penalty_ns(ctx.costs), 0)
        overshoot_ns = float(ctx.costs.timer_overshoot_ns)
        half_ns = self.margin * interval.sd_ns
        start_ns = interval.mean_ns - half_ns - overshoot_ns
        end_ns = int(interval.mean_ns + half_ns + overshoot_ns)
        if start_ns <= overshoot_ns:
            return then_park(SPIN, end_ns, 0)
        return doze_spin_park(int(start_ns), end_ns)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "IntervalDetector":
        """Remember the wait in place of the oldest."""
        if not ctx.pending:
            return self
        _, b, c, d, e, f, g, h = self.learnt
        wait_ns = float(outcome.published_after_ns)
        if wait_ns < 0.0:
            wait_ns = 0.0
        return IntervalDetector(self.margin, (b, c, d, e, f, g, h, wait_ns))


def regular_interval(
    waits_ns: tuple[float, float, float, float, float, float, float, float],
) -> Interval:
    """The interval that at least six of eight waits agree on; its mean is negative if none."""
    if waits_ns[0] < 0.0:
        return Interval(-1.0, 0.0)
    kept = [True, True, True, True, True, True, True, True]
    n = _N
    while n >= _LEAST_KEPT:
        mean_ns = 0.0
        for i in range(_N):
            if kept[i]:
                mean_ns += waits_ns[i] / n
        square = 0.0
        farthest = 0
        distance_ns = -1.0
        for i in range(_N):
            if kept[i]:
                off_ns = abs(waits_ns[i] - mean_ns)
                square += off_ns * off_ns / n
                if off_ns > distance_ns:
                    farthest, distance_ns = i, off_ns
        sd_ns = math.sqrt(square)
        if sd_ns <= 20 * US or mean_ns > 6.0 * sd_ns:
            return Interval(mean_ns, sd_ns)
        kept[farthest] = False
        n -= 1
    return Interval(-1.0, 0.0)
