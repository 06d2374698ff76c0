"""Buffers that grow with what they must hold, instead of an arena fixed beforehand.

Ray's compiled graphs allocate what a payload needs when it is larger than all before, and keep the
old buffers (ray-project/ray#59640 reports 900 GB). Doubling and freeing is the textbook's answer.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmsim.arena_sizing.payloads import Int64Array

_FACTOR: Final = 2


class Growth(NamedTuple):
    """Memory of one growing buffer over a sequence of payloads.

    Parameters
    ----------
    resident_bytes
        After each payload, shape ``(n,)``.
    peak_bytes
        At most, while old contents are still in the old buffer too.
    n_grown
        How often it was allocated anew: each time every reader has to map it, and a device to
        register it.
    """

    resident_bytes: Int64Array
    peak_bytes: int
    n_grown: int


def exact_fit_keep(n_bytes: Int64Array) -> Growth:
    """Allocate exactly what a payload needs that is larger than all before; free nothing.

    The resident memory is the sum of all records of the sequence: of sizes that never repeat and
    come in random order, ``1 + 1/2 + ... + 1/n`` records; of growing ones, all.
    """
    if not len(n_bytes):
        return Growth(n_bytes, 0, 0)
    is_record = _records(n_bytes)
    resident: Int64Array = np.cumsum(np.where(is_record, n_bytes, 0))
    return Growth(resident, int(resident[-1]), int(is_record.sum()))


def geometric_free(n_bytes: Int64Array) -> Growth:
    """Allocate at least twice what there was, and free the old buffer.

    The resident memory stays below twice the largest payload. While a buffer is replaced both are
    there, so the peak is at most three halves of that.
    """
    resident = np.empty_like(n_bytes)
    capacity = peak = n_grown = 0
    for index, needed in enumerate(n_bytes.tolist()):
        if needed > capacity:
            larger = max(needed, _FACTOR * capacity)
            peak = max(peak, capacity + larger)
            capacity = larger
            n_grown += 1
        resident[index] = capacity
    return Growth(resident, peak, n_grown)


def _records(n_bytes: Int64Array) -> NDArray[np.bool_]:
    """Whether each is larger than all before, and so the first with at least a byte."""
    highest = np.maximum.accumulate(n_bytes)
    before = np.concatenate([[0], highest[:-1]])
    found: NDArray[np.bool_] = n_bytes > before
    return found


#: Ways to grow, by the name they are shown with.
GROWTHS: Final[dict[str, Callable[[Int64Array], Growth]]] = {
    "exact fit, keep": exact_fit_keep,
    "double, free": geometric_free,
}
