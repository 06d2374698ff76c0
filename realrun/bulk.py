"""Bulk that steps carry in a run: made up, sent by its routes, taken from where it lies.

Twin of shmsim/sim/payload.py. Where a run has bulk, all its calls go as objects through the two
ends of `realrun.handoff`: a call alone, or with an array of bytes.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from realrun.device.bulk import STRIDE, Bulk, weight_of
from realrun.handoff import Receiver, Sender
from realrun.publisher import Publisher
from realrun.ring import LEAVE, START, Message, RingWriter
from realrun.segment import Segment
from realrun.spec import RunSpec
from realrun.waiter import Known, Waiter
from realrun.waiting import Stopped
from shmsim.records import ProcessRow
from shmsim.routing import ROUTE_PRESETS

_NOISE_BYTES: Final = 1 << 20
_SHIFT_BYTES: Final = 64  # so that what lies in a slot differs from what lay there before
_N_SHIFTS: Final = 61
_LOOK_S: Final = 0.001
_RETURN_LIMIT_S: Final = 5.0


class BulkPublisher(Publisher):
    """Publishes calls, the first one of each step with its bulk.

    Parameters
    ----------
    segment
        Has the arena.
    writer, waiter
        As of `Publisher`.
    spec
        Says how much bulk there is, and by which routes it goes.
    """

    def __init__(self, segment: Segment, writer: RingWriter, waiter: Waiter, spec: RunSpec) -> None:
        """Make bulk up: all of it, for where it comes from is not studied here."""
        super().__init__(writer, waiter)
        self._payload = payload = spec.payload
        routes = ROUTE_PRESETS[payload.routes]
        plain = Publisher(writer, waiter)
        self._sender = Sender(
            segment, writer.ring, spec.policy, spec.costs, routes, publisher=plain
        )
        n_most = payload.bytes_of(spec.engine.max_batched_tokens)
        noise = np.random.default_rng(spec.seed).integers(0, 256, _NOISE_BYTES, np.uint8)
        self._noise = np.resize(noise, n_most + _SHIFT_BYTES * _N_SHIFTS)
        self._sent: list[tuple[int, int]] = []
        self._n_payloads = 0
        self._n_by_route = [0, 0, 0]

    def send(
        self,
        call_id: int,
        flags: int,
        pieces: list[Any],
        known: Known,
        timeout_ns: int | None = None,
    ) -> int:
        """Publish a call; see `Publisher.send`."""
        payload, sender = self._payload, self._sender
        (content,) = pieces
        is_step = not call_id % 2 and not flags & (START | LEAVE)
        n_bytes = payload.bytes_of(known.n_prefill_tokens) if is_step else 0
        if not n_bytes:
            return sender.send(content, call_id, flags, known, timeout_ns)
        at = _SHIFT_BYTES * (len(self._sent) % _N_SHIFTS)
        bulk = self._noise[at : at + n_bytes]
        before = list(sender.parts_by_route)
        published_ns = sender.send((content, bulk), call_id, flags, known, timeout_ns)
        self._sent.append((at, n_bytes))
        self._n_payloads += 1
        for route, n in enumerate(sender.parts_by_route):
            self._n_by_route[route] += n - before[route]
        return published_ns

    def reset(self) -> None:
        """Forget what was counted and recorded, but not which bulk went to the devices."""
        super().reset()
        self._n_payloads = 0
        self._n_by_route = [0, 0, 0]
        self._sender.n_fallbacks = 0
        if self._sender.arena is not None:
            self._sender.arena.free()
            self._sender.arena.reset()

    def await_slots(self, stopped: Callable[[], bool]) -> None:
        """Wait until every slot of the arena has come back, which the readers' goodbyes bring.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        RuntimeError
            If one does not come back: a reader lost it.
        """
        arena = self._sender.arena
        deadline = time.monotonic() + _RETURN_LIMIT_S
        while arena is not None:
            arena.free()
            if not arena.n_busy:
                return
            if stopped():
                raise Stopped
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{arena.n_busy} slots of the arena did not come back within "
                    f"{_RETURN_LIMIT_S:g} s of the last step: a worker still holds them"
                )
            time.sleep(_LOOK_S)

    def account(self, row: ProcessRow) -> ProcessRow:
        """Add to the row of the scheduler what it did with payloads."""
        inline, in_arena, socket = self._n_by_route
        arena = self._sender.arena
        return row._replace(
            payloads=self._n_payloads,
            inline=inline,
            arena=in_arena,
            socket=socket,
            fallbacks=self._sender.n_fallbacks,
            arena_released=arena.n_released if arena else 0,
            arena_most=arena.n_most if arena else 0,
            arena_slots=sum(c.n_slots for c in self._payload.arena),
        )

    def digest(self) -> int:
        """What `realrun.cuda.upload.Uploader.digest` has to be, on every device."""
        return sum(
            weight_of(serial) * int(self._noise[at : at + n_bytes : STRIDE].sum())
            for serial, (at, n_bytes) in enumerate(self._sent)
        )

    def close(self) -> None:
        """Close the sockets."""
        self._sender.close()


class BulkReader:
    """A worker's source of calls, where steps carry bulk.

    Parameters
    ----------
    segment, spec, rank
        What to read, and as whom.
    """

    def __init__(self, segment: Segment, spec: RunSpec, rank: int) -> None:
        """Open ring, arena and sockets."""
        ring = segment.layout.request
        self._receiver = Receiver(segment, ring, rank, spec.policy, spec.costs)
        self._bulk: Bulk | None = None
        self._n_payloads = 0
        self._n_by_route = [0, 0, 0]

    def receive(
        self, plan: tuple[int, ...], rehearse: Callable[[], None], timeout_ns: int | None
    ) -> tuple[int, bytes, Message]:
        """Carry out a flat plan until there is a call; see `realrun.waiter.Source`."""
        seen_ns, numbers, received = self._receiver.take(plan, rehearse, timeout_ns)
        content = received.content
        if isinstance(content, tuple):
            content, bulk = content
            self._bulk = Bulk(bulk, received.leases)
            self._n_payloads += 1
            for route in received.routes:
                self._n_by_route[route] += 1
        call_id, flags, published_ns = received[:3]
        return seen_ns, numbers, Message(call_id, flags, published_ns, content)

    def take(self) -> Bulk | None:
        """Bulk of the last call; it is the caller's now."""
        bulk, self._bulk = self._bulk, None
        return bulk

    def release(self) -> None:
        """Give back the slots of what has come to the device by now. One thread calls this."""
        if self._receiver.arena is not None:
            self._receiver.arena.release_completed()

    def reset(self) -> None:
        """Count from here."""
        self.release()
        self._n_payloads = 0
        self._n_by_route = [0, 0, 0]
        if self._receiver.arena is not None:
            self._receiver.arena.reset()

    def account(self, row: ProcessRow) -> ProcessRow:
        """Add to the row of this worker what it did with payloads."""
        inline, in_arena, socket = self._n_by_route
        arena = self._receiver.arena
        return row._replace(
            payloads=self._n_payloads,
            inline=inline,
            arena=in_arena,
            socket=socket,
            arena_released=arena.n_released if arena else 0,
        )

    def facts(self) -> dict[str, Any]:
        """How long slots of the arena were held, from the call to their release."""
        arena = self._receiver.arena
        if arena is None or not arena.n_released:
            return {}
        mean_ns = arena.held_ns / arena.n_released
        return {"slot_held_mean_ns": round(mean_ns), "slot_held_most_ns": arena.most_held_ns}

    def close(self) -> None:
        """Close the sockets."""
        self._receiver.close()
