"""Feedback naps, a class for each kind of step."""

from typing import NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.units import FOREVER_NS, US
from shmsim.wait import ASLEEP, DOZE, NAP, SPIN, Stage, WaitContext, WaitOutcome, WaitPlan

_MOST_NS = 1e12  # a nap that grows without end would leave 64 bits


class Feedback(NamedTuple):
    """Nap of one class, the factor it moves by, and whether it was too long the last time."""

    nap_ns: float
    factor: float
    was_over: bool


class ByClass(NamedTuple):
    """One value for each class: decode of few and of many sequences, prefill short and long."""

    few: Feedback
    many: Feedback
    short: Feedback
    long: Feedback


_BEGIN = Feedback(50_000.0, 1.0, False)


class Pas(NamedTuple):
    """Sleep a little longer after each nap that was too short, much shorter after one too long.

    PAS of FAST'26 (DPAS artefact, ``block/blk-mq.c``): the nap is multiplied by a factor that
    gains UP while naps are too short, loses DN while they are too long and starts again from
    1 + UP or 1 - DN when that changes; then it spins. One bit is learnt from each wait, so about
    a fifth of the naps oversleep, and what is mixed within a class is never learnt.

    Parameters
    ----------
    up, down
        UP and DN, each in (0, 1).
    least_ns
        Shortest nap, at least 1.
    doze
        Whether the doorbell can cut the nap short.
    learnt
        State of each class.
    """

    up: float = 0.01
    down: float = 0.1
    least_ns: int = 50 * US
    doze: bool = False
    learnt: ByClass = ByClass(_BEGIN, _BEGIN, _BEGIN, _BEGIN)

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Nap as long as this class of step allows, then spin for ever; park for an arrival."""
        if not ctx.pending:
            return PARK_ONLY
        state = self.learnt[class_of(ctx)]
        kind = DOZE if self.doze else NAP
        nap_ns = int(state.nap_ns)
        return WaitPlan(Stage(kind, nap_ns, 0), Stage(SPIN, FOREVER_NS, 0), ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Pas":
        """Move the nap of this class by whether it was too long."""
        if not ctx.pending:
            return self
        at = class_of(ctx)
        few, many, short, long = self.learnt
        moved = feedback(
            self.learnt[at], outcome.stage == 0, self.up, self.down, float(self.least_ns)
        )
        learnt = ByClass(
            moved if at == 0 else few,
            moved if at == 1 else many,
            moved if at == 2 else short,
            moved if at == 3 else long,
        )
        return Pas(self.up, self.down, self.least_ns, self.doze, learnt)


def class_of(ctx: WaitContext) -> int:
    """Class of a step, 0 to 3: an index of `ByClass`."""
    if ctx.n_prefill_tokens > 0:
        return 3 if ctx.n_prefill_tokens > 512 else 2
    return 1 if ctx.n_decode > 8 else 0


def feedback(state: Feedback, is_over: bool, up: float, down: float, least_ns: float) -> Feedback:
    """The nap after one more wait."""
    factor = state.factor
    if is_over != state.was_over:
        factor = 1.0 - down if is_over else 1.0 + up
    elif is_over:
        factor -= down
    else:
        factor += up
    if factor < down:
        factor = down
    nap_ns = state.nap_ns * factor
    if nap_ns < least_ns:
        nap_ns = least_ns
    if nap_ns > _MOST_NS:
        nap_ns = _MOST_NS
    return Feedback(nap_ns, factor, is_over)
