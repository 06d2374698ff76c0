"""Plans by hazard: what to do when a wait is expected at some instant, with some spread."""

from typing import Final, NamedTuple

from shmsim.policies.spread import Spread, awake_time, awake_window, survival
from shmsim.wait import (
    ASLEEP,
    DOZE,
    REHEARSE,
    SPIN,
    Stage,
    WaitCosts,
    WaitPlan,
    block_penalty_ns,
    then_park,
)

_WORTH: Final = 0.95  # of the price of parking: what promises less of a gain is not worth it


class Course(NamedTuple):
    """What to do in a wait; instants from its start.

    Parameters
    ----------
    asleep_ns
        Until when to doze; 0 spins from the start.
    end_ns
        Until when to spin; 0 parks at once.
    """

    asleep_ns: float
    end_ns: float


PARK_AT_ONCE = Course(0.0, 0.0)


def best_course(
    mean_ns: float, spread: Spread, overshoot_ns: float, costs: WaitCosts, clamp: float
) -> Course:
    """The cheapest of parking, spinning from the start, and dozing first.

    Parameters
    ----------
    mean_ns
        When the event is expected, from the start of the wait; above 0.
    spread
        How it falls round that, relative to it.
    overshoot_ns
        How late a doze ends, on average.
    costs
        Of waiting.
    clamp
        Spin for at most ``B / clamp``: never costs more than ``1 + 1 / clamp`` times parking.
    """
    penalty = block_penalty_ns(costs) / mean_ns
    window = awake_window(spread, penalty)
    if window.end <= window.start:
        return PARK_AT_ONCE
    most = penalty / clamp
    best, course = _WORTH * penalty, PARK_AT_ONCE
    # A doze first, if the timer is exact enough to hit the window.
    late_by = overshoot_ns / mean_ns
    timer = costs.block_cpu_ns / mean_ns
    asleep = 1.0 + window.start - late_by
    if late_by < 0.2 and asleep > 2.0 * late_by:
        start, end = window.start, window.end
        if end - start > most:
            end = start + most
        awake = survival(spread, start)
        cost = (
            awake * timer
            + penalty * (1.0 - awake + survival(spread, end))
            + awake_time(spread, start, end)
        )
        if cost < best:
            best, course = cost, Course(mean_ns * asleep, mean_ns * (1.0 + end))
        if asleep > 4.0 * timer:
            return course  # spinning that long before the window costs more than the timer
    # From the start: the time until the event, or until it is given up.
    end = window.end if 1.0 + window.end < most else most - 1.0
    if end > -1.0:
        cost = awake_time(spread, -1.0, end) + penalty * survival(spread, end)
        if cost < best:
            course = Course(0.0, mean_ns * (1.0 + end))
    return course


def cost_of_course(course: Course, wait_ns: float, overshoot_ns: float, costs: WaitCosts) -> float:
    """What a course costs in a wait of this length, in spin time."""
    penalty_ns = float(block_penalty_ns(costs))
    asleep_ns, end_ns = course
    if wait_ns <= 0.0:
        return 0.0
    if asleep_ns >= wait_ns or end_ns <= 0.0:
        return penalty_ns
    cost_ns = 0.0
    awake_ns = 0.0
    if asleep_ns > 0.0:
        cost_ns = float(costs.block_cpu_ns)
        awake_ns = asleep_ns + overshoot_ns
    if wait_ns <= end_ns:
        if wait_ns > awake_ns:
            return cost_ns + wait_ns - awake_ns
        return cost_ns + costs.delay_price * (awake_ns - wait_ns)
    return cost_ns + (end_ns - awake_ns if end_ns > awake_ns else 0.0) + penalty_ns


def plan_of(course: Course, costs: WaitCosts, rehearse: bool) -> WaitPlan:
    """The plan of a course: doze, rehearse if asked to and if there is time, spin, park."""
    asleep_ns = int(course.asleep_ns)
    end_ns = int(course.end_ns)
    if asleep_ns <= 0:
        return then_park(SPIN, end_ns, 0)
    if rehearse and asleep_ns > 2 * costs.rehearsal_ns:
        asleep_ns -= costs.rehearsal_ns
        return WaitPlan(
            Stage(DOZE, asleep_ns, 0),
            Stage(REHEARSE, asleep_ns, 0),
            Stage(SPIN, end_ns, 0),
            ASLEEP,
        )
    return WaitPlan(Stage(DOZE, asleep_ns, 0), Stage(SPIN, end_ns, 0), ASLEEP, ASLEEP)
