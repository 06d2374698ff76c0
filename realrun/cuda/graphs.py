"""The decode step as CUDA graphs, one for each batch bucket."""

from typing import Any

import torch

from realrun.model.decoder import Decoder

_N_WARM_UP = 2  # launches before a capture: cuBLAS and NCCL set themselves up in the first


def buckets_up_to(n_rows: int) -> list[int]:
    """Powers of two, and the number of rows itself."""
    powers = [1 << i for i in range(n_rows.bit_length()) if 1 << i < n_rows]
    return [*powers, n_rows]


class DecodeGraphs:
    """Replays the decode step of a decoder.

    Parameters
    ----------
    decoder
        Its cache and tokens are what the graphs work on.
    positions
        Static input: of each row, int64, shape ``(n_rows,)``, on the device.

    Attributes
    ----------
    logits
        Of each bucket, after its replay; shape ``(bucket, vocab)``.
    """

    def __init__(self, decoder: Decoder, positions: Any) -> None:
        """Capture all buckets, the largest first: the others fit into its memory."""
        self._buckets = buckets_up_to(positions.shape[0])
        self._graphs: dict[int, Any] = {}
        self.logits: dict[int, Any] = {}
        positions.fill_(decoder.idle)
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream()
        for n_rows in reversed(self._buckets):
            for _ in range(_N_WARM_UP):
                decoder.decode(positions[:n_rows])
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Threads of NCCL may call CUDA meanwhile; that is theirs and no part of the capture.
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ):
                self.logits[n_rows] = decoder.decode(positions[:n_rows])
            self._graphs[n_rows] = graph
        stream.synchronize()

    def bucket_for(self, n_rows: int) -> int:
        """The smallest bucket that holds the first rows."""
        return next(bucket for bucket in self._buckets if bucket >= n_rows)

    def close(self) -> None:
        """Drop the graphs: NCCL lets no group go that a graph still needs."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self.logits.clear()

    def replay(self, n_rows: int) -> None:
        """Decode, with a graph that holds the first rows; positions are in place."""
        self._graphs[self.bucket_for(n_rows)].replay()
