"""The best course through a wait whose law is known: when to be awake, when asleep and alert.

Asleep, the event costs the block penalty B; awake, time costs itself; waking by a timer costs c.
Without c the rule is local, awake exactly where ``B hazard > 1`` (waits.md, section 3); with it the
course follows by dynamic programming backwards over the grid of the law.
"""

from typing import NamedTuple

import numpy as np

from shmsim.bounds.law import Float64Array, Law


class Courses(NamedTuple):
    """A course for each of some penalties, on the grid of one law; time in expectations.

    Parameters
    ----------
    edges
        Time at the end of each cell, shape ``(n,)``.
    spun
        Time awake until there, shape ``(m, n)``.
    timers
        Timers that have rung until there, shape ``(m, n)``.
    awake
        Whether awake in that cell, shape ``(m, n)``.
    """

    edges: Float64Array
    spun: Float64Array
    timers: Float64Array
    awake: Float64Array


def best_courses(law: Law, penalty: Float64Array, timer: Float64Array) -> Courses:
    """The cheapest courses.

    Parameters
    ----------
    law
        Of the wait, relative to its expectation.
    penalty, timer
        B and c over the expectation, shape ``(m,)`` both.
    """
    cell = law.grid[1] - law.grid[0]
    edges = np.exp(law.grid + cell / 2)
    starts = np.concatenate([[0.0], edges[:-1]])
    length = edges - starts
    left = np.concatenate([[1.0], 1.0 - np.cumsum(law.mass)[:-1]])
    left = np.maximum(left, law.mass)  # rounding
    hazard = np.divide(law.mass, left, out=np.zeros_like(left), where=left > 0)
    n, m = len(edges), len(penalty)
    awake = np.zeros((m, n), dtype=bool)
    if not timer.any():
        awake = penalty[:, None] * hazard > length
    else:
        # Behind the last cell nothing is left to come.
        asleep_cost, awake_cost = np.zeros(m), np.zeros(m)
        wakes = np.zeros((m, n), dtype=bool)
        dozes = np.zeros((m, n), dtype=bool)
        for i in range(n - 1, -1, -1):
            h, stays = hazard[i], 1.0 - hazard[i]
            sleep = h * penalty + stays * asleep_cost
            # On average the event is in the middle of its cell.
            spin = length[i] * (1.0 - h / 2) + stays * awake_cost
            wakes[:, i] = timer + spin < sleep
            dozes[:, i] = sleep < spin
            asleep_cost = np.minimum(sleep, timer + spin)
            awake_cost = np.minimum(spin, sleep)
        # Whoever starts awake needs no timer to be so.
        is_awake = awake_cost < asleep_cost
        for i in range(n):
            is_awake = np.where(is_awake, ~dozes[:, i], wakes[:, i])
            awake[:, i] = is_awake
    spun = np.cumsum(np.where(awake, length, 0.0), axis=1)
    before = np.concatenate([awake[:, :1], awake[:, :-1]], axis=1)
    timers = np.cumsum(awake & ~before, axis=1)
    return Courses(edges, spun, timers.astype(np.float64), awake.astype(np.float64))


def cost_of_courses(
    courses: Courses,
    which: Float64Array,
    ratio: Float64Array,
    penalty: Float64Array,
    timer: Float64Array,
) -> Float64Array:
    """What waits cost under given courses, in expectations.

    Parameters
    ----------
    courses
        As from `best_courses`.
    which
        Index of the course of each wait, shape ``(n_waits,)``.
    ratio
        Wait over expectation, shape ``(n_waits,)``.
    penalty, timer
        Of each wait, shape ``(n_waits,)``.
    """
    row = which.astype(np.int64)
    at = np.searchsorted(courses.edges, ratio)
    beyond = at >= len(courses.edges)
    column = np.minimum(at, len(courses.edges) - 1)
    awake = courses.awake[row, column] > 0
    spun = courses.spun[row, column]
    # Awake in its cell until the event; behind the grid nobody expects anything: asleep.
    spun = np.where(awake & ~beyond, spun - (courses.edges[column] - ratio), spun)
    met_asleep = ~awake | beyond
    return spun + timer * courses.timers[row, column] + np.where(met_asleep, penalty, 0.0)


def expected_cost(law: Law, penalty: float) -> float:
    """``integral of min(S, B f)``, in expectations: the least that no timer's cost allows."""
    cell = law.grid[1] - law.grid[0]
    edges = np.exp(law.grid + cell / 2)
    length = np.diff(edges, prepend=0.0)
    survival = 1.0 - np.cumsum(law.mass) + law.mass / 2
    return float(np.minimum(survival * length, penalty * law.mass).sum())
