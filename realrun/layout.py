"""The bytes of a segment: every offset of the hand-off, and the one check of them.

One segment serves one run, so that its size is reserved, refused and removed as a whole::

    control line | ready lines | request ring | reply rings | launch board | end rings | arena

A ring is a head line, one line per reader, then the slots. Whatever two processes
write has a cache line of its own.
"""

from dataclasses import dataclass
from functools import cached_property
from mmap import PAGESIZE
from typing import Final, NamedTuple
from zlib import crc32

from shmsim.routing import NO_ARENA, ArenaPlan, check_arena

LINE_BYTES: Final = 64
MAGIC: Final = 0x53484D53494D3032  # "SHMSIM02", read as one big-endian word
MAX_WORKERS: Final = 64  #: a word has that many bits, one for each reader that is armed

# Offsets within the control line. Written by the owner before anybody attaches, but for ORIGIN.
MAGIC_AT: Final = 0
OWNER_PID_AT: Final = 8
GEOMETRY_AT: Final = 16  #: checksum of the layout; who attaches with another one is refused
ORIGIN_AT: Final = 24  #: monotonic instant from which the run counts its time, ns; by the scheduler

# Offsets within the ready line of a process. The armed flag and the bell of a timed wait that
# nobody rings (`SegmentLayout.idle_words`) are never touched by another process.
READY: Final = 0  #: its process id once it has attached; by that process, read by all others
STOP: Final = 8  #: not 0 once this process shall leave; by whoever stops it
STARTED: Final = 40  #: when it started, in clock ticks after boot; by that process, before READY
LEFT: Final = 48  #: not 0 once it needs nobody any more; by that process
IDLE: Final = 16  #: always 0: what a timed wait watches
IDLE_BELL: Final = 24
IDLE_ARMED: Final = 32

# Offsets within the head line of a ring. Who writes, who reads, and what pairs with it:
HEAD: Final = 0  #: messages published; by the writer (release), read by readers (acquire)
BELL: Final = 8  #: counts rings for the readers; by the writer and by who stops them (atomic add)
WRITER_STOP: Final = 16  #: not 0 once the writer shall stop waiting for a slot

# Offsets within the line of a reader:
CURSOR: Final = 0  #: messages released; by the reader (release), read by the writer (acquire)
ARMED: Final = 8  #: 1 while it may sleep; set by the reader, taken (exchanged for 0) by the writer
RELEASED_NS: Final = 16  #: when it released the last one; by the reader before CURSOR
WRITER_ARMED: Final = 24  #: as ARMED, with writer and reader exchanged: it waits for CURSOR
WRITER_BELL: Final = 32  #: as BELL, for the writer; by the reader and by who stops the writer
READER_STOP: Final = 40  #: not 0 once this reader shall stop waiting for a message

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


class Words(NamedTuple):
    """Offsets of the words of one wait.

    Parameters
    ----------
    watched
        The word whose change ends the wait.
    bell
        What the waiter sleeps on: it moves whenever somebody rings.
    armed
        Says that the waiter may be asleep.
    stop
        Not 0 once the waiter shall leave without what it waits for.
    """

    watched: int
    bell: int
    armed: int
    stop: int


@dataclass(frozen=True)
class RingLayout:
    """One ring within a segment.

    Parameters
    ----------
    name
        In errors, and of its doorbells.
    at
        Offset of the ring in the segment, bytes.
    n_slots, slot_bytes, n_readers
        How many messages fit, how long a payload may be, and who reads.
    """

    name: str
    at: int
    n_slots: int
    slot_bytes: int
    n_readers: int

    @property
    def head_at(self) -> int:
        """How many messages were published."""
        return self.at + HEAD

    def reader_at(self, reader: int) -> int:
        """The line of one reader."""
        return self.at + LINE_BYTES * (1 + reader)

    def reader_words(self, reader: int) -> Words:
        """What a reader that waits for a message works on."""
        at = self.reader_at(reader)
        return Words(self.head_at, self.at + BELL, at + ARMED, at + READER_STOP)

    def writer_words(self, reader: int) -> Words:
        """What the writer works on while it waits until a reader releases a slot."""
        at = self.reader_at(reader)
        return Words(at + CURSOR, at + WRITER_BELL, at + WRITER_ARMED, self.at + WRITER_STOP)

    @cached_property
    def geometry(self) -> tuple[int, int, int, int, int, int, int]:
        """What `realrun.native.publish` and `take` are told about the ring."""
        slots_at, lines_at = self.slot_at(1), self.reader_at(0)
        strides = self.slot_stride, self.slot_bytes, self.n_slots, self.n_readers
        return self.head_at, lines_at, slots_at, *strides

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
    n_rows: int = 64  # steps in flight at once are fewer, a late thread aside

    def cell_at(self, serial: int, worker: int) -> int:
        """The line with (serial, launched_ns) of one worker."""
        return self.at + LINE_BYTES * ((serial % self.n_rows) * self.n_workers + worker)

    @property
    def end(self) -> int:
        """Offset of the first byte behind the board."""
        return self.at + LINE_BYTES * self.n_rows * self.n_workers


@dataclass(frozen=True)
class ArenaLayout:
    """Slots for payloads that are written once and read in place.

    Every slot has a line for its writer (``generation``: how often it was filled) and one for each
    reader (``released``: the generation it has let go of); all of them come first, so that the
    slots themselves can be registered with a device as one range of whole pages.

    Parameters
    ----------
    at
        Offset in the segment, bytes.
    plan
        Slot classes.
    n_readers
        Who must release a slot before it is used again.
    """

    at: int
    plan: ArenaPlan
    n_readers: int

    @cached_property
    def slots(self) -> tuple[tuple[int, int], ...]:
        """(class, offset of the payload) of every slot."""
        at = self.data_at
        slots = []
        for index, slot_class in enumerate(self.plan.classes):
            for _ in range(slot_class.n_slots):
                # Not on a page: see PAYLOAD.
                slots.append((index, at + LINE_BYTES))
                at += LINE_BYTES + round_to_lines(slot_class.slot_bytes)
        return tuple(slots)

    @property
    def n_slots(self) -> int:
        """Slots of all classes."""
        return sum(slot_class.n_slots for slot_class in self.plan.classes)

    def generation_at(self, slot: int) -> int:
        """How often a slot was filled; by the writer alone, before the message that names it."""
        return self.at + LINE_BYTES * (1 + self.n_readers) * slot

    def released_at(self, slot: int, reader: int) -> int:
        """The generation that a reader has released; by it (release), read by the writer."""
        return self.generation_at(slot) + LINE_BYTES * (1 + reader)

    @property
    def data_at(self) -> int:
        """Where the slots begin: on a page."""
        lines_end = self.at + LINE_BYTES * (1 + self.n_readers) * self.n_slots
        return -(-lines_end // PAGESIZE) * PAGESIZE if self.n_slots else self.at

    @cached_property
    def end(self) -> int:
        """Offset of the first byte behind the arena, on a page."""
        end = self.data_at
        for slot_class in self.plan.classes:
            end += slot_class.n_slots * (LINE_BYTES + round_to_lines(slot_class.slot_bytes))
        return -(-end // PAGESIZE) * PAGESIZE if self.n_slots else self.at


@dataclass(frozen=True)
class SegmentLayout:
    """All parts of the segment of one run.

    Parameters
    ----------
    n_workers
        How many workers read the request ring; at least 1. Each has a reply ring.
    n_slots
        Slots of every ring; at least 2.
    slot_bytes
        Longest payload of a request; at least 1.
    reply_slot_bytes
        Longest payload of a reply; 0: as of a request.
    arena
        Slots for large payloads of requests.
    n_devices
        How many workers, from the first on, have a device that says itself when a step is done.
    end_slot_bytes
        What one step needs in such a worker's end ring: its inputs and its outputs.
    n_end_slots
        Slots of every end ring: twice the steps in flight, so that it is never full.
    """

    n_workers: int
    n_slots: int = 8
    slot_bytes: int = 1 << 16
    reply_slot_bytes: int = 0
    arena: ArenaPlan = NO_ARENA
    n_devices: int = 0
    end_slot_bytes: int = LINE_BYTES
    n_end_slots: int = 4

    def __post_init__(self) -> None:
        """Refuse geometry that cannot work."""
        for name, value, least, most in (
            ("n_workers", self.n_workers, 1, MAX_WORKERS),
            ("n_slots", self.n_slots, 2, 1 << 20),
            ("slot_bytes", self.slot_bytes, 1, 1 << 40),
            ("reply_slot_bytes", self.reply_slot_bytes, 0, 1 << 40),
            ("n_devices", self.n_devices, 0, self.n_workers),
            ("end_slot_bytes", self.end_slot_bytes, 1, 1 << 40),
            ("n_end_slots", self.n_end_slots, 2, 1 << 20),
        ):
            if type(value) is not int:
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} must be from {least} to {most:,}, got {value:,}")
        check_arena(self.arena)

    @cached_property
    def checksum(self) -> int:
        """Tells layouts apart."""
        return crc32(repr(self).encode())

    def ready_at(self, process: int) -> int:
        """The ready line of a process: 0 is the scheduler, 1 + r the worker of rank r."""
        return LINE_BYTES * (1 + process)

    def idle_words(self, process: int) -> Words:
        """What a process works on that waits for a moment instead of for somebody."""
        at = self.ready_at(process)
        return Words(at + IDLE, at + IDLE_BELL, at + IDLE_ARMED, at + STOP)

    @cached_property
    def request(self) -> RingLayout:
        """Scheduler to all workers."""
        at = self.ready_at(self.n_workers + 1)
        return RingLayout("request", at, self.n_slots, self.slot_bytes, self.n_workers)

    @cached_property
    def replies(self) -> tuple[RingLayout, ...]:
        """Each worker to the scheduler."""
        rings: list[RingLayout] = []
        at = self.request.end
        for worker in range(self.n_workers):
            slot_bytes = self.reply_slot_bytes or self.slot_bytes
            rings.append(RingLayout(f"reply{worker}", at, self.n_slots, slot_bytes, 1))
            at = rings[-1].end
        return tuple(rings)

    @property
    def rings(self) -> tuple[RingLayout, ...]:
        """All rings."""
        return self.request, *self.replies, *self.ends

    @cached_property
    def board(self) -> BoardLayout:
        """Launch stamps."""
        return BoardLayout(self.replies[-1].end, self.n_workers)

    @cached_property
    def ends(self) -> tuple[RingLayout, ...]:
        """Each device to its worker: a message is the end of a step."""
        rings: list[RingLayout] = []
        at = self.board.end
        for worker in range(self.n_devices):
            shape = self.n_end_slots, self.end_slot_bytes, 1
            rings.append(RingLayout(f"end{worker}", at, *shape))
            at = rings[-1].end
        return tuple(rings)

    @cached_property
    def arena_layout(self) -> ArenaLayout:
        """The arena of the request ring."""
        at = self.ends[-1].end if self.ends else self.board.end
        return ArenaLayout(at, self.arena, self.n_workers)

    @property
    def size(self) -> int:
        """Bytes of the whole segment."""
        return self.arena_layout.end
