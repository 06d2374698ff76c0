"""A small ring of our own beside each of vLLM's: sequence numbers, stamps, bells, no payload.

vLLM's ring says with a byte per reader whether a slot may be read; there is no word that a sleeper
could sleep on, no publish stamp, and nobody to wake a writer. So the same messages are published a
second time, empty, in a ring of `realrun.layout` in a file of its own in /dev/shm:

- The writer publishes here just before it sets vLLM's flag, and rings just after, if somebody was
  armed. Who saw the former looks at vLLM's flag, which is set by then or within microseconds.
- A reader releases here just after it has set vLLM's read flag. Whoever waits for this cursor
  therefore finds vLLM's slot free.

A sleeper watches the head or a cursor by the protocol of realrun/_native.c, which loses no wake-up.
This ring has two slots more than vLLM's, so it is never full: a reader is at most one message
behind its own flag.

Both sides open the file by the name of vLLM's segment, whoever comes first makes it; zeros are
its valid start. EngineCore comes last, looks whether all others are there, says `GO`, and unlinks
the file. Without `GO` nobody uses the ring and vLLM is as it was.
"""

import mmap
import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Self

from realrun.layout import LINE_BYTES, PUBLISHED_NS, RingLayout
from realrun.native import load, publish, store, take, wake

SHM: Final = Path("/dev/shm")
PREFIX: Final = "realrun-vllm-"
SPARE_SLOTS: Final = 2
_GO: Final = 0
_PID: Final = 0  # within the line of an end: who has opened it
_POLLING: Final = 8  # of a reader: it may be asleep on vLLM's socket, so it must be pinged
_RANK: Final = 16  # of the writer: the worker's rank
_KIND: Final = 24  # of an end: whether it carries out policies, or records only


class Beside:
    """One mapped ring beside a ring of vLLM's.

    Parameters
    ----------
    path
        The file.
    memory
        It, mapped.
    n_readers, n_slots
        Of vLLM's ring.

    Attributes
    ----------
    words
        The mapping by words, for those whose order with others vLLM's fences keep.
    """

    def __init__(self, path: Path, memory: mmap.mmap, n_readers: int, n_slots: int) -> None:
        """Wrap a mapping; use `beside` or `open`."""
        self.path = path
        self.memory = memory
        self.n_readers = n_readers
        self.n_slots = n_slots
        self.ring = _ring(n_readers, n_slots)
        self._geometry = self.ring.geometry
        self._head_at = self.ring.head_at
        self.words = memoryview(memory).cast("Q")

    @classmethod
    def of(cls, buffer: Any) -> Self:
        """Open the ring beside a ``ShmRingBuffer``."""
        name = PREFIX + buffer.shared_memory.name.strip("/")
        return cls.open(SHM / name, buffer.n_reader, buffer.max_chunks)

    @classmethod
    def open(cls, path: Path, n_readers: int, n_slots: int) -> Self:
        """Open the file, or make it.

        Raises
        ------
        PermissionError
            If it belongs to somebody else.
        """
        n_bytes = _ring(n_readers, n_slots).end
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise PermissionError(f"{path} belongs to user {os.fstat(fd).st_uid}")
            os.posix_fallocate(fd, 0, n_bytes)
            memory = mmap.mmap(fd, n_bytes)
        finally:
            os.close(fd)
        return cls(path, memory, n_readers, n_slots)

    def attach_reader(self, reader: int, *, by_policy: bool) -> None:
        """Say that a reader is there, and whether it carries out policies or records only."""
        self._attach(_line(reader), by_policy=by_policy)

    def attach_writer(self, rank: int, *, by_policy: bool) -> None:
        """Say that the writer is there, and of which rank it is."""
        at = _line(self.n_readers)
        store(self.memory, at + _RANK, rank)
        self._attach(at, by_policy=by_policy)

    def _attach(self, at: int, *, by_policy: bool) -> None:
        store(self.memory, at + _KIND, by_policy)
        store(self.memory, at + _PID, os.getpid())

    def absent(self, *, by_policy: bool) -> list[str]:
        """The ends that nobody has opened, or only somebody of the other kind."""
        names = [f"reader {r}" for r in range(self.n_readers)] + ["writer"]
        return [
            name
            for i, name in enumerate(names)
            if not load(self.memory, _line(i) + _PID)
            or load(self.memory, _line(i) + _KIND) != by_policy
        ]

    def go(self) -> None:
        """Everybody is there: from the next message on the ring is used."""
        store(self.memory, _GO, 1)

    def give_up(self) -> None:
        """From now on vLLM waits by itself: our ring is not in step with its."""
        store(self.memory, _GO, 2)

    @property
    def is_used(self) -> bool:
        """Whether `go` was called."""
        return self.words[_GO] == 1

    def unlink(self) -> None:
        """Remove the file; who has it mapped keeps it."""
        self.path.unlink(missing_ok=True)

    def stamps(self) -> Iterator[int]:
        """Which of `words` has the stamp of each message: all that a recorder needs of the ring."""
        slots = range(1, self.ring.n_slots + 1)
        return cycle([(self.ring.slot_at(slot) + PUBLISHED_NS) // 8 for slot in slots])

    def publish(self, kind: int) -> tuple[int, int]:
        """Publish the next message: its stamp, 0 if the ring was full, and whom to ring for.

        `ring_readers` follows once vLLM's flag is set: who is woken before that takes the core
        from the writer, only to find nothing.
        """
        return publish(self.memory, self._geometry, None, 0, kind, [])

    def ring_readers(self) -> None:
        """Wake the readers."""
        wake(self.memory, self.ring.reader_words(0).bell)

    def take(self, reader: int) -> int:
        """Release the next message, and ring the writer if it waits for that.

        Returns
        -------
        int
            When it was published, ns; 0 if it was not.
        """
        taken = take(self.memory, self._geometry, b"", reader, 0)
        return 0 if taken is None else taken[2]

    @property
    def head(self) -> int:
        """How many messages were published."""
        return load(self.memory, self._head_at)

    def cursor(self, reader: int) -> int:
        """How many messages a reader has released."""
        return load(self.memory, self.ring.reader_at(reader))

    def set_polling(self, reader: int, polling: int) -> None:
        """Say whether a reader may be asleep on vLLM's socket."""
        store(self.memory, _line(reader) + _POLLING, polling)

    def anybody_polls(self) -> bool:
        """Whether a reader may be asleep on vLLM's socket."""
        return any(load(self.memory, _line(r) + _POLLING) for r in range(self.n_readers))

    def stop_reader(self, reader: int) -> None:
        """End a reader's wait."""
        words = self.ring.reader_words(reader)
        store(self.memory, words.stop, 1)
        wake(self.memory, words.bell)

    def stop_writer(self) -> None:
        """End the writer's wait for a slot, whichever reader it waits for."""
        store(self.memory, self.ring.writer_words(0).stop, 1)
        for reader in range(self.n_readers):
            wake(self.memory, self.ring.writer_words(reader).bell)

    @property
    def writer_rank(self) -> int:
        """Rank of the worker that writes."""
        return load(self.memory, _line(self.n_readers) + _RANK)


def _line(end: int) -> int:
    """Where the line of an end is: readers in order, then the writer."""
    return LINE_BYTES * (1 + end)


def _ring(n_readers: int, n_slots: int) -> RingLayout:
    return RingLayout("beside", _line(n_readers + 1), n_slots + SPARE_SLOTS, 0, n_readers)
