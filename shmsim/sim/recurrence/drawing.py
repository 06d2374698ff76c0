"""Draws windows of streams in compiled code: numpy's Philox numbers, sent through their quantiles.

The generator is Philox 4x64 with ten rounds (Salmon, Moraes, Dror & Shaw, "Parallel random numbers:
as easy as 1, 2, 3", SC 2011). It is counter-based: a window needs nothing of those before it.

Threads share windows. Each address is noted in a cost's record after what lies there, and who reads
there comes by that address, so that nobody reads what is not drawn.
"""

from functools import cache
from typing import Any, Final

import numba
import numpy as np

from shmsim.sim.recurrence.luck import (
    AT_ONCE,
    COST,
    N_QUANTILES,
    ONE_POINT,
    PLAIN,
    beside,
    cost_at,
    points_up_to,
)
from shmsim.sim.recurrence.memory import (
    all_stored,
    claim,
    drawn_float_at,
    float_at,
    high_word,
    inner,
    put_float,
    put_int,
    within,
)

_N_ROUNDS: Final = 10
_MULTIPLIER_0: Final = np.uint64(0xD2E7470EE14C6C93)
_MULTIPLIER_1: Final = np.uint64(0xCA5A826395121157)
_WEYL_0: Final = np.uint64(0x9E3779B97F4A7C15)
_WEYL_1: Final = np.uint64(0xBB67AE8584CAA73B)
_UNUSED_BITS: Final = np.uint64(11)
_UNIT: Final = 2.0**-53

_CLAIMED: Final = int(COST.fields["claimed"][1]) if COST.fields else 0


@within
def _four_words(key_0: Any, key_1: Any, count: Any) -> Any:
    a = np.uint64(count)
    b = c = d = np.uint64(0)
    for _ in range(_N_ROUNDS):
        high_0, low_0 = high_word(_MULTIPLIER_0, a), _MULTIPLIER_0 * a
        high_1, low_1 = high_word(_MULTIPLIER_1, c), _MULTIPLIER_1 * c
        a, b, c, d = high_1 ^ b ^ key_0, low_1, high_0 ^ d ^ key_1, low_0
        key_0 += _WEYL_0
        key_1 += _WEYL_1
    return a, b, c, d


@within
def _note(begin: Any, kind: Any, quantiles: Any, index: Any, word: Any) -> Any:
    """What the loop reads of a random word, see `shmsim.sim.recurrence.luck`."""
    u = np.float64(np.int64(word >> _UNUSED_BITS)) * _UNIT
    position = 100.0 * u if u < 0.99 else 99.0 + 1000.0 * (u - 0.99)
    if kind == ONE_POINT:
        # A whole quantile, as `shmsim.distribution.Distribution.all_at` has it.
        i = min(int(position), N_QUANTILES - 2)
        left = float_at(quantiles, i)
        whole = int(left + (position - i) * (float_at(quantiles, i + 1) - left))
        put_int(begin, index, whole)
    else:
        put_float(begin, index, u if kind == PLAIN else position)


@inner
def _drawn(cost: Any) -> Any:
    """Draw the numbers of a cost's window; where they lie.

    Threads that ask at once write the same.
    """
    if cost.at != 0:
        return cost.at
    begin, kind, quantiles = cost.begin, cost.kind, cost.quantiles
    key_0, key_1 = np.uint64(cost.key_0), np.uint64(cost.key_1)
    varies = cost.varies != 0
    count = cost.first // AT_ONCE
    a = b = c = d = np.uint64(0)
    for i in range(0, cost.length, AT_ONCE):
        count += 1  # numpy counts before it draws
        if varies:
            a, b, c, d = _four_words(key_0, key_1, count)
        _note(begin, kind, quantiles, i, a)
        _note(begin, kind, quantiles, i + 1, b)
        _note(begin, kind, quantiles, i + 2, c)
        _note(begin, kind, quantiles, i + 3, d)
    at = begin - 8 * cost.first
    all_stored()
    cost.at = at
    return at


def _draw(address: Any) -> Any:
    return _drawn(cost_at(address, 0))


def _settle(address: Any, parity: Any, x: Any) -> Any:
    """Work out the cost at a count on every other occasion of a window; where, 0: not there yet."""
    cost = cost_at(address, 0)
    if not claim(address + _CLAIMED + 8 * parity):
        return cost.settled[parity]
    at = _drawn(cost)
    n_each = 1 + cost.length // 2
    block = cost.begin + 8 * (cost.length + parity * n_each)
    put_int(block, 0, x)
    n_up_to = points_up_to(cost, x)
    for i in range(cost.length // 2):
        position = drawn_float_at(at, cost.first + 2 * i + parity)
        put_int(block, 1 + i, beside(cost, n_up_to, position, x))
    all_stored()
    cost.settled[parity] = block
    return block


@cache
def drawer() -> Any:
    """A C function ``draw(address of a cost)``; compiled once per session."""
    compile_it: Any = numba.cfunc("int64(int64)")
    return compile_it(_draw)


@cache
def settler() -> Any:
    """A C function ``settle(address of a cost, parity, count)``; compiled once per session."""
    compile_it: Any = numba.cfunc("int64(int64, int64, int64)")
    return compile_it(_settle)
