"""One rank of a Llama-like decoder with a static KV cache: the same code on CPU and GPU.

Decoding works on the first rows of the cache, those of sequences that do not decode in this step
included, so that shapes are few and a CUDA graph can hold each; what it would write for those goes
to a place behind the cache that nobody reads. A prompt chunk works on one row.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from realrun.model.collectives import AllReduce, alone
from realrun.model.compiled import compiled
from realrun.model.weights import LayerWeights, Weights
from shmsim.roofline import ModelGeometry

_ROPE_BASE: Final = 500_000.0  # rope_theta of Llama 3
_EPSILON: Final = 1e-5
_PADDING: Final = 8  # positions behind the context; a multiple of 8 keeps attention kernels fast

#: A layer's first half: ``(layer, x, added, cos, sin) -> (x, attended)``; see `attention`.
Attend = Callable[[int, Any, Any, Any, Any], tuple[Any, Any]]
#: A layer's second half; see `mlp`.
Mlp = Callable[[Any, Any, LayerWeights], tuple[Any, Any]]


class Shape(NamedTuple):
    """What a layer of one rank has to know of its geometry."""

    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool


def project(
    x: Any, added: Any, w: LayerWeights, cos: Any, sin: Any, shape: Shape
) -> tuple[Any, Any, Any, Any]:
    """Add what the half before gave, and make queries, keys and values of the sum.

    Parameters
    ----------
    x, added
        Activations, and what is to be added to them first, shape ``(n, hidden)``.
    cos, sin
        Of the positions, shape ``(n, 1, head_dim / 2)``.

    Returns
    -------
    tuple
        The sum; queries, keys, values, shapes ``(n, heads of each, head_dim)``.
    """
    heads, kv_heads, head_dim, qk_norm = shape
    x = x + added
    normed = rms_norm(x, (x.shape[-1],), w.before_attention, _EPSILON)
    qkv = linear(normed, w.qkv).view(x.shape[0], heads + 2 * kv_heads, head_dim)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    if qk_norm:
        q = rms_norm(q, (head_dim,), w.query, _EPSILON)
        k = rms_norm(k, (head_dim,), w.key, _EPSILON)
    return x, _turned(q, cos, sin), _turned(k, cos, sin), v


def attention(
    x: Any,
    added: Any,
    w: LayerWeights,
    cos: Any,
    sin: Any,
    keys: Any,
    values: Any,
    rows: Any,
    positions: Any,
    mask: Any,
    shape: Shape,
) -> tuple[Any, Any]:
    """First half of a layer of a decode step.

    Parameters
    ----------
    x, added, cos, sin
        See `project`; ``n`` is the number of rows.
    keys, values
        Cache of the layer, shape ``(rows, kv heads, length, head_dim)``; written to.
    rows, positions
        Where in it, int64, shape ``(n,)``.
    mask
        What each row looks at, shape ``(n, 1, 1, length)``.

    Returns
    -------
    tuple
        The sum, and what this rank adds to it next.
    """
    n = x.shape[0]
    x, q, k, v = project(x, added, w, cos, sin, shape)
    keys[rows, :, positions] = k
    values[rows, :, positions] = v
    # Grouped heads as rows of one query: (n, kv, heads per kv, head_dim).
    grouped = q.view(n, shape.kv_heads, -1, shape.head_dim)
    found = scaled_dot_product_attention(grouped, keys[:n], values[:n], attn_mask=mask)
    return x, linear(found.reshape(n, -1), w.out)


def mlp(x: Any, added: Any, w: LayerWeights) -> tuple[Any, Any]:
    """Second half of a layer; arguments and result as of `attention`."""
    x = x + added
    normed = rms_norm(x, (x.shape[-1],), w.before_mlp, _EPSILON)
    gate, up = linear(normed, w.gate_up).chunk(2, -1)
    return x, linear(silu(gate) * up, w.down)


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
    kernels
        ``"eager"``, or ``"compiled"``: what a decode step does between its products is fused by
        `torch.compile`, half a layer at a time: between two halves the ranks meet.

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
        kernels: str = "eager",
    ) -> None:
        """Start with an empty cache."""
        self._geometry = geometry
        self._weights = weights
        self._all_reduce = all_reduce
        device, dtype = weights.embedding.device, weights.embedding.dtype
        length = -(-max_len // _PADDING) * _PADDING + _PADDING
        self.idle = length - 1
        self._shape = Shape(weights.heads, weights.kv_heads, geometry.head_dim, geometry.qk_norm)
        cache = (n_rows, weights.kv_heads, length, geometry.head_dim)
        # A tensor for each layer: what is compiled may copy the whole of what it writes a part of.
        self._keys, self._values = (
            [torch.zeros(cache, device=device, dtype=dtype) for _ in weights.layers]
            for _ in range(2)
        )
        self._attention, self._mlp = attention, mlp
        self._is_compiled = kernels == "compiled"
        if self._is_compiled:
            self._attention, self._mlp = compiled(attention, device), compiled(mlp, device)
        self.tokens = torch.zeros(n_rows, device=device, dtype=torch.int64)
        self._rows = torch.arange(n_rows, device=device)
        self._places = torch.arange(length, device=device)
        half = torch.arange(0, geometry.head_dim, 2, device=device, dtype=torch.float32)
        angle = self._places[:, None] * _ROPE_BASE ** (-half / geometry.head_dim)
        self._cos, self._sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def prepare(self) -> None:
        """Compile what is to be compiled, for every number of rows: it takes seconds to minutes.

        All ranks do so together. A CUDA graph does it by itself when it is captured.
        """
        if self._is_compiled:
            positions = torch.full_like(self.tokens, self.idle)
            for n in range(len(positions), 0, -1):
                self.decode(positions[:n])

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

        def attend(layer: int, x: Any, added: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
            cache = self._keys[layer], self._values[layer]
            w = self._weights.layers[layer]
            return self._attention(
                x, added, w, cos, sin, *cache, rows, positions, mask, self._shape
            )

        logits = self._logits(tokens, positions, attend, self._mlp)
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

        def attend(layer: int, x: Any, added: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
            w, keys, values = self._weights.layers[layer], self._keys[layer], self._values[layer]
            x, q, k, v = project(x, added, w, cos, sin, self._shape)
            keys[row, :, start:end] = k.transpose(0, 1)
            values[row, :, start:end] = v.transpose(0, 1)
            grouped = q.view(n, kv_heads, group, head_dim).permute(1, 2, 0, 3)
            found = scaled_dot_product_attention(
                grouped.reshape(kv_heads, group * n, head_dim)[None],
                keys[row, :, :end][None],
                values[row, :, :end][None],
                attn_mask=mask,
            )
            attended = found.view(kv_heads, group, n, head_dim).permute(2, 0, 1, 3)
            return x, linear(attended.reshape(n, -1), w.out)

        logits = self._logits(prompt, positions, attend, mlp, last=1)
        self.tokens[row : row + 1].copy_(self._next(logits, positions[-1:]))
        return logits

    def _logits(
        self, tokens: Any, positions: Any, attend: Attend, second: Mlp, last: int = 0
    ) -> Any:
        """Run all layers; of the last tokens only, if ``last`` says how many."""
        weights, geometry = self._weights, self._geometry
        x = weights.embedding[tokens]
        added = torch.zeros_like(x)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for layer, w in enumerate(weights.layers):
            x, added = attend(layer, x, added, cos, sin)
            x, added = second(x, self._all_reduce(added), w)
            added = self._all_reduce(added)
        x = rms_norm((x + added)[-last:], (geometry.hidden,), weights.last_norm, _EPSILON)
        return linear(x, weights.head)

    def _next(self, logits: Any, positions: Any) -> Any:
        """Greedy tokens; of random weights the likeliest is the token itself, so move on."""
        return (logits.argmax(-1) + positions) % self._geometry.vocab


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding, halves of a head as real and imaginary part."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
