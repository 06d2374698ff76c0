"""Paired comparisons: two things that met the same luck, replication by replication."""

import math

import numpy as np

from shmsim.stats.estimate import (
    CONFIDENCE,
    Estimate,
    Float64Array,
    Values,
    mean_of_replications,
    student_quantile,
)


def paired_difference(
    tried: Values, reference: Values, *, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Mean of ``tried - reference``.

    Parameters
    ----------
    tried, reference
        A figure of each replication, shape ``(n,)``; number i of both on one tape. Pairs of which
        one is NaN are left out.
    confidence, seed
        As in `Estimate`.

    Raises
    ------
    ValueError
        If they are not pairs.
    """
    first, second = _pairs(tried, reference)
    found = mean_of_replications(first - second, confidence=confidence, seed=seed)
    return found._replace(method="paired replications")


def paired_ratio(
    tried: Values, reference: Values, *, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Ratio of means ``mean(tried) / mean(reference)``, with Fieller's interval (1954).

    Parameters
    ----------
    tried, reference, confidence, seed
        As in `paired_difference`.

    Returns
    -------
    Estimate
        Without interval if the reference cannot be told from 0: its ratio has no bounds then.

    Raises
    ------
    ValueError
        If they are not pairs, or there are fewer than two.
    """
    first, second = _pairs(tried, reference)
    n = len(first)
    if n < 2:
        raise ValueError(f"a ratio with an interval needs at least 2 pairs, got {n}; run more")
    above, below = float(first.mean()), float(second.mean())
    method = "paired replications, Fieller"
    ((v_above, v_both), (_, v_below)) = np.cov(first, second, ddof=1) / n
    t2 = student_quantile((1 + confidence) / 2, n - 1) ** 2
    a = below**2 - t2 * float(v_below)
    b = above * below - t2 * float(v_both)
    c = above**2 - t2 * float(v_above)
    if a <= 0:
        caveat = f"the reference cannot be told from 0 in {n} pairs, so the ratio has no bounds"
        value = above / below if below else math.nan
        return Estimate(value, math.nan, math.nan, confidence, n, method, seed, caveat)
    root = math.sqrt(max(b * b - a * c, 0.0))
    low, high = sorted(((b - root) / a, (b + root) / a))
    return Estimate(above / below, low, high, confidence, n, method, seed)


def _pairs(tried: Values, reference: Values) -> tuple[Float64Array, Float64Array]:
    first = np.asarray(tried, dtype=np.float64)
    second = np.asarray(reference, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(
            f"{first.size} and {second.size} values are no pairs; compare the same replications"
        )
    both = ~(np.isnan(first) | np.isnan(second))
    return first[both], second[both]
