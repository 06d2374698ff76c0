"""Random numbers fixed beforehand, so that two policies, or two worlds, meet the same luck.

A stream is keyed by (seed, replication, entity, purpose) and indexed by step, wait or call. What
one component draws never shifts what another gets: number 17 of a stream is the same whether or
not number 16 was looked at. The generator is counter-based (Philox), so that any block of a stream
can be produced by itself.
"""

from array import array
from collections.abc import Callable
from statistics import NormalDist
from typing import Final, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

try:
    from scipy.special import ndtri
except ModuleNotFoundError:  # the real loop runs without it: the same to some units of the last bit
    ndtri = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])  # type: ignore[assignment]

BLOCK: Final = 1024  #: numbers drawn at once; a multiple of the four a Philox counter yields
_MOST_BLOCKS: Final = 4

Transform = Callable[[NDArray[np.float64]], NDArray[np.float64]]
#: Numbers side by side, of which Python reads one by one faster than of an array of numpy's, and
#: which many streams together hold in less memory than as lists.
Block: TypeAlias = "array[float]"
_NONE: Final = array("d")


class Stream:
    """An endless sequence of random numbers, addressed by index.

    Parameters
    ----------
    key
        Two 64-bit words that tell this stream from every other.
    transform
        Applied to the uniform numbers of a block, as the inverse of a distribution function.
    """

    def __init__(self, key: NDArray[np.uint64], transform: Transform | None) -> None:
        """Draw nothing yet."""
        self._key = key
        self._transform = transform
        self._blocks: dict[int, Block] = {}
        self._last, self._numbers = -1, _NONE  # the block asked for last, nearly always the next

    def at(self, index: int) -> float:
        """Number ``index`` (from 0) of this stream."""
        block = index // BLOCK
        if block != self._last:
            self._last, self._numbers = block, self.block(block)
        return self._numbers[index - block * BLOCK]

    def block(self, block: int) -> Block:
        """The numbers from ``block * BLOCK`` on, `BLOCK` of them."""
        numbers = self._blocks.get(block)
        if numbers is None:
            bits = np.random.Philox(key=self._key, counter=block * (BLOCK // 4))
            drawn = np.random.Generator(bits).random(BLOCK)
            if self._transform is not None:
                drawn = self._transform(drawn)
            if len(self._blocks) >= _MOST_BLOCKS:  # whoever reads on needs the oldest no more
                del self._blocks[next(iter(self._blocks))]
            numbers = self._blocks[block] = array("d", drawn.tobytes())
        return numbers


class Tape:
    """All random numbers of one replication.

    Parameters
    ----------
    seed, replication
        Non-negative; another replication has independent streams.
    """

    def __init__(self, seed: int, replication: int = 0) -> None:
        """Remember the key."""
        #: Seed and replication, which tell this tape from every other.
        self.root = (seed, replication)

    def uniform(self, entity: str, purpose: str) -> Stream:
        """Numbers uniform on [0, 1)."""
        return Stream(self.key(entity, purpose), None)

    def normal(self, entity: str, purpose: str) -> Stream:
        """Standard normal numbers."""
        return Stream(self.key(entity, purpose), _normal)

    def generator(self, entity: str, purpose: str) -> np.random.Generator:
        """A numpy generator, for drawing whole arrays once."""
        return np.random.Generator(np.random.Philox(key=self.key(entity, purpose)))

    def key(self, entity: str, purpose: str) -> NDArray[np.uint64]:
        """Two words that tell a stream from every other, the key of its Philox generator."""
        words = [*self.root, crc32(entity.encode()), crc32(purpose.encode())]
        return np.random.SeedSequence(words).generate_state(2, np.uint64).astype(np.uint64)


def _normal(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    # random() can return exactly 0, whose normal quantile is minus infinity.
    quantiles: NDArray[np.float64] = ndtri(np.maximum(uniform, 2.0**-54))
    return quantiles
