"""Several comparisons at once: of twenty at 95 % one is wrong by luck, unless they hold jointly."""

import math
from typing import Final, NamedTuple

import numpy as np
import scipy

from shmsim.stats.estimate import CONFIDENCE, Estimate, Float64Array, Values

_DRAWS: Final = 20_000
_AT_ONCE: Final = 2_000_000  # numbers in memory
_PIECES_PER_COMPARISON: Final = 3
_FEW_BEYOND: Final = 20  # draws; fewer are no measure of how rare something is


class Comparison(NamedTuple):
    """One of several comparisons.

    Parameters
    ----------
    difference
        Its interval holds jointly: with the stated confidence *all* intervals hold their truth.
    p_value
        Adjusted: the chance of so large a difference anywhere in the family if nothing differs.
    """

    difference: Estimate
    p_value: float

    @property
    def is_significant(self) -> bool:
        """Whether 0 lies outside the joint interval."""
        return not self.difference.low <= 0 <= self.difference.high


def holm(p_values: Values) -> Float64Array:
    """Adjusted p-values by Holm's step-down (1979), which holds whatever their dependence.

    Parameters
    ----------
    p_values
        Of each hypothesis, shape ``(k,)``.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    found = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(found, kind="stable")
    factors = np.arange(len(found), 0, -1)
    raised = np.minimum(np.maximum.accumulate(found[order] * factors), 1.0)
    adjusted = np.empty_like(raised)
    adjusted[order] = raised
    return adjusted


def against_reference(
    differences: Float64Array, *, confidence: float = CONFIDENCE, seed: int = 0
) -> list[Comparison]:
    """Many-to-one: paired differences to one reference, whose intervals hold jointly.

    Everything is compared with the same runs of the reference, so the differences are correlated,
    and holding them as if they were not wastes width. The law of the greatest of the t-statistics
    is drawn, under normality with the correlation found (Dunnett 1955 has it for equal variances;
    single step, as Westfall and Young 1993 have it for resampling). From few replications a
    correlation is known too badly for that: with fewer than three per comparison, Bonferroni.
    Draws know no chance below one in their number, of which `holm` over a thousand comparisons
    would leave nothing; so far out the p-value is Bonferroni's, which is nearly as small there.

    Parameters
    ----------
    differences
        Shape ``(n_replications, k)``, each column one comparison, all replications independent.
    confidence, seed
        Joint; the seed also draws the law of the maximum.

    Raises
    ------
    ValueError
        If there are fewer than two replications.
    """
    n, k = differences.shape
    if n < 2:
        raise ValueError(f"a comparison needs at least 2 replications, got {n}; run more")
    means = differences.mean(axis=0)
    errors = differences.std(axis=0, ddof=1) / math.sqrt(n)
    # Identical policies differ by nothing, in every replication; a spread of one bit is rounding.
    errors[errors <= 1e-12 * np.abs(means)] = 0.0
    varying = np.flatnonzero(errors > 0)
    greatest = np.empty(0)
    if len(varying) > 1 and n >= _PIECES_PER_COMPARISON * len(varying):
        correlation = np.atleast_2d(np.corrcoef(differences[:, varying], rowvar=False))
        greatest = _greatest_t(correlation, n, seed)
        method = f"paired replications, joint with {k - 1} others (max-t)"
        critical = float(np.quantile(greatest, confidence))
    else:
        method = f"paired replications, joint with {k - 1} others (Bonferroni)"
        tail = (1 - confidence) / 2 / max(len(varying), 1)
        critical = float(scipy.stats.t.isf(tail, n - 1))
    found = []
    for mean, error in zip(means.tolist(), errors.tolist(), strict=True):
        half = critical * error
        if error == 0:
            p_value = float(mean == 0)
        else:
            t = abs(mean) / error
            p_value = min(1.0, 2 * len(varying) * float(scipy.stats.t.sf(t, n - 1)))
            n_beyond = int((greatest >= t).sum())
            if len(greatest):
                # Of N draws none more extreme is no proof of 0.
                drawn = (1 + n_beyond) / (1 + len(greatest))
                p_value = drawn if n_beyond >= _FEW_BEYOND else min(drawn, p_value)
        estimate = Estimate(mean, mean - half, mean + half, confidence, n, method, seed)
        found.append(Comparison(estimate, p_value))
    return found


def _greatest_t(correlation: Float64Array, n: int, seed: int) -> Float64Array:
    """Draws of the greatest |t| of k correlated samples of size n whose means are 0."""
    rng = np.random.default_rng([seed, n, len(correlation)])
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    k = len(correlation)
    chunk = max(1, _AT_ONCE // (k * k))
    found = []
    for start in range(0, _DRAWS, chunk):
        size = min(chunk, _DRAWS - start)
        means = rng.standard_normal((size, k)) @ root.T
        # Variances are the diagonal of a Wishart matrix, which Bartlett (1933) draws by its root.
        lower = np.tril(rng.standard_normal((size, k, k)), -1)
        each = np.arange(k)
        lower[:, each, each] = np.sqrt(rng.chisquare(n - 1 - each, (size, k)))
        variances = ((root @ lower) ** 2).sum(axis=2) / (n - 1)
        found.append(np.abs(means / np.sqrt(variances)).max(axis=1))
    return np.concatenate(found)
