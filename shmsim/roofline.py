"""Step time from a model's geometry and a GPU's datasheet.

A step reads the weights and the context once and multiplies the tokens with the weights; whichever
takes longer, memory or arithmetic, is the roofline (Williams, Waterman & Patterson, CACM 2009). It
is a floor: a real step also launches kernels and fills and drains them.
"""

from typing import Final, NamedTuple

from shmsim.steptime import log_normal_ns
from shmsim.units import S

BYTES_PER_VALUE: Final = 2  # bf16, weights and context alike
#: Share of the datasheet's bandwidth that a large read reaches: 4.3 of 4.8 TB/s, seen on an H200.
MEMORY_EFFICIENCY: Final = 0.9
#: Share of the datasheet's dense peak that large matrix products reach; assumed.
COMPUTE_EFFICIENCY: Final = 0.6


class ModelGeometry(NamedTuple):
    """Shape of a dense decoder with grouped-query attention and a gated MLP.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab
        As ``num_hidden_layers``, ``hidden_size``, ``num_attention_heads``, ``num_key_value_heads``,
        ``head_dim``, ``intermediate_size`` and ``vocab_size`` of a Hugging Face ``config.json``.
    tied
        Whether the output head is the embedding.
    qk_norm
        Whether queries and keys are normalised, with one vector of weights each per layer.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    qk_norm: bool = False

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer that are multiplied with each token."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """All parameters, norms and embeddings too."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = (1 if self.tied else 2) * self.vocab * self.hidden
        return self.layers * (self.layer_parameters + norms) + embeddings + self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token of context takes, all layers together."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


class GpuSheet(NamedTuple):
    """What a datasheet promises.

    Parameters
    ----------
    memory_bytes
        Capacity.
    bandwidth_bytes_per_s
        Of the memory.
    flops_per_s
        Dense bf16 tensor arithmetic, without sparsity.
    """

    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: float


class RooflineStepTime(NamedTuple):
    """A roofline with log-normal jitter.

    What a batch does not tell is left out: the context behind a prefill chunk, and how many chunks
    there are; its prompt tokens count as one chunk that attends to itself. The output head is
    multiplied with the decoding sequences, and with one more if there are prompt tokens.

    Parameters
    ----------
    model, gpu
        Geometry and datasheet.
    tensor_parallel
        GPUs that share every layer; heads of keys and values are repeated if there are fewer.
    memory_efficiency, compute_efficiency
        Shares of the datasheet that are reached, in (0, 1].
    overhead_ns
        Added to each step: launches, and kernels that are too short for either roof; at least 0.
    all_reduce_ns
        Of one all-reduce; two per layer are added if there is more than one GPU; at least 0.
    jitter
        Coefficient of variation of the step time, at least 0.
    """

    model: ModelGeometry
    gpu: GpuSheet
    tensor_parallel: int = 1
    memory_efficiency: float = MEMORY_EFFICIENCY
    compute_efficiency: float = COMPUTE_EFFICIENCY
    overhead_ns: int = 0
    all_reduce_ns: int = 0
    jitter: float = 0.0

    def memory_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Time to move weights and context, each GPU its share."""
        model = self.model
        shared = self.tensor_parallel
        weights = model.layers * model.layer_parameters + model.vocab * model.hidden
        kv_share = max(1, -(-model.kv_heads // shared)) / model.kv_heads
        # Read for the decoding sequences, written for every token of the batch.
        moved_kv = n_kv_tokens + n_decode + n_prefill_tokens
        moved = weights * BYTES_PER_VALUE / shared + moved_kv * model.kv_bytes_per_token * kv_share
        return S * moved / (self.gpu.bandwidth_bytes_per_s * self.memory_efficiency)

    def compute_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Time of the arithmetic, each GPU its share."""
        model = self.model
        tokens = n_decode + n_prefill_tokens
        heads_per_token = n_decode + min(n_prefill_tokens, 1)
        flops = 2.0 * tokens * model.layers * model.layer_parameters
        flops += 2.0 * heads_per_token * model.vocab * model.hidden
        # Scores and weighted values: two products of two operations for each pair that meets, of
        # which causality leaves half within a chunk.
        pairs = n_kv_tokens + 0.5 * n_prefill_tokens * n_prefill_tokens
        flops += 4.0 * pairs * model.layers * model.heads * model.head_dim
        peak = self.gpu.flops_per_s * self.compute_efficiency * self.tensor_parallel
        return S * flops / peak

    def mean_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Expected step time of a batch."""
        batch = (n_decode, n_prefill_tokens, n_kv_tokens)
        mean_ns = self.overhead_ns + max(self.memory_ns(*batch), self.compute_ns(*batch))
        if self.tensor_parallel > 1:
            mean_ns += 2 * self.model.layers * self.all_reduce_ns
        return mean_ns

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int, normal: float) -> int:
        """Step time of a batch, given its standard normal number."""
        mean_ns = self.mean_ns(n_decode, n_prefill_tokens, n_kv_tokens)
        return log_normal_ns(mean_ns, self.jitter, normal)
