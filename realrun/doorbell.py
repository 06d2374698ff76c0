"""Doorbells: how whoever moved a word wakes who sleeps until it moves.

Every ring has sleepers of two kinds: each reader, who waits for messages, and the writer, who waits
for a slot. Before a sleep they arm; whoever moves their word takes the flag and only then rings
(realrun/_native.c has the protocol, tests/protocol its proof). The three kinds differ in what a
sleeper sleeps on, and in nothing else:

futex
    The bell word in the segment. One system call wakes all readers.
eventfd
    A file descriptor for each sleeper, which also a selector can wait for. One write each.
zmq
    A PULL socket for each sleeper, into which others PUSH: two more thread switches, which is what
    the design that started this project would pay. No ring is lost: PUSH never drops, and as every
    ring takes a flag, no sleeper is owed more than one ring per arming and ringer. vLLM's own
    PUB socket with a queue of one drops (tests/real/test_zmq_loses_pings.py).
"""

import errno
import os
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import zmq

from realrun.layout import RingLayout
from realrun.native import wake

if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap

KINDS: Final = ("futex", "eventfd", "zmq")
_NO_FD: Final = -1
_RING: Final = b"\0"
_LONGEST_SOCKET_PATH: Final = 107


class Ear(NamedTuple):
    """What a sleeper sleeps on.

    Parameters
    ----------
    fd
        A file descriptor; -1 for the bell word in the segment.
    drain
        Takes whatever rang out of a socket; None where the wait does that itself.
    """

    fd: int = _NO_FD
    drain: "Callable[[], None] | None" = None


class Doorbell(Protocol):
    """The bells of one ring, as one process uses them.

    Attributes
    ----------
    bells
        How `realrun.native.publish` and `take` ring by themselves; None if they cannot.
    """

    @property
    def bells(self) -> bytes | None:
        """See above."""
        ...

    def ring_readers(self, armed: int) -> None:
        """Wake the readers whose bits are set."""
        ...

    def ring_writer(self, reader: int) -> None:
        """Wake the writer that sleeps until this reader releases a slot."""
        ...

    def reader_ear(self, reader: int) -> Ear:
        """What a reader sleeps on."""
        ...

    def writer_ear(self) -> Ear:
        """What the writer sleeps on."""
        ...

    def close(self) -> None:
        """Give back what this process holds."""
        ...


def _readers_in(armed: int) -> list[int]:
    """The numbers of the bits that are set."""
    return [reader for reader in range(armed.bit_length()) if armed >> reader & 1]


class FutexDoorbell:
    """Bell words in the segment."""

    bells: Final = b""

    def __init__(self, memory: "mmap", ring: RingLayout) -> None:
        """Know both ends of the ring."""
        self._memory = memory
        self._readers_bell_at = ring.reader_words(0).bell
        self._writer_bells_at = [ring.writer_words(r).bell for r in range(ring.n_readers)]

    def ring_readers(self, armed: int) -> None:
        """Wake all readers at once: who is awake does not notice."""
        del armed
        wake(self._memory, self._readers_bell_at)

    def ring_writer(self, reader: int) -> None:
        """Wake the writer that sleeps until this reader releases a slot."""
        wake(self._memory, self._writer_bells_at[reader])

    def reader_ear(self, reader: int) -> Ear:
        """The bell word."""
        del reader
        return Ear()

    def writer_ear(self) -> Ear:
        """The bell word."""
        return Ear()

    def close(self) -> None:
        """Nothing is held."""


class EventfdDoorbell:
    """File descriptors that this process inherited: of every reader, and last of the writer."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Use descriptors that `make_eventfds` made."""
        self._fds = fds
        self.bells: Final = array("i", fds).tobytes()

    def ring_readers(self, armed: int) -> None:
        """Write to the descriptor of each reader whose bit is set."""
        for reader in _readers_in(armed):
            os.eventfd_write(self._fds[reader], 1)

    def ring_writer(self, reader: int) -> None:
        """Write to the descriptor of the writer."""
        del reader
        os.eventfd_write(self._fds[-1], 1)

    def reader_ear(self, reader: int) -> Ear:
        """Its descriptor."""
        return Ear(self._fds[reader])

    def writer_ear(self) -> Ear:
        """Its descriptor."""
        return Ear(self._fds[-1])

    def close(self) -> None:
        """Leave the descriptors to who made them: other ends of this process may use them."""


def make_eventfds(ring: RingLayout) -> list[int]:
    """A descriptor for every sleeper of a ring; all of them or, with an error, none."""
    fds: list[int] = []
    try:
        while len(fds) <= ring.n_readers:
            fds.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    return fds


class ZmqDoorbell:
    """Sockets in a private folder, one for each sleeper; made when first used.

    Parameters
    ----------
    folder
        Only its owner may enter it: whoever can connect could wake, though not more.
    ring
        Whose bells.
    """

    bells: Final = None

    def __init__(self, folder: Path, ring: RingLayout) -> None:
        """Name the sockets."""
        check_private(folder)
        self._folder = folder
        self._ring = ring
        self._push: dict[tuple[int, str], zmq.Socket[bytes]] = {}
        self._pull: list[zmq.Socket[bytes]] = []

    def _address(self, sleeper: str) -> str:
        return socket_address(self._folder, f"{self._ring.name}-{sleeper}")

    def _ring_for(self, sleeper: str) -> None:
        key = threading.get_ident(), sleeper  # a socket belongs to one thread
        push = self._push.get(key)
        if push is None:
            push = zmq_context().socket(zmq.PUSH)
            push.linger = 0
            push.sndhwm = 0  # no limit: at most one ring per arming is on its way
            push.connect(self._address(sleeper))
            self._push[key] = push
        # Before the sleeper has bound its socket this waits in the queue.
        push.send(_RING)

    def ring_readers(self, armed: int) -> None:
        """Send to each reader whose bit is set."""
        for reader in _readers_in(armed):
            self._ring_for(str(reader))

    def ring_writer(self, reader: int) -> None:
        """Send to the writer."""
        del reader
        self._ring_for("writer")

    def _ear(self, sleeper: str) -> Ear:
        pull = zmq_context().socket(zmq.PULL)
        pull.linger = 0
        pull.rcvhwm = 0
        pull.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())  # the peer's, as its kernel says
        pull.bind(self._address(sleeper))
        self._pull.append(pull)

        def drain() -> None:
            # To the very end: only then does the descriptor tell of the next ring.
            try:
                while True:
                    pull.recv(zmq.DONTWAIT)
            except zmq.Again:
                return

        drain()
        return Ear(int(pull.getsockopt(zmq.FD)), drain)

    def reader_ear(self, reader: int) -> Ear:
        """Its socket."""
        return self._ear(str(reader))

    def writer_ear(self) -> Ear:
        """Its socket."""
        return self._ear("writer")

    def close(self) -> None:
        """Close the sockets."""
        for socket in (*self._push.values(), *self._pull):
            socket.close()
        self._push.clear()
        self._pull.clear()


_contexts: dict[int, "zmq.Context[zmq.Socket[bytes]]"] = {}
_contexts_lock = threading.Lock()
os.register_at_fork(
    before=_contexts_lock.acquire,
    after_in_parent=_contexts_lock.release,
    after_in_child=_contexts_lock.release,
)


def zmq_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """The one context of this process: each would have two threads and a dozen descriptors."""
    pid = os.getpid()
    with _contexts_lock:
        if pid not in _contexts:  # after a fork the parent's is of no use
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            # Its thread inherits the core this process is pinned to, where a spinner would starve
            # it; it may run anywhere.
            for core in range(os.cpu_count() or 1):
                context.set(zmq.THREAD_AFFINITY_CPU_ADD, core)
            _contexts[pid] = context
        return _contexts[pid]


def socket_address(folder: Path, name: str) -> str:
    """Address of a socket in a private folder.

    Raises
    ------
    ValueError
        If the kernel would cut its path off.
    """
    path = folder / name
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise ValueError(
            f"{path} has {len(os.fsencode(path))} bytes, but the path of a socket may have "
            f"{_LONGEST_SOCKET_PATH}; set TMPDIR to a shorter folder"
        )
    return f"ipc://{path}"


def check_private(folder: Path) -> None:
    """Refuse a folder for sockets that anybody else could enter.

    Raises
    ------
    PermissionError
        If it belongs to somebody else or is open to others.
    """
    status = folder.lstat()  # of a symbolic link itself: whose target is, can change
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM,
            f"{folder} must belong to user {os.geteuid()} and be closed to others (mode 0700), "
            f"but belongs to {status.st_uid} with mode {status.st_mode & 0o777:04o}",
        )
