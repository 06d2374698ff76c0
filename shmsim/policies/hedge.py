"""Weighs a grid of plans by what each would have cost."""

import math
from typing import NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.units import FOREVER_NS
from shmsim.wait import (
    SPIN,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    doze_spin_park,
    then_park,
)

#: Where the dozes of the grid end, as shares of the middle wait.
SHARES = (0.75, 0.85, 0.9, 0.95, 0.975)
_N = 8
_MOST = 4.0  # costs are clipped at four penalties, which bounds the regret


class Weights(NamedTuple):
    """Weight of each plan: park, spin for B, spin for ever, then a doze for each of `SHARES`."""

    park: float
    spin_penalty: float
    spin_ever: float
    doze_0: float
    doze_1: float
    doze_2: float
    doze_3: float
    doze_4: float


class Hedge(NamedTuple):
    """Logarithm of the middle wait (0 before the first), and the weights."""

    log_middle: float
    weights: Weights


class PlanHedge(NamedTuple):
    """Draw a plan from a grid, by weights that shrink with what each plan would have cost.

    The publication stamp tells what every plan would have cost, so all learn from every wait:
    Hedge with fixed share (Herbster and Warmuth 1998), regret O(B sqrt(T S log(G T))) against the
    best sequence with S changes. Dozes are shares of a tracked median, the only thing it knows of
    steps; it pays for exploring, and for waits that differ by their features.

    Parameters
    ----------
    eta
        Learning rate on costs in units of B, clipped at 4; at least 0.
    share
        Weight that each wait moves to all plans alike, from 0 to 1.
    learnt
        Median and weights.
    """

    eta: float = 0.5
    share: float = 0.001
    learnt: Hedge = Hedge(0.0, Weights(*[0.125] * 8))

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Carry out the plan that the random number picks."""
        if not ctx.pending:
            return PARK_ONLY
        penalty_ns = block_penalty_ns(ctx.costs)
        if self.learnt.log_middle <= 0.0:
            return then_park(SPIN, penalty_ns, 0)
        left = ctx.uniform
        chosen = _N - 1
        for i in range(_N):
            left -= self.learnt.weights[i]
            if left < 0.0:
                chosen = i
                break
        if chosen == 0:
            return PARK_ONLY
        if chosen == 1:
            return then_park(SPIN, penalty_ns, 0)
        if chosen == 2:
            return then_park(SPIN, FOREVER_NS, 0)
        middle_ns = math.exp(self.learnt.log_middle)
        awake_ns = int(SHARES[chosen - 3] * middle_ns)
        end_ns = int((2.0 - SHARES[chosen - 3]) * middle_ns)
        until_ns = awake_ns - ctx.costs.timer_overshoot_ns // 2
        if until_ns <= 0:
            return then_park(SPIN, end_ns, 0)
        return doze_spin_park(until_ns, end_ns)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "PlanHedge":
        """Weigh all plans by what they would have cost in this wait."""
        wait_ns = float(outcome.published_after_ns)
        if not ctx.pending or wait_ns <= 0.0:
            return self
        log_middle, w = self.learnt
        if log_middle <= 0.0:
            return PlanHedge(self.eta, self.share, Hedge(math.log(wait_ns), w))
        penalty_ns = float(block_penalty_ns(ctx.costs)) + 1.0
        timer = ctx.costs.block_cpu_ns / penalty_ns
        late = 0.5 * ctx.costs.timer_overshoot_ns / penalty_ns
        x = wait_ns / penalty_ns
        middle = math.exp(log_middle) / penalty_ns
        a = w.park * math.exp(-self.eta)
        b = w.spin_penalty * math.exp(-self.eta * (x if x < 1.0 else 2.0))
        c = w.spin_ever * math.exp(-self.eta * (x if x < _MOST else _MOST))
        d = w.doze_0 * math.exp(-self.eta * cost_of_doze(x, SHARES[0], middle, timer, late))
        e = w.doze_1 * math.exp(-self.eta * cost_of_doze(x, SHARES[1], middle, timer, late))
        f = w.doze_2 * math.exp(-self.eta * cost_of_doze(x, SHARES[2], middle, timer, late))
        g = w.doze_3 * math.exp(-self.eta * cost_of_doze(x, SHARES[3], middle, timer, late))
        h = w.doze_4 * math.exp(-self.eta * cost_of_doze(x, SHARES[4], middle, timer, late))
        kept = (1.0 - self.share) / (a + b + c + d + e + f + g + h)
        moved = self.share / _N
        log_middle += 0.03 * (0.5 - (1.0 if x <= middle else 0.0))
        weights = Weights(
            kept * a + moved,
            kept * b + moved,
            kept * c + moved,
            kept * d + moved,
            kept * e + moved,
            kept * f + moved,
            kept * g + moved,
            kept * h + moved,
        )
        return PlanHedge(self.eta, self.share, Hedge(log_middle, weights))


def cost_of_doze(x: float, share: float, middle: float, timer: float, late: float) -> float:
    """Cost of a doze and a spin on a wait of ``x``, all in penalties."""
    awake = share * middle
    end = (2.0 - share) * middle
    if awake <= late:  # too short for a timer: the plan spins from the start
        awake = timer = 0.0
    elif x < awake:
        return 1.0
    cost = timer + (x - awake if x <= end else end - awake + 1.0)
    return cost if cost < _MOST else _MOST
