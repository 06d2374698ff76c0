"""Claim, publish, see, release: one writer and its readers on the slots of a ring."""

import struct
import time
from collections.abc import Callable
from mmap import mmap
from typing import Final, NamedTuple

from realrun.layout import (
    ARMED,
    CALL_ID,
    CURSOR,
    FLAGS,
    LENGTH,
    LINE_BYTES,
    PAYLOAD,
    PUBLISHED_NS,
    RELEASED_NS,
    SEQUENCE,
    STOP_AT,
    WRITER_ARMED,
    RingLayout,
)
from realrun.native import REHEARSING, SEEN, STOPPED, post, wait, wake
from realrun.segment import Segment

# Flags of a message.
PENDING: Final = 1  #: the scheduler has work left after it
WARM_UP: Final = 2  #: not part of the run: no record, no real step time
START: Final = 4  #: the run begins: forget what was learnt, count from here
LEAVE: Final = 8  #: the run is over
_HEADER: Final = struct.Struct("<QQQQQ")


class RingFull(RuntimeError):  # noqa: N818 - the field's word, and what a caller tells apart
    """No slot is free: a reader has not released its oldest message."""


class Stopped(Exception):  # noqa: N818 - not an error: the run is over
    """The stop word was set during a wait."""


class Message(NamedTuple):
    """What a reader saw in a slot, copied out of it."""

    call_id: int
    flags: int
    published_ns: int
    payload: bytes


class RawWait(NamedTuple):
    """What `realrun.native.wait` says about one wait; instants on the monotonic clock."""

    over: int
    started_ns: int
    seen_ns: int
    stage: int
    cpu0_ns: int
    cpu1_ns: int
    cpu2_ns: int
    cpu3_ns: int
    overshoot_ns: int
    belled: int
    preempted: int


def _nothing() -> None:
    """Rehearse nothing."""


#: Segment, and offsets: the word to watch, what it holds until the event, armed flag, stop word.
Watched = tuple[mmap, int, int, int, int]


def _carry_out(word: Watched, plan: tuple[int, ...], rehearse: Callable[[], None]) -> RawWait:
    """Wait until the word moves; raises `Stopped`, or ValueError for a plan that ends before."""
    raw = RawWait(*wait(*word, plan))
    while raw.over == REHEARSING:
        raw = _rehearsed(raw, rehearse, word, plan)
    if raw.over == SEEN:
        return raw
    if raw.over == STOPPED:
        raise Stopped
    raise ValueError(
        f"the plan {plan} ended before a message came; its last stage must last for ever"
    )


def _rehearsed(
    before: RawWait,
    rehearse: Callable[[], None],
    word: Watched,
    plan: tuple[int, ...],
) -> RawWait:
    """Rehearse, go on behind that stage, and add both parts of the wait up."""
    cpu_ns = time.thread_time_ns()
    rehearse()
    cpu_ns = time.thread_time_ns() - cpu_ns
    after = RawWait(*wait(*word, plan, before.stage + 1, before.started_ns))
    cpus_ns = [a + b for a, b in zip(before[4:8], after[4:8], strict=True)]
    cpus_ns[before.stage] += cpu_ns
    return after._replace(
        cpu0_ns=cpus_ns[0],
        cpu1_ns=cpus_ns[1],
        cpu2_ns=cpus_ns[2],
        cpu3_ns=cpus_ns[3],
        overshoot_ns=after.overshoot_ns or before.overshoot_ns,
        preempted=before.preempted + after.preempted,
    )


class RingWriter:
    """The one writer of a ring, and its doorbell.

    Attributes
    ----------
    n_notified, n_elided
        How often the doorbell was rung, and how often nobody was armed so that it was not.
    """

    def __init__(self, segment: Segment, ring: RingLayout) -> None:
        """Continue behind what is published already."""
        self._segment = segment
        self._memory = segment.memory
        self._ring = ring
        self._sequence = segment.load(ring.head_at)
        self.n_notified = 0
        self.n_elided = 0

    @property
    def sequence(self) -> int:
        """How many messages were published."""
        return self._sequence

    def publish(self, call_id: int, flags: int, payload: bytes) -> tuple[int, int]:
        """Write a message into the next slot and make it visible; does not notify.

        Returns
        -------
        tuple
            ``(published_ns, n_armed)``; call `notify` if ``n_armed`` is not 0.

        Raises
        ------
        RingFull
            If a reader still holds the slot; wait for it with a `SlotWatch`.
        ValueError
            If the payload is longer than a slot.
        """
        ring, memory = self._ring, self._memory
        sequence = self._sequence + 1
        if len(payload) > ring.slot_bytes:
            raise ValueError(
                f"a payload of {len(payload):,} bytes does not fit a slot of {ring.slot_bytes:,}"
            )
        reader = self.slowest()
        if reader is not None:
            held = self._segment.load(ring.reader_at(reader) + CURSOR)
            raise RingFull(
                f"ring is full: reader {reader} has not released message {held + 1}, which "
                f"holds the slot of message {sequence}"
            )
        at = ring.slot_at(sequence)
        _HEADER.pack_into(memory, at, sequence, call_id, 0, len(payload), flags)
        memory[at + PAYLOAD : at + PAYLOAD + len(payload)] = payload
        self._sequence = sequence
        return post(
            memory,
            ring.head_at,
            sequence,
            at + PUBLISHED_NS,
            ring.reader_at(0) + ARMED,
            LINE_BYTES,
            ring.n_readers,
        )

    def slowest(self) -> int | None:
        """The reader that still holds the slot which the next message needs; None if it is free."""
        ring = self._ring
        for reader in range(ring.n_readers):
            held = self._segment.load(ring.reader_at(reader) + CURSOR)
            if self._sequence + 1 - held > ring.n_slots:
                return reader
        return None

    def notify(self, n_armed: int) -> None:
        """Ring the doorbell if somebody is armed: one wake for all readers."""
        if n_armed:
            wake(self._memory, self._ring.head_at)
            self.n_notified += 1
        else:
            self.n_elided += 1


class RingReader:
    """One reader of a ring."""

    def __init__(self, segment: Segment, ring: RingLayout, reader: int) -> None:
        """Start behind the messages this reader has released."""
        self._segment = segment
        self._memory = segment.memory
        self._ring = ring
        self._line_at = ring.reader_at(reader)
        self._released = segment.load(self._line_at + CURSOR)

    def wait(self, plan: tuple[int, ...], rehearse: Callable[[], None] = _nothing) -> RawWait:
        """Carry out a flat plan until the next message is visible.

        Parameters
        ----------
        plan
            Four stages of three numbers.
        rehearse
            Called at a REHEARSE stage.

        Raises
        ------
        Stopped
            If the stop word was set instead.
        """
        word = (self._memory, self._ring.head_at, self._released, self._line_at + ARMED, STOP_AT)
        return _carry_out(word, plan, rehearse)

    def read(self) -> Message:
        """Copy the next message out and release its slot; it must be visible.

        Raises
        ------
        RuntimeError
            If the slot does not hold the message that is next: the ring was overrun.
        """
        sequence = self._released + 1
        at = self._ring.slot_at(sequence)
        found, call_id, published_ns, length, flags = _HEADER.unpack_from(self._memory, at)
        if found != sequence:
            raise RuntimeError(f"slot {at} holds message {found}, expected {sequence}")
        payload = self._memory[at + PAYLOAD : at + PAYLOAD + length]
        self._released = sequence
        # The same protocol as for a message, the other way round: the cursor is what the writer of
        # a full ring watches, and is armed on.
        line_at = self._line_at
        _, armed = post(
            self._memory,
            line_at + CURSOR,
            sequence,
            line_at + RELEASED_NS,
            line_at + WRITER_ARMED,
            LINE_BYTES,
            1,
        )
        if armed:
            wake(self._memory, line_at + CURSOR)
        return Message(call_id, flags, published_ns, payload)


class SlotWatch:
    """Waits as a reader does, but for a slot: the writer of a full ring uses it."""

    def __init__(self, writer: RingWriter, segment: Segment, ring: RingLayout) -> None:
        """Watch the ring of a writer."""
        self._writer = writer
        self._segment = segment
        self._ring = ring
        self._line_at = ring.reader_at(0)
        self._seen_ns = 0

    def wait(self, plan: tuple[int, ...], rehearse: Callable[[], None] = _nothing) -> RawWait:
        """Carry out a flat plan until the slowest reader releases a slot.

        Raises
        ------
        Stopped
            If the stop word was set instead.
        """
        reader = self._writer.slowest()
        self._line_at = line_at = self._ring.reader_at(reader or 0)
        # A slot that came free meanwhile is a cursor that differs from what a full ring has.
        full = self._writer.sequence - self._ring.n_slots
        memory = self._segment.memory
        word = (memory, line_at + CURSOR, full, line_at + WRITER_ARMED, STOP_AT)
        raw = _carry_out(word, plan, rehearse)
        self._seen_ns = raw.seen_ns
        return raw

    def read(self) -> Message:
        """Tell when the slot was released, in the terms of a message."""
        # The reader may have released another since: then this one came free before it was seen.
        released_ns = min(self._segment.load(self._line_at + RELEASED_NS), self._seen_ns)
        return Message(self._segment.load(self._line_at + CURSOR), 0, released_ns, b"")


# The header is one Struct, so its fields must lie where the layout says.
assert (SEQUENCE, CALL_ID, PUBLISHED_NS, LENGTH, FLAGS) == (0, 8, 16, 24, 32)
