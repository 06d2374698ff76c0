"""The hand-off of realrun: any doorbell, any policy, any routes."""

import time
from typing import Any, Final

import numpy as np
from message import LEAVE, REPLY, pickling_ns
from system import System

from realrun.handoff import Receiver, Sender
from realrun.host import exact_timers
from realrun.layout import SegmentLayout
from realrun.native import IMPLEMENTATION, RELAX
from realrun.segment import Segment, Ticket
from shmsim.policies import PRESETS
from shmsim.routing import NO_ARENA, ROUTE_PRESETS, ArenaPlan, SlotClass
from shmsim.wait import TYPICAL_COSTS

_MIB: Final = 1 << 20
_ARENA: Final = ArenaPlan((SlotClass(32 * _MIB, 2), SlotClass(256 * _MIB, 1)), 1 * _MIB)
#: Those of a message; a reply has behind them how long its reader took to see the call.
_FLAG_BITS: Final = 8


class Ours(System):
    """A request ring to all readers and a reply ring from each.

    Parameters
    ----------
    doorbell
        ``"futex"``, ``"eventfd"`` or ``"zmq"``.
    policy
        A preset, of both sides.
    routes
        A preset; with ``"vllm-arena"`` there is an arena, and it is committed at the start.
    tells_wakes
        Whether readers tell how long each took to see the call, which takes both sides a moment:
        from the writer's first instruction, less what plain pickling of the call takes.
    """

    def __init__(
        self,
        doorbell: str = "futex",
        policy: str = "vllm-1s",
        routes: str = "vllm",
        tells_wakes: bool = False,
    ) -> None:
        super().__init__()
        self._tells_wakes = tells_wakes
        self._doorbell, self._policy, self._routes = doorbell, policy, routes
        self._call_id = 0

    def start(self, n_readers: int) -> None:
        """Make the segment, spawn the readers, wait until everybody is there."""
        exact_timers()
        arena = _ARENA if self._routes == "vllm-arena" else NO_ARENA
        layout = SegmentLayout(n_readers, slot_bytes=16 * _MIB, reply_slot_bytes=1024, arena=arena)
        self._segment = Segment.create(layout, self._doorbell, with_folder=True)
        ticket = self._segment.ticket
        for reader in range(n_readers):
            self.spawn(_read, ticket, reader, self._policy, self._tells_wakes)
        policy = PRESETS[self._policy]
        routes = ROUTE_PRESETS[self._routes]
        self._sender = Sender(self._segment, layout.request, policy, TYPICAL_COSTS, routes)
        self._receivers = [
            Receiver(self._segment, ring, 0, policy, TYPICAL_COSTS) for ring in layout.replies
        ]
        self._pickling_ns = pickling_ns()
        self.call("hello")
        self._segment.unlink()

    def call(self, message: Any) -> None:
        """Send to all at once, receive from each."""
        self._call_id += 1
        start_ns = time.monotonic_ns()
        published_ns = self._sender.send(message, self._call_id)
        for receiver in self._receivers:
            receiver.learn()  # from the last reply, while the readers are at work
        replies = [receiver.receive() for receiver in self._receivers]
        if self._tells_wakes:
            seen_ns = published_ns + max(reply.flags >> _FLAG_BITS for reply in replies)
            self.wakes_ns.append(seen_ns - start_ns - self._pickling_ns)

    def close(self) -> None:
        """Send the end to all, and give the memory back once they have left."""
        self._sender.send(LEAVE, 0)
        self.join()
        self._sender.close()
        for receiver in self._receivers:
            receiver.close()
        self._segment.__exit__()

    def about(self) -> dict[str, Any]:
        """What carries the waits."""
        return {"implementation": IMPLEMENTATION, "relax": RELAX, "doorbell": self._doorbell}

    def counts(self) -> dict[str, int]:
        """Of the doorbells of the writer's side, and of its routes."""
        writer = self._sender.writer
        inline, arena, socket = self._sender.parts_by_route
        return {
            "notified": writer.n_notified,
            "announced": writer.n_announced,
            "elided": writer.n_elided,
            "spurious": sum(r.waiter.n_spurious for r in self._receivers),
            "rescued": sum(r.waiter.n_rescued for r in self._receivers),
            "inline": inline,
            "arena": arena,
            "socket": socket,
            "fallbacks": self._sender.n_fallbacks,
        }


def _read(ticket: Ticket, reader: int, policy: str, tells_wakes: bool) -> None:
    exact_timers()
    with Segment.attach(ticket) as segment:
        layout = segment.layout
        value = PRESETS[policy]
        receiver = Receiver(segment, layout.request, reader, value, TYPICAL_COSTS)
        sender = Sender(
            segment, layout.replies[reader], value, TYPICAL_COSTS, ROUTE_PRESETS["vllm"]
        )
        while True:
            received = receiver.receive()
            if received.content is LEAVE:
                return
            call_id = received.call_id
            flags = 0
            if tells_wakes:
                flags = received.seen_ns - received.published_ns << _FLAG_BITS
            if isinstance(received.content, np.ndarray):
                received.content[[0, -1]].sum()  # it is all there, wherever it is
            sender.send(REPLY, call_id, flags)
            del received  # and with it its hold on the arena
            receiver.learn()
