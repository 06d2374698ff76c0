"""The interval of a share of events that come in clusters, rare or not."""

from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from shmsim.stats.batches import batch_means
from shmsim.stats.estimate import CONFIDENCE, Estimate

#: From this share on clusters run into each other, and events are many enough for batch means.
_COMMON: Final = 0.05
_LEAST_FOR_BATCHES: Final = 1_000
_METHOD: Final = "clusters as Poisson events"


def rare_share(
    happened: NDArray[np.bool_],
    at_ns: NDArray[np.int64],
    apart_ns: float,
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """Share of trials in which something happened.

    What happens while slots are scarce happens several times in a row. Rare clusters come nearly as
    a Poisson process (Aldous 1989, the clumping heuristic), so their number has Garwood's interval
    (1936), scaled by how much the sizes of clusters add to the variance. A share of 5 % or more has
    the interval of `shmsim.stats.batches.batch_means`.

    Parameters
    ----------
    happened
        Of each trial, in order, shape ``(n,)``.
    at_ns
        When, shape ``(n,)``.
    apart_ns
        Events nearer to each other than that are of one cluster.
    confidence, seed
        As in `Estimate`.

    Returns
    -------
    Estimate
        Its ``n`` is the number of clusters, or of batches. With a caveat if it never happened: the
        upper end then takes clusters for single events.
    """
    n = len(happened)
    if n == 0:
        return Estimate(0.0, 0.0, 0.0, confidence, 0, "there was nothing to fall back", seed)
    times_ns = at_ns[happened]
    if len(times_ns) == 0:
        high = float(scipy.stats.chi2.ppf((1 + confidence) / 2, 2)) / 2 / n
        caveat = f"it never happened in {n}; a cluster of k would raise the upper end k times"
        return Estimate(0.0, 0.0, min(high, 1.0), confidence, 0, _METHOD, seed, caveat)
    if len(times_ns) >= _COMMON * n and n >= _LEAST_FOR_BATCHES:
        found = batch_means(happened.astype(np.float64), confidence=confidence, seed=seed)
        return found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0))
    starts = np.concatenate([[0], np.flatnonzero(np.diff(times_ns) > apart_ns) + 1])
    sizes = np.diff(np.concatenate([starts, [len(times_ns)]]))
    spread = float((sizes**2).sum() / sizes.sum())
    events = len(times_ns) / spread
    alpha = 1 - confidence
    low = float(scipy.stats.chi2.ppf(alpha / 2, 2 * events)) / 2 * spread / n
    high = float(scipy.stats.chi2.ppf(1 - alpha / 2, 2 * events + 2)) / 2 * spread / n
    value = len(times_ns) / n
    return Estimate(value, low, min(high, 1.0), confidence, len(sizes), _METHOD, seed)
