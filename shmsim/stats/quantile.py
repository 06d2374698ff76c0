"""Intervals of quantiles.

Of **independent** values two order statistics enclose a quantile with a probability that the
binomial law gives exactly, whatever the law of the values. Values of one run are not independent:
there the run is cut into sections (replications, or long batches), and the spread of the sections'
quantiles about that of all values gives the interval (sectioning: Asmussen and Glynn 2007, III.5a;
Nakayama 2014). The estimate is the quantile of all values together: a mean of the sections' own
quantiles would carry the bias of short samples.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import scipy

from shmsim.stats.estimate import CONFIDENCE, Estimate, Values, student

_FEW_BEYOND: Final = 5


def quantile_of_independent(
    values: Values, p: float, *, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Quantile of independent values, between two of them.

    Parameters
    ----------
    values
        Independent and of one law, shape ``(n,)``; not the values of one run in a row.
    p
        Which quantile, within (0, 1).
    confidence, seed
        As in `Estimate`. The interval holds the quantile at least that often.

    Returns
    -------
    Estimate
        With an end at infinity, and the caveat, where there are too few values to bound it.

    Raises
    ------
    ValueError
        If there is no value, or ``p`` is out of range.
    """
    found = np.sort(np.asarray(values, dtype=np.float64))
    n = len(found)
    if not n or not 0 < p < 1:
        raise ValueError(f"a quantile needs values and a p within (0, 1); got {n} values, p = {p}")
    tail = (1 - confidence) / 2
    # The k-th smallest is below the quantile if at least k values are: a binomial number.
    below = int(scipy.stats.binom.ppf(tail, n, p))
    above = int(scipy.stats.binom.ppf(1 - tail, n, p)) + 1
    low = float(found[below - 1]) if below >= 1 else -math.inf
    high = float(found[above - 1]) if above <= n else math.inf
    caveat = ""
    if not math.isfinite(high - low):
        needed = math.ceil(math.log(tail) / math.log(max(p, 1 - p)))
        caveat = f"{n} values do not bound this quantile on both sides; it takes {needed}"
    value = float(np.quantile(found, p))
    return Estimate(value, low, high, confidence, n, "order statistics", seed, caveat)


def quantile_of_sections(
    sections: Sequence[Values], p: float, *, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Quantile of values that are alike within a section and independent between sections.

    Parameters
    ----------
    sections
        Values of each replication or long batch; empty ones are left out.
    p
        Which quantile, within (0, 1).
    confidence, seed
        As in `Estimate`.

    Returns
    -------
    Estimate
        Its ``n`` is the number of sections. Without interval if fewer than two have values; with a
        caveat if a section is so short that fewer than 5 of its values lie beyond the quantile.
    """
    arrays = [np.asarray(section, dtype=np.float64) for section in sections]
    arrays = [found[~np.isnan(found)] for found in arrays]
    arrays = [found for found in arrays if len(found)]
    n = len(arrays)
    value = float(np.quantile(np.concatenate(arrays), p)) if n else math.nan
    if n < 2:
        told = "one section" if n else "no section"
        caveat = f"{told} of the values says nothing about a spread; run at least 2 replications"
        return Estimate(value, math.nan, math.nan, confidence, n, "sectioning", seed, caveat)
    each = np.array([np.quantile(found, p) for found in arrays])
    shortest = min(map(len, arrays))
    caveat = ""
    if shortest * min(p, 1 - p) < _FEW_BEYOND:
        needed = math.ceil(_FEW_BEYOND / min(p, 1 - p))
        caveat = (
            f"a quantile of {p:g} needs {needed} values in each section (a run, or a part of one), "
            f"and the shortest of {n} has {shortest}; longer runs have more"
        )
    spread = math.sqrt(float(((each - value) ** 2).sum()) / (n - 1))
    return student(
        value,
        spread / math.sqrt(n),
        n,
        f"sectioning, {n} sections",
        confidence=confidence,
        seed=seed,
        caveat=caveat,
    )
