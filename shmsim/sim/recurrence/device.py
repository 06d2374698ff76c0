"""Step times in compiled code: the laws of `shmsim.steptime` and `shmsim.roofline`, bit by bit.

What a law makes of the standard normal number of a step depends on no batch, so it is worked out
once for a tape: the factor of a log-normal law, or the level of a measured one.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.roofline import BYTES_PER_VALUE, RooflineStepTime
from shmsim.sim.recurrence.memory import entry, float_at, inner, int_at, within
from shmsim.steptime import MeasuredStepTime, StepTime, StepTimeLaw, TableStepTime
from shmsim.tape import _normal
from shmsim.units import S

_AFFINE: Final = 0
_TABLE: Final = 1
_MEASURED: Final = 2
_ROOFLINE: Final = 3
_KINDS: Final = {
    StepTime: _AFFINE,
    TableStepTime: _TABLE,
    MeasuredStepTime: _MEASURED,
    RooflineStepTime: _ROOFLINE,
}
#: What `step_ns` gives for a batch outside the law.
OUTSIDE: Final = -1


class Law(NamedTuple):
    """A step-time law as numbers; which, depends on its kind."""

    kind: int
    ints: Any
    floats: Any


def is_known(law: StepTimeLaw) -> bool:
    """Whether a law has a compiled form."""
    return type(law) in _KINDS


def pack(law: StepTimeLaw) -> Law:
    """A law for compiled code."""
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    if isinstance(law, StepTime):
        ints, floats = (law.base_ns, law.per_sequence_ns, law.per_prefill_token_ns), (0.0,)
    elif isinstance(law, TableStepTime):
        axes = (law.n_decode, law.n_prefill_tokens, law.n_kv_tokens)
        ints = (law.per_prefill_token_ns, *map(len, axes), *axes[0], *axes[1], *axes[2])
        floats = law.step_ns
    elif isinstance(law, MeasuredStepTime):
        ints = (law.per_prefill_token_ns, len(law.buckets), len(law.levels), *law.buckets)
        floats = (*law.levels, *law.quantiles_ns)
    else:
        assert isinstance(law, RooflineStepTime), "is_known was asked"
        model, gpu, shared = law.model, law.gpu, law.tensor_parallel
        weights = model.layers * model.layer_parameters + model.vocab * model.hidden
        reduces_ns = 2 * model.layers * law.all_reduce_ns if shared > 1 else 0
        ints = (
            model.kv_bytes_per_token, model.layers, model.layer_parameters, model.vocab,
            model.hidden, model.heads, model.head_dim, law.overhead_ns, reduces_ns,
        )  # fmt: skip
        floats = (
            weights * BYTES_PER_VALUE / shared,
            max(1, -(-model.kv_heads // shared)) / model.kv_heads,
            gpu.bandwidth_bytes_per_s * law.memory_efficiency,
            gpu.flops_per_s * law.compute_efficiency * shared,
        )
    return Law(_KINDS[type(law)], np.array(ints, np.int64), np.array(floats, np.float64))


def varies(law: Any) -> bool:
    """Whether a law needs luck."""
    return isinstance(law, MeasuredStepTime) or law.jitter != 0.0


def factors(law: Any, uniform: Any) -> Any:
    """What `step_ns` needs of the uniform numbers of steps, shape ``(n,)``."""
    normal = _normal(uniform)
    if isinstance(law, MeasuredStepTime):
        return np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in normal.tolist()])
    variance = math.log1p(law.jitter * law.jitter)
    return _log_normal(normal, math.sqrt(variance), 0.5 * variance)


@entry
def _log_normal(normal: Any, deviation: Any, half: Any) -> Any:
    found = np.empty_like(normal)
    for i in range(len(normal)):
        found[i] = math.exp(deviation * normal[i] - half)
    return found


@within
def step_ns(eng: Any, n_decode: Any, n_prefill: Any, n_kv: Any, factor: Any) -> Any:
    """``draw_ns`` of the law, given the step's factor; `OUTSIDE` where that raises."""
    ints, floats = eng.law_ints, eng.law_floats
    if eng.law_kind == _MEASURED:
        return _measured_ns(ints, floats, n_decode, n_prefill, factor)
    if eng.law_kind == _AFFINE:
        mean_ns = float(
            int_at(ints, 0) + int_at(ints, 1) * max(n_decode - 1, 0) + int_at(ints, 2) * n_prefill
        )
    elif eng.law_kind == _TABLE:
        mean_ns = _table_ns(ints, floats, n_decode, n_prefill, n_kv)
        if mean_ns < 0.0:
            return OUTSIDE
    else:
        mean_ns = _roofline_ns(ints, floats, n_decode, n_prefill, n_kv)
    return max(1, int(mean_ns * factor))


@inner
def _bracket(ints: Any, first: Any, n: Any, x: Any) -> Any:
    """Index of the point left of a value, and the weight of the one to its right; -1: above."""
    if n == 1 or x <= int_at(ints, first):
        return 0, 0.0
    if x > int_at(ints, first + n - 1):
        return -1, 0.0
    right = 1
    while int_at(ints, first + right) < x:
        right += 1
    left = int_at(ints, first + right - 1)
    return right - 1, (x - left) / (int_at(ints, first + right) - left)


@inner
def _table_ns(ints: Any, floats: Any, n_decode: Any, n_prefill: Any, n_kv: Any) -> Any:
    n_0, n_1, n_2 = int_at(ints, 1), int_at(ints, 2), int_at(ints, 3)
    i, share_i = _bracket(ints, 4, n_0, n_decode)
    j, share_j = _bracket(ints, 4 + n_0, n_1, n_prefill)
    k, share_k = _bracket(ints, 4 + n_0 + n_1, n_2, n_kv)
    if i < 0 or j < 0 or k < 0:
        return -1.0
    mean_ns = 0.0
    # A value at or below the first point has that point alone, one inside has two.
    for a in range(1 if share_i == 0.0 else 2):
        weight_i = share_i if a else 1.0 - share_i
        for b in range(1 if share_j == 0.0 else 2):
            weight_j = share_j if b else 1.0 - share_j
            for c in range(1 if share_k == 0.0 else 2):
                weight_k = share_k if c else 1.0 - share_k
                row = ((i + a) * n_1 + (j + b)) * n_2
                mean_ns += weight_i * weight_j * weight_k * float_at(floats, row + k + c)
    return mean_ns + int_at(ints, 0) * n_prefill


@inner
def _measured_ns(ints: Any, floats: Any, n_decode: Any, n_prefill: Any, u: Any) -> Any:
    n_buckets, n_levels = int_at(ints, 1), int_at(ints, 2)
    bucket = 0
    while bucket < n_buckets and int_at(ints, 3 + bucket) < n_decode:
        bucket += 1
    if bucket == n_buckets:
        return OUTSIDE
    first = n_levels + bucket * n_levels
    right = 0
    while right < n_levels and float_at(floats, right) < u:  # as bisect_left
        right += 1
    if right == 0:
        drawn_ns = float_at(floats, first)
    elif right == n_levels:
        drawn_ns = float_at(floats, first + right - 1)
    else:
        left_ns = float_at(floats, first + right - 1)
        share = (u - float_at(floats, right - 1)) / (
            float_at(floats, right) - float_at(floats, right - 1)
        )
        drawn_ns = left_ns + share * (float_at(floats, first + right) - left_ns)
    return max(1, int(drawn_ns) + int_at(ints, 0) * n_prefill)


@inner
def _roofline_ns(ints: Any, floats: Any, n_decode: Any, n_prefill: Any, n_kv: Any) -> Any:
    moved_kv = n_kv + n_decode + n_prefill
    moved = float_at(floats, 0) + moved_kv * int_at(ints, 0) * float_at(floats, 1)
    memory_ns = S * moved / float_at(floats, 2)
    tokens = n_decode + n_prefill
    flops = 2.0 * tokens * int_at(ints, 1) * int_at(ints, 2)
    flops += 2.0 * (n_decode + min(n_prefill, 1)) * int_at(ints, 3) * int_at(ints, 4)
    pairs = n_kv + 0.5 * n_prefill * n_prefill
    flops += 4.0 * pairs * int_at(ints, 1) * int_at(ints, 5) * int_at(ints, 6)
    compute_ns = S * flops / float_at(floats, 3)
    return int_at(ints, 7) + max(memory_ns, compute_ns) + int_at(ints, 8)
