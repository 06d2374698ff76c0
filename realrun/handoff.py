"""Hands whole Python objects over: a ring, its doorbells, and three routes for payloads.

`Sender` and `Receiver` are the two ends of a ring as an engine would use them. A message becomes a
pickle stream and the large buffers kept out of it (`realrun.codec`). A `RoutePolicy` says for each
of these parts whether it goes into the slot, into the arena or through a socket; what the slot then
holds is either the stream alone, or a table of parts with those that are inline behind it.

The sender may change what it sent as soon as `send` returns, and a receiver may keep what it got
for as long as it likes: inline parts are copied out of the slot, a socket's belong to nobody else,
and a slot of the arena stays as it is until the last view of it has died.

Who may connect, and what is checked: docs/hand-off.md.
"""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.arena import ArenaReader, ArenaWriter, Event, Lease
from realrun.codec import BadMessage, Encoder, decode
from realrun.layout import RingLayout, round_to_lines
from realrun.native import BytesLike
from realrun.publisher import Publisher
from realrun.ring import PARTS, RingFull, RingReader, RingWriter, SlotWatch
from realrun.segment import Segment
from realrun.sockets import PayloadReceiver, PayloadSender
from realrun.waiter import Known, Waiter
from shmsim.routing import ARENA, INLINE, SOCKET, RouteContext, RoutePolicy, settle
from shmsim.tape import Tape
from shmsim.wait import (
    SCHEDULER_RECV,
    SCHEDULER_SLOT,
    WORKER_RECV,
    WORKER_SLOT,
    WaitCosts,
    WaitPolicy,
)

#: What is known about a message whose sender says nothing: that somebody is at work on it.
NOTHING_SAID: Final = Known(0, True, 0, 0, 0)
_COUNT: Final = struct.Struct("<Q")
_PART: Final = struct.Struct("<QQQQ")  # a `_Placed`
_MOST_PARTS: Final = 1 << 16
_MOST_REMEMBERED: Final = 4096
_AWAKE_NS: Final = 50_000  # who was sent something less than that ago has hardly gone to sleep
_QUICK_BYTES: Final = 16 << 10  # pickled within the time that a reader looks on, even if it is cold
_SMALL_BYTES: Final = 1 << 16  # up to here one copy out of the slot costs less than to look first


class Received(NamedTuple):
    """A message that arrived.

    Parameters
    ----------
    call_id, flags
        As sent.
    published_ns, seen_ns
        By the sender's and by the receiver's reading of the one monotonic clock.
    content
        The object.
    leases
        Its slots of the arena.
    routes
        Which way each of its parts came.
    """

    call_id: int
    flags: int
    published_ns: int
    seen_ns: int
    content: Any
    leases: tuple[Lease, ...]
    routes: tuple[int, ...] = (INLINE,)

    def hold_until(self, event: Event) -> None:
        """Keep its slots of the arena until a copy to a device has completed, at least."""
        for lease in self.leases:
            lease.hold_until(event)


class _Placed(NamedTuple):
    """Where one part of a message is.

    Parameters
    ----------
    route
        How it came.
    place
        Where it begins in the slot of the ring, or the slot of the arena.
    serial
        Of the payload in the socket, or the generation of the slot of the arena.
    n_bytes
        Its length.
    """

    route: int
    place: int
    serial: int
    n_bytes: int


_NOWHERE: Final = _Placed(INLINE, 0, 0, 0)


class Sender:
    """The writing end of a ring.

    Parameters
    ----------
    segment, ring
        The request ring, which has the arena, or a reply ring.
    policy, costs
        How to wait for a slot when the ring is full, and what the policy is told.
    routes
        Which way the parts of a message take.
    copies
        Whether the socket route copies before it sends. Without, `send` returns once the kernel has
        taken everything.
    publisher
        Of this ring, if somebody else publishes there too and keeps the records; nobody is woken
        for a message in the making then. None: one of its own.

    Attributes
    ----------
    parts_by_route
        How many parts went inline, to the arena and by socket.
    n_fallbacks
        How many of them were wanted elsewhere, where there was no room.
    arena
        Its slots; None if there are none.
    """

    def __init__(
        self,
        segment: Segment,
        ring: RingLayout,
        policy: WaitPolicy,
        costs: WaitCosts,
        routes: RoutePolicy,
        *,
        copies: bool = True,
        publisher: Publisher | None = None,
    ) -> None:
        """Open the ring, the arena and the sockets."""
        if not hasattr(routes, "route"):
            raise TypeError(
                f"routes must be a policy such as ROUTE_PRESETS['vllm'], got {routes!r}"
            )
        self._segment = segment
        self._ring = ring
        self._routes = routes
        self._publisher = publisher or _publisher(segment, ring, policy, costs)
        self.writer, self.waiter = self._publisher.writer, self._publisher.waiter
        has_arena = ring == segment.layout.request and segment.layout.arena.classes
        self.arena = ArenaWriter(segment) if has_arena else None
        self._divert_bytes = segment.layout.arena.divert_bytes
        self._encoder = Encoder(self._divert_bytes)
        self._slot_bytes = ring.slot_bytes
        self._small: dict[int, bool] = {}
        self._copies = copies
        # With a core for everybody only: else who looks on could hold up whom it waits for.
        has_cores = _n_cores() > segment.layout.n_workers
        self._can_announce = publisher is None and self.writer.can_announce and has_cores
        self._sent_ns = 0
        self._announces = self._can_announce  # a message that is made quickly, as the last one was
        self._sockets: PayloadSender | None = None
        self.parts_by_route = [0, 0, 0]
        self.n_fallbacks = 0

    def send(
        self,
        content: Any,
        call_id: int,
        flags: int = 0,
        known: Known = NOTHING_SAID,
        timeout_ns: int | None = None,
    ) -> int:
        """Send an object to every reader; returns when it was published.

        Parameters
        ----------
        content, call_id, flags
            What to send, as which call; bits of ``flags`` from 8 on are the caller's.
        known
            What the policy is told if it has to wait for a slot.
        timeout_ns
            How long to wait for a slot at most; None: for ever.

        Raises
        ------
        Stopped
            If the run was stopped while it waited for a slot.
        TimedOut
            If there was no slot in time; nothing was sent.
        TypeError
            If the object holds what cannot be sent.
        ValueError
            If it has no room anywhere: too large for the slot, with neither arena nor sockets.
        """
        if self._announces and time.monotonic_ns() - self._sent_ns > _AWAKE_NS:
            self.writer.announce()
        chunks, stream_bytes, buffers = self._encoder.encode(content)
        if not buffers and stream_bytes < self._divert_bytes:  # too small for the arena
            inline = self._small.get(stream_bytes)
            if inline is None:
                inline = self._is_inline(stream_bytes)
            if inline:
                self.parts_by_route[INLINE] += 1
                self._announces = self._can_announce and stream_bytes <= _QUICK_BYTES
                try:  # not by way of the publisher: every call costs
                    self._sent_ns = self.writer.publish(call_id, flags, chunks)
                except RingFull:
                    self._sent_ns = self._publisher.send(call_id, flags, chunks, known, timeout_ns)
                return self._sent_ns
        self._announces = False
        self._publisher.await_slot(known, timeout_ns)
        pieces: list[list[BytesLike]] = [chunks]
        pieces += [[buffer] for buffer in buffers]
        return self._send_parts(pieces, [stream_bytes, *map(len, buffers)], call_id, flags, known)

    def _is_inline(self, stream_bytes: int) -> bool:
        """Whether a lone stream of this length goes inline and is meant to; remembers the answer.

        A policy is a value: asked the same, it answers the same.
        """
        routes = self._route(stream_bytes, stream_bytes, True, self._slot_bytes, [])
        if len(self._small) >= _MOST_REMEMBERED:
            self._small.clear()
        self._small[stream_bytes] = routes == (INLINE, INLINE)
        return self._small[stream_bytes]

    def _route(
        self, n_bytes: int, message_bytes: int, is_stream: bool, room: int, free: list[int]
    ) -> tuple[int, int]:
        """What the policy wants for a part, and what is possible."""
        n_free = self.arena.n_free_for(n_bytes, free) if self.arena and free else 0
        ctx = RouteContext(n_bytes, is_stream, message_bytes, self._slot_bytes, n_free)
        wanted = self._routes.route(ctx)
        route = settle(wanted, n_bytes <= room, n_free)
        if route != SOCKET or self._segment.ticket.folder:
            return wanted, route
        route = settle(INLINE, n_bytes <= room, n_free)
        if route == SOCKET:
            raise ValueError(
                f"a part of {n_bytes:,} bytes has nowhere to go: {max(room, 0):,} bytes are left "
                f"of a slot, {n_free} slots of the arena would hold it, and the segment was made "
                "without sockets (Segment.create(..., with_folder=True))"
            )
        return wanted, route

    def _send_parts(
        self,
        pieces: list[list[BytesLike]],
        sizes: list[int],
        call_id: int,
        flags: int,
        known: Known,
    ) -> int:
        table_bytes = round_to_lines(_COUNT.size + _PART.size * len(sizes))
        if table_bytes > self._slot_bytes:
            raise ValueError(
                f"a message of {len(sizes)} parts needs a table of {table_bytes:,} bytes, and a "
                f"slot has {self._slot_bytes:,}; raise the size from which buffers are parts of "
                f"their own ({self._divert_bytes:,} bytes), or make slots larger"
            )
        free = self.arena.free() if self.arena is not None else []
        rows: list[_Placed] = [_NOWHERE] * len(sizes)
        inline: list[BytesLike] = [table := bytearray(table_bytes)]
        at = table_bytes
        message_bytes = sum(sizes)
        n_before = self.writer.sequence
        n_fallbacks = 0
        try:
            # The largest first: what of the message the arena takes, the slot need not hold.
            for part in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
                n_bytes = sizes[part]
                room = self._slot_bytes - at
                wanted, route = self._route(n_bytes, message_bytes, part == 0, room, free)
                n_fallbacks += route != wanted
                if route == ARENA:
                    assert self.arena is not None, "settled for an arena that is not there"
                    slot, generation = self.arena.write(pieces[part], n_bytes, free)
                    rows[part] = _Placed(route, slot, generation, n_bytes)
                    message_bytes -= n_bytes
                elif route == INLINE:
                    rows[part] = _Placed(route, at, 0, n_bytes)
                    # Each on a line of its own, as an array wants to lie.
                    filling = min(round_to_lines(n_bytes), room) - n_bytes
                    inline += [*pieces[part], bytes(filling)]
                    at += n_bytes + filling
                else:
                    rows[part] = _Placed(route, 0, 0, n_bytes)
            for part, row in enumerate(rows):  # by socket in the order in which they are received
                if row.route == SOCKET:
                    serial = self._open_sockets().send(pieces[part])
                    rows[part] = _Placed(SOCKET, 0, serial, sizes[part])
            _COUNT.pack_into(table, 0, len(rows))
            for part, row in enumerate(rows):
                _PART.pack_into(table, _COUNT.size + _PART.size * part, *row)
            published_ns = self._publisher.send(call_id, flags | PARTS, inline, known)
        except BaseException:
            if self.writer.sequence == n_before and self.arena is not None:
                for row in rows:
                    if row.route == ARENA:
                        self.arena.take_back(row.place)
            raise
        self.n_fallbacks += n_fallbacks
        for row in rows:
            self.parts_by_route[row.route] += 1
        if self._sockets is not None and not self._copies:
            self._sockets.wait_sent(lambda: self._segment.stopped)
        return published_ns

    def _open_sockets(self) -> PayloadSender:
        if self._sockets is None:
            folder = Path(self._segment.ticket.folder)
            self._sockets = PayloadSender(folder, self._ring, copies=self._copies)
        return self._sockets

    def close(self) -> None:
        """Close the sockets."""
        if self._sockets is not None:
            self._sockets.close()


class Receiver:
    """One reading end of a ring.

    Parameters
    ----------
    segment, ring, reader
        What to read, and as whom.
    policy, costs
        How to wait for a message, and what the policy is told.
    rehearse
        A harmless repeat of the work that follows a message, for plans that ask for it.

    Attributes
    ----------
    arena
        What it has of the slots; None if they are not for this ring.
    """

    def __init__(
        self,
        segment: Segment,
        ring: RingLayout,
        reader: int,
        policy: WaitPolicy,
        costs: WaitCosts,
        rehearse: Callable[[], None] | None = None,
    ) -> None:
        """Open the ring, the arena and, so that senders find it, the socket."""
        self.reader = RingReader(segment, ring, reader)
        is_request = ring == segment.layout.request
        self.arena = ArenaReader(segment, reader) if is_request else None
        folder = segment.ticket.folder
        self._sockets = PayloadReceiver(Path(folder), ring, reader) if folder else None
        self._leases: tuple[Lease, ...] = ()
        self._came_by: tuple[int, ...] = ()
        name = f"{ring.name} reader {reader}"
        site = WORKER_RECV if is_request else SCHEDULER_RECV
        uniform = Tape(0).uniform(name, "policy")
        rehearsing = None if rehearse is None else lambda _waiter: rehearse()
        self.waiter = Waiter(
            name, site, self.reader, policy, costs, uniform, rehearsing, records=False
        )

    @property
    def n_late_payloads(self) -> int:
        """Payloads that came by socket after their message was given up."""
        return self._sockets.n_late if self._sockets else 0

    def receive(self, known: Known = NOTHING_SAID, timeout_ns: int | None = None) -> Received:
        """Wait for the next message.

        Call `learn` once whatever it asked for is on its way.

        Raises
        ------
        Stopped
            If the run was stopped, or this reader cancelled.
        TimedOut
            If nothing came in time.
        BadMessage
            If the message is garbled or holds what is not allowed. Its slot is released: the next
            one can be received.
        """
        waiter = self.waiter
        plan = waiter.begin(0, known)
        seen_ns, numbers, received = self.take(plan, waiter.rehearse, timeout_ns)
        waiter.end(seen_ns, numbers, received.published_ns)
        return received

    def take(
        self, plan: tuple[int, ...], rehearse: Callable[[], None], timeout_ns: int | None
    ) -> tuple[int, bytes, Received]:
        """Carry out a flat plan until there is a message, and take it; raises as `receive`.

        Returns
        -------
        tuple
            When it was seen; how the wait went (`realrun.waiting.RawWait.of`); the message.
        """
        deadline_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        seen_ns, numbers, taken = self.reader.try_receive(plan, rehearse, timeout_ns, _SMALL_BYTES)
        if taken is None:
            call_id, flags, published_ns, content = self._read_large(deadline_ns)
        else:
            call_id, flags, published_ns, payload, _ = taken
            if flags & PARTS:
                content = self._gather(memoryview(payload), deadline_ns)
            else:
                content = decode(payload)
        received = Received(call_id, flags, published_ns, seen_ns, content, ())
        if flags & PARTS:
            received = received._replace(
                flags=flags - PARTS, leases=self._leases, routes=self._came_by
            )
            self._leases = ()
        return seen_ns, numbers, received

    def learn(self) -> None:
        """Let the policy learn from the last wait; off the critical path."""
        self.waiter.learn()
        if self.arena is not None:
            self.arena.release_completed()

    def _read_large(self, deadline_ns: int | None) -> tuple[int, int, int, Any]:
        """Rebuild the object of a message without a copy of its whole payload."""
        call_id, flags, published_ns, payload = self.reader.look()
        try:
            content = self._gather(payload, deadline_ns) if flags & PARTS else decode(payload)
        finally:
            self.reader.release()
        return call_id, flags, published_ns, content

    def _gather(self, payload: memoryview, deadline_ns: int | None) -> Any:
        """Rebuild an object from all of its parts, none of which stays in the slot."""
        rows = _table(payload)
        parts: list[BytesLike] = []
        try:
            leases = self._take_parts(rows, payload, deadline_ns, parts)
            content = decode(parts[0], parts[1:])
        except BaseException:
            for row in rows[len(parts) :]:
                if row.route == ARENA and self.arena is not None:
                    self.arena.give_up(row.place, row.serial)
            raise
        self._leases = leases
        self._came_by = tuple([row.route for row in rows])
        return content

    def _take_parts(
        self,
        rows: list[_Placed],
        payload: memoryview,
        deadline_ns: int | None,
        parts: list[BytesLike],
    ) -> tuple[Lease, ...]:
        """Add every part to a list; returns the leases of those in the arena."""
        leases: list[Lease] = []
        for part, row in enumerate(rows):
            view: BytesLike
            if row.route == INLINE:
                at = row.place
                if at + row.n_bytes > len(payload):
                    raise BadMessage(
                        f"part {part} would lie at {at:,} to {at + row.n_bytes:,} of a message of "
                        f"{len(payload):,} bytes"
                    )
                # The stream need not be kept: nothing of what it becomes aliases it.
                view = payload[at : at + row.n_bytes]
                view = bytearray(view) if part else view
            elif row.route == ARENA and self.arena is not None:
                try:
                    view, lease = self.arena.view(row.place, row.serial, row.n_bytes)
                except ValueError as error:
                    raise BadMessage(f"part {part}: {error}") from None
                leases.append(lease)
            elif row.route == SOCKET and self._sockets is not None:
                left_ns = None if deadline_ns is None else deadline_ns - time.monotonic_ns()
                try:
                    view = self._sockets.receive(
                        row.serial, row.n_bytes, lambda: self.reader.stopped, left_ns
                    )
                except ValueError as error:
                    raise BadMessage(str(error)) from None
            else:
                raise BadMessage(f"part {part} came by route {row.route}, which is not open here")
            parts.append(view)
        return tuple(leases)

    def cancel(self) -> None:
        """Make `receive` raise `Stopped` once no message is there any more; from any thread."""
        self.reader.cancel()

    def close(self) -> None:
        """Close the socket."""
        if self._sockets is not None:
            self._sockets.close()


def _publisher(
    segment: Segment, ring: RingLayout, policy: WaitPolicy, costs: WaitCosts
) -> Publisher:
    """One that keeps no records."""
    writer = RingWriter(segment, ring)
    site = SCHEDULER_SLOT if ring == segment.layout.request else WORKER_SLOT
    uniform = Tape(0).uniform(ring.name, "slot policy")
    watch = SlotWatch(writer, segment)
    waiter = Waiter(ring.name, site, watch, policy, costs, uniform, records=False)
    return Publisher(writer, waiter)


def _n_cores() -> int:
    """Cores of the processes of a run; who is pinned takes the others to be elsewhere."""
    n_usable = len(os.sched_getaffinity(0))
    return n_usable if n_usable > 1 else os.cpu_count() or 1


def _table(payload: memoryview) -> list[_Placed]:
    """Read the table of parts, believing nothing."""
    if len(payload) < _COUNT.size:
        raise BadMessage(f"a message of parts has {len(payload)} bytes, too few for a table")
    (n_parts,) = _COUNT.unpack_from(payload)
    if not 1 <= n_parts <= _MOST_PARTS or _COUNT.size + _PART.size * n_parts > len(payload):
        raise BadMessage(f"a message of {len(payload):,} bytes says it has {n_parts:,} parts")
    return [
        _Placed(*_PART.unpack_from(payload, _COUNT.size + _PART.size * i)) for i in range(n_parts)
    ]
