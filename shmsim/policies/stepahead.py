"""Expects the end of each step from what is in its batch, and is awake when it is likely."""

import math
from typing import Final, NamedTuple

from shmsim.policies.always import PARK_ONLY
from shmsim.policies.hazard import best_course, cost_of_course, plan_of
from shmsim.policies.line import (
    Features,
    Line,
    expected_ns,
    features_of,
    first_line,
    innovation,
    learn_line,
    reopened,
)
from shmsim.policies.spread import Spread, learn_spread
from shmsim.wait import (
    SPIN,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    block_penalty_ns,
    is_left_undecided,
    then_park,
)

_LEAST_NS: Final = 10_000.0  # shorter expectations are no scale for relative errors
_MOST_NS: Final = 86_400e9
_VARIANCE: Final = math.pi * math.pi / 3.0  # of a logistic law of scale 1
_WIDE: Final = Spread(0.15, 0.15, 0.02)
_STRAY: Final = 4.5  # standard deviations
_FAR: Final = 8.0  # expectations, which are a stray however wide the law is
_RUN: Final = 3  # so many strays in a row on one side are a change, and no strays
_WORTH: Final = 0.95  # of the price of parking: what promises less of a gain is not worth it
_WARM: Final = 64  # waits after which all count alike
_MEMORY: Final = 1.0 / _WARM
_WEIGHED: Final = 4  # every so many waits it weighs its own law against other ways: that is dear
_WEIGHT: Final = 1.0 / 32.0
_SOON: Final = 16  # waits after which it may rest if deciding costs more than it could hope for
_HOPED: Final = 0.5  # of the price of parking: a gain that few waits do not tell yet
_LOOKING: Final = 0.005  # of the price of parking: what looking may cost, over all undecided waits
_MOST_LOOKS: Final = 1.0 / 16.0  # share of the undecided waits that are looked at
_FEWEST_LOOKS: Final = 1.0 / 256.0
_HOLD: Final = 16.0  # waits to park for on a crowded box
_LONGER: Final = 4.0  # times as many, where it is found crowded again soon
_LONGEST_HOLD: Final = 512.0
_SOONEST: Final = 0.75  # wake latencies: who was kept from its core publishes
_RIGHT_AFTER: Final = 2.5  # between so many behind the end of the spin
_BLOCKING: Final = 3.0  # spins in vain that ended so, less those that did not
_FORGOTTEN: Final = 1.0 / 185.0  # of a hold with each wait that kept its core: half in 128


class Known(NamedTuple):
    """What `StepAhead` has learnt.

    Parameters
    ----------
    n
        Waits learnt from; once warm it goes round.
    line
        Expectation by features.
    spread
        How waits fall round it.
    run
        Strays in a row, negative on the early side.
    overshoot_ns
        Mean lateness of a doze; negative while none was seen.
    wake_ns
        Mean delay of a doorbell; negative while none was seen.
    own, short, long
        Running costs, in penalties, of what it would do by its own law, and of spinning for one
        penalty, and for as long as the clamp allows; parking costs 1.
    hold
        For how many waits it parked when the core was taken away, forgotten wait by wait.
    blocking
        Spins in vain right behind which the event came, less those behind which it did not.
    """

    n: int
    line: Line
    spread: Spread
    run: int
    overshoot_ns: float
    wake_ns: float
    own: float
    short: float
    long: float
    hold: float
    blocking: float


UNKNOWN: Final = Known(0, first_line(0.0), _WIDE, 0, -1.0, -1.0, 0.5, 1.0, 1.0, 0.0, 0.0)


class StepAhead(NamedTuple):
    """Doze until the event becomes likely, rehearse, spin while it stays likely, then park.

    Step time follows from the batch, which both sides know: a line through decode sequences,
    prompt tokens and context (recursive least squares, errors relative) says when the event is
    expected, and a running two-sided logistic law how it falls round that. With B the block
    penalty, spinning is right exactly where ``B hazard > 1``; for that law both ends of the
    stretch have closed forms, so nothing is refitted and nothing searched. waits.md sections 3
    and 7; nobody was found to have built it.

    Guards: an arrival (``pending`` false) parks at once and teaches nothing. It spins for at most
    ``B / clamp``. A core that was taken for longer than B parks the next sixteen waits, four times
    as many each time it is taken again soon: who looks on a crowded box loses the core that its
    work needs. So do events that come right behind spins in vain: the publisher needed the core.
    Where the engine is known to have more processes than cores it always parks, undecided.
    A timer later than a fifth of the wait is not used. Three strays in a row on one side are a
    change of level: the line is reopened, and begun anew where waits have become eight times as
    long.
    And as the stamp tells what each way would have cost, it parks, or spins for as long as it
    may or for one B, while its own law does worse than that. Deciding costs CPU too: where its law
    gains less than that over the cheapest of these it *rests*: it does that one undecided, and
    looks at one wait in sixteen only, or at fewer where deciding is dear beside B. Which ones is
    drawn, so that nothing changes in between: the state that a rest leaves alone is the cheapest.

    `expectation_ns` alone says when an event is expected: an end that the producer announces would
    come in there.

    Parameters
    ----------
    rehearse
        Whether to rehearse the work that follows, between the doze and the spin.
    clamp
        B over the longest spin, in (0, 1]: 0.25 costs at most five times parking in the worst
        case.
    learnt
        State.
    learnt_looks
        Share of the waits that it learns from, below 1 while it rests
        (`shmsim.wait.is_left_undecided`).
    learnt_held
        Waits to park for, since the core was taken away.
    learnt_resting
        The plan of an undecided wait.
    """

    rehearse: bool = False
    clamp: float = 0.25
    learnt: Known = UNKNOWN
    learnt_looks: float = 1.0
    learnt_held: int = 0
    learnt_resting: WaitPlan = PARK_ONLY

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """Plan round the instant at which this step is expected to end."""
        if self.learnt_looks < 1.0 and ctx.pending:
            return self.learnt_resting
        known = self.learnt
        if not ctx.pending or self.learnt_held > 0 or ctx.costs.shares_cores:
            return PARK_ONLY
        simple = undecided(known, self.clamp)
        costs = costs_by_experience(known, ctx.costs)
        penalty_ns = block_penalty_ns(costs)
        if known.n == 0:
            return then_park(SPIN, penalty_ns, 0)
        if known.own > _WORTH * simple.cost:
            return plan_undecided(simple, penalty_ns)
        mean_ns = expectation_ns(known, features_of(ctx))
        overshoot_ns = overshoot_of(known, ctx)
        course = best_course(mean_ns, known.spread, overshoot_ns, costs, self.clamp)
        if course.end_ns <= 0.0:
            return PARK_ONLY
        return plan_of(course, costs, self.rehearse)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "StepAhead":
        """Learn from when the event was published, whatever this wait slept through."""
        # `is_left_undecided`, without the call: after a sleep each function takes microseconds, and
        # so does a long one of which little is run.
        if ctx.uniform >= self.learnt_looks and outcome.preempted == 0:
            return self
        return after_looking(self, ctx, outcome)


def after_looking(policy: StepAhead, ctx: WaitContext, outcome: WaitOutcome) -> StepAhead:
    """The policy after a wait that it does not leave undecided, or in which its core was taken."""
    if not ctx.pending:
        return policy
    rehearse, clamp, known, looks, held, _ = policy
    if ctx.costs.shares_cores:
        return StepAhead(rehearse, clamp, known, 0.0, 0, PARK_ONLY)
    hold = known.hold
    blocking = still_blocking(known, ctx.costs, outcome)
    if is_crowded(ctx.costs, outcome) or blocking >= _BLOCKING:
        blocking = 0.0
        hold = _LONGER * hold
        if hold < _HOLD:
            hold = _HOLD
        if hold > _LONGEST_HOLD:
            hold = _LONGEST_HOLD
        held = int(hold)
    elif is_left_undecided(looks, ctx.uniform):
        return policy
    elif held > 1:
        return StepAhead(rehearse, clamp, known, 1.0, held - 1, PARK_ONLY)
    elif held > 0:
        held = 0
    else:
        hold -= hold * _FORGOTTEN
    known = learn(known, ctx, outcome, clamp, hold, blocking, looks < 1.0)
    if held > 0 or not is_idle(known, ctx.costs, clamp):
        return StepAhead(rehearse, clamp, known, 1.0, held, PARK_ONLY)
    penalty_ns = block_penalty_ns(costs_by_experience(known, ctx.costs))
    resting = plan_undecided(undecided(known, clamp), penalty_ns)
    return StepAhead(rehearse, clamp, known, looks_of(ctx.costs), 0, resting)


def is_crowded(costs: WaitCosts, outcome: WaitOutcome) -> bool:
    """Whether its core was taken from it for long enough to make looking dearer than parking.

    A kernel thread or the hypervisor takes it for some tens of microseconds now and then, which
    costs less than not to look for the next waits.
    """
    begun_ns = outcome.published_after_ns if outcome.published_after_ns > 0 else 0
    late_ns = outcome.seen_after_ns - begun_ns
    return outcome.preempted > 0 and late_ns > block_penalty_ns(costs)


def still_blocking(known: Known, costs: WaitCosts, outcome: WaitOutcome) -> float:
    """`Known.blocking` after one more wait."""
    if outcome.stage != 1 or not outcome.belled:
        return known.blocking  # it did not spin from the start, or not in vain
    behind_ns = float(outcome.published_after_ns - outcome.cpu_ns.first)
    wake_ns = float(costs.wake_latency_ns)
    if _SOONEST * wake_ns < behind_ns < _RIGHT_AFTER * wake_ns:
        return known.blocking + 1.0
    return known.blocking - 1.0 if known.blocking > 1.0 else 0.0


class Undecided(NamedTuple):
    """Spin for so many penalties, then park; what that costs, in penalties."""

    cost: float
    penalties: float


def undecided(known: Known, clamp: float) -> Undecided:
    """The cheapest way to wait that asks for no law."""
    best = Undecided(1.0, 0.0)
    if known.short < 1.0:
        best = Undecided(known.short, 1.0)
    if known.long < best.cost:
        best = Undecided(known.long, 1.0 / clamp)
    return best


def plan_undecided(way: Undecided, penalty_ns: int) -> WaitPlan:
    """The plan of such a way."""
    if way.penalties <= 0.0:
        return PARK_ONLY
    spin_ns = penalty_ns * way.penalties
    return then_park(SPIN, int(spin_ns if spin_ns < _MOST_NS else _MOST_NS), 0)


def is_idle(known: Known, costs: WaitCosts, clamp: float) -> bool:
    """Whether its law gains less than deciding costs, with some experience."""
    if known.n < _SOON:
        return False
    if known.n < _WARM:
        return _HOPED * block_penalty_ns(costs) < costs.deciding_ns
    simple = undecided(known, clamp)
    if known.own > _WORTH * simple.cost:
        return True
    return (simple.cost - known.own) * block_penalty_ns(costs) < costs.deciding_ns


def looks_of(costs: WaitCosts) -> float:
    """Share of the undecided waits that are looked at.

    The less there is to gain beside what a look costs, the later it may be found out.
    """
    may_cost_ns = _LOOKING * block_penalty_ns(costs)
    if may_cost_ns >= _MOST_LOOKS * costs.deciding_ns:
        return _MOST_LOOKS
    looks = may_cost_ns / costs.deciding_ns
    return looks if looks > _FEWEST_LOOKS else _FEWEST_LOOKS


def expectation_ns(known: Known, x: Features) -> float:
    """When the event is expected, from the start of the wait."""
    return clipped(expected_ns(known.line, x))


def clipped(mean_ns: float) -> float:
    """An expectation that can be planned with."""
    if mean_ns < _LEAST_NS:
        return _LEAST_NS
    return mean_ns if mean_ns < _MOST_NS else _MOST_NS


def overshoot_of(known: Known, ctx: WaitContext) -> float:
    """How late a doze ends, by experience; before that half the calibrated 99th percentile."""
    if known.overshoot_ns < 0.0:
        return 0.5 * ctx.costs.timer_overshoot_ns
    return known.overshoot_ns


def costs_by_experience(known: Known, costs: WaitCosts) -> WaitCosts:
    """The calibrated costs, with the wake latency that its own waits had.

    It grows with the time asleep, which no single number of a calibration can say.
    """
    if known.wake_ns < 0.0:
        return costs
    return WaitCosts(
        int(known.wake_ns),
        costs.block_cpu_ns,
        costs.timer_overshoot_ns,
        costs.rehearsal_ns,
        costs.deciding_ns,
        costs.delay_price,
        costs.shares_cores,
    )


def learn_wake(wake_ns: float, ctx: WaitContext, outcome: WaitOutcome) -> float:
    """The mean delay of a doorbell after one more wait."""
    if not outcome.belled or outcome.published_after_ns <= 0:
        return wake_ns
    now_ns = float(outcome.seen_after_ns - outcome.published_after_ns)
    if wake_ns < 0.0:
        wake_ns = float(ctx.costs.wake_latency_ns)
    most_ns = 4.0 * wake_ns + 1_000.0  # a core that was late for its own reasons
    return wake_ns + _MEMORY * ((now_ns if now_ns < most_ns else most_ns) - wake_ns)


def learn_overshoot(late_ns: float, ctx: WaitContext, outcome: WaitOutcome) -> float:
    """The mean lateness of a doze after one more wait.

    Who has learnt that dozes end too late dozes no more, and would never learn that they do not:
    what no doze confirms is forgotten.
    """
    usual_ns = 0.5 * ctx.costs.timer_overshoot_ns
    if outcome.overshoot_ns <= 0:
        return late_ns - _MEMORY * (late_ns - usual_ns) if late_ns > usual_ns else late_ns
    now_ns = float(outcome.overshoot_ns)
    # More than so much is a core that was late for its own reasons.
    most_ns = 2.0 * usual_ns if late_ns < 0.0 else 4.0 * late_ns + 1_000.0
    if now_ns > most_ns:
        now_ns = most_ns
    return now_ns if late_ns < 0.0 else late_ns + _MEMORY * (now_ns - late_ns)


def learn(
    known: Known,
    ctx: WaitContext,
    outcome: WaitOutcome,
    clamp: float,
    hold: float,
    blocking: float,
    has_rested: bool,
) -> Known:
    """What is known after one more wait."""
    wait_ns = float(outcome.published_after_ns)
    if wait_ns > _MOST_NS:
        wait_ns = _MOST_NS
    late_ns = learn_overshoot(known.overshoot_ns, ctx, outcome)
    if known.n == 0:
        line = first_line(clipped(wait_ns))
        return Known(
            1,
            line,
            _WIDE,
            0,
            late_ns,
            known.wake_ns,
            known.own,
            known.short,
            known.long,
            hold,
            blocking,
        )
    x = features_of(ctx)
    mean_ns = expectation_ns(known, x)
    n = known.n + 1 if known.n < _WARM + _WEIGHED - 1 else _WARM
    wake_ns = learn_wake(known.wake_ns, ctx, outcome)
    own, short, long = known.own, known.short, known.long
    if has_rested or n % _WEIGHED == 0:
        costs = costs_by_experience(known, ctx.costs)
        weighed = weigh(known, mean_ns, wait_ns, overshoot_of(known, ctx), costs, clamp)
        own += _WEIGHT * (weighed.own - own)
        short += _WEIGHT * (weighed.short - short)
        long += _WEIGHT * (weighed.long - long)

    # Relative to whichever is longer: an expectation far too short is no scale.
    scale_ns = wait_ns if wait_ns > mean_ns else mean_ns
    off = (wait_ns - expected_ns(known.line, x)) / scale_ns
    spread = known.spread
    scale = 0.5 * (spread.left + spread.right)
    noise = _VARIANCE * scale * scale
    found = innovation(known.line, x, scale_ns)
    most = _STRAY * math.sqrt(noise + found.variance)
    run = 0
    # A law of short waits that vary much allows every relative error, so that it would not see that
    # they became long, nor move: errors are relative to the wait, and there are none above 1. A
    # batch of a kind that the line knows nothing of is no stray.
    is_far = wait_ns > _FAR * mean_ns and off * off > _STRAY * _STRAY * found.variance
    is_stray = is_far or off > most or off < -most
    line = known.line
    if is_stray:
        run = known.run + 1 if off > 0.0 else known.run - 1
        if known.run * run < 0:
            run = 1 if off > 0.0 else -1
        if run >= _RUN or run <= -_RUN:
            if is_far:
                line = first_line(clipped(wait_ns))
            else:
                line = reopened(line)
                line = learn_line(line, innovation(line, x, scale_ns), off, noise)
            return Known(
                2,
                line,
                _WIDE,
                0,
                late_ns,
                wake_ns,
                own,
                short,
                long,
                hold,
                blocking,
            )
        if off > most:
            off = most
        elif off < -most:
            off = -most
    else:
        line = learn_line(line, found, off, noise)
    # Less what the uncertain line accounts for.
    off *= math.sqrt(noise / (noise + found.variance))
    weight = 1.0 / n
    if weight < _MEMORY:
        weight = _MEMORY
    spread = learn_spread(spread, off, is_stray, weight)
    return Known(n, line, spread, run, late_ns, wake_ns, own, short, long, hold, blocking)


class Weighed(NamedTuple):
    """What its own law and two lengths of spinning would have cost in one wait, in penalties."""

    own: float
    short: float
    long: float


#: What was over before it began is seen at once in any way: nothing is gained over parking.
ALIKE: Final = Weighed(1.0, 1.0, 1.0)


def weigh(
    known: Known,
    mean_ns: float,
    wait_ns: float,
    overshoot_ns: float,
    costs: WaitCosts,
    clamp: float,
) -> Weighed:
    """What each way, as `Known` has them, would have cost in this wait."""
    if wait_ns <= 0.0:
        return ALIKE
    penalty_ns = float(block_penalty_ns(costs)) + 1.0
    course = best_course(mean_ns, known.spread, overshoot_ns, costs, clamp)
    own = cost_of_course(course, wait_ns, overshoot_ns, costs) / penalty_ns
    lasted = wait_ns / penalty_ns
    most = 1.0 / clamp
    return Weighed(own, lasted if lasted <= 1.0 else 2.0, lasted if lasted <= most else most + 1.0)
