"""Step-time laws on their way into the engine's memory, and the luck of steps to come."""

import math

import numpy as np

from shmsim.roofline import RooflineStepTime
from shmsim.sim.events import laws
from shmsim.sim.events import words as w
from shmsim.sim.events.memory import Float64Array, Memory
from shmsim.steptime import MeasuredStepTime, StepTime, StepTimeLaw, TableStepTime
from shmsim.tape import Tape, _normal


class StepLuck:
    """What the random numbers of steps become under a law, whatever the batch.

    Parameters
    ----------
    law
        The law.
    tape
        The random numbers.

    Attributes
    ----------
    normal
        The standard normal numbers, for a law that the engine does not know.
    """

    def __init__(self, law: StepTimeLaw, tape: Tape) -> None:
        """Nothing is drawn yet."""
        self.law = law
        self.normal = tape.normal("device", "step")
        self._uniform = tape.generator("device", "step")

    def next(self, n: int) -> Float64Array:
        """For the next ``n`` steps: logarithm of the factor on their mean, or their quantile."""
        normals = _normal(self._uniform.random(n))
        if isinstance(self.law, MeasuredStepTime):
            return np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in normals.tolist()])
        jitter: float = getattr(self.law, "jitter", 0.0)
        variance = math.log1p(jitter * jitter)
        return math.sqrt(variance) * normals - 0.5 * variance


def store_law(memory: Memory, law: StepTimeLaw) -> tuple[int, int, int]:
    """Put a law into memory; returns which it is, and addresses of its words and numbers."""
    if isinstance(law, StepTime):
        words = memory.store([law.base_ns, law.per_sequence_ns, law.per_prefill_token_ns])
        return w.LAW_AFFINE, words, 0
    if isinstance(law, TableStepTime):
        axes = (law.n_decode, law.n_prefill_tokens, law.n_kv_tokens)
        points = [point for axis in axes for point in axis]
        words = memory.store([*map(len, axes), law.per_prefill_token_ns, *points])
        return w.LAW_TABLE, words, memory.store_numbers(law.step_ns)
    if isinstance(law, MeasuredStepTime):
        sizes = [len(law.buckets), len(law.levels), law.per_prefill_token_ns]
        words = memory.store([*sizes, *law.buckets])
        return w.LAW_MEASURED, words, memory.store_numbers([*law.levels, *law.quantiles_ns])
    if isinstance(law, RooflineStepTime):
        return w.LAW_ROOFLINE, *_store_roofline(memory, law)
    return w.LAW_ASKED, 0, 0


def _store_roofline(memory: Memory, law: RooflineStepTime) -> tuple[int, int]:
    model, shared = law.model, law.tensor_parallel
    words = {
        laws.RO_LAYERS: model.layers,
        laws.RO_LAYER_PARAMETERS: model.layer_parameters,
        laws.RO_VOCAB: model.vocab,
        laws.RO_HIDDEN: model.hidden,
        laws.RO_HEADS: model.heads,
        laws.RO_HEAD_DIM: model.head_dim,
        laws.RO_KV_BYTES: model.kv_bytes_per_token,
        laws.RO_SHARED: shared,
        laws.RO_OVERHEAD: law.overhead_ns,
        laws.RO_ALL_REDUCE: law.all_reduce_ns,
    }
    numbers = memory.store_numbers(
        [
            max(1, -(-model.kv_heads // shared)) / model.kv_heads,
            law.gpu.bandwidth_bytes_per_s * law.memory_efficiency,
            law.gpu.flops_per_s * law.compute_efficiency * shared,
        ]
    )
    return memory.record(laws.RO_WORDS, words), numbers
