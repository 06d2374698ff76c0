"""Laws of waits, estimated from some waits for use on others.

A wait is taken as what its batch lets expect, times a random factor: expectation by weighted least
squares (weights ``1 / expectation^2``), density of the factor's logarithm by a Gaussian kernel on
a fine grid. The kernel width is the one under which waits left out are likeliest.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]

_WIDTHS: Final = 2.0 ** -np.arange(6.0)  # of the kernel, in shares of the rule of thumb
_PER_WIDTH: Final = 4  # grid points
_SAME: Final = 1e-12  # relative: a line that moves by less has settled
_TAIL: Final = 6  # widths that the kernel reaches to either side
_MOST_POINTS: Final = 40_000
_FLOOR_NS: Final = 1.0
_LEAST_SD: Final = 1e-6


class Law(NamedTuple):
    """Density of ``log(wait / expectation)``.

    Parameters
    ----------
    grid
        Equidistant, shape ``(n,)``.
    mass
        Probability of the cell round each point, shape ``(n,)``; sums to 1.
    """

    grid: Float64Array
    mass: Float64Array

    @property
    def ratio(self) -> Float64Array:
        """Wait over expectation at each point."""
        ratio: Float64Array = np.exp(self.grid)
        return ratio


class Predictor(NamedTuple):
    """Weights of constant and features; the expectation is never below ``least_ns``."""

    weights: Float64Array
    least_ns: float

    def expected_ns(self, features: Float64Array) -> Float64Array:
        """Expectation of each wait, shape ``(n_waits,)``."""
        mean: Float64Array = self.weights[0] + features @ self.weights[1:]
        return np.maximum(mean, self.least_ns)


def fit_predictor(gap_ns: Float64Array, features: Float64Array) -> Predictor:
    """Fit a line through waits, errors relative to the expectation.

    Parameters
    ----------
    gap_ns
        Waits, shape ``(n,)``.
    features
        Shape ``(n, k)``; with no column the line is a constant.
    """
    design = np.column_stack([np.ones(len(gap_ns)), features])
    size = np.maximum(np.abs(design).max(axis=0), 1e-12)
    level = design / size
    least_ns = max(float(np.quantile(gap_ns, 0.01)) / 2, _FLOOR_NS)
    scale = np.maximum(gap_ns, least_ns)
    weights = np.zeros(design.shape[1])
    for _ in range(10):  # the weights depend on the expectation, which depends on them
        left = level / scale[:, None]
        right = gap_ns / scale
        # A wait far off the line must not bend it.
        off = np.abs(right - left @ (weights * size)) if weights.any() else np.zeros(len(right))
        spread = 1.48 * _median(off) if off.any() else np.inf
        keep = off <= max(4.0 * spread, 1e-9)
        solution, *_ = np.linalg.lstsq(left[keep], right[keep], rcond=None)
        before, weights = weights, solution / size
        scale = np.maximum(design @ weights, least_ns)
        if (np.abs(weights - before) <= _SAME * np.abs(weights)).all():
            break
    return Predictor(weights, least_ns)


def fit_law(log_ratio: Float64Array) -> Law:
    """Estimate the density of logarithmic ratios, shape ``(n,)``."""
    middle = _median(log_ratio)
    sd = 1.48 * _median(np.abs(log_ratio - middle))
    if sd < _LEAST_SD:  # more than half of the waits are equal, but for rounding
        sd = max(float(np.std(log_ratio)), _LEAST_SD)
    thumb = 1.06 * sd * len(log_ratio) ** -0.2
    even, odd = np.sort(log_ratio[::2]), np.sort(log_ratio[1::2])  # who is sorted is found sooner
    likelihood = [
        _log_likelihood(_smoothed(even, thumb * w), odd)
        + _log_likelihood(_smoothed(odd, thumb * w), even)
        for w in _WIDTHS
    ]
    return _smoothed(log_ratio, thumb * float(_WIDTHS[int(np.argmax(likelihood))]))


def _median(values: Float64Array) -> float:
    """As numpy's, which looks for NaN first."""
    half = len(values) // 2
    ordered = np.sort(values)
    return float(ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def _smoothed(values: Float64Array, width: float) -> Law:
    # A dozen times for each law. Numpy's histogram and scipy's Gaussian filter do the same, but
    # take longer to look at what they are given than to work on it.
    low, high = values.min() - _TAIL * width, values.max() + _TAIL * width
    n = int(min((high - low) / width * _PER_WIDTH, _MOST_POINTS)) + 2
    cell = (high - low) / (n - 1)
    counts = np.bincount(((values - low) / cell + 0.5).astype(np.int64), minlength=n)
    kernel = _kernel(width / cell)
    reach = len(kernel) // 2
    mass = np.convolve(counts, kernel)[reach : reach + n]
    return Law(np.arange(n) * cell + low, mass / mass.sum())


def _kernel(width: float) -> Float64Array:
    """A Gaussian on grid points, ``width`` of which are its standard deviation."""
    reach = int(_TAIL * width + 0.5)
    bell = np.exp(np.arange(-reach, reach + 1) ** 2 / (-2.0 * width * width))
    kernel: Float64Array = bell / bell.sum()
    return kernel


def _log_likelihood(law: Law, values: Float64Array) -> float:
    cell = law.grid[1] - law.grid[0]
    density = np.interp(values, law.grid, law.mass / cell, left=0.0, right=0.0)
    # One part in a thousand is kept for what was never seen: a stray counts, but not for all.
    return float(np.log(0.999 * density + 1e-6).sum())
