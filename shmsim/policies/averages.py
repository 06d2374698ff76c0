"""Policies that go by the mean wait."""

from typing import NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import (
    ASLEEP,
    NAP,
    SPIN,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    then_park,
)


class Epoch(NamedTuple):
    """Mean of the last full epoch (negative before the first), and the epoch under way."""

    mean_ns: float
    total_ns: float
    n: int


class HybridFraction(NamedTuple):
    """Nap for a fraction of the mean wait, then spin: hybrid polling of the Linux block layer.

    Half the mean by class of request (``blk-mq``, removed in 2023); io_uring's variant settles
    near a quarter. Nothing cuts the nap short, and no doorbell is ever used. With
    ``self_measured`` gaps a wait that ended during the nap counts as long as the nap and its
    overshoot: the mean then keeps itself up (latency shelving; DPAS, FAST'26).

    Parameters
    ----------
    fraction
        Nap over mean, from 0 to 1.
    epoch
        After how many waits the mean is taken anew, at least 1.
    self_measured
        Whether to learn from when the event was seen instead of when it was published.
    learnt
        The mean.
    """

    fraction: float = 0.5
    epoch: int = 50
    self_measured: bool = False
    learnt: Epoch = Epoch(-1.0, 0.0, 0)

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Nap, then spin for ever; park without a mean, or for an arrival."""
        if not ctx.pending or self.learnt.mean_ns < 0.0:
            return PARK_ONLY
        nap_ns = int(self.fraction * self.learnt.mean_ns)
        return WaitPlan(Stage(NAP, nap_ns, 0), Stage(SPIN, FOREVER_NS, 0), ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "HybridFraction":
        """Add the wait to the epoch."""
        if not ctx.pending:
            return self
        mean_ns, total_ns, n = self.learnt
        wait_ns = outcome.seen_after_ns if self.self_measured else outcome.published_after_ns
        total_ns += float(wait_ns) if wait_ns > 0 else 0.0
        n += 1
        if mean_ns < 0.0 or n >= self.epoch:
            mean_ns, total_ns, n = total_ns / n, 0.0, 0
        learnt = Epoch(mean_ns, total_ns, n)
        return HybridFraction(self.fraction, self.epoch, self.self_measured, learnt)


class EmaGrace(NamedTuple):
    """Spin for ``B^2 / T``, clamped, then park: short waits earn a long window.

    The adaptive grace proposed for vLLM (#52916, local-inference-lab #800); constants ours, as
    its own were not visible. Right where waits are memoryless; for step gaps it has the wrong
    sign near T = B: beyond, it spins in vain and then parks always.

    Parameters
    ----------
    smoothing
        Weight of the newest wait in the mean T, in (0, 1].
    least_ns, most_ns
        Between which the window is clamped, ``least_ns`` at most ``most_ns``.
    learnt_mean_ns
        T; negative before the first wait.
    """

    smoothing: float = 0.125
    least_ns: int = 50 * US
    most_ns: int = 2 * MS
    learnt_mean_ns: float = -1.0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for the window, then park."""
        penalty_ns = float(block_penalty_ns(ctx.costs))
        window_ns = float(self.most_ns)
        if self.learnt_mean_ns * window_ns > penalty_ns * penalty_ns:
            window_ns = penalty_ns * penalty_ns / self.learnt_mean_ns
        if window_ns < self.least_ns:
            window_ns = float(self.least_ns)
        return then_park(SPIN, int(window_ns), 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "EmaGrace":
        """Fold the wait into the mean."""
        wait_ns = float(outcome.published_after_ns)
        if wait_ns < 0.0:
            wait_ns = 0.0
        mean_ns = self.learnt_mean_ns
        if mean_ns < 0.0:
            mean_ns = wait_ns
        mean_ns += self.smoothing * (wait_ns - mean_ns)
        return EmaGrace(self.smoothing, self.least_ns, self.most_ns, mean_ns)
