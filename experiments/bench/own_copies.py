"""A large array through the arena against one copy of it, in turns, by the same process."""

import mmap
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from ours import Ours

N_BYTES: Final = 128 << 20
#: As a payload of `message`, for the other systems.
PAYLOAD: Final = f"numpy/{N_BYTES}"
#: Payloads lie one line behind a page, in the arena and here: page-aligned copies can be slower.
_LINE: Final = 64


class Copies(Ours):
    """Readers look at both ends of the array, drop it and reply; they park in between."""

    def __init__(self) -> None:
        super().__init__(policy="park", routes="vllm-arena")

    def start(self, n_readers: int) -> None:
        """Touch every page once: of the source, of the copy and, by a hand-off, of the arena."""
        super().start(n_readers)
        self._source = np.full(N_BYTES, 0x5A, dtype=np.uint8)
        # Shared memory like the segment: anonymous, but it comes from the same file system.
        self._copy = memoryview(mmap.mmap(-1, _LINE + N_BYTES))[_LINE:]
        for _ in range(2):
            self.own()

    def own(self) -> dict[str, list[int]]:
        """One hand-off and one copy.

        Each follows at once on a copy that does not count: a core that has just slept is slow.
        """
        self._copy_once()
        handoff_ns = _duration_ns(lambda: self.call(self._source))
        self._copy_once()
        memcpy_ns = _duration_ns(self._copy_once)
        assert self.counts()["fallbacks"] == 0, "the array took another route"
        return {"handoff": [handoff_ns], "memcpy": [memcpy_ns]}

    def _copy_once(self) -> None:
        self._copy[:] = self._source.data


def _duration_ns(work: Callable[[], None]) -> int:
    start_ns = time.monotonic_ns()
    work()
    return time.monotonic_ns() - start_ns
