"""Doze through most of the wait that is expected, by a running mean."""

from typing import NamedTuple

from shmsim.wait import (
    SPIN,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    doze_rehearse_spin_park,
    doze_spin_park,
    then_park,
)


class WakeAhead(NamedTuple):
    """Doze through most of the wait that is expected, then spin for the rest.

    Steps of one batch size take nearly equal time, so the last waits tell when the next one ends.
    The waiter sleeps until ``guard_ns`` before that and meets the slot awake; the doorbell can
    still wake it early, so a wrong prediction costs one wake-up, not the whole doze.

    Waits for an arrival (``pending`` false) are not predictable from steps: they park at once
    after a block penalty of spinning and teach nothing.

    Parameters
    ----------
    guard_ns
        How long before the expected publication to be back on the CPU. Set it above the machine's
        p99 timer overshoot; `shmsim tune` chooses it. At least 0.
    smoothing
        Weight of the newest wait in the running mean, in (0, 1].
    rehearse
        Whether to rehearse the work that follows, between the doze and the spin: caches that went
        cold meanwhile are warm again when the event comes.
    mean_wait_ns
        Running mean of the waits so far; negative before the first.
    """

    guard_ns: int = 100_000
    smoothing: float = 0.2
    rehearse: bool = False
    mean_wait_ns: float = -1.0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Doze until shortly before the expected publication, then spin."""
        if not ctx.pending or self.mean_wait_ns < 0.0:
            return then_park(SPIN, block_penalty_ns(ctx.costs), 0)
        expected_ns = int(self.mean_wait_ns)
        if expected_ns <= 2 * self.guard_ns:
            # Too short to be worth a sleep: spin past the expected end, then give up.
            return then_park(SPIN, 2 * self.guard_ns + expected_ns, 0)
        awake_at_ns = expected_ns - self.guard_ns
        if self.rehearse and awake_at_ns > 2 * ctx.costs.rehearsal_ns:
            return doze_rehearse_spin_park(
                awake_at_ns - ctx.costs.rehearsal_ns, expected_ns + 2 * self.guard_ns
            )
        return doze_spin_park(awake_at_ns, expected_ns + 2 * self.guard_ns)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "WakeAhead":
        """Fold the wait just finished into the running mean."""
        if not ctx.pending:
            return self
        wait_ns = float(outcome.published_after_ns)
        if wait_ns < 0.0:
            wait_ns = 0.0
        mean_ns = self.mean_wait_ns
        if mean_ns < 0.0:
            mean_ns = wait_ns
        mean_ns += self.smoothing * (wait_ns - mean_ns)
        return WakeAhead(self.guard_ns, self.smoothing, self.rehearse, mean_ns)
