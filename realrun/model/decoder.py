"""One rank of a Llama-like decoder with a static KV cache: the same code on CPU and GPU.

Decoding works on the first rows of the cache, those of sequences that do not decode in this step
included, so that shapes are few and a CUDA graph can hold each; what it would write for those goes
to a place behind the cache that nobody reads. A prompt chunk works on one row.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from realrun.model.collectives import AllReduce, alone
from realrun.model.weights import LayerWeights, Weights
from shmsim.roofline import ModelGeometry

_ROPE_BASE: Final = 500_000.0  # rope_theta of Llama 3
_EPSILON: Final = 1e-5
_PADDING: Final = 8  # positions behind the context; a multiple of 8 keeps attention kernels fast

#: Queries, keys and values of a layer to what attention gives: ``(layer, q, k, v) -> out``.
Attend = Callable[[int, Any, Any, Any], Any]


class Decoder:
    """Weights, cache and the last token of every row.

    Parameters
    ----------
    geometry, weights
        The whole model's shape, and this rank's share of it.
    n_rows, max_len
        Rows of the cache, and positions in each.
    all_reduce
        Adds up the parts of all ranks, in place.

    Attributes
    ----------
    idle
        Position that marks a row which does not decode.
    tokens
        Last token of every row, int64, shape ``(n_rows,)``; what a decode step takes in and gives
        back.
    """

    def __init__(
        self,
        geometry: ModelGeometry,
        weights: Weights,
        n_rows: int,
        max_len: int,
        all_reduce: AllReduce = alone,
    ) -> None:
        """Start with an empty cache."""
        self._geometry = geometry
        self._weights = weights
        self._all_reduce = all_reduce
        device, dtype = weights.embedding.device, weights.embedding.dtype
        length = -(-max_len // _PADDING) * _PADDING + _PADDING
        self.idle = length - 1
        shape = (geometry.layers, n_rows, weights.kv_heads, length, geometry.head_dim)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)
        self.tokens = torch.zeros(n_rows, device=device, dtype=torch.int64)
        self._rows = torch.arange(n_rows, device=device)
        self._places = torch.arange(length, device=device)
        half = torch.arange(0, geometry.head_dim, 2, device=device, dtype=torch.float32)
        angle = self._places[:, None] * _ROPE_BASE ** (-half / geometry.head_dim)
        self._cos, self._sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def decode(self, positions: Any) -> Any:
        """One token for each of the first rows.

        Parameters
        ----------
        positions
            Where the last token of each row belongs, int64, shape ``(n,)``; `idle` for rows that do
            not decode.

        Returns
        -------
        Tensor
            Logits, shape ``(n, vocab)``; those of idle rows mean nothing.
        """
        n = positions.shape[0]
        rows, tokens = self._rows[:n], self.tokens[:n]
        mask = (self._places <= positions[:, None])[:, None, None, :]

        def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
            self._keys[layer, rows, :, positions] = k
            self._values[layer, rows, :, positions] = v
            # Grouped heads as rows of one query: (n, kv, heads per kv, head_dim).
            grouped = q.view(n, self._weights.kv_heads, -1, self._geometry.head_dim)
            keys, values = self._keys[layer, :n], self._values[layer, :n]
            return scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)

        logits = self._logits(tokens, positions, attend)
        following = self._next(logits, positions)
        tokens.copy_(torch.where(positions == self.idle, tokens, following))
        return logits

    def prefill(self, row: int, prompt: Any, start: int) -> Any:
        """Take in a prompt chunk; the row's token is then the one after it.

        Parameters
        ----------
        row
            Of the cache.
        prompt
            Token ids, int64, shape ``(n,)``.
        start
            Position of the first of them.

        Returns
        -------
        Tensor
            Logits behind the last, shape ``(1, vocab)``.
        """
        n, end = prompt.shape[0], start + prompt.shape[0]
        positions = self._places[start:end]
        kv_heads, head_dim = self._weights.kv_heads, self._geometry.head_dim
        group = self._weights.heads // kv_heads
        mask = (self._places[:end] <= positions[:, None]).repeat(group, 1)[None, None]

        def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
            self._keys[layer, row, :, start:end] = k.transpose(0, 1)
            self._values[layer, row, :, start:end] = v.transpose(0, 1)
            grouped = q.view(n, kv_heads, group, head_dim).permute(1, 2, 0, 3)
            found = scaled_dot_product_attention(
                grouped.reshape(kv_heads, group * n, head_dim)[None],
                self._keys[layer, row, :, :end][None],
                self._values[layer, row, :, :end][None],
                attn_mask=mask,
            )
            return found.view(kv_heads, group, n, head_dim).permute(2, 0, 1, 3)

        logits = self._logits(prompt, positions, attend, last=1)
        self.tokens[row : row + 1].copy_(self._next(logits, positions[-1:]))
        return logits

    def _logits(self, tokens: Any, positions: Any, attend: Attend, last: int = 0) -> Any:
        """Run all layers; of the last tokens only, if ``last`` says how many."""
        weights, geometry = self._weights, self._geometry
        x = weights.embedding[tokens]
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for layer, w in enumerate(weights.layers):
            x = x + self._attention(layer, w, x, cos, sin, attend)
            normed = rms_norm(x, (geometry.hidden,), w.before_mlp, _EPSILON)
            gate, up = linear(normed, w.gate_up).chunk(2, -1)
            x = x + self._all_reduce(linear(silu(gate) * up, w.down))
        x = rms_norm(x[-last:], (geometry.hidden,), weights.last_norm, _EPSILON)
        return linear(x, weights.head)

    def _attention(
        self, layer: int, w: LayerWeights, x: Any, cos: Any, sin: Any, attend: Attend
    ) -> Any:
        geometry, heads, kv_heads = self._geometry, self._weights.heads, self._weights.kv_heads
        normed = rms_norm(x, (geometry.hidden,), w.before_attention, _EPSILON)
        qkv = linear(normed, w.qkv).view(x.shape[0], heads + 2 * kv_heads, geometry.head_dim)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
        if geometry.qk_norm:
            q = rms_norm(q, (geometry.head_dim,), w.query, _EPSILON)
            k = rms_norm(k, (geometry.head_dim,), w.key, _EPSILON)
        attended = attend(layer, _turned(q, cos, sin), _turned(k, cos, sin), v)
        return self._all_reduce(linear(attended.reshape(x.shape[0], -1), w.out))

    def _next(self, logits: Any, positions: Any) -> Any:
        """Greedy tokens; of random weights the likeliest is the token itself, so move on."""
        return (logits.argmax(-1) + positions) % self._geometry.vocab


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding, halves of a head as real and imaginary part."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
