"""Regeneration: whenever the engine is idle, the past is forgotten, and a new cycle begins.

Cycles are independent and alike, so a long-run mean is the ratio of two means over cycles, and
needs no warm-up (Crane and Iglehart 1975). The jackknife takes most of the ratio's bias away.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmsim.stats.estimate import CONFIDENCE, Estimate, Float64Array, Values, student

# Of nominal 95 % intervals of the wait in the M/M/1 queue at half load 82 in 100 are right with
# 100 cycles, 92 with 1,000 (docs/statistics.md): few cycles are long, and carry most of the wait.
MANY_CYCLES: Final = 1_000


def cycles(values: Values, begins: NDArray[np.bool_]) -> tuple[Float64Array, Float64Array]:
    """Sum values over each cycle.

    Parameters
    ----------
    values
        In order, shape ``(n,)``.
    begins
        Whether a value is the first of a cycle, as that of a request that found the engine idle.

    Returns
    -------
    tuple
        Sum and number of the values of each whole cycle. What comes before the first cycle, and
        the last one, whose end was not seen, are left out.
    """
    starts = np.flatnonzero(begins)
    if len(starts) < 2:
        return np.empty(0), np.empty(0)
    whole = np.asarray(values, dtype=np.float64)[: starts[-1]]
    return np.add.reduceat(whole, starts[:-1]), np.diff(starts).astype(np.float64)


def ratio_of_cycles(
    amounts: Values, lengths: Values, *, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Long-run mean of an amount per length, from independent cycles.

    Parameters
    ----------
    amounts, lengths
        Of each cycle, shape ``(n,)``: waiting time and requests, or CPU time and time.
    confidence, seed
        As in `Estimate`.

    Raises
    ------
    ValueError
        If there are fewer than two cycles, or they have no length.
    """
    amount = np.asarray(amounts, dtype=np.float64)
    length = np.asarray(lengths, dtype=np.float64)
    n = len(amount)
    if n < 2 or not length.sum() > 0:
        raise ValueError(
            f"{n} cycles of length {length.sum():g} give no interval; run until the engine was "
            "idle at least 3 times, or use batch means"
        )
    whole = amount.sum() / length.sum()
    without = (amount.sum() - amount) / (length.sum() - length)
    pseudo = n * whole - (n - 1) * without
    caveat = ""
    if n < MANY_CYCLES:
        caveat = f"{n} cycles are few: below {MANY_CYCLES} the interval is too narrow; run longer"
    return student(
        float(pseudo.mean()),
        float(pseudo.std(ddof=1)) / math.sqrt(n),
        n,
        f"regenerative, {n} cycles",
        confidence=confidence,
        seed=seed,
        caveat=caveat,
    )
