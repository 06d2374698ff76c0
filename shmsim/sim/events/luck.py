"""Random numbers and costs, with the bits of `shmsim.tape` and `shmsim.sim.draws`.

The generator is numpy's Philox 4x64 with ten rounds (Salmon, Moraes, Dror & Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), compiled here so that a run need not return to Python for
its luck. It is counter-based, so a block may be shorter than the tape's and gives the same numbers.
"""

import numpy as np

from shmsim.sim.events import words as w
from shmsim.sim.events.compiling import compiled, high_word, inlined, is_plain
from shmsim.sim.events.memory import Numbers, Words

#: Numbers drawn at once; a multiple of the four that one count yields. Short: a run has hundreds of
#: streams, and their blocks should stay near the core.
BLOCK = 64
_BLOCK_BITS = 6
_N_ROUNDS = 10
_MULTIPLIER_0 = np.uint64(0xD2E7470EE14C6C93)
_MULTIPLIER_1 = np.uint64(0xCA5A826395121157)
_WEYL_0 = np.uint64(0x9E3779B97F4A7C15)
_WEYL_1 = np.uint64(0xBB67AE8584CAA73B)
_UNUSED_BITS = np.uint64(11)
_UNIT = 1.0 / 9007199254740992.0  # 2**-53

# Where the levels of `shmsim.distribution.QUANTILE_GRID` become ten times as dense.
_TAIL = 0.99
_LAST_INTERVAL = 108


@compiled
def _fill_compiled(s: Words, x: Numbers, stream: int, block: int) -> None:
    at = s[stream + w.S_AT]
    for count in range(BLOCK // 4):
        # numpy counts before it draws.
        a = np.uint64(block * (BLOCK // 4) + count + 1)
        b = c = d = np.uint64(0)
        key_0, key_1 = np.uint64(s[stream + w.S_KEY]), np.uint64(s[stream + w.S_KEY + 1])
        for _ in range(_N_ROUNDS):
            high_0, low_0 = high_word(_MULTIPLIER_0, a), _MULTIPLIER_0 * a
            high_1, low_1 = high_word(_MULTIPLIER_1, c), _MULTIPLIER_1 * c
            a, b, c, d = high_1 ^ b ^ key_0, low_1, high_0 ^ d ^ key_1, low_0
            key_0 += _WEYL_0
            key_1 += _WEYL_1
        x[at + 4 * count] = np.float64(a >> _UNUSED_BITS) * _UNIT
        x[at + 4 * count + 1] = np.float64(b >> _UNUSED_BITS) * _UNIT
        x[at + 4 * count + 2] = np.float64(c >> _UNUSED_BITS) * _UNIT
        x[at + 4 * count + 3] = np.float64(d >> _UNUSED_BITS) * _UNIT


def _fill_plain(s: Words, x: Numbers, stream: int, block: int) -> None:
    """The same by numpy: words of plain Python do not wrap around."""
    key = np.array([s[stream + w.S_KEY], s[stream + w.S_KEY + 1]], np.int64).view(np.uint64)
    bits = np.random.Philox(key=key, counter=block * (BLOCK // 4))
    at = s[stream + w.S_AT]
    for i, number in enumerate(np.random.Generator(bits).random(BLOCK).tolist()):
        x[at + i] = number


_fill = _fill_plain if is_plain() else _fill_compiled


@inlined
def _position(u: float) -> float:
    """Where a uniform number lies in `shmsim.distribution.QUANTILE_GRID`."""
    return 100.0 * u if u < _TAIL else 99.0 + 1000.0 * (u - _TAIL)


@inlined
def _quantile(x: Numbers, column: int, stride: int, position: float) -> float:
    """The quantile at a position, of a distribution whose levels lie that far apart."""
    i = min(int(position), _LAST_INTERVAL)
    left = x[column + stride * i]
    return left + (position - i) * (x[column + stride * (i + 1)] - left)


@compiled
def _prepare(s: Words, x: Numbers, stream: int) -> None:
    """Send a new block as far through its curve as can be done before anybody asks.

    Where the cost depends on nothing that is all the way, with the curve at hand for the whole
    block; else it is to the position in every distribution of the curve.
    """
    at, quantiles = s[stream + w.S_AT], s[stream + w.S_QUANTILES]
    if s[stream + w.S_POINTS] == 1:
        for k in range(BLOCK):
            x[at + k] = _quantile(x, quantiles, 1, _position(x[at + k]))
    elif s[stream + w.S_POINTS] > 1:
        for k in range(BLOCK):
            x[at + k] = _position(x[at + k])


@compiled
def number_at(s: Words, x: Numbers, stream: int, index: int) -> float:
    """Number ``index`` of a stream: uniform on [0, 1), or of a curve and prepared."""
    block = index >> _BLOCK_BITS
    if s[stream + w.S_BLOCK] != block:
        s[stream + w.S_BLOCK] = block
        _fill(s, x, stream, block)
        _prepare(s, x, stream)
    return x[s[stream + w.S_AT] + (index & (BLOCK - 1))]


@compiled
def cost_at(s: Words, x: Numbers, stream: int, index: int, along: float) -> int:
    """The cost of occasion ``index``, nanoseconds, as `shmsim.sim.draws.Draws.at`."""
    if stream == 0:
        s[w.STATUS] = w.REFUSED  # the profile does not have it
        return 0
    number = number_at(s, x, stream, index)
    n = s[stream + w.S_POINTS]
    if n == 1:
        return int(number)
    quantiles, xs = s[stream + w.S_QUANTILES], s[stream + w.S_XS]
    right = 0
    while right < n and x[xs + right] <= along:
        right += 1
    if right == 0:
        return int(_quantile(x, quantiles, n, number))
    left_ns = _quantile(x, quantiles + right - 1, n, number)
    if right == n:
        return int(left_ns)
    share = (along - x[xs + right - 1]) / (x[xs + right] - x[xs + right - 1])
    right_ns = _quantile(x, quantiles + right, n, number)
    return int(left_ns + share * (right_ns - left_ns))


@inlined
def next_cost(s: Words, x: Numbers, table: int, cost: int, along: float) -> int:
    """The cost of the next occasion, as `shmsim.sim.draws.Draws.next`."""
    stream = s[table + cost]
    if stream == 0:
        s[w.STATUS] = w.REFUSED
        return 0
    index = s[stream + w.S_NEXT]
    s[stream + w.S_NEXT] = index + 1
    return cost_at(s, x, stream, index, along)


@inlined
def table_cost(s: Words, x: Numbers, table: int, cost: int, index: int, along: float) -> int:
    """The cost of an occasion of one kind."""
    return cost_at(s, x, s[table + cost], index, along)
