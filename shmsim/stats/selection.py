"""Choosing the best of several, with a stated probability of being right."""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmsim.stats.estimate import Float64Array

#: Tapes are added by this share of those there are: fewer looks than one after each, same order.
_GROWTH: Final = 0.2

_OPEN, _KEEPS, _BREAKS = 0, 1, -1


class Sample(NamedTuple):
    """What some systems did on some tapes.

    Parameters
    ----------
    objective
        Smaller is better, shape ``(n_tapes, k)``.
    excess
        How much each is above each limit, negative below it, shape ``(n_tapes, k, n_limits)``.
    """

    objective: Float64Array
    excess: Float64Array


#: Runs systems (indices) on the tapes from the second number up to, not including, the third.
Run = Callable[[Sequence[int], int, int], Sample]


class Choice(NamedTuple):
    """The outcome of a selection.

    Parameters
    ----------
    best
        Index of the chosen system; None if none keeps to all limits.
    is_sure
        Whether the procedure ended by itself, so that the probability holds. If not, the tapes
        were used up and ``best`` is only the best so far.
    probability
        Of being right, if `is_sure`.
    n_tapes
        How many tapes each system was run on.
    rivals
        Systems that were still in the race, best included.
    broke
        Systems found to break a limit.
    """

    best: int | None
    is_sure: bool
    probability: float
    n_tapes: tuple[int, ...]
    rivals: tuple[int, ...]
    broke: tuple[int, ...]


def select(
    run: Run,
    k: int,
    *,
    zone: float,
    tolerances: Sequence[float] = (),
    probability: float = 0.95,
    least: int = 10,
    most: int = 1000,
) -> Choice:
    """Find the system of least mean objective among those that keep to all limits.

    With at least ``probability`` the chosen one keeps to every limit up to its tolerance, and no
    system that keeps to them all by more than the tolerances is better by more than ``zone``.

    Fully sequential: after every few tapes, systems that are surely worse than one that surely
    keeps to the limits, and those that surely break one, are dropped (Andradottir and Kim 2010,
    "Fully sequential procedures for comparing constrained systems via simulation"; without limits
    Kim and Nelson 2001). Variances are those of all tapes so far, as in KN++ (Kim and Nelson
    2006): right as the zone shrinks, and checked by `tests/unit/test_stats_selection.py` where it
    does not. Systems may, and should, share their tapes.

    Parameters
    ----------
    run
        Runs systems on tapes.
    k
        How many systems.
    zone
        Indifference zone: a difference in the objective that does not matter, above 0.
    tolerances
        The same of each limit.
    probability
        Of being right, above ``1 / k`` and below 1.
    least, most
        Tapes before the first look, at least 3, and at which it gives up.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    """
    _check(k, zone, tolerances, probability, least, most)
    n_limits = len(tolerances)
    share = 0.5 if n_limits else 1.0
    error = share * (1 - probability) / max(k - 1, 1)
    limit_error = 0.5 * (1 - probability) / max(k * n_limits, 1)
    alive = list(range(k))
    verdict = np.full((k, n_limits), _OPEN)
    objective = np.empty((0, k))
    excess = np.empty((0, k, n_limits))
    n_tapes = [0] * k
    n = 0
    while True:
        more = min(max(least - n, math.ceil(_GROWTH * n)), most - n)
        rows = run(alive, n, n + more)
        n += more
        objective = _appended(objective, rows.objective, alive)
        excess = _appended(excess, rows.excess, alive)
        for index in alive:
            n_tapes[index] = n
        for limit, tolerance in enumerate(tolerances):
            for index in alive:
                if verdict[index, limit] == _OPEN:
                    values = excess[:, index, limit]
                    verdict[index, limit] = _judged(values, tolerance, limit_error)
        alive = [i for i in alive if not (verdict[i] == _BREAKS).any()]
        alive = _undominated(objective, alive, (verdict == _KEEPS).all(axis=1), zone, error)
        ended = len(alive) <= 1 and bool((verdict[alive] == _KEEPS).all())
        if ended or n >= most:
            break
    return Choice(
        _best(objective, excess, alive),
        ended,
        probability,
        tuple(n_tapes),
        tuple(alive),
        tuple(map(int, np.flatnonzero((verdict == _BREAKS).any(axis=1)))),
    )


def _check(
    k: int, zone: float, tolerances: Sequence[float], probability: float, least: int, most: int
) -> None:
    if k < 1:
        raise ValueError(f"there must be at least one system to choose from, got {k}")
    if not min(zone, *tolerances, math.inf) > 0:
        raise ValueError(
            f"zone and tolerances must be above 0, or no number of tapes would do; got zone "
            f"{zone:g}, tolerances {list(tolerances)}"
        )
    if not 1 / k < probability < 1 and k > 1:
        raise ValueError(
            f"the probability of being right must be above {1 / k:.3g}, which a guess among {k} "
            f"has, and below 1; got {probability:g}"
        )
    if not 3 <= least <= most:
        raise ValueError(f"least must be from 3 to most = {most} tapes, got {least}")


def _appended(values: Float64Array, rows: Float64Array, alive: list[int]) -> Float64Array:
    """The values with those of further tapes; NaN for systems that are out."""
    full = np.full((len(rows), *values.shape[1:]), np.nan)
    full[:, alive] = rows
    return np.concatenate([values, full])


def _reach(variance: Float64Array, n: int, zone: float, error: float) -> Float64Array:
    """How far a sum may stray before it decides, and 0 once there were tapes enough."""
    eta = 0.5 * ((2 * error) ** (-2 / (n - 1)) - 1)
    reach: Float64Array = eta * (n - 1) * variance / zone - zone * n / 2
    return np.maximum(reach, 0.0)


def _judged(excess: Float64Array, tolerance: float, error: float) -> int:
    """Whether a system keeps to a limit, breaks it, or nobody can tell yet."""
    n, total = len(excess), float(excess.sum())
    reach = float(_reach(np.array(excess.var(ddof=1)), n, tolerance, error))
    if total <= -reach:
        return _KEEPS
    return _BREAKS if total >= reach else _OPEN


def _undominated(
    objective: Float64Array,
    alive: list[int],
    keeps: NDArray[np.bool_],
    zone: float,
    error: float,
) -> list[int]:
    """Those that no system which keeps to the limits is surely better than."""
    # The best first, so that of two equals one stays.
    order = sorted(alive, key=lambda i: float(objective[:, i].sum()))
    left: list[int] = []
    n = len(objective)
    for index in order:
        rivals = [i for i in left if keeps[i]]
        if rivals:
            behind = objective[:, [index]] - objective[:, rivals]
            reach = _reach(behind.var(axis=0, ddof=1), n, zone, error)
            if (behind.sum(axis=0) >= reach).any():
                continue
        left.append(index)
    return sorted(left)


def _best(objective: Float64Array, excess: Float64Array, alive: list[int]) -> int | None:
    """Of those in the race the best that keeps to the limits in the mean, if one does."""
    keeping = [i for i in alive if (excess[:, i].mean(axis=0) <= 0).all()]
    return min(keeping, key=lambda i: float(objective[:, i].mean())) if keeping else None
