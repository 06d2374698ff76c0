"""Registers shared memory with a device, so that copies to and from it are asynchronous.

Every process registers its own mapping: pages are shared, page tables are not. Whoever asks goes on
without if it fails, with slower copies, and the records say why.

Order at the end: wait for the device, unregister, drop what looks at the memory, unmap. Memory that
is unmapped while registered would be copied from after its pages went to somebody else.
"""

import ctypes
from mmap import PAGESIZE, mmap
from typing import Final

from realrun.cuda.driver import Driver, DriverError

_MOST_BYTES: Final = 64 << 30  # a call of 512 GiB fails; vLLM registers by 64 GiB for that reason


class Registration:
    """A mapping that is registered, or a reason why it is not.

    Parameters
    ----------
    driver
        By which it is registered.
    memory
        The mapping; it begins on a page.
    n_bytes
        How much of it, from its beginning on, up to the end of a page. None: all.

    Attributes
    ----------
    reason
        Why it could not be registered; empty if it is.
    """

    def __init__(self, driver: Driver, memory: mmap, n_bytes: int | None = None) -> None:
        """Try to register it."""
        self._driver = driver
        self._address = address_of(memory)
        self._pieces: list[int] = []
        self.reason = ""
        # The last page belongs to the mapping as a whole.
        n_bytes = -(-(n_bytes or len(memory)) // PAGESIZE) * PAGESIZE
        try:
            for at in range(0, n_bytes, _MOST_BYTES):
                driver.register(self._address + at, min(n_bytes - at, _MOST_BYTES))
                self._pieces.append(self._address + at)
        except DriverError as error:
            self.reason = str(error)
            self.close()

    @property
    def is_registered(self) -> bool:
        """Whether the device may copy from it and write to it."""
        return bool(self._pieces)

    def device_pointer(self, at: int) -> int:
        """Where the device sees the byte at an offset."""
        return self._driver.device_pointer(self._address + at)

    def close(self) -> None:
        """Unregister; nothing may be on its way."""
        while self._pieces:
            self._driver.unregister(self._pieces.pop())


def address_of(memory: mmap) -> int:
    """Where a mapping begins; it must stay mapped for as long as somebody uses that."""
    view = ctypes.c_char.from_buffer(memory)
    return ctypes.addressof(view)  # the view dies here, or nobody could unmap any more
