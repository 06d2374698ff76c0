"""Poisson payloads through the model's arena: the share that finds no slot."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from shmsim.arena_sizing.payloads import Int64Array, payloads_of
from shmsim.arena_sizing.replay import replay
from shmsim.routing import MIB, ArenaPlan, SlotClass
from shmsim.units import MS

MEAN_HOLD_NS: Final = 10 * MS
_SIGMA: Final = 1.0  # of the log-normal law: the largest in a hundred is ten times the median
_BYTES: Final = MIB


def _exponential(rng: np.random.Generator, n: int) -> Int64Array:
    return _whole(rng.exponential(MEAN_HOLD_NS, n))


def _constant(_rng: np.random.Generator, n: int) -> Int64Array:
    return np.full(n, MEAN_HOLD_NS, np.int64)


def _log_normal(rng: np.random.Generator, n: int) -> Int64Array:
    return _whole(rng.lognormal(math.log(MEAN_HOLD_NS) - _SIGMA**2 / 2, _SIGMA, n))


def _whole(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Int64Array:
    return np.maximum(values.round().astype(np.int64), 1)


#: Laws of the hold time, all of one mean.
HOLDS: Final[dict[str, Callable[[np.random.Generator, int], Int64Array]]] = {
    "exponential": _exponential,
    "constant": _constant,
    "log-normal": _log_normal,
}


def fallback_share(
    seed: np.random.SeedSequence, hold: str, load: float, slots: int, n: int, burst: int = 1
) -> float:
    """Share of payloads that find every slot taken.

    Parameters
    ----------
    seed
        Of arrivals and holds.
    hold
        One of `HOLDS`.
    load
        Arrivals in a mean hold time.
    slots
        Of the arena.
    n
        Payloads, a multiple of ``burst``.
    burst
        How many come at one instant; bursts are a Poisson process.
    """
    arrivals, holds = (np.random.default_rng(child) for child in seed.spawn(2))
    gaps_ns = arrivals.exponential(MEAN_HOLD_NS * burst / load, n // burst)
    arrival_ns = np.repeat(np.cumsum(gaps_ns).round().astype(np.int64), burst)
    payloads = payloads_of(arrival_ns, np.full(n, _BYTES, np.int64), HOLDS[hold](holds, n))
    return replay(ArenaPlan((SlotClass(_BYTES, slots),), _BYTES), payloads).fallback.value
