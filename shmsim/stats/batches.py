"""Batch means: the mean of one long run, whose neighbouring values are alike.

Means of batches far longer than the memory of the process are nearly independent and nearly
normal, so Student's law holds for them (Law 2015, section 9.5.3). More than about 30 batches gain
hardly anything (Schmeiser 1982), so the rule takes the most of 32, 16 and 8 that show no
correlation between neighbours.
"""

import math
from typing import Final

import numpy as np
import scipy

from shmsim.stats.estimate import CONFIDENCE, Estimate, Float64Array, Values, student

_NUMBERS: Final = (32, 16, 8)
_LEAST_LENGTH: Final = 4
_LEAST_VALUES: Final = _NUMBERS[-1] * _LEAST_LENGTH
_LAG_TEST: Final = 0.10  # share of independent batches that the test refuses


def batch_means(values: Values, *, confidence: float = CONFIDENCE, seed: int = 0) -> Estimate:
    """Mean of a stationary sequence, with an interval from the means of its batches.

    Parameters
    ----------
    values
        In the order in which they came, warm-up removed (`shmsim.stats.mser5`), shape ``(n,)``.
    confidence, seed
        As in `Estimate`.

    Returns
    -------
    Estimate
        Its ``n`` is the number of batches. With a caveat if even 8 batches are correlated.

    Raises
    ------
    ValueError
        If there are fewer than 32 values.
    """
    means, caveat = _means(np.asarray(values, dtype=np.float64))
    n = len(means)
    return student(
        float(means.mean()),
        float(means.std(ddof=1)) / math.sqrt(n),
        n,
        f"batch means, {n} batches",
        confidence=confidence,
        seed=seed,
        caveat=caveat,
    )


def batched(values: Float64Array, n_batches: int) -> Float64Array:
    """Cut a sequence into batches of one length, shape ``(n_batches, length)``.

    What does not fill the batches is left out at the front, where it is nearest to the warm-up.
    """
    length = len(values) // n_batches
    return values[len(values) - n_batches * length :].reshape(n_batches, length)


def _means(values: Float64Array) -> tuple[Float64Array, str]:
    """Batch means by the rule, and what there is to say about them."""
    if len(values) < _LEAST_VALUES:
        raise ValueError(
            f"batch means need at least {_LEAST_VALUES} values ({_NUMBERS[-1]} batches of "
            f"{_LEAST_LENGTH}), got {len(values)}; run longer, or run replications"
        )
    n_batches = next(n for n in _NUMBERS if len(values) >= n * _LEAST_LENGTH)
    while True:
        means: Float64Array = batched(values, n_batches).mean(axis=1)
        correlation, p_value = von_neumann(means)
        if p_value >= _LAG_TEST:
            return means, ""
        if n_batches == _NUMBERS[-1]:
            break
        n_batches //= 2
    return means, (
        f"neighbouring batches are correlated ({correlation:.2f} with {n_batches} batches of "
        f"{len(values) // n_batches}), so the interval is too narrow; run longer"
    )


def von_neumann(means: Float64Array) -> tuple[float, float]:
    """Lag-1 correlation of a sequence by von Neumann's ratio, and its one-sided p-value.

    Parameters
    ----------
    means
        Shape ``(n,)``, at least 3; under the null hypothesis independent and nearly normal.
    """
    n = len(means)
    centred = means - means.mean()
    total = float(centred @ centred)
    if total == 0:
        return 0.0, 1.0
    steps = np.diff(means)
    correlation = 1 - float(steps @ steps) / (2 * total)
    spread = math.sqrt((n - 2) / (n * n - 1))
    return correlation, float(scipy.stats.norm.sf(correlation / spread))
