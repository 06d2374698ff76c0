"""Whether a prediction is as good as the measurement: an interval against a margin set beforehand.

A difference that is not significant proves nothing: two runs and much noise never find one. Here
the burden is turned round (two one-sided tests, Schuirmann 1987): a prediction *holds* only if the
90 % interval of its error lies within the margin, which a prediction that is a margin off passes
in at most 5 of 100 cases. It *misses* if the interval lies outside, with the same odds. All else
*cannot tell*: more runs are needed, or a quieter box.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import scipy

_ONE_SIDED: Final = 0.95


class Verdict(StrEnum):
    """What an interval says about a margin."""

    HOLDS = "holds"
    MISSES = "misses"
    CANNOT_TELL = "cannot tell"


class Estimate(NamedTuple):
    """A mean with its 90 % interval, in the unit of the values.

    Parameters
    ----------
    value, low, high
        Mean and interval by Student's law.
    n
        How many values.
    """

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Estimate the mean of independent values.

        Raises
        ------
        ValueError
            If there are fewer than two, which say nothing about their spread.
        """
        n = len(values)
        if n < 2:
            raise ValueError(f"an interval needs at least 2 values, got {n}; repeat the run")
        mean = float(np.mean(values))
        half = float(scipy.stats.t.ppf(_ONE_SIDED, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
        return cls(mean, mean - half, mean + half, n)

    def verdict(self, margin: float) -> Verdict:
        """Hold an error against the largest one allowed, in the same unit."""
        if -margin <= self.low and self.high <= margin:
            return Verdict.HOLDS
        if self.low > margin or self.high < -margin:
            return Verdict.MISSES
        return Verdict.CANNOT_TELL


def aa_spread(pairs: Sequence[tuple[float, float]]) -> float:
    """Root mean square difference of two runs of the very same thing, as a share of their mean.

    Parameters
    ----------
    pairs
        Both runs, each pair of one tape, shape ``(n_pairs, 2)``; positive numbers.
    """
    both = np.asarray(pairs, dtype=np.float64)
    shares = (both[:, 0] - both[:, 1]) / both.mean(axis=1)
    return float(np.sqrt(np.mean(shares**2)))
