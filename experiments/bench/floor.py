"""The floor under every parked wake-up: futex and eventfd in C, with no message at all."""

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final

from system import System, UnavailableError

_SOURCE: Final = Path(__file__).with_name("floor.c")
_BYTES: Final = mmap.PAGESIZE


def _mapping(descriptor: int) -> tuple[mmap.mmap, ctypes.c_void_p]:
    """Map the shared page; it stays mapped as long as the first value lives."""
    page = mmap.mmap(descriptor, _BYTES)
    return page, ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))


class _Floor(System):
    """Compiles the C file afresh, so that it fits the machine it runs on."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "floor.so"
        self._n_readers = 0
        self._compiler = ""

    def _compile(self) -> ctypes.CDLL:
        compiler = shutil.which("gcc")
        if compiler is None:
            self._folder.cleanup()
            raise UnavailableError("gcc is not installed")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._path), str(_SOURCE)]
        subprocess.run(command, check=True)
        version = subprocess.run(
            [compiler, "-dumpfullversion"], check=True, capture_output=True, text=True
        )
        self._compiler = f"gcc {version.stdout.strip()}"
        return ctypes.CDLL(str(self._path))

    def _share_page(self) -> int:
        """Map a fresh page; returns its descriptor, for the readers."""
        descriptor = os.memfd_create("words")
        os.ftruncate(descriptor, _BYTES)
        self._page, self._words = _mapping(descriptor)
        return descriptor

    def about(self) -> dict[str, Any]:
        return {"compiler": self._compiler}

    def call(self, message: Any) -> None:
        """One call; the message stays here."""
        self.time_calls(1, 0, 0, message)


class Futex(_Floor):
    """One shared word down, one up; FUTEX_WAKE and FUTEX_WAIT on each."""

    def start(self, n_readers: int) -> None:
        """Share a page with the readers."""
        self._c = self._compile()
        self._n_readers = n_readers
        descriptor = self._share_page()
        for reader in range(n_readers):
            self.spawn(_read_futex, str(self._path), DupFd(descriptor), reader, n_readers)
        os.close(descriptor)
        self.call(None)

    def time_calls(self, n: int, gap_ns: int, limit_ns: int, message: Any) -> list[int]:
        """As the base class does, with the clock in C and without an early end."""
        samples = (ctypes.c_uint64 * n)()
        wakes = (ctypes.c_uint64 * n)()
        self._c.futex_calls(
            self._words, self._n_readers, n, ctypes.c_uint64(gap_ns), samples, wakes
        )
        self.wakes_ns += wakes
        return list(samples)

    def close(self) -> None:
        """Wake everybody for the last time."""
        self._c.futex_leave(self._words)
        self._folder.cleanup()


def _read_futex(library: str, descriptor: Any, reader: int, n_readers: int) -> None:
    _page, words = _mapping(descriptor.detach())
    ctypes.CDLL(library).futex_read(words, reader, n_readers)


class Eventfd(_Floor):
    """One eventfd down for each reader, one up for all of them."""

    def start(self, n_readers: int) -> None:
        """Share the descriptors with the readers."""
        self._c = self._compile()
        self._n_readers = n_readers
        descriptor = self._share_page()  # for the stamps alone
        self._reply = os.eventfd(0)
        self._calls = (ctypes.c_int * n_readers)(*(os.eventfd(0) for _ in range(n_readers)))
        for reader, call in enumerate(self._calls):
            page, ends = DupFd(descriptor), (DupFd(call), DupFd(self._reply))
            self.spawn(_read_eventfd, str(self._path), page, reader, *ends)
        os.close(descriptor)
        self.call(None)

    def time_calls(self, n: int, gap_ns: int, limit_ns: int, message: Any) -> list[int]:
        """As the base class does, with the clock in C and without an early end."""
        samples = (ctypes.c_uint64 * n)()
        wakes = (ctypes.c_uint64 * n)()
        failed = self._c.eventfd_calls(
            *(self._words, self._calls, self._reply, self._n_readers),
            *(n, ctypes.c_uint64(gap_ns), samples, wakes),
        )
        if failed:
            raise OSError("an eventfd could not be read or written in full")
        self.wakes_ns += wakes
        return list(samples)

    def close(self) -> None:
        """Wake everybody for the last time."""
        for call in self._calls:
            self._c.eventfd_leave(call)
        self._folder.cleanup()


def _read_eventfd(library: str, page: Any, reader: int, call: Any, reply: Any) -> None:
    _page, words = _mapping(page.detach())
    ctypes.CDLL(library).eventfd_read(words, reader, call.detach(), reply.detach())
