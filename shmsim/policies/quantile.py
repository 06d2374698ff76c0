"""Tracks one quantile of the waits: no model, a few lines."""

import math
from typing import NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.wait import (
    ASLEEP,
    NAP,
    SPIN,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    doze_spin_park,
    then_park,
)


class Quantile(NamedTuple):
    """Logarithm of the quantile in ns, and mean distance of waits from it; before the first, 0."""

    log_ns: float
    spread_ns: float


class QuantileDoze(NamedTuple):
    """Doze until the wait's quantile that the price of delay asks for, then spin, then park.

    A sleep that ends too early costs CPU at rate 1, one that ends too late delay at rate r: the
    newsvendor's answer is the quantile 1/(1+r). It is tracked by ``log q += eta (tau - [x <= q])``
    (waits.md, section 3, and conclusion 2, where eta is 0.03). One quantile for all waits: mixed
    prefill and decode are one law for it.

    Parameters
    ----------
    eta
        Step of the tracker, in (0, 1].
    deaf
        Whether nothing cuts the sleep short, as in kernel hybrid polling.
    learnt
        The quantile so far.
    """

    eta: float = 0.03
    deaf: bool = False
    learnt: Quantile = Quantile(0.0, 0.0)

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Doze to the quantile less the overshoot, spin for B or four spreads, park."""
        if not ctx.pending:
            return PARK_ONLY
        penalty_ns = block_penalty_ns(ctx.costs)
        if self.learnt.log_ns <= 0.0:
            return then_park(SPIN, penalty_ns, 0)
        quantile_ns = int(math.exp(self.learnt.log_ns))
        window_ns = int(4.0 * self.learnt.spread_ns)
        if window_ns < penalty_ns:
            window_ns = penalty_ns
        sleep_ns = quantile_ns - ctx.costs.timer_overshoot_ns // 2
        if sleep_ns <= ctx.costs.timer_overshoot_ns:
            return then_park(SPIN, quantile_ns + window_ns, 0)
        if self.deaf:
            return WaitPlan(
                Stage(NAP, sleep_ns, 0), Stage(SPIN, sleep_ns + window_ns, 0), ASLEEP, ASLEEP
            )
        return doze_spin_park(sleep_ns, sleep_ns + window_ns)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "QuantileDoze":
        """Move the quantile towards this wait."""
        if not ctx.pending or outcome.published_after_ns <= 0:
            return self
        wait_ns = float(outcome.published_after_ns)
        log_ns, spread_ns = self.learnt
        if log_ns <= 0.0:
            return QuantileDoze(self.eta, self.deaf, Quantile(math.log(wait_ns), 0.0))
        quantile_ns = math.exp(log_ns)
        tau = 1.0 / (1.0 + ctx.costs.delay_price)
        log_ns += self.eta * (tau - (1.0 if wait_ns <= quantile_ns else 0.0))
        distance_ns = abs(wait_ns - quantile_ns)
        if distance_ns > quantile_ns:
            distance_ns = quantile_ns  # one idle gap must not spoil the window for ever
        spread_ns += self.eta * (distance_ns - spread_ns)
        return QuantileDoze(self.eta, self.deaf, Quantile(log_ns, spread_ns))
