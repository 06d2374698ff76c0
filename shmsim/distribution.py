"""Measured distributions of a cost, and how they change along one quantity."""

import math
from bisect import bisect_right
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Every percent, and every tenth of the last: between the 99th percentile and the greatest of some
#: hundred values a straight line would promise ten times too many outliers.
QUANTILE_GRID: Final = (*(i / 100 for i in range(100)), *(0.99 + i / 1000 for i in range(1, 11)))


class Distribution(NamedTuple):
    """A measured distribution, nanoseconds.

    Parameters
    ----------
    n
        How many values; 0 if nobody counted them (see `shmsim.inputs.shipped`).
    median, low, high
        Median and its 95 % interval by order statistics (of the replicates pooled).
    quantiles
        At `QUANTILE_GRID`, shape ``(110,)``.
    replicates
        Median of each replicate: their spread is what one number cannot show.
    """

    n: int
    median: float
    low: float
    high: float
    quantiles: tuple[float, ...]
    replicates: tuple[float, ...]

    @classmethod
    def of(cls, replicates: list[ArrayLike]) -> "Distribution":
        """Summarise replicated measurements, each an array of nanoseconds.

        Raises
        ------
        ValueError
            If there is no value.
        """
        arrays = [np.asarray(r, dtype=np.float64) for r in replicates if np.size(r)]
        if not arrays:
            raise ValueError("a distribution needs at least one value")
        values = np.sort(np.concatenate(arrays))
        n = len(values)
        # Ranks that enclose the median with 95 %, by the normal approximation to the binomial.
        half = 0.98 * math.sqrt(n)
        low = values[max(0, math.floor(n / 2 - half))]
        high = values[min(n - 1, math.ceil(n / 2 + half))]
        grid = np.quantile(values, np.minimum(QUANTILE_GRID, 1.0))
        return cls(
            n,
            float(np.median(values)),
            float(low),
            float(high),
            tuple(round(float(q), 1) for q in grid),
            tuple(float(np.median(a)) for a in arrays),
        )

    def at(self, u: float) -> float:
        """The quantile of ``u`` in [0, 1]."""
        q = self.quantiles
        position = 100.0 * u if u < 0.99 else 99.0 + 1000.0 * (u - 0.99)
        i = min(int(position), len(q) - 2)
        return q[i] + (position - i) * (q[i + 1] - q[i])

    def all_at(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of many, shape ``(n,)``, with the same bits."""
        q = np.array(self.quantiles)
        position = np.where(u < 0.99, 100.0 * u, 99.0 + 1000.0 * (u - 0.99))
        i = np.minimum(position.astype(np.int64), len(q) - 2)
        values: NDArray[np.float64] = q[i] + (position - i) * (q[i + 1] - q[i])
        return values


class Curve(NamedTuple):
    """A cost along one quantity.

    Parameters
    ----------
    by
        Name of the quantity; empty for a cost that depends on nothing.
    xs
        Where it was measured, ascending.
    points
        The distribution at each.
    """

    by: str
    xs: tuple[float, ...]
    points: tuple[Distribution, ...]

    def at(self, u: float, x: float = 0.0) -> float:
        """The quantile of ``u`` at ``x``, interpolated linearly; outside, the nearest point's."""
        xs = self.xs
        i = bisect_right(xs, x)
        if i == 0:
            return self.points[0].at(u)
        if i == len(xs):
            return self.points[-1].at(u)
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        left = self.points[i - 1].at(u)
        return left + share * (self.points[i].at(u) - left)
