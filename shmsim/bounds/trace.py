"""Waits as they were: how long each was, and what was known when it began."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64Array = NDArray[np.int64]


class WaitTrace(NamedTuple):
    """The waits of one site, in order; all arrays have the shape ``(n_waits,)``.

    Parameters
    ----------
    gap_ns
        Start of the wait to the publication, by the producer's stamp; 0 or less was there already.
    n_decode, n_prefill_tokens, n_kv_tokens, pending, since_seen_ns
        As in `shmsim.wait.WaitContext`.
    """

    gap_ns: Int64Array
    n_decode: Int64Array
    n_prefill_tokens: Int64Array
    n_kv_tokens: Int64Array
    pending: NDArray[np.bool_]
    since_seen_ns: Int64Array

    @property
    def n_waits(self) -> int:
        """How many waits there are."""
        return len(self.gap_ns)

    @property
    def features(self) -> NDArray[np.float64]:
        """What is known of the batch of each wait, shape ``(n_waits, 3)``."""
        return np.column_stack([self.n_decode, self.n_prefill_tokens, self.n_kv_tokens]).astype(
            np.float64
        )


def trace_of(
    gap_ns: ArrayLike,
    n_decode: ArrayLike = 1,
    n_prefill_tokens: ArrayLike = 0,
    n_kv_tokens: ArrayLike = 0,
    pending: ArrayLike = True,
    since_seen_ns: ArrayLike = 0,
) -> WaitTrace:
    """Waits from numbers; a single one holds for all waits.

    Raises
    ------
    ValueError
        If there is no wait, or a column has another length than ``gap_ns``.
    """
    gaps = np.asarray(gap_ns, dtype=np.int64)
    if gaps.ndim != 1 or not len(gaps):
        raise ValueError(f"gap_ns must be a list of at least one wait, got shape {gaps.shape}")
    columns = {
        "n_decode": n_decode,
        "n_prefill_tokens": n_prefill_tokens,
        "n_kv_tokens": n_kv_tokens,
        "pending": pending,
        "since_seen_ns": since_seen_ns,
    }
    arrays = []
    for name, column in columns.items():
        kind: type[np.generic] = np.bool_ if name == "pending" else np.int64
        array: NDArray[Any] = np.asarray(column, dtype=kind)
        if array.shape not in ((), gaps.shape):
            raise ValueError(
                f"{name} has the shape {array.shape}, and gap_ns {gaps.shape}; give one number for "
                "all waits, or one for each"
            )
        arrays.append(np.broadcast_to(array, gaps.shape))
    return WaitTrace(gaps, *arrays)
