"""The two arrays of a run, and who gets which part of them."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]


class Words(Protocol):
    """Whole numbers: instants, counts, addresses. An array, or what points to it."""

    def __getitem__(self, address: int, /) -> int:
        """A word."""
        ...

    def __setitem__(self, address: int, value: int, /) -> None:
        """Set a word."""
        ...


class Numbers(Protocol):
    """Random numbers and curves. An array, or what points to it."""

    def __getitem__(self, address: int, /) -> float:
        """A number."""
        ...

    def __setitem__(self, address: int, value: float, /) -> None:
        """Set a number."""
        ...


class Memory:
    """Hands out words of the two arrays until `arrays` makes them."""

    def __init__(self) -> None:
        """Start empty; address 0 stands for no object, so it belongs to the run as a whole."""
        self._words: list[int] = []
        self._numbers: list[float] = []
        self._n_reserved = 0

    def words(self, n: int, value: int = 0) -> int:
        """Address of ``n`` new words."""
        self._words.extend([value] * n)
        return len(self._words) - n

    def align(self, n: int) -> None:
        """Let the next word have an address that is a multiple of ``n``."""
        self.words(-len(self._words) % n)

    def numbers(self, n: int) -> int:
        """Address of ``n`` new numbers."""
        self._numbers.extend([0.0] * n)
        return len(self._numbers) - n

    def store(self, values: Iterable[int]) -> int:
        """Address of new words with these values."""
        address = len(self._words)
        self._words.extend(values)
        return address

    def store_numbers(self, values: Iterable[float]) -> int:
        """Address of new numbers with these values."""
        address = len(self._numbers)
        self._numbers.extend(values)
        return address

    def __setitem__(self, address: int, value: int) -> None:
        """Set a word."""
        self._words[address] = value

    def __getitem__(self, address: int) -> int:
        """A word."""
        return self._words[address]

    def fill(self, address: int, values: Mapping[int, int]) -> None:
        """Set words of an object, by their offset."""
        for offset, value in values.items():
            self._words[address + offset] = int(value)

    def record(self, n: int, values: Mapping[int, int]) -> int:
        """Address of a new object of ``n`` words, all 0 but these."""
        address = self.words(n)
        self.fill(address, values)
        return address

    def reserve(self, n: int) -> int:
        """Address of ``n`` words of 0 behind all others; no others may follow."""
        address = len(self._words) + self._n_reserved
        self._n_reserved += n
        return address

    def arrays(self) -> tuple[Int64Array, Float64Array]:
        """The arrays."""
        words = np.zeros(len(self._words) + self._n_reserved, np.int64)
        words[: len(self._words)] = self._words
        return words, np.array(self._numbers, np.float64)
