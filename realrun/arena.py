"""The arena: large payloads, written once by the sender and read in place by every reader.

A slot belongs to the writer until a message names it, and again once every reader has let go of it:
when the last view of it has died there and, for a reader that copies it to a device, when the event
behind that copy has completed. The writer never waits for a slot; it takes another route instead.
"""

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from realrun.native import copy
from realrun.segment import Segment
from shmsim.routing import class_for

if TYPE_CHECKING:
    from realrun.layout import ArenaLayout


_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23


class Event(Protocol):
    """Something that completes, such as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether it has."""
        ...


class ArenaWriter:
    """Fills slots; there is one in a run.

    Attributes
    ----------
    n_released, n_most
        Slots that came back, and how many were taken at once, at most.
    """

    def __init__(self, segment: Segment) -> None:
        """Continue with the generations that are there."""
        self._segment = segment
        self._layout = segment.layout.arena_layout
        self._class_of = [index for index, _ in self._layout.slots]
        self._generations = [
            segment.load(self._layout.generation_at(slot)) for slot in range(self._layout.n_slots)
        ]
        slots = range(self._layout.n_slots)
        self._busy: set[int] = {slot for slot in slots if not self._is_released(slot)}
        self.reset()
        _map_pages(segment, self._layout, _MADV_POPULATE_WRITE)

    def reset(self) -> None:
        """Count from here."""
        self.n_released = 0
        self.n_most = len(self._busy)

    @property
    def n_busy(self) -> int:
        """Slots that had not come back when somebody asked for free ones last."""
        return len(self._busy)

    def free(self) -> list[int]:
        """Free slots of each class."""
        for slot in [slot for slot in self._busy if self._is_released(slot)]:
            self._busy.discard(slot)
            self.n_released += 1
        free = [0] * len(self._layout.plan.classes)
        for slot, index in enumerate(self._class_of):
            free[index] += slot not in self._busy
        return free

    def _is_released(self, slot: int) -> bool:
        generation = self._generations[slot]
        layout, load = self._layout, self._segment.load
        return all(
            load(layout.released_at(slot, reader)) == generation
            for reader in range(layout.n_readers)
        )

    def n_free_for(self, n_bytes: int, free: list[int]) -> int:
        """Free slots that a payload fits into."""
        classes = self._layout.plan.classes
        return sum(n for n, c in zip(free, classes, strict=True) if n_bytes <= c.slot_bytes)

    def write(
        self, pieces: Sequence[bytes | bytearray | memoryview], n_bytes: int, free: list[int]
    ) -> tuple[int, int]:
        """Copy a payload into a free slot.

        Parameters
        ----------
        pieces, n_bytes
            The payload, and its length: no more than a slot of a class that has a free one.
        free
            From `free`; one less afterwards.

        Returns
        -------
        tuple
            ``(slot, generation)``, for the message.
        """
        index = class_for(self._layout.plan, n_bytes, tuple(free))
        slot = next(
            slot
            for slot, its_class in enumerate(self._class_of)
            if its_class == index and slot not in self._busy
        )
        free[index] -= 1
        self._busy.add(slot)
        self.n_most = max(self.n_most, len(self._busy))
        self._generations[slot] += 1
        self._segment.store(self._layout.generation_at(slot), self._generations[slot])
        at = self._layout.slots[slot][1]
        for piece in pieces:
            copy(self._segment.memory, at, piece)
            at += len(piece)
        return slot, self._generations[slot]

    def take_back(self, slot: int) -> None:
        """Free a slot that no message has named."""
        self._generations[slot] -= 1
        self._segment.store(self._layout.generation_at(slot), self._generations[slot])
        self._busy.discard(slot)


class Lease:
    """A reader's hold on one slot: until its view is dead and its events have completed."""

    def __init__(self, slot: int, generation: int) -> None:
        """Hold a slot."""
        self.slot = slot
        self.generation = generation
        self.taken_ns = time.monotonic_ns()
        self.events: list[Event] = []

    def hold_until(self, event: Event) -> None:
        """Hold the slot at least until an event has completed."""
        self.events.append(event)


class ArenaReader:
    """Reads slots in place.

    Attributes
    ----------
    n_released, held_ns, most_held_ns
        Slots it let go of, and for how long it had them: together, and the longest.
    """

    def __init__(self, segment: Segment, reader: int) -> None:
        """Hold nothing yet."""
        self._segment = segment
        self._layout: ArenaLayout = segment.layout.arena_layout
        self._reader = reader
        self._pending: deque[Lease] = deque()
        self.reset()
        _map_pages(segment, self._layout, _MADV_POPULATE_READ)

    def reset(self) -> None:
        """Count from here."""
        self.n_released = self.held_ns = self.most_held_ns = 0

    def view(self, slot: int, generation: int, n_bytes: int) -> tuple[memoryview, Lease]:
        """A read-only view of a payload in its slot, which stays until the view has died.

        Raises
        ------
        ValueError
            If the slot is none, holds another generation, or is shorter: a forged or torn message.
        """
        layout = self._layout
        if slot >= layout.n_slots:
            raise ValueError(f"the arena has {layout.n_slots} slots, none with number {slot}")
        index, at = layout.slots[slot]
        most = layout.plan.classes[index].slot_bytes
        if n_bytes > most:
            raise ValueError(f"arena slot {slot} holds {most:,} bytes, not {n_bytes:,}")
        found = self._segment.load(layout.generation_at(slot))
        if found != generation:
            raise ValueError(f"arena slot {slot} was filled {found} times, expected {generation}")
        # An array can be referenced weakly, as a memoryview cannot, and every view keeps it alive.
        # Read-only for good: all readers look at the same bytes.
        array = np.frombuffer(self._segment.bytes.toreadonly(), np.uint8, n_bytes, at)
        lease = Lease(slot, generation)
        weakref.finalize(array, self._release, lease).atexit = False
        return array.data, lease

    def give_up(self, slot: int, generation: int) -> None:
        """Let go of a slot without having looked at it, if it is what a message says it is."""
        with contextlib.suppress(ValueError):
            self.view(slot, generation, 1)  # which nobody keeps

    def _release(self, lease: Lease) -> None:
        """Let go of a slot, or remember to; when the last view has died, in whatever thread."""
        if all(event.query() for event in lease.events):
            self._store_released(lease)
        else:
            self._pending.append(lease)

    def _store_released(self, lease: Lease) -> None:
        if not self._segment.closed:
            at = self._layout.released_at(lease.slot, self._reader)
            self._segment.store(at, lease.generation)
        held_ns = time.monotonic_ns() - lease.taken_ns
        self.n_released += 1
        self.held_ns += held_ns
        self.most_held_ns = max(self.most_held_ns, held_ns)

    def release_completed(self) -> None:
        """Let go of slots whose views had died before their events completed."""
        for _ in range(len(self._pending)):  # another thread may append to it meanwhile
            self._release(self._pending.popleft())


def _map_pages(segment: Segment, layout: "ArenaLayout", advice: int) -> None:
    """Enter the pages of the arena into the page table of this process, once and not at first use.

    They are committed already; but a first touch of each, by each process, would take longer than
    copying it. Kernels before 5.14 cannot, and fault at first use.
    """
    if layout.n_slots:
        with contextlib.suppress(OSError):
            segment.memory.madvise(advice, layout.data_at, layout.end - layout.data_at)
