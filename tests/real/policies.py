"""Policies for tests; in a module of their own, from where a worker process can import them."""

from typing import NamedTuple

from shmsim.units import FOREVER_NS, US
from shmsim.wait import (
    ASLEEP,
    DOZE,
    NAP,
    POLL,
    SPIN,
    WORKER_RECV,
    YIELD,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
)


class EveryKind(NamedTuple):
    """Wait now in this way, now in that."""

    n_waits: int = 0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """A kind by turns, then park."""
        kind = (SPIN, YIELD, NAP, DOZE, POLL)[self.n_waits % 5]
        first = Stage(kind, 300 * US, 50 * US if kind == POLL else 0)
        return WaitPlan(first, ASLEEP, ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "EveryKind":
        """Take the next kind."""
        return EveryKind(self.n_waits + 1)


class RaisesInTheWorker(NamedTuple):
    """A policy with an error that only some steps meet."""

    on_n_kv_tokens: int

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Fail in a worker that knows of sequences long enough."""
        if ctx.site == WORKER_RECV and ctx.n_kv_tokens > self.on_n_kv_tokens:
            raise LookupError(f"no plan for {ctx.n_kv_tokens} tokens")
        return WaitPlan(Stage(SPIN, FOREVER_NS, 0), ASLEEP, ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "RaisesInTheWorker":
        """Learn nothing."""
        return self


class EndsTooEarly(NamedTuple):
    """A plan that leaves the last stage bounded, which check_plan refuses."""

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Spin for no time."""
        return WaitPlan(*[Stage(SPIN, 0, 0)] * 4)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "EndsTooEarly":
        """Learn nothing."""
        return self
