"""What an engine does that sleeps only when it has nothing to run."""

from typing import NamedTuple

from shmsim.units import FOREVER_NS, S
from shmsim.wait import ASLEEP, PARK, SPIN, Stage, WaitContext, WaitOutcome, WaitPlan, only


class ParkWhenIdle(NamedTuple):
    """Look without end while the peer is at work, sleep on the doorbell when it is not.

    SGLang's ``--sleep-on-idle`` (sgl-project/sglang#6026): idle costs nothing, and a request that
    runs costs what busy spin does.

    Parameters
    ----------
    recheck_ns
        How often a sleeper looks by itself; SGLang's poller returns each second.
    """

    recheck_ns: int = S

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for a step, park for an arrival."""
        if ctx.pending:
            return only(SPIN)
        return WaitPlan(Stage(PARK, FOREVER_NS, self.recheck_ns), ASLEEP, ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "ParkWhenIdle":
        """Learn nothing."""
        return self
