"""Claim, publish, see, release: one writer and its readers on the slots of a ring."""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from realrun.doorbell import Doorbell, Ear
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
    WRITER_ARMED,
    RingLayout,
)
from realrun.native import post
from realrun.segment import Segment
from realrun.waiting import RawWait, carry_out, no_rehearsal

# Flags of a message.
PENDING: Final = 1  #: the scheduler has work left after it
WARM_UP: Final = 2  #: not part of the run: no record, no real step time
START: Final = 4  #: the run begins: forget what was learnt, count from here
LEAVE: Final = 8  #: the run is over
PARTS: Final = 16  #: the payload is a table of parts (`realrun.handoff`)
_HEADER: Final = struct.Struct("<QQQQQ")


class RingFull(RuntimeError):  # noqa: N818 - the field's word, and what a caller tells apart
    """No slot is free: a reader has not released its oldest message."""


class TornSlot(RuntimeError):  # noqa: N818 - what is wrong, by its name
    """A slot does not hold what its ring says: it was overrun, or somebody else wrote to it."""


class Message(NamedTuple):
    """What a reader saw in a slot."""

    call_id: int
    flags: int
    published_ns: int
    payload: bytes


class Slot(NamedTuple):
    """A message in its slot, which stays as it is until it is released."""

    call_id: int
    flags: int
    published_ns: int
    payload: memoryview


class RingWriter:
    """The one writer of a ring.

    Attributes
    ----------
    n_notified, n_elided
        How often the doorbell was rung, and how often nobody was armed so that it was not.
    """

    def __init__(
        self, segment: Segment, ring: RingLayout, doorbell: Doorbell | None = None
    ) -> None:
        """Continue behind what is published already."""
        self._segment = segment
        self._memory = segment.memory
        self._ring = ring
        self._doorbell = doorbell or segment.doorbell(ring)
        self._sequence = segment.load(ring.head_at)
        self._owed = 0  # readers whose flags were taken and who were not rung for
        self.n_notified = 0
        self.n_elided = 0

    @property
    def ring(self) -> RingLayout:
        """What is written to."""
        return self._ring

    @property
    def sequence(self) -> int:
        """How many messages were published."""
        return self._sequence

    def claim(self) -> memoryview:
        """The payload of the next slot, to write to; `commit` makes it a message.

        Raises
        ------
        RingFull
            If a reader still holds the slot; wait for it with a `SlotWatch`.
        """
        ring = self._ring
        sequence = self._sequence + 1
        reader = self.slowest()
        if reader is not None:
            held = self._segment.load(ring.reader_at(reader) + CURSOR)
            raise RingFull(
                f"{ring.name} ring is full: reader {reader} has not released message {held + 1}, "
                f"which holds the slot of message {sequence}"
            )
        at = ring.slot_at(sequence) + PAYLOAD
        return self._segment.bytes[at : at + ring.slot_bytes]

    def commit(self, call_id: int, flags: int, n_bytes: int) -> int:
        """Make the first bytes of the claimed slot visible as a message; `notify` must follow.

        Returns
        -------
        int
            When that was.
        """
        ring = self._ring
        sequence = self._sequence + 1
        at = ring.slot_at(sequence)
        _HEADER.pack_into(self._memory, at, sequence, call_id, 0, n_bytes, flags)
        self._sequence = sequence
        published_ns, armed = post(
            self._memory,
            ring.head_at,
            sequence,
            at + PUBLISHED_NS,
            ring.reader_at(0) + ARMED,
            LINE_BYTES,
            ring.n_readers,
        )
        self._owed |= armed
        return published_ns

    def publish(self, call_id: int, flags: int, payload: bytes) -> int:
        """Write a message into the next slot and make it visible; `notify` must follow.

        Returns
        -------
        int
            When that was.

        Raises
        ------
        RingFull
            If a reader still holds the slot; wait for it with a `SlotWatch`.
        ValueError
            If the payload is longer than a slot.
        """
        n_bytes = len(payload)
        if n_bytes > self._ring.slot_bytes:
            raise ValueError(
                f"a payload of {n_bytes:,} bytes does not fit a slot of "
                f"{self._ring.slot_bytes:,}; make slots larger, or send it by another route"
            )
        self.claim()[:n_bytes] = payload
        return self.commit(call_id, flags, n_bytes)

    def slowest(self) -> int | None:
        """The reader that still holds the slot which the next message needs; None if it is free."""
        ring = self._ring
        for reader in range(ring.n_readers):
            held = self._segment.load(ring.reader_at(reader) + CURSOR)
            if self._sequence + 1 - held > ring.n_slots:
                return reader
        return None

    def notify(self) -> None:
        """Ring for the readers that were armed; whoever publishes must always call it.

        If something raises in between, the next call makes up for it.
        """
        if self._owed:
            self._doorbell.ring_readers(self._owed)
            self._owed = 0
            self.n_notified += 1
        else:
            self.n_elided += 1


class RingReader:
    """One reader of a ring."""

    def __init__(
        self, segment: Segment, ring: RingLayout, reader: int, doorbell: Doorbell | None = None
    ) -> None:
        """Start behind the messages this reader has released."""
        self._segment = segment
        self._memory = segment.memory
        self._ring = ring
        self._reader = reader
        self._doorbell = doorbell or segment.doorbell(ring)
        self._words = ring.reader_words(reader)
        self._ear: Ear | None = None
        self._line_at = ring.reader_at(reader)
        self._released = segment.load(self._line_at + CURSOR)

    @property
    def released(self) -> int:
        """How many messages this reader has released."""
        return self._released

    def wait(
        self,
        plan: tuple[int, ...],
        rehearse: Callable[[], None] = no_rehearsal,
        timeout_ns: int | None = None,
    ) -> RawWait:
        """Carry out a flat plan until the next message is visible; see `realrun.waiting`."""
        if self._ear is None:  # by the thread that sleeps: a socket belongs to one
            self._ear = self._doorbell.reader_ear(self._reader)
        return carry_out(
            self._segment, self._words, self._released, plan, self._ear, rehearse, timeout_ns
        )

    def look(self) -> Slot:
        """The next message where it lies; it must be visible, and `release` must follow.

        Raises
        ------
        TornSlot
            If the slot does not hold the message that is next, or says it is longer than the slot.
        """
        ring = self._ring
        sequence = self._released + 1
        at = ring.slot_at(sequence)
        found, call_id, published_ns, length, flags = _HEADER.unpack_from(self._memory, at)
        if found != sequence or length > ring.slot_bytes:
            raise TornSlot(
                f"{ring.name} ring: the slot at {at} holds message {found:,} of {length:,} bytes, "
                f"expected message {sequence:,} of at most {ring.slot_bytes:,}; two writers share "
                "this ring, or something else wrote to the segment"
            )
        payload = self._segment.bytes[at + PAYLOAD : at + PAYLOAD + length]
        return Slot(call_id, flags, published_ns, payload)

    def release(self) -> None:
        """Give the slot of the message back to the writer; nothing may look at it any more."""
        self._released += 1
        # The same protocol as for a message, the other way round: the cursor is what the writer of
        # a full ring watches, and is armed on.
        line_at = self._line_at
        _, armed = post(
            self._memory,
            line_at + CURSOR,
            self._released,
            line_at + RELEASED_NS,
            line_at + WRITER_ARMED,
            LINE_BYTES,
            1,
        )
        if armed:
            self._doorbell.ring_writer(self._reader)

    def read(self) -> Message:
        """Copy the next message out and release its slot; it must be visible.

        Raises
        ------
        TornSlot
            See `look`.
        """
        call_id, flags, published_ns, payload = self.look()
        message = Message(call_id, flags, published_ns, bytes(payload))
        self.release()
        return message

    def cancel(self) -> None:
        """Make this reader's wait, now or the next time, raise `Stopped`; from any thread."""
        self._segment.store(self._words.stop, 1)
        self._doorbell.ring_readers(1 << self._reader)


class SlotWatch:
    """Waits as a reader does, but for a slot: the writer of a full ring uses it."""

    def __init__(
        self, writer: RingWriter, segment: Segment, doorbell: Doorbell | None = None
    ) -> None:
        """Watch the ring of a writer."""
        self._writer = writer
        self._segment = segment
        self._ring = writer.ring
        self._doorbell = doorbell or segment.doorbell(writer.ring)
        self._ear: Ear | None = None
        self._line_at = self._ring.reader_at(0)
        self._seen_ns = 0

    def wait(
        self,
        plan: tuple[int, ...],
        rehearse: Callable[[], None] = no_rehearsal,
        timeout_ns: int | None = None,
    ) -> RawWait:
        """Carry out a flat plan until the slowest reader releases a slot."""
        if self._ear is None:
            self._ear = self._doorbell.writer_ear()
        reader = self._writer.slowest() or 0
        self._line_at = self._ring.reader_at(reader)
        # A slot that came free meanwhile is a cursor that differs from what a full ring has.
        full = self._writer.sequence - self._ring.n_slots
        words = self._ring.writer_words(reader)
        raw = carry_out(self._segment, words, full, plan, self._ear, rehearse, timeout_ns)
        self._seen_ns = raw.seen_ns
        return raw

    def read(self) -> Message:
        """Tell when the slot was released, in the terms of a message."""
        # The reader may have released another since: then this one came free before it was seen.
        released_ns = min(self._segment.load(self._line_at + RELEASED_NS), self._seen_ns)
        return Message(self._segment.load(self._line_at + CURSOR), 0, released_ns, b"")

    def cancel(self) -> None:
        """Make this wait, now or the next time, raise `Stopped`; from any thread."""
        self._segment.store(self._ring.writer_words(0).stop, 1)
        for reader in range(self._ring.n_readers):
            self._doorbell.ring_writer(reader)


# The header is one Struct, so its fields must lie where the layout says.
assert (SEQUENCE, CALL_ID, PUBLISHED_NS, LENGTH, FLAGS) == (0, 8, 16, 24, 32)
