"""A number with its interval, and how both were got."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
Values = Float64Array | Sequence[float]

#: Of an interval, unless another is asked for.
CONFIDENCE: Final = 0.95

_LOPSIDED: Final = 0.2
_MOST_DIGITS: Final = 5  # of an estimate


class Estimate(NamedTuple):
    """What is known of a number after a simulation.

    Parameters
    ----------
    value, low, high
        Estimate and ends of its interval, in one unit; NaN ends if there is no interval.
    confidence
        Share of such intervals that hold the truth.
    n
        How many independent pieces it rests on: replications, batches, cycles or values.
    method
        How the interval was got.
    seed
        Of the random numbers.
    caveat
        Why the interval deserves less trust than its confidence says; empty if nothing does.
    """

    value: float
    low: float
    high: float
    confidence: float
    n: int
    method: str
    seed: int = 0
    caveat: str = ""

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def relative(self) -> float:
        """Half-width over the size of the estimate; infinite at an estimate of 0."""
        return self.half_width / abs(self.value) if self.value else math.inf

    def text(self, unit: float = 1.0) -> str:
        """Write for people, with as many digits as the half-width bears.

        Parameters
        ----------
        unit
            What to divide by, as `shmsim.units.MS`.

        Examples
        --------
        >>> Estimate(2_134_400.0, 2_122_100.0, 2_146_700.0, 0.95, 10, "replications").text(1e6)
        '2.134 ± 0.012'
        """
        value, half = self.value / unit, self.half_width / unit
        if not math.isfinite(half):
            return f"{value:.4g}"
        if half == 0:
            return f"{value:.4g} ± 0"
        size = math.floor(math.log10(abs(value))) if value else 0
        digits = max(0, min(1 - math.floor(math.log10(half)), _MOST_DIGITS - 1 - size))
        if abs(self.high + self.low - 2 * self.value) > _LOPSIDED * (self.high - self.low):
            low, high = self.low / unit, self.high / unit
            return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
        return f"{value:.{digits}f} ± {half:.{digits}f}"


@lru_cache(maxsize=1024)
def student_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's law with so many degrees of freedom.

    Tables ask for the same few again and again, and scipy takes a tenth of a millisecond for each.
    """
    return float(scipy.stats.t.ppf(share, freedom))


def student(
    value: float,
    standard_error: float,
    n: int,
    method: str,
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    caveat: str = "",
) -> Estimate:
    """Interval of a mean of ``n`` independent, nearly normal pieces, by Student's law."""
    half = student_quantile((1 + confidence) / 2, n - 1) * standard_error
    return Estimate(value, value - half, value + half, confidence, n, method, seed, caveat)


def mean_of_replications(
    values: Values, *, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Mean of one figure over independent replications.

    Parameters
    ----------
    values
        The figure of each replication, shape ``(n,)``; NaN where it had none.
    confidence, seed
        As in `Estimate`.

    Returns
    -------
    Estimate
        Without interval, and with the caveat, if fewer than two replications had the figure.
    """
    found = np.asarray(values, dtype=np.float64)
    found = found[~np.isnan(found)]
    n = len(found)
    if n < 2:
        value = float(found[0]) if n else math.nan
        caveat = f"{'one run' if n else 'no run'} says nothing about a spread; run at least 2"
        return Estimate(value, math.nan, math.nan, confidence, n, "replications", seed, caveat)
    # Of equal values rounding would leave a spread of their last bit.
    spread = 0.0 if np.ptp(found) == 0 else float(found.std(ddof=1))
    mean = float(found[0]) if spread == 0 else float(found.mean())
    return student(mean, spread / math.sqrt(n), n, "replications", confidence=confidence, seed=seed)
