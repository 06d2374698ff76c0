"""Times measured at a few sizes."""

from bisect import bisect_right
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from shmsim.inputs.rows import InputError


class Samples(NamedTuple):
    """A time along one size: linear between the sizes measured, level below the first.

    Parameters
    ----------
    what
        What was timed along which size, for errors.
    sizes
        Ascending, at least one.
    times_ns
        At each size.
    """

    what: str
    sizes: tuple[float, ...]
    times_ns: tuple[float, ...]

    @classmethod
    def of(cls, what: str, pairs: Iterable[tuple[float, float]]) -> "Samples":
        """Collect pairs of size and time in any order; of several at one size, the median counts.

        Raises
        ------
        InputError
            If there is no pair.
        """
        by_size: dict[float, list[float]] = {}
        for size, time_ns in pairs:
            by_size.setdefault(size, []).append(time_ns)
        if not by_size:
            raise InputError(f"no row for {what}")
        sizes = tuple(sorted(by_size))
        return cls(what, sizes, tuple(float(median(by_size[size])) for size in sizes))

    def at(self, size: float) -> float:
        """Time at a size.

        Raises
        ------
        InputError
            If the size is above the last one measured.
        """
        if size <= self.sizes[0]:
            return self.times_ns[0]
        if size > self.sizes[-1]:
            raise InputError(
                f"{self.what} was measured up to {self.sizes[-1]:g}, and {size:g} is asked for"
            )
        right = min(bisect_right(self.sizes, size), len(self.sizes) - 1)
        share = (size - self.sizes[right - 1]) / (self.sizes[right] - self.sizes[right - 1])
        return self.times_ns[right - 1] + share * (self.times_ns[right] - self.times_ns[right - 1])
