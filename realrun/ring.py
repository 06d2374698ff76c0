"""Claim, publish, see, release: one writer and its readers on the slots of a ring."""

import struct
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
    SEQUENCE,
    STOP_AT,
    RingLayout,
)
from realrun.native import SEEN, STOPPED, post, wait, wake
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

    def publish(self, call_id: int, flags: int, payload: bytes) -> tuple[int, int]:
        """Write a message into the next slot and make it visible; does not notify.

        Returns
        -------
        tuple
            ``(published_ns, n_armed)``; call `notify` if ``n_armed`` is not 0.

        Raises
        ------
        RingFull
            If a reader still holds the slot.
        ValueError
            If the payload is longer than a slot.
        """
        ring, memory = self._ring, self._memory
        sequence = self._sequence + 1
        if len(payload) > ring.slot_bytes:
            raise ValueError(
                f"a payload of {len(payload):,} bytes does not fit a slot of {ring.slot_bytes:,}"
            )
        for reader in range(ring.n_readers):
            held = self._segment.load(ring.reader_at(reader) + CURSOR)
            if sequence - held > ring.n_slots:
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

    def wait(self, plan: tuple[int, ...]) -> RawWait:
        """Carry out a flat plan until the next message is visible.

        Raises
        ------
        Stopped
            If the stop word was set instead.
        """
        raw = RawWait(
            *wait(
                self._memory,
                self._ring.head_at,
                self._released,
                self._line_at + ARMED,
                STOP_AT,
                plan,
            )
        )
        if raw.over == SEEN:
            return raw
        if raw.over == STOPPED:
            raise Stopped
        raise ValueError(
            f"the plan {plan} ended before a message came; its last stage must last for ever"
        )

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
        self._segment.store(self._line_at + CURSOR, sequence)
        return Message(call_id, flags, published_ns, payload)


# The header is one Struct, so its fields must lie where the layout says.
assert (SEQUENCE, CALL_ID, PUBLISHED_NS, LENGTH, FLAGS) == (0, 8, 16, 24, 32)
