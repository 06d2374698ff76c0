"""Step times of the laws in `shmsim.steptime` and `shmsim.roofline`, with their bits.

What a step's random number becomes does not depend on its batch: Python works it out for many steps
at once (`shmsim.sim.events.step_law`). Here it meets the batch. A law that is not known here, or a
batch outside a table, is left to Python.
"""

import math

from shmsim.sim.events import words as w
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.memory import Numbers, Words
from shmsim.units import S

# Words of a law, and its numbers.
(AF_BASE, AF_PER_SEQUENCE, AF_PER_PREFILL) = range(3)
(TB_SIZES, _, _, TB_PER_PREFILL, TB_AXES) = range(5)
(ME_N_BUCKETS, ME_N_LEVELS, ME_PER_PREFILL, ME_BUCKETS) = range(4)
(
    RO_LAYERS,
    RO_LAYER_PARAMETERS,
    RO_VOCAB,
    RO_HIDDEN,
    RO_HEADS,
    RO_HEAD_DIM,
    RO_KV_BYTES,
    RO_SHARED,
    RO_OVERHEAD,
    RO_ALL_REDUCE,
    RO_WORDS,
) = range(11)
(RO_KV_SHARE, RO_BANDWIDTH, RO_PEAK, RO_NUMBERS) = range(4)


@compiled
def draw_ns(s: Words, x: Numbers, device: int, message: int) -> int:
    """Step time of a batch; 0 leaves it to Python."""
    law = s[device + w.DE_LAW]
    n_decode, n_prefill = s[message + w.M_N_DECODE], s[message + w.M_N_PREFILL]
    n_kv = s[message + w.M_N_KV]
    words, numbers = s[device + w.DE_LAW_WORDS], s[device + w.DE_LAW_NUMBERS]
    luck = x[s[device + w.DE_LUCK] + s[message + w.M_STEP] - s[device + w.DE_LUCK_FROM]]
    mean_ns = -1.0
    if law == w.LAW_AFFINE:
        mean_ns = float(
            s[words + AF_BASE]
            + s[words + AF_PER_SEQUENCE] * max(n_decode - 1, 0)
            + s[words + AF_PER_PREFILL] * n_prefill
        )
    elif law == w.LAW_TABLE:
        mean_ns = _table_ns(s, x, words, numbers, n_decode, n_prefill, n_kv)
    elif law == w.LAW_ROOFLINE:
        mean_ns = _roofline_ns(s, x, words, numbers, n_decode, n_prefill, n_kv)
    elif law == w.LAW_MEASURED:
        return _measured_ns(s, x, words, numbers, n_decode, n_prefill, luck)
    if mean_ns < 0.0:
        return 0
    return max(1, int(mean_ns * math.exp(luck)))  # `shmsim.steptime.log_normal_ns`


@compiled
def _right_of(s: Words, axis: int, n: int, value: int) -> int:
    """Index of the first point that is not below a value; ``n`` if all are."""
    right = 0
    while right < n and s[axis + right] < value:
        right += 1
    return right


@compiled
def _table_ns(
    s: Words, x: Numbers, words: int, numbers: int, n_decode: int, n_prefill: int, n_kv: int
) -> float:
    """As `shmsim.steptime.TableStepTime.mean_ns`; negative above the table."""
    n_i, n_j, n_k = s[words + TB_SIZES], s[words + TB_SIZES + 1], s[words + TB_SIZES + 2]
    axis_i = words + TB_AXES
    axis_j = axis_i + n_i
    axis_k = axis_j + n_j
    right_i, share_i = _bracket(s, axis_i, n_i, n_decode)
    right_j, share_j = _bracket(s, axis_j, n_j, n_prefill)
    right_k, share_k = _bracket(s, axis_k, n_k, n_kv)
    if right_i == n_i or right_j == n_j or right_k == n_k:
        return -1.0
    mean_ns = 0.0
    for i in range(max(right_i - 1, 0), right_i + 1):
        weight_i = _weight(i, right_i, share_i)
        for j in range(max(right_j - 1, 0), right_j + 1):
            weight_j = _weight(j, right_j, share_j)
            row = numbers + (i * n_j + j) * n_k
            for k in range(max(right_k - 1, 0), right_k + 1):
                mean_ns += weight_i * weight_j * _weight(k, right_k, share_k) * x[row + k]
    return mean_ns + s[words + TB_PER_PREFILL] * n_prefill


@compiled
def _bracket(s: Words, axis: int, n: int, value: int) -> tuple[int, float]:
    """Point at or above a value, and how far the value is on its way there from the one before."""
    if n == 1 or value <= s[axis]:
        return 0, 1.0
    right = _right_of(s, axis, n, value)
    if right == n:
        return n, 1.0
    left = s[axis + right - 1]
    return right, (value - left) / (s[axis + right] - left)


@compiled
def _weight(index: int, right: int, share: float) -> float:
    if right == 0:
        return 1.0
    return share if index == right else 1.0 - share


@compiled
def _measured_ns(
    s: Words, x: Numbers, words: int, numbers: int, n_decode: int, n_prefill: int, u: float
) -> int:
    """As `shmsim.steptime.MeasuredStepTime.draw_ns`; 0 above the largest bucket."""
    n_buckets, n_levels = s[words + ME_N_BUCKETS], s[words + ME_N_LEVELS]
    bucket = _right_of(s, words + ME_BUCKETS, n_buckets, n_decode)
    if bucket == n_buckets:
        return 0
    first = numbers + n_levels + bucket * n_levels
    right = 0
    while right < n_levels and x[numbers + right] < u:
        right += 1
    if right == 0:
        drawn_ns = x[first]
    elif right == n_levels:
        drawn_ns = x[first + right - 1]
    else:
        left_ns = x[first + right - 1]
        below = x[numbers + right - 1]
        share = (u - below) / (x[numbers + right] - below)
        drawn_ns = left_ns + share * (x[first + right] - left_ns)
    return max(1, int(drawn_ns) + s[words + ME_PER_PREFILL] * n_prefill)


@compiled
def _roofline_ns(
    s: Words, x: Numbers, words: int, numbers: int, n_decode: int, n_prefill: int, n_kv: int
) -> float:
    """As `shmsim.roofline.RooflineStepTime.mean_ns`."""
    layers, shared = s[words + RO_LAYERS], s[words + RO_SHARED]
    layer_parameters = s[words + RO_LAYER_PARAMETERS]
    vocab, hidden = s[words + RO_VOCAB], s[words + RO_HIDDEN]
    weights = layers * layer_parameters + vocab * hidden
    moved_kv = n_kv + n_decode + n_prefill
    kv = float(moved_kv * s[words + RO_KV_BYTES]) * x[numbers + RO_KV_SHARE]
    moved = float(weights * 2) / float(shared) + kv
    memory_ns = float(S) * moved / x[numbers + RO_BANDWIDTH]
    tokens = n_decode + n_prefill
    heads_per_token = n_decode + min(n_prefill, 1)
    flops = 2.0 * tokens * layers * layer_parameters
    flops += 2.0 * heads_per_token * vocab * hidden
    pairs = n_kv + 0.5 * n_prefill * n_prefill
    flops += 4.0 * pairs * layers * s[words + RO_HEADS] * s[words + RO_HEAD_DIM]
    compute_ns = float(S) * flops / x[numbers + RO_PEAK]
    mean_ns = s[words + RO_OVERHEAD] + max(memory_ns, compute_ns)
    if shared > 1:
        mean_ns += 2 * layers * s[words + RO_ALL_REDUCE]
    return mean_ns
