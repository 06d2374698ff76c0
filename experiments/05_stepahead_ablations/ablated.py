"""StepAhead with one part taken out: each is a policy that hands the wait on, changed."""

from typing import NamedTuple

from shmsim.policies import StepAhead
from shmsim.wait import DOZE, NAP, WaitContext, WaitOutcome, WaitPlan


class NoFeatures(NamedTuple):
    """It is not told what is in the batch: every step is expected to last as long."""

    inner: StepAhead = StepAhead()

    @property
    def learnt_looks(self) -> float:
        """Share of the waits that it learns from."""
        return self.inner.learnt_looks

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Plan without features."""
        return self.inner.plan(_blind(ctx))

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "NoFeatures":
        """Learn without features."""
        return NoFeatures(self.inner.after(_blind(ctx), outcome))


class NoPendingFlag(NamedTuple):
    """It is not told that nobody is at work: an arrival is waited for like a step."""

    inner: StepAhead = StepAhead()

    @property
    def learnt_looks(self) -> float:
        """Share of the waits that it learns from."""
        return self.inner.learnt_looks

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Plan as if the peer were at work."""
        return self.inner.plan(ctx._replace(pending=True))

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "NoPendingFlag":
        """Learn from arrivals too."""
        return NoPendingFlag(self.inner.after(ctx._replace(pending=True), outcome))


class SelfMeasured(NamedTuple):
    """It has no stamp of the producer: an event looks as late as it was seen."""

    inner: StepAhead = StepAhead()

    @property
    def learnt_looks(self) -> float:
        """Share of the waits that it learns from."""
        return self.inner.learnt_looks

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Plan as ever."""
        return self.inner.plan(ctx)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "SelfMeasured":
        """Learn from when the event was seen."""
        seen = outcome._replace(published_after_ns=outcome.seen_after_ns)
        return SelfMeasured(self.inner.after(ctx, seen))


class Deaf(NamedTuple):
    """Its doze is a nap, deaf to the doorbell; with ``stamped`` off also as `SelfMeasured`."""

    inner: StepAhead = StepAhead()
    stamped: bool = True

    @property
    def learnt_looks(self) -> float:
        """Share of the waits that it learns from."""
        return self.inner.learnt_looks

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Nap where it would doze."""
        plan = self.inner.plan(ctx)
        if plan.first.kind != DOZE:
            return plan
        return plan._replace(first=plan.first._replace(kind=NAP))

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Deaf":
        """Learn from the stamp, or from when the event was seen."""
        if not self.stamped:
            outcome = outcome._replace(published_after_ns=outcome.seen_after_ns)
        return Deaf(self.inner.after(ctx, outcome), self.stamped)


def _blind(ctx: WaitContext) -> WaitContext:
    return ctx._replace(n_decode=0, n_prefill_tokens=0, n_kv_tokens=0)
