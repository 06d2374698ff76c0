"""Claim, publish, see, release: one writer and its readers on the slots of a ring."""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from realrun.doorbell import Ear
from realrun.layout import (
    CALL_ID,
    CURSOR,
    FLAGS,
    LENGTH,
    PAYLOAD,
    PUBLISHED_NS,
    RELEASED_NS,
    SEQUENCE,
    RingLayout,
)
from realrun.native import SEEN, BytesLike, announce, publish, receive, release, take
from realrun.segment import Segment
from realrun.waiting import RawWait, carry_on, carry_out, no_rehearsal, until

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
    """What a reader got: the bytes of a slot, or what they meant (`realrun.handoff`)."""

    call_id: int
    flags: int
    published_ns: int
    payload: Any


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
        How often a message was rung for, and how often nobody was armed so that it was not: they
        were awake, or on their way since `announce`.
    n_announced
        How often somebody was rung for before there was a message.
    """

    def __init__(self, segment: Segment, ring: RingLayout) -> None:
        """Continue behind what is published already: the head says what that is."""
        self._segment = segment
        self._memory = segment.memory
        self._ring = ring
        self._doorbell = segment.doorbell(ring)
        self._geometry = ring.geometry
        self._bells = self._doorbell.bells
        self._owed = 0
        self.n_notified = 0
        self.n_elided = 0
        self.n_announced = 0

    @property
    def ring(self) -> RingLayout:
        """What is written to."""
        return self._ring

    @property
    def sequence(self) -> int:
        """How many messages were published."""
        return self._segment.load(self._ring.head_at)

    def publish(self, call_id: int, flags: int, pieces: list[BytesLike]) -> int:
        """Write a message into the next slot, make it visible, and ring for who is armed.

        Parameters
        ----------
        pieces
            Its payload, to be put one behind the other.

        Returns
        -------
        int
            When it became visible.

        Raises
        ------
        RingFull
            If a reader still holds the slot; wait for it with a `SlotWatch`.
        ValueError
            If the payload is longer than a slot.
        """
        published_ns, armed = publish(
            self._memory, self._geometry, self._bells, call_id, flags, pieces
        )
        if not published_ns:
            held = self._segment.load(self._ring.reader_at(armed) + CURSOR)
            raise RingFull(
                f"{self._ring.name} ring is full: reader {armed} has not released message "
                f"{held + 1}, which holds the slot of message {self.sequence + 1}"
            )
        if armed:
            self.n_notified += 1
        else:
            self.n_elided += 1
        if self._bells is None:
            self._owed |= armed  # if something raises before the ring, the next message rings too
            if self._owed:
                self._doorbell.ring_readers(self._owed)
                self._owed = 0
        return published_ns

    @property
    def can_announce(self) -> bool:
        """Whether a reader that was rung for nothing looks on for a while."""
        return self._bells is not None

    def announce(self) -> None:
        """Wake the readers now, for a message that is about to be made.

        Waking up and making it then take place at the same time. A message that takes longer than
        about 100 us to make should not be announced: readers go back to sleep.
        """
        if self._bells is None:
            return
        if announce(self._memory, self._geometry, self._bells):
            self.n_announced += 1

    def slowest(self) -> int | None:
        """The reader that still holds the slot which the next message needs; None if it is free."""
        ring, sequence = self._ring, self.sequence
        for reader in range(ring.n_readers):
            held = self._segment.load(ring.reader_at(reader) + CURSOR)
            if held > sequence:
                raise TornSlot(
                    f"{ring.name} ring: reader {reader} has released message {held:,} of "
                    f"{sequence:,}; something else wrote to the segment"
                )
            if sequence + 1 - held > ring.n_slots:
                return reader
        return None


class RingReader:
    """One reader of a ring."""

    def __init__(self, segment: Segment, ring: RingLayout, reader: int) -> None:
        """Continue behind what this reader has released: its cursor says what that is."""
        if not 0 <= reader < ring.n_readers:
            raise ValueError(
                f"the {ring.name} ring has readers 0 to {ring.n_readers - 1}, and none with "
                f"number {reader}"
            )
        self._segment = segment
        self._memory = segment.memory
        self._ring = ring
        self._geometry = ring.geometry
        self._reader = reader
        self._doorbell = segment.doorbell(ring)
        self._bells = self._doorbell.bells
        self._words = ring.reader_words(reader)
        self._ear: Ear | None = None
        self._line_at = ring.reader_at(reader)

    @property
    def released(self) -> int:
        """How many messages this reader has released."""
        return self._segment.load(self._line_at + CURSOR)

    def wait(
        self,
        plan: tuple[int, ...],
        rehearse: Callable[[], None] = no_rehearsal,
        timeout_ns: int | None = None,
    ) -> RawWait:
        """Carry out a flat plan until the next message is visible; see `realrun.waiting`."""
        ear = self._ear or self._open_ear()
        return carry_out(self._segment, self._words, self.released, plan, ear, rehearse, timeout_ns)

    def _open_ear(self) -> Ear:
        """Begin to listen: by the thread that sleeps, since a socket belongs to one."""
        self._ear = self._doorbell.reader_ear(self._reader)
        return self._ear

    def look(self) -> Slot:
        """The next message where it lies; it must be visible, and `release` must follow.

        Raises
        ------
        TornSlot
            If the slot does not hold the message that is next, or says it is longer than the slot.
        """
        at, found, call_id, published_ns, length, flags = self._header()
        if found != self.released + 1 or length > self._ring.slot_bytes:
            raise self._torn()
        payload = self._segment.bytes[at + PAYLOAD : at + PAYLOAD + length]
        return Slot(call_id, flags, published_ns, payload)

    def _header(self) -> tuple[int, int, int, int, int, int]:
        """Where the slot of the next message is, and what it holds, whatever that may be."""
        at = self._ring.slot_at(self.released + 1)
        found, call_id, published_ns, length, flags = _HEADER.unpack_from(self._memory, at)
        return at, found, call_id, published_ns, length, flags

    def _torn(self) -> TornSlot:
        at, found, _, _, length, _ = self._header()
        return TornSlot(
            f"{self._ring.name} ring: the slot at {at} holds message {found:,} of {length:,} "
            f"bytes, expected message {self.released + 1:,} of at most "
            f"{self._ring.slot_bytes:,}; two writers share this ring, or something else wrote to "
            "the segment"
        )

    def release(self) -> None:
        """Give the slot of the message back to the writer; nothing may look at it any more."""
        if release(self._memory, self._geometry, self._bells, self._reader):
            self._ring_writer()

    def _ring_writer(self) -> None:
        """Ring for the writer, which was armed, if that was not done yet."""
        if self._bells is None:
            self._doorbell.ring_writer(self._reader)

    def receive(
        self,
        plan: tuple[int, ...],
        rehearse: Callable[[], None] = no_rehearsal,
        timeout_ns: int | None = None,
    ) -> tuple[int, bytes, Message]:
        """Wait for the next message, copy it out and release its slot.

        Returns
        -------
        tuple
            When it was seen; how the wait went (`RawWait.of` reads it); the message.

        Raises
        ------
        TornSlot
            See `look`.
        """
        most_bytes = self._ring.slot_bytes
        seen_ns, numbers, taken = self.try_receive(plan, rehearse, timeout_ns, most_bytes)
        if taken is None:
            raise self._torn()
        return seen_ns, numbers, Message(*taken[:4])

    def try_receive(
        self,
        plan: tuple[int, ...],
        rehearse: Callable[[], None],
        timeout_ns: int | None,
        most_bytes: int,
    ) -> tuple[int, bytes, tuple[int, int, int, bytes, int] | None]:
        """As `receive`, but a message that is torn or longer than some bytes stays where it is.

        The message comes as call id, flags, stamp and payload, and a fifth that says nothing; None
        if it stays, for `look`.
        """
        ear = self._ear or self._open_ear()
        if timeout_ns is not None:
            plan = until(plan, timeout_ns)
        fd, drain = ear
        memory, ring, bells, reader = self._memory, self._geometry, self._bells, self._reader
        over, seen_ns, numbers, taken = receive(
            memory, self._words, plan, fd, drain is not None, ring, bells, reader, most_bytes
        )
        if over != SEEN:
            raw = carry_on(
                *(RawWait.of(numbers), self._segment, self._words, self.released, plan, ear),
                *(rehearse, timeout_ns),
            )
            seen_ns, numbers = raw.seen_ns, raw.numbers
            taken = take(memory, ring, bells, reader, most_bytes)
        if taken is not None and taken[4]:
            self._ring_writer()
        return seen_ns, numbers, taken

    def read(self) -> Message:
        """Copy the next message out and release its slot; it must be visible.

        Raises
        ------
        TornSlot
            See `look`.
        """
        memory, ring, bells, reader = self._memory, self._geometry, self._bells, self._reader
        taken = take(memory, ring, bells, reader, self._ring.slot_bytes)
        if taken is None:
            raise self._torn()
        if taken[4]:
            self._ring_writer()
        return Message(*taken[:4])

    @property
    def stopped(self) -> bool:
        """Whether somebody wants this reader to leave."""
        return self._segment.load(self._words.stop) != 0

    def cancel(self) -> None:
        """Make this reader's waits raise `Stopped` once no message is there; from any thread."""
        self._segment.store(self._words.stop, 1)
        self._doorbell.ring_readers(1 << self._reader)


class SlotWatch:
    """Waits as a reader does, but for a slot: the writer of a full ring uses it."""

    def __init__(self, writer: RingWriter, segment: Segment) -> None:
        """Watch the ring of a writer."""
        self._writer = writer
        self._segment = segment
        self._ring = writer.ring
        self._doorbell = segment.doorbell(writer.ring)
        self._ear: Ear | None = None

    def receive(
        self,
        plan: tuple[int, ...],
        rehearse: Callable[[], None] = no_rehearsal,
        timeout_ns: int | None = None,
    ) -> tuple[int, bytes, Message]:
        """Carry out a flat plan until the slowest reader releases a slot.

        Returns
        -------
        tuple
            As of `RingReader.receive`; the message tells when the slot was released.
        """
        if self._ear is None:
            self._ear = self._doorbell.writer_ear()
        reader = self._writer.slowest() or 0
        # A slot that came free meanwhile is a cursor that differs from what a full ring has.
        full = self._writer.sequence - self._ring.n_slots
        words = self._ring.writer_words(reader)
        raw = carry_out(self._segment, words, full, plan, self._ear, rehearse, timeout_ns)
        line_at = self._ring.reader_at(reader)
        # The reader may have released another since: then this one came free before it was seen.
        released_ns = min(self._segment.load(line_at + RELEASED_NS), raw.seen_ns)
        message = Message(self._segment.load(line_at + CURSOR), 0, released_ns, b"")
        return raw.seen_ns, raw.numbers, message

    def cancel(self) -> None:
        """Make these waits raise `Stopped` while there is no slot; from any thread."""
        self._segment.store(self._ring.writer_words(0).stop, 1)
        for reader in range(self._ring.n_readers):
            self._doorbell.ring_writer(reader)


# The header is one Struct, so its fields must lie where the layout says.
assert (SEQUENCE, CALL_ID, PUBLISHED_NS, LENGTH, FLAGS) == (0, 8, 16, 24, 32)
