"""How long the device works on a batch."""

import math
from typing import NamedTuple


class StepTime(NamedTuple):
    """Step time of a batch: an affine law with log-normal jitter.

    Parameters
    ----------
    base_ns
        Of a step with one sequence, at least 1.
    per_sequence_ns
        For every further sequence in decode, at least 0.
    per_prefill_token_ns
        For every prompt token in the batch, at least 0.
    jitter
        Coefficient of variation of the step time, at least 0; a decode step of a small model on an
        H200 has 0.002 to 0.009.
    """

    base_ns: int
    per_sequence_ns: int = 0
    per_prefill_token_ns: int = 0
    jitter: float = 0.0

    def mean_ns(self, n_decode: int, n_prefill_tokens: int) -> float:
        """Expected step time of a batch."""
        return float(
            self.base_ns
            + self.per_sequence_ns * max(n_decode - 1, 0)
            + self.per_prefill_token_ns * n_prefill_tokens
        )

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, normal: float) -> int:
        """Step time of a batch, given its standard normal number."""
        variance = math.log1p(self.jitter * self.jitter)
        factor = math.exp(math.sqrt(variance) * normal - 0.5 * variance)
        return max(1, int(self.mean_ns(n_decode, n_prefill_tokens) * factor))
