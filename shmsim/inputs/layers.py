"""A step-time table from times of single layers, as profilers of kernels write them."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.spatial import QhullError

from shmsim.inputs.rows import InputError
from shmsim.inputs.samples import Samples
from shmsim.steptime import TableStepTime

_SPACING: Final = 1.15  # of the axes of a table: finer sizes of a profile are left out


class DecodeAttention:
    """Time of the attention of decoding sequences, all layers together.

    Between the shapes measured it is linear; beyond the longest context it grows in proportion to
    the context, as reading it does.

    Parameters
    ----------
    shapes
        Sequences and context of each sequence, with the time in ns.

    Raises
    ------
    InputError
        If the shapes do not span both quantities.
    """

    def __init__(self, shapes: Iterable[tuple[int, int, float]]) -> None:
        """Triangulate the shapes."""
        medians: dict[tuple[int, int], list[float]] = {}
        for n_decode, n_kv, time_ns in shapes:
            medians.setdefault((n_decode, n_kv), []).append(time_ns)
        points = np.array(list(medians), dtype=float).reshape(-1, 2)
        times_ns = np.array([np.median(times) for times in medians.values()])
        spans = len(points) > 0 and bool((points.min(axis=0) < points.max(axis=0)).all())
        between = None
        if spans:
            with contextlib.suppress(QhullError):  # all shapes on one line
                between = LinearNDInterpolator(points, times_ns, rescale=True)
        if between is None:
            raise InputError(
                "decode attention needs at least two batch sizes and two context lengths, got "
                f"{len(points)} shapes that do not span both"
            )
        self._between = between
        self._nearest = NearestNDInterpolator(points, times_ns, rescale=True)
        self._low, self._high = points.min(axis=0), points.max(axis=0)
        self.most_sequences = int(self._high[0])
        self.longest_total = int((points[:, 0] * points[:, 1]).max())

    def at(self, n_decode: int, n_kv_tokens: int) -> float:
        """Time at a batch size and the context of all its sequences together."""
        if n_decode == 0:
            return 0.0
        context = n_kv_tokens / n_decode
        beyond = max(context / float(self._high[1]), 1.0)
        x = np.clip([n_decode, context], self._low, self._high)
        time_ns = float(self._between(*x))
        if np.isnan(time_ns):  # between the hull of what was measured and the box around it
            time_ns = float(self._nearest(*x))
        return time_ns * beyond


class Layers(NamedTuple):
    """What a step consists of, all layers together, times in ns.

    Parameters
    ----------
    per_tokens
        By tokens of the batch, decode and prompt.
    per_sequences
        By sequences that sample; None if the profile has none.
    decode_attention
        None if the profile has none.
    prefill_attention
        By tokens of one chunk without context; None if the profile has none.
    per_step
        By tokens of the batch, added to each step: collectives, host work; None if there is none.
    """

    per_tokens: Samples
    per_sequences: Samples | None = None
    decode_attention: DecodeAttention | None = None
    prefill_attention: Samples | None = None
    per_step: Callable[[int, int], float] | None = None

    def table(self, max_sequences: int) -> TableStepTime:
        """A table up to that many sequences, and as many prompt tokens as were measured.

        Both together can be more tokens than were measured. There, time grows with the tokens; no
        batch is so large if engine.max_batched_tokens is not above the largest one measured.

        Raises
        ------
        InputError
            If the profile does not reach as far.
        """
        largest = int(self.per_tokens.sizes[-1])
        if not 1 <= max_sequences < largest:
            raise InputError(
                f"max_sequences must be from 1 to {largest - 1} for a profile that was measured up "
                f"to {largest} tokens, got {max_sequences}"
            )
        attention = self.decode_attention
        if attention is not None and max_sequences > attention.most_sequences:
            raise InputError(
                f"max_sequences is {max_sequences}, and decode attention was measured up to "
                f"{attention.most_sequences} sequences"
            )
        n_decode = _axis(self.per_tokens.sizes, max_sequences)
        n_prefill = _axis(self.per_tokens.sizes, largest)
        if self.prefill_attention is not None:
            n_prefill = _axis(n_prefill[1:], min(n_prefill[-1], self.prefill_attention.sizes[-1]))
        n_kv: tuple[int, ...] = (0,)
        if attention is not None:
            totals = np.geomspace(16, attention.longest_total, 16)
            n_kv = (0, *sorted({int(total) for total in totals}))
        times_ns = tuple(
            self._step_ns(decode, prefill, kv)
            for decode in n_decode
            for prefill in n_prefill
            for kv in n_kv
        )
        return TableStepTime(n_decode, n_prefill, n_kv, times_ns)

    def _step_ns(self, n_decode: int, n_prefill: int, n_kv: int) -> float:
        largest = self.per_tokens.sizes[-1]
        tokens = n_decode + n_prefill
        step_ns = self.per_tokens.at(min(tokens, largest)) * max(tokens / largest, 1.0)
        if self.per_sequences is not None:
            step_ns += self.per_sequences.at(max(n_decode, 1))
        if self.decode_attention is not None:
            step_ns += self.decode_attention.at(n_decode, n_kv)
        if self.prefill_attention is not None and n_prefill:
            step_ns += self.prefill_attention.at(n_prefill)
        if self.per_step is not None:
            step_ns += self.per_step(n_decode, n_prefill)
        return step_ns


def _axis(sizes: Sequence[float], end: float) -> tuple[int, ...]:
    """0, some of the sizes below ``end``, then ``end``.

    Powers of two stay, where kernels change their tiles; others if they are `_SPACING` apart.
    """
    axis = [0]
    for size in (int(s) for s in sizes if 1 <= s < end):
        power = 1 << (size - 1).bit_length()
        if size == power or (size >= _SPACING * axis[-1] and size * _SPACING <= power):
            axis.append(size)
    return (*axis, int(end))
