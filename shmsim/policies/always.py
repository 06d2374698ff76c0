"""Policies that wait in one way, whatever happens: the ends of the scale, and its controls."""

from typing import Final, NamedTuple

from shmsim.units import FOREVER_NS, US
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
    only,
)

# Made once: making a plan takes longer than carrying it out when the message is there already.
SPIN_ONLY: Final = only(SPIN)
YIELD_ONLY: Final = only(YIELD)
PARK_ONLY: Final = only(PARK)


class BusySpin(NamedTuple):
    """Look without end, with the pause hint: the least delay, a whole core.

    What vLLM does with ``VLLM_USE_SPINLOOP_EXT=1`` on CPUs without monitorx. With more spinners
    than cores it collapses: the event then waits for a time slice.
    """

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for ever."""
        return SPIN_ONLY

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
        return YIELD_ONLY

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "YieldSpin":
        """Learn nothing."""
        return self


class Park(NamedTuple):
    """Sleep on the doorbell at once: the level trigger of the seed discussion (vLLM #24618).

    The least CPU; every wait pays a wake-up, and the work after it runs slower.
    """

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Park for ever."""
        return PARK_ONLY

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Park":
        """Learn nothing."""
        return self


class Poll(NamedTuple):
    """Look at fixed intervals, asleep and deaf in between.

    The simplest loop that people write. A timed sleep takes 16-32 us of CPU in a guest and ends
    late, so a short period is neither cheap nor exact.

    Parameters
    ----------
    period_ns
        Sleep between two looks, at least 1.
    """

    period_ns: int = 100 * US

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Poll for ever."""
        return WaitPlan(Stage(POLL, FOREVER_NS, self.period_ns), ASLEEP, ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Poll":
        """Learn nothing."""
        return self
