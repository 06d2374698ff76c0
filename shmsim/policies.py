"""The wait policies: immutable values of numbers that answer with a plan.

They stay within what numba compiles: ints stay ints and floats stay floats on every branch, no
``**``, no ``sum()``, no ``_replace``. `shmsim.sim.compiled` then gives the same bits as CPython.
"""

from typing import Final, NamedTuple

from shmsim.units import FOREVER_NS, MS, S
from shmsim.wait import (
    ASLEEP,
    PARK,
    POLL,
    SPIN,
    YIELD,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    block_penalty_ns,
    doze_rehearse_spin_park,
    doze_spin_park,
    only,
    then_park,
)

# Made once: making a plan takes longer than carrying it out when the message is there already.
_SPIN_ONLY: Final = only(SPIN)
_YIELD_ONLY: Final = only(YIELD)
_PARK_ONLY: Final = only(PARK)


class BusySpin(NamedTuple):
    """Look without end, with the pause hint: the least delay, a whole core.

    What vLLM does with ``VLLM_USE_SPINLOOP_EXT=1`` on CPUs without monitorx. With more spinners
    than cores it collapses: the event then waits for a time slice.
    """

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for ever."""
        return _SPIN_ONLY

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "BusySpin":
        """Learn nothing."""
        return self


class YieldSpin(NamedTuple):
    """Look without end, offering the core to others between looks.

    vLLM's loop from 2024-11 (#9994): a whole core when nobody else wants it, far less when somebody
    does.
    """

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Yield for ever."""
        return _YIELD_ONLY

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "YieldSpin":
        """Learn nothing."""
        return self


class Park(NamedTuple):
    """Sleep on the doorbell at once: the level trigger of the seed discussion (vLLM #24618).

    The least CPU; every wait pays a wake-up, and the work after it runs slower.
    """

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Park for ever."""
        return _PARK_ONLY

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Park":
        """Learn nothing."""
        return self


class SpinThenPark(NamedTuple):
    """Spin for a window counted from the start of the wait, then park.

    With the window at the block penalty B it costs at most twice the clairvoyant optimum (ski
    rental); for step gaps longer than the window it pays the spin *and* the wake-up.

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


#: Every policy class, by the name it has in a config file and on the command line.
POLICIES: Final[dict[str, type[WaitPolicy]]] = {
    "BusySpin": BusySpin,
    "YieldSpin": YieldSpin,
    "Park": Park,
    "SpinThenPark": SpinThenPark,
    "GraceThenPark": GraceThenPark,
    "GraceThenPoll": GraceThenPoll,
    "WakeAhead": WakeAhead,
}

#: Policies as people ship them, by the name they are known by.
PRESETS: Final[dict[str, WaitPolicy]] = {
    "spin": BusySpin(),
    "yield": YieldSpin(),
    "vllm-1s": GraceThenPark(1 * S),
    "forks-2ms": GraceThenPark(2 * MS),
    "competitive": SpinThenPark(),
    "sleep-100ms": GraceThenPoll(3 * S, 100 * MS),
    "park": Park(),
    "wake-ahead": WakeAhead(),
    "rehearse-ahead": WakeAhead(rehearse=True),
}
