"""The bytes of a segment: every offset of the hand-off, and the one check of them.

One segment serves one run, so that its size is reserved, refused and removed as a whole::

    control line | ready lines | request ring | reply ring | launch board

A ring is a head line, one line per reader, then the slots. Whatever two processes
write has a cache line of its own.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

LINE_BYTES: Final = 64
MAGIC: Final = 0x53484D53494D3031  # "SHMSIM01", read as one big-endian word

# Offsets within the control line.
MAGIC_AT: Final = 0
OWNER_PID_AT: Final = 8
STOP_AT: Final = 16  #: not 0 once everybody shall leave
ORIGIN_AT: Final = 24  #: monotonic instant from which the run counts its time, ns

# Offsets within the ready line of a process.
IDLE: Final = 8  #: always 0: a timed wait needs a word; behind it an armed flag. Word 0: attached

# Offsets within a reader's line.
CURSOR: Final = 0  #: how many messages this reader has released
ARMED: Final = 8  #: not 0 while it sleeps on the doorbell
RELEASED_NS: Final = 16  #: when it released the last one
WRITER_ARMED: Final = 24  #: not 0 while the writer sleeps until this reader releases a slot

# Offsets within a slot. The payload starts on a line of its own: page-aligned copies can be many
# times slower, and a header that shares a line with it would be torn by it.
SEQUENCE: Final = 0
CALL_ID: Final = 8
PUBLISHED_NS: Final = 16
LENGTH: Final = 24
FLAGS: Final = 32
PAYLOAD: Final = LINE_BYTES


def round_to_lines(n_bytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-n_bytes // LINE_BYTES) * LINE_BYTES


@dataclass(frozen=True)
class RingLayout:
    """One ring within a segment.

    Parameters
    ----------
    at
        Offset of the ring in the segment, bytes.
    n_slots, slot_bytes, n_readers
        How many messages fit, how long a payload may be, and who reads.
    """

    at: int
    n_slots: int
    slot_bytes: int
    n_readers: int

    @property
    def head_at(self) -> int:
        """How many messages were published; the word that waiters watch."""
        return self.at

    @property
    def watched(self) -> tuple[int, ...]:
        """Every word somebody may sleep on: readers on the head, the writer on a cursor."""
        return self.head_at, *(self.reader_at(r) + CURSOR for r in range(self.n_readers))

    def reader_at(self, reader: int) -> int:
        """The line of one reader."""
        return self.at + LINE_BYTES * (1 + reader)

    @cached_property
    def slot_stride(self) -> int:
        """Bytes from one slot to the next."""
        return PAYLOAD + round_to_lines(self.slot_bytes)

    def slot_at(self, sequence: int) -> int:
        """The slot of the message with this sequence number, the first being 1."""
        index = (sequence - 1) % self.n_slots
        return self.at + LINE_BYTES * (1 + self.n_readers) + self.slot_stride * index

    @property
    def end(self) -> int:
        """Offset of the first byte behind the ring."""
        return self.at + LINE_BYTES * (1 + self.n_readers) + self.slot_stride * self.n_slots


@dataclass(frozen=True)
class BoardLayout:
    """Where each worker notes when it launched a step, so that all can see when all have.

    This is the barrier of tensor parallelism for devices that do not synchronise by themselves.

    Parameters
    ----------
    at
        Offset in the segment, bytes.
    n_workers
        How many columns.
    """

    at: int
    n_workers: int
    n_rows: int = 64  # steps in flight at once are far fewer, a late thread aside

    def cell_at(self, serial: int, worker: int) -> int:
        """The line with (serial, launched_ns) of one worker."""
        return self.at + LINE_BYTES * ((serial % self.n_rows) * self.n_workers + worker)

    @property
    def end(self) -> int:
        """Offset of the first byte behind the board."""
        return self.at + LINE_BYTES * self.n_rows * self.n_workers


@dataclass(frozen=True)
class SegmentLayout:
    """All parts of the segment of one run.

    Parameters
    ----------
    n_workers
        How many workers read the request ring; at least 1.
    n_slots
        Slots of every ring; at least 2.
    slot_bytes
        Longest payload; at least 1.
    """

    n_workers: int
    n_slots: int = 8
    slot_bytes: int = 1 << 16

    def __post_init__(self) -> None:
        """Refuse geometry that cannot work."""
        for name, value, least in (
            ("n_workers", self.n_workers, 1),
            ("n_slots", self.n_slots, 2),
            ("slot_bytes", self.slot_bytes, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def ready_at(self, process: int) -> int:
        """The ready line of a process: 0 is the scheduler, 1 + r the worker of rank r."""
        return LINE_BYTES * (1 + process)

    @cached_property
    def request(self) -> RingLayout:
        """Scheduler to all workers."""
        return RingLayout(
            self.ready_at(self.n_workers + 1), self.n_slots, self.slot_bytes, self.n_workers
        )

    @cached_property
    def reply(self) -> RingLayout:
        """Output rank to scheduler."""
        return RingLayout(self.request.end, self.n_slots, self.slot_bytes, 1)

    @cached_property
    def board(self) -> BoardLayout:
        """Launch stamps."""
        return BoardLayout(self.reply.end, self.n_workers)

    @property
    def size(self) -> int:
        """Bytes of the whole segment."""
        return self.board.end
