"""A spin window that grows while spinning pays and shrinks while it does not."""

from typing import NamedTuple

from shmsim.units import US
from shmsim.wait import SPIN, WaitContext, WaitOutcome, WaitPlan, block_penalty_ns, then_park


class GrowShrink(NamedTuple):
    """Halt polling of the Linux kernel: spin for a window that follows what the last waits took.

    A wait that the window covered leaves it; a longer one up to the most lets it grow from the
    start by a factor; one beyond the most shrinks it. Constants of KVM (``virt/kvm/kvm_main.c``:
    from 10 us, x2, reset, at most 200 us on x86) and of the guest's governor
    (``drivers/cpuidle/governors/haltpoll.c``: from 50 us, x2, /2, at most 200 us) are presets. On
    steps just below the most it never parks, on steps beyond it it is plain parking.

    Parameters
    ----------
    start_ns
        Least window that is not 0, at least 1.
    most_ns
        Greatest window; negative chooses the block penalty B.
    grow
        Factor, at least 1.
    shrink
        Divisor; 0 resets the window to 0.
    learnt_window_ns
        The window now.
    """

    start_ns: int = 50 * US
    most_ns: int = -1
    grow: int = 2
    shrink: int = 2
    learnt_window_ns: int = 0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for the window, then park."""
        return then_park(SPIN, self.learnt_window_ns, 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "GrowShrink":
        """Grow or shrink the window by what this wait took."""
        window_ns = self.learnt_window_ns
        most_ns = self.most_ns if self.most_ns >= 0 else block_penalty_ns(ctx.costs)
        wait_ns = outcome.published_after_ns
        if wait_ns > most_ns:
            window_ns = window_ns // self.shrink if self.shrink > 0 else 0
            if window_ns < self.start_ns:
                window_ns = 0
        elif wait_ns > window_ns:
            window_ns = window_ns * self.grow
            if window_ns < self.start_ns:
                window_ns = self.start_ns
        if window_ns > most_ns:
            window_ns = most_ns
        return GrowShrink(self.start_ns, self.most_ns, self.grow, self.shrink, window_ns)
