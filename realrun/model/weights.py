"""Random weights of a decoder, and the share of them that one rank holds."""

from typing import Any, Final, NamedTuple

import torch

from realrun.model.geometry import check_shares
from shmsim.roofline import ModelGeometry

_EMBEDDING: Final = 0  # numbers of the random streams; layers follow
_HEAD: Final = 1
_PER_LAYER: Final = 8


class LayerWeights(NamedTuple):
    """One layer of one rank; ``q``, ``kv`` heads and ``ffn`` are its share.

    Parameters
    ----------
    qkv
        Shape ``((q + 2 kv) * head_dim, hidden)``: queries, keys, values.
    out
        Shape ``(hidden, q * head_dim)``.
    gate_up
        Shape ``(2 ffn, hidden)``: the gate, then what it lets through.
    down
        Shape ``(hidden, ffn)``.
    before_attention, before_mlp, query, key
        Of the norms, shapes ``(hidden,)``, ``(hidden,)``, ``(head_dim,)``, ``(head_dim,)``; the
        last two are used by models with `ModelGeometry.qk_norm`.
    """

    qkv: Any
    out: Any
    gate_up: Any
    down: Any
    before_attention: Any
    before_mlp: Any
    query: Any
    key: Any


class Weights(NamedTuple):
    """What one rank holds: its share of every layer; embedding, last norm and head as a whole."""

    embedding: Any
    layers: tuple[LayerWeights, ...]
    last_norm: Any
    head: Any
    heads: int
    kv_heads: int


def random_weights(
    geometry: ModelGeometry, seed: int, device: Any, dtype: Any, rank: int = 0, n_ranks: int = 1
) -> Weights:
    """Draw the weights of one rank.

    Every matrix is drawn whole, from a stream of its own, and cut afterwards: so the ranks hold
    parts of the very weights that one rank alone would have. Streams differ between kinds of
    device.

    Raises
    ------
    ValueError
        If the ranks cannot share the layers evenly.
    """
    check_shares(geometry, n_ranks)
    hidden, head_dim, ffn = geometry.hidden, geometry.head_dim, geometry.ffn

    def matrix(stream: int, rows: int, columns: int) -> Any:
        generator = torch.Generator(device).manual_seed(seed * 1_000_003 + stream)
        # Values keep their size from layer to layer, whatever the geometry.
        scale = columns**-0.5
        drawn = torch.randn(rows, columns, generator=generator, device=device, dtype=dtype)
        return drawn.mul_(scale)

    def ones(n: int) -> Any:
        return torch.ones(n, device=device, dtype=dtype)

    heads, ffn_share = geometry.heads // n_ranks, ffn // n_ranks
    # With more ranks than heads of keys and values several ranks hold the same one.
    kv_heads = max(geometry.kv_heads // n_ranks, 1)
    kv_first = rank * geometry.kv_heads // n_ranks
    q_rows = slice(rank * heads * head_dim, (rank + 1) * heads * head_dim)
    kv_rows = slice(kv_first * head_dim, (kv_first + kv_heads) * head_dim)
    ffn_rows = slice(rank * ffn_share, (rank + 1) * ffn_share)
    layers = []
    for layer in range(geometry.layers):
        stream = _PER_LAYER * (layer + 1)
        query = matrix(stream, geometry.heads * head_dim, hidden)[q_rows]
        key = matrix(stream + 1, geometry.kv_heads * head_dim, hidden)[kv_rows]
        value = matrix(stream + 2, geometry.kv_heads * head_dim, hidden)[kv_rows]
        out = matrix(stream + 3, hidden, geometry.heads * head_dim)[:, q_rows]
        gate = matrix(stream + 4, ffn, hidden)[ffn_rows]
        up = matrix(stream + 5, ffn, hidden)[ffn_rows]
        down = matrix(stream + 6, hidden, ffn)[:, ffn_rows]
        layers.append(
            LayerWeights(
                torch.cat([query, key, value]),
                out.contiguous(),
                torch.cat([gate, up]),
                down.contiguous(),
                ones(hidden),
                ones(hidden),
                ones(head_dim),
                ones(head_dim),
            )
        )
    embedding = matrix(_EMBEDDING, geometry.vocab, hidden)
    head = embedding if geometry.tied else matrix(_HEAD, geometry.vocab, hidden)
    return Weights(embedding, tuple(layers), ones(hidden), head, heads, kv_heads)
