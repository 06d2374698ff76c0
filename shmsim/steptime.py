"""How long the device works on a batch.

A law is a small immutable value. It draws nothing itself: each step brings one standard normal
number from the tape, so that the model and the real loop meet the same step times, and two policies
the same luck.
"""

import math
from bisect import bisect_left
from typing import NamedTuple, Protocol


class StepTimeLaw(Protocol):
    """Step time of a batch.

    A batch is told by its decode sequences, its prompt tokens (of all prefill chunks together), and
    the tokens of context that its decoding sequences attend to.
    """

    def mean_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Expected step time of a batch."""
        ...

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int, normal: float) -> int:
        """Step time of a batch, at least 1, given its standard normal number."""
        ...


def log_normal_ns(mean_ns: float, jitter: float, normal: float) -> int:
    """Time of a log-normal law with that mean and coefficient of variation, at least 1."""
    variance = math.log1p(jitter * jitter)
    return max(1, int(mean_ns * math.exp(math.sqrt(variance) * normal - 0.5 * variance)))


class StepTime(NamedTuple):
    """An affine law with log-normal jitter; how much context there is plays no part.

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

    def mean_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Expected step time of a batch."""
        return float(
            self.base_ns
            + self.per_sequence_ns * max(n_decode - 1, 0)
            + self.per_prefill_token_ns * n_prefill_tokens
        )

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int, normal: float) -> int:
        """Step time of a batch, given its standard normal number."""
        mean_ns = self.mean_ns(n_decode, n_prefill_tokens, n_kv_tokens)
        return log_normal_ns(mean_ns, self.jitter, normal)


class TableStepTime(NamedTuple):
    """Mean step times on a full grid, linear between its points, with log-normal jitter.

    Below its first point an axis is level: a batch smaller than the smallest one measured costs as
    much. Above its last point it answers with an error instead of a guess. An axis of one point
    is a quantity that the table does not depend on.

    Parameters
    ----------
    n_decode, n_prefill_tokens, n_kv_tokens
        The axes, each ascending, at least one point.
    step_ns
        Mean step times, positive; the last axis varies fastest, shape
        ``(len(n_decode) * len(n_prefill_tokens) * len(n_kv_tokens),)``.
    per_prefill_token_ns
        Added for every prompt token; for tables that were measured without any.
    jitter
        Coefficient of variation of the step time, at least 0.
    """

    n_decode: tuple[int, ...]
    n_prefill_tokens: tuple[int, ...]
    n_kv_tokens: tuple[int, ...]
    step_ns: tuple[float, ...]
    per_prefill_token_ns: int = 0
    jitter: float = 0.0

    def mean_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Expected step time of a batch.

        Raises
        ------
        ValueError
            If the batch lies above the table.
        """
        sequences = _bracket(self.n_decode, n_decode, "sequences in decode")
        prompts = _bracket(self.n_prefill_tokens, n_prefill_tokens, "prompt tokens")
        context = _bracket(self.n_kv_tokens, n_kv_tokens, "tokens of context")
        mean_ns = 0.0
        for i, weight_i in sequences:
            for j, weight_j in prompts:
                row = (i * len(self.n_prefill_tokens) + j) * len(self.n_kv_tokens)
                for k, weight_k in context:
                    mean_ns += weight_i * weight_j * weight_k * self.step_ns[row + k]
        return mean_ns + self.per_prefill_token_ns * n_prefill_tokens

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int, normal: float) -> int:
        """Step time of a batch, given its standard normal number; raises as `mean_ns`."""
        mean_ns = self.mean_ns(n_decode, n_prefill_tokens, n_kv_tokens)
        return log_normal_ns(mean_ns, self.jitter, normal)


def _bracket(axis: tuple[int, ...], x: int, what: str) -> tuple[tuple[int, float], ...]:
    """Points of an axis around a value, with their weights."""
    if len(axis) == 1 or x <= axis[0]:
        return ((0, 1.0),)
    if x > axis[-1]:
        raise ValueError(
            f"a batch with {x} {what} lies outside the step-time table, which was measured up to "
            f"{axis[-1]}; measure further, or limit the batch (engine.max_sequences, "
            "engine.max_batched_tokens, shorter requests)"
        )
    right = bisect_left(axis, x)
    share = (x - axis[right - 1]) / (axis[right] - axis[right - 1])
    return ((right - 1, 1.0 - share), (right, share))


class MeasuredStepTime(NamedTuple):
    """Measured distributions of the step time, one for each batch bucket.

    A batch belongs to the smallest bucket that holds it, as CUDA graphs pad it to; how much context
    there is plays no part. Between two levels the quantile function is a straight line, and level
    outside them.

    Parameters
    ----------
    buckets
        Decode sequences, ascending, each at least 1.
    levels
        Where the quantiles are given, ascending within [0, 1], the same for every bucket.
    quantiles_ns
        Ascending for each bucket, positive; bucket by bucket, shape ``(len(buckets) *
        len(levels),)``.
    per_prefill_token_ns
        Added for every prompt token.
    """

    buckets: tuple[int, ...]
    levels: tuple[float, ...]
    quantiles_ns: tuple[float, ...]
    per_prefill_token_ns: int = 0

    def mean_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        """Mean of the distribution that `draw_ns` draws from; raises as that does."""
        first = self._first_of(n_decode)
        levels, q = self.levels, self.quantiles_ns
        mean_ns = levels[0] * q[first] + (1.0 - levels[-1]) * q[first + len(levels) - 1]
        for i in range(len(levels) - 1):
            mean_ns += (levels[i + 1] - levels[i]) * 0.5 * (q[first + i] + q[first + i + 1])
        return mean_ns + self.per_prefill_token_ns * n_prefill_tokens

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int, normal: float) -> int:
        """The quantile that the standard normal number stands for.

        Raises
        ------
        ValueError
            If the batch is larger than the largest bucket.
        """
        first = self._first_of(n_decode)
        levels, q = self.levels, self.quantiles_ns
        u = 0.5 * math.erfc(-normal / math.sqrt(2.0))
        right = bisect_left(levels, u)
        if right == 0:
            drawn_ns = q[first]
        elif right == len(levels):
            drawn_ns = q[first + right - 1]
        else:
            left_ns = q[first + right - 1]
            share = (u - levels[right - 1]) / (levels[right] - levels[right - 1])
            drawn_ns = left_ns + share * (q[first + right] - left_ns)
        return max(1, int(drawn_ns) + self.per_prefill_token_ns * n_prefill_tokens)

    def _first_of(self, n_decode: int) -> int:
        """Index of the first quantile of the bucket that holds a batch."""
        bucket = bisect_left(self.buckets, n_decode)
        if bucket == len(self.buckets):
            raise ValueError(
                f"a batch with {n_decode} sequences in decode is larger than the largest measured "
                f"bucket, {self.buckets[-1]}; measure a larger one, or lower engine.max_sequences"
            )
        return bucket * len(self.levels)
