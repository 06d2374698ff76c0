"""What no policy can beat on a trace, under what it may know: L0 to L5 of waits.md."""

from typing import Final, NamedTuple

import numpy as np

from shmsim.bounds.courses import best_courses, cost_of_courses
from shmsim.bounds.law import Float64Array, fit_law, fit_predictor
from shmsim.bounds.trace import WaitTrace

_FOLDS: Final = 5
_COURSES: Final = 64  # penalties over expectations are rounded to so many values
_GRID: Final = 160  # quantiles between which the best fixed doze is searched
_FEW: Final = 32  # waits from which no law is estimated


class Limits(NamedTuple):
    """Cost of each wait in spin time, nanoseconds; arrays of shape ``(n_waits,)``.

    Parameters
    ----------
    timer_oracle
        L0: the gap is known, and a timer may be set: ``min(x, c, B)``.
    clairvoyant
        L1: the gap is known, no timer: ``min(x, B)``. Policies that doze can beat it.
    with_features
        L2: the law given the batch is known, timers are free and exact. Estimated on the other
        folds, so it is a cost that could really have been had.
    without_features
        L3: the same, all waits alike.
    fixed
        L4: the best fixed plan in hindsight, of a spin window or a doze and a spin.
    with_timers
        L5: L2 where a timer costs c.
    fixed_plan_ns
        Doze and end of spin of L4; a doze of 0 spins from the start.
    """

    timer_oracle: Float64Array
    clairvoyant: Float64Array
    with_features: Float64Array
    without_features: Float64Array
    fixed: Float64Array
    with_timers: Float64Array
    fixed_plan_ns: tuple[float, float]


def limits_of(
    trace: WaitTrace,
    penalty_ns: Float64Array | float,
    timer_ns: Float64Array | float,
    awake_ns: float = 0.0,
) -> Limits:
    """All bounds of a trace.

    Whether the peer is at work (``pending``) is known to all; arrivals are a law of their own.

    Parameters
    ----------
    trace
        The waits; at least ten, so that every fold has some.
    penalty_ns
        B: what meeting the event asleep costs, in spin time; one number, or one for each wait,
        which should depend on its gap only.
    timer_ns
        c: what a timed sleep costs, likewise.
    awake_ns
        What even an event met awake costs: the price of its detection.

    Raises
    ------
    ValueError
        If there are fewer than ten waits, or the penalty is not positive.
    """
    gap, floor, penalty = _over_the_floor(trace, penalty_ns, awake_ns)
    timer = np.broadcast_to(np.asarray(timer_ns, dtype=np.float64), gap.shape)
    doze_ns, end_ns = best_fixed(gap, penalty, timer)
    plain = _by_all(gap, trace, penalty, 0.0 * timer)
    return Limits(
        floor + np.minimum(gap, np.minimum(timer, penalty)),
        floor + np.minimum(gap, penalty),
        floor + _by_batch(gap, trace, penalty, 0.0 * timer, plain),
        floor + plain,
        floor + fixed_costs(gap, doze_ns, end_ns, penalty, timer),
        floor + _by_batch(gap, trace, penalty, timer, _by_all(gap, trace, penalty, timer)),
        (doze_ns, end_ns),
    )


def least_with_features(
    trace: WaitTrace, penalty_ns: Float64Array | float, awake_ns: float = 0.0
) -> Float64Array:
    """L2 alone, for sliders: the others take most of the time of `limits_of`, whose words hold."""
    gap, floor, penalty = _over_the_floor(trace, penalty_ns, awake_ns)
    free = np.zeros(len(gap))
    return floor + _by_batch(gap, trace, penalty, free, _by_all(gap, trace, penalty, free))


def _over_the_floor(
    trace: WaitTrace, penalty_ns: Float64Array | float, awake_ns: float
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Gaps, what everybody pays, and the penalty beyond that: a problem without the former."""
    if trace.n_waits < 10:
        raise ValueError(f"bounds need at least 10 waits, got {trace.n_waits}")
    gap = np.maximum(trace.gap_ns, 0).astype(np.float64)
    penalty = np.broadcast_to(np.asarray(penalty_ns, dtype=np.float64), gap.shape)
    if not (penalty > 0).all():
        raise ValueError(f"the block penalty must be positive, got {penalty.min():g} ns")
    floor = np.where(gap > 0.0, np.minimum(penalty, awake_ns), 0.0)
    return gap, floor, np.maximum(penalty - awake_ns, 1.0)


def _by_all(
    gap: Float64Array, trace: WaitTrace, penalty: Float64Array, timer: Float64Array
) -> Float64Array:
    """Cost where all waits are alike."""
    return crossed(gap, np.zeros((trace.n_waits, 0)), trace, penalty, timer)


def _by_batch(
    gap: Float64Array,
    trace: WaitTrace,
    penalty: Float64Array,
    timer: Float64Array,
    plain: Float64Array,
) -> Float64Array:
    """Cost where the batch is known; ``plain`` where a line fits worse than none, or has no use."""
    features = trace.features
    if (features == features[0]).all():
        return plain
    return _cheaper(crossed(gap, features, trace, penalty, timer), plain)


def _cheaper(one: Float64Array, other: Float64Array) -> Float64Array:
    return one if one.sum() < other.sum() else other


def crossed(
    gap: Float64Array,
    features: Float64Array,
    trace: WaitTrace,
    penalty: Float64Array,
    timer: Float64Array,
) -> Float64Array:
    """Cost of each wait under the best course by the law of the other folds.

    Folds are taken in turns, wait by wait: a level that shifts is known to all of them.
    """
    cost = np.zeros(len(gap))
    fold = np.arange(len(gap)) % _FOLDS
    come = gap > 0.0
    for held_out in range(_FOLDS):
        for pending in (True, False):
            here = (trace.pending == pending) & come
            train, test = here & (fold != held_out), here & (fold == held_out)
            if not test.any():
                continue
            cost[test] = _held_out(
                gap[train], features[train], gap[test], features[test], penalty[test], timer[test]
            )
    return cost


def _held_out(
    train_ns: Float64Array,
    train_features: Float64Array,
    test_ns: Float64Array,
    test_features: Float64Array,
    penalty: Float64Array,
    timer: Float64Array,
) -> Float64Array:
    if len(train_ns) < _FEW:
        return penalty
    predictor = fit_predictor(train_ns, train_features)
    law = fit_law(np.log(train_ns / predictor.expected_ns(train_features)))
    mean_ns = predictor.expected_ns(test_features)
    log_mean = np.log(mean_ns)
    nodes = np.exp(np.linspace(log_mean.min(), log_mean.max(), _COURSES))
    if log_mean.max() - log_mean.min() < 1e-9:
        nodes = nodes[:1]
    by_gap = np.argsort(test_ns)
    at_node = [np.interp(nodes, test_ns[by_gap], cost[by_gap]) / nodes for cost in (penalty, timer)]
    courses = best_courses(law, *at_node)
    which = np.abs(log_mean[:, None] - np.log(nodes)[None, :]).argmin(axis=1)
    return mean_ns * cost_of_courses(
        courses, which.astype(np.float64), test_ns / mean_ns, penalty / mean_ns, timer / mean_ns
    )


def fixed_costs(
    gap: Float64Array,
    doze_ns: float,
    end_ns: float,
    penalty: Float64Array | float,
    timer: Float64Array | float,
) -> Float64Array:
    """Cost of each wait under one plan: doze, spin until the end, park."""
    rung = timer if doze_ns > 0 else 0.0
    spun = np.minimum(gap, end_ns) - doze_ns
    late = np.where(gap > end_ns, penalty, 0.0)
    cost = np.where(gap <= doze_ns, penalty, rung + spun + late)
    return np.where(gap <= 0.0, 0.0, cost)


def best_fixed(
    gap: Float64Array, penalty: Float64Array, timer: Float64Array
) -> tuple[float, float]:
    """The cheapest fixed plan in hindsight, as doze and end of spin.

    A spin from the start is searched at every gap, which is exact; a doze and its end on a grid of
    quantiles. Parking is a spin that ends at 0. All arrays have the shape ``(n_waits,)``.
    """
    order = np.argsort(gap)
    x = gap[order]
    n = len(x)
    # An event already there costs nothing, however one waits.
    there = int(np.searchsorted(x, 0.0, side="right"))
    spent = np.where(x > 0.0, penalty[order], 0.0)
    rung = np.where(x > 0.0, timer[order], 0.0)
    total, missed, timers = (
        np.concatenate([[0.0], np.cumsum(column)]) for column in (x, spent, rung)
    )
    ends = np.concatenate([[0.0], x])
    within = np.searchsorted(x, ends, side="right")
    spins = total[within] + (n - within) * ends + missed[n] - missed[within]
    best = int(np.argmin(spins))
    found, plan = float(spins[best]), (0.0, float(ends[best]))
    levels = np.unique(np.quantile(x, np.linspace(0.0, 1.0, _GRID), method="inverted_cdf"))
    # A doze that ends at a gap misses it: end just before.
    dozes = levels * (1.0 - 1e-9)
    first = np.searchsorted(x, dozes, side="right")
    for doze_ns, i in zip(dozes.tolist(), first.tolist(), strict=True):
        if doze_ns <= 0.0:
            continue
        i = max(i, there)
        stop = np.maximum(np.searchsorted(x, levels, side="right"), i)
        inside = total[stop] - total[i] - (stop - i) * doze_ns
        beyond = (n - stop) * np.maximum(levels - doze_ns, 0.0) + missed[n] - missed[stop]
        cost = missed[i] + timers[n] - timers[i] + inside + beyond
        at = int(np.argmin(np.where(levels >= doze_ns, cost, np.inf)))
        if cost[at] < found:
            found, plan = float(cost[at]), (doze_ns, float(levels[at]))
    return plan
