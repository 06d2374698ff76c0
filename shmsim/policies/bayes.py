"""The plan by hazard without a model of the step: one law for each kind of wait."""

import math
from typing import Final, NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.policies.hazard import best_course, plan_of
from shmsim.policies.spread import Spread, learn_spread
from shmsim.wait import SPIN, WaitContext, WaitOutcome, WaitPlan, block_penalty_ns, then_park

_LEAST_NS: Final = 10_000.0
_MOST_NS: Final = 86_400e9
_MEMORY: Final = 1.0 / 64.0
_STRAY: Final = 8.0  # scales


class Law(NamedTuple):
    """Mean wait (negative before the first) and how waits fall round it."""

    mean_ns: float
    spread: Spread
    n: int


class Laws(NamedTuple):
    """A law for waits on a batch of decodes only, and one for those with prompts in it."""

    decode: Law
    prefill: Law


_NOTHING: Final = Law(-1.0, Spread(0.15, 0.15, 0.02), 0)


class HazardBayes(NamedTuple):
    """`StepAhead` without its line: doze, spin and park by the hazard of past waits.

    Whatever it does worse than `StepAhead` is the value of knowing the batch (waits.md,
    conclusion 2). Two laws at most, for a mixture of step times looks like noise to it.

    Parameters
    ----------
    by_class
        Whether waits on batches with prompts have a law of their own.
    clamp
        B over the longest spin, in (0, 1].
    learnt
        The laws.
    """

    by_class: bool = True
    clamp: float = 0.25
    learnt: Laws = Laws(_NOTHING, _NOTHING)

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Plan by the law of this class."""
        if not ctx.pending:
            return PARK_ONLY
        law = self.learnt.decode
        if self.by_class and ctx.n_prefill_tokens > 0:
            law = self.learnt.prefill
        if law.mean_ns < 0.0:
            return then_park(SPIN, block_penalty_ns(ctx.costs), 0)
        overshoot_ns = 0.5 * ctx.costs.timer_overshoot_ns
        course = best_course(law.mean_ns, law.spread, overshoot_ns, ctx.costs, self.clamp)
        if course.end_ns <= 0.0:
            return PARK_ONLY
        return plan_of(course, ctx.costs, False)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "HazardBayes":
        """Add the wait to the law of its class."""
        if not ctx.pending:
            return self
        decode, prefill = self.learnt
        if self.by_class and ctx.n_prefill_tokens > 0:
            prefill = learn_law(prefill, float(outcome.published_after_ns))
        else:
            decode = learn_law(decode, float(outcome.published_after_ns))
        return HazardBayes(self.by_class, self.clamp, Laws(decode, prefill))


def learn_law(law: Law, wait_ns: float) -> Law:
    """The law after one more wait."""
    if wait_ns < _LEAST_NS:
        wait_ns = _LEAST_NS
    if wait_ns > _MOST_NS:
        wait_ns = _MOST_NS
    if law.mean_ns < 0.0:
        return Law(wait_ns, law.spread, 1)
    n = law.n + 1 if law.n < 64 else 64
    weight = 1.0 / n
    if weight < _MEMORY:
        weight = _MEMORY
    off = (wait_ns - law.mean_ns) / law.mean_ns
    most = _STRAY * 0.5 * (law.spread.left + law.spread.right)
    is_stray = off > most or off < -most
    if is_stray:
        off = most if off > 0.0 else -most
    spread = learn_spread(law.spread, off, is_stray, weight)
    mean_ns = law.mean_ns * math.exp(weight * off) if off > -1.0 else law.mean_ns * (1.0 - weight)
    if mean_ns > _MOST_NS:
        mean_ns = _MOST_NS
    return Law(mean_ns if mean_ns > _LEAST_NS else _LEAST_NS, spread, n)
