"""Ask the caches themselves how long lines survive while this core spins, or sleeps.

A pointer chase over a working set that fits the first-level cache is timed right after a rest. If a
spinner kept its caches, the chase would cost the same after any rest.
"""

import os
import time
from typing import Final

import numba
import numpy as np

from realrun.host import exact_timers, usable_cores
from shmsim.units import MS

LINE_WORDS: Final = 16  # int32 words per cache line of 64 bytes
LONG_NS: Final = 50 * MS


@numba.njit
def chase(cycle: np.ndarray, n_lines: int) -> int:
    """Follow the cycle once round; each step waits for the line before."""
    at = 0
    for _ in range(n_lines):
        at = cycle[at]
    return at


def random_cycle(n_bytes: int) -> tuple[np.ndarray, int]:
    """One cycle through all lines in random order, so that no prefetcher helps."""
    n_lines = n_bytes // 64
    order = np.random.default_rng(1).permutation(n_lines)
    cycle = np.zeros(n_lines * LINE_WORDS, np.int32)
    cycle[order * LINE_WORDS] = np.roll(order, -1) * LINE_WORDS
    return cycle, n_lines


def ns_per_line(n_bytes: int, rest_ns: int, *, spin: bool, n: int) -> float:
    """Median time per line of the first chase after a rest, on one core."""
    affinity = os.sched_getaffinity(0)
    exact_timers()
    try:
        os.sched_setaffinity(0, {usable_cores()[-1]})
        return float(np.median(_samples(n_bytes, rest_ns, spin, n)))
    finally:
        os.sched_setaffinity(0, affinity)


def spin_for(rest_ns: int) -> None:
    """Look at the clock until a time is over."""
    until_ns = time.monotonic_ns() + rest_ns
    while time.monotonic_ns() < until_ns:
        pass


def _samples(n_bytes: int, rest_ns: int, spin: bool, n: int) -> list[float]:
    cycle, n_lines = random_cycle(n_bytes)
    samples = []
    for _ in range(n):
        for _ in range(3):
            chase(cycle, n_lines)
        if spin:
            spin_for(rest_ns)
        else:
            time.sleep(rest_ns / 1e9)
        started_ns = time.monotonic_ns()
        chase(cycle, n_lines)
        samples.append((time.monotonic_ns() - started_ns) / n_lines)
    return samples
