"""Large payloads in the model: their routes, their copies, and their way onto the device.

The routes are those of `realrun.handoff`: the same policies, asked in the same order about the same
parts, with the same room. What carries no bulk goes through the ring as ever.
"""

from functools import partial
from typing import Final, NamedTuple

from shmsim.batching import Batch
from shmsim.config import EngineConfig, PayloadConfig
from shmsim.profile import OPTIONAL_COSTS, MachineProfile
from shmsim.records import ProcessRow
from shmsim.routing import (
    ARENA,
    INLINE,
    MIB,
    ROUTE_NAMES,
    ROUTE_PRESETS,
    SOCKET,
    RouteContext,
    RoutePolicy,
    settle,
)
from shmsim.sim.actor import Actor, Site
from shmsim.sim.arena import Hold, VirtualArena
from shmsim.sim.clock import Process
from shmsim.sim.device import Device
from shmsim.sim.draws import Draws
from shmsim.sim.source import Inbox, Message, Ring
from shmsim.units import FOREVER_NS

# A copy from pageable memory behind a busy stream: of 16 MiB it held its caller up until the stream
# was free, of 1 MiB it did not (one H200, column call_behind_10ms_kernel_us of h200/probe.jsonl).
_BLOCKS_FROM_BYTES: Final = 16 * MIB

# How realrun.handoff lays a message of several parts out.
_LINE_BYTES: Final = 64
_COUNT_BYTES: Final = 8
_ROW_BYTES: Final = 32

_WAY_OUT: Final = {
    "socket": "choose payload.routes, payload.arena or handoff.slot_bytes so that nothing needs it",
    "h2d": 'set payload.memory = "none" to leave the copy to the device out',
    "d2h": "set payload.output_bytes = 0",
}


class Part(NamedTuple):
    """A part of a message, and the way it took.

    Parameters
    ----------
    n_bytes
        Its length.
    route
        `INLINE`, `ARENA` or `SOCKET`.
    hold
        Its slot of the arena.
    """

    n_bytes: int
    route: int
    hold: Hold | None


class Placement(NamedTuple):
    """What became of the parts of a message.

    Parameters
    ----------
    parts
        The pickle stream, then the buffers kept out of it.
    table_bytes
        What the slot holds beside inline parts.
    n_fallbacks
        How many parts took another way than the policy wanted.
    """

    parts: tuple[Part, ...]
    table_bytes: int
    n_fallbacks: int


def place(
    sizes: tuple[int, ...],
    divert_bytes: int,
    routes: RoutePolicy,
    slot_bytes: int,
    arena: VirtualArena,
) -> Placement:
    """Find a way for each part of a message, as ``realrun.handoff.Sender`` does.

    Parameters
    ----------
    sizes
        Bytes of the pickle stream, and of each buffer kept out of it.
    divert_bytes
        A lone stream below that is never offered to the arena if it can go inline.
    routes
        The policy, asked about the largest part first.
    slot_bytes
        Of the ring.
    arena
        Its slots are taken.
    """
    stream_bytes = sizes[0]
    if len(sizes) == 1 and stream_bytes < divert_bytes:
        alone = RouteContext(stream_bytes, True, stream_bytes, slot_bytes, 0)
        if routes.route(alone) == INLINE and stream_bytes <= slot_bytes:
            return Placement((Part(stream_bytes, INLINE, None),), 0, 0)
    table_bytes = at = _lines(_COUNT_BYTES + _ROW_BYTES * len(sizes))
    message_bytes = sum(sizes)
    parts: dict[int, Part] = {}
    n_fallbacks = 0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        n_bytes, room = sizes[index], slot_bytes - at
        n_free = arena.n_free_for(n_bytes)
        context = RouteContext(n_bytes, index == 0, message_bytes, slot_bytes, n_free)
        wanted = routes.route(context)
        route = settle(wanted, n_bytes <= room, n_free)
        n_fallbacks += route != wanted
        hold = None
        if route == ARENA:
            hold = arena.take(n_bytes)
            message_bytes -= n_bytes
        elif route == INLINE:
            at += min(_lines(n_bytes), room)
        parts[index] = Part(n_bytes, route, hold)
    return Placement(tuple(parts[i] for i in range(len(sizes))), table_bytes, n_fallbacks)


def _lines(n_bytes: int) -> int:
    return -(-n_bytes // _LINE_BYTES) * _LINE_BYTES


class _Tally:
    """What one process did with payloads."""

    def __init__(self) -> None:
        self.n_payloads = self.n_let_go = 0
        self.n_by_route = [0] * len(ROUTE_NAMES)

    def count(self, placement: Placement) -> None:
        self.n_payloads += 1
        for part in placement.parts:
            self.n_by_route[part.route] += 1

    def account(self, row: ProcessRow, n_released: int) -> ProcessRow:
        inline, arena, socket = self.n_by_route
        return row._replace(
            payloads=self.n_payloads,
            inline=inline,
            arena=arena,
            socket=socket,
            arena_released=n_released,
        )


class _Sent(NamedTuple):
    """A message with bulk on its way: its parts, and how much of them is what."""

    placement: Placement
    own_bytes: int  # of the stream without the bulk
    n_bulk: int
    in_band: bool


class Payloads:
    """The bulk that the steps of one engine carry.

    Parameters
    ----------
    config
        How much, by which routes, from what memory.
    profile
        Costs; an optional one is asked for where it is needed.
    slot_bytes
        Of the request ring.
    engine
        Who reads each payload, and who has a device.
    device
        Where it goes.

    Raises
    ------
    ValueError
        If the profile lacks a cost that this config always needs.
    """

    def __init__(
        self,
        config: PayloadConfig,
        profile: MachineProfile,
        slot_bytes: int,
        engine: EngineConfig,
        device: Device,
    ) -> None:
        """Nothing was sent yet."""
        self._config = config
        self._profile = profile
        self._slot_bytes = slot_bytes
        self._device = device
        self._routes = ROUTE_PRESETS[config.routes]
        self._arena = VirtualArena(config.plan, engine.workers)
        self._sent: dict[int, _Sent] = {}
        self._n_unread: dict[int, int] = {}
        self._n_fallbacks = 0
        self._written = _Tally()
        self._read = [_Tally() for _ in range(engine.workers)]
        self._n_devices = engine.n_devices if config.memory != "none" else 0
        # A buffer of torch's is as fast as registered memory (one H200, experiment 12).
        self._memory = "registered" if config.memory == "pinned" else config.memory
        if config.carries_bulk and config.memory != "none":
            self._largest_bytes(f"h2d_call_{self._memory}")
            self._largest_bytes(f"h2d_{self._memory}")
        if config.output_bytes:
            self._largest_bytes("d2h")

    def bytes_of(self, batch: Batch) -> int:
        """Bytes of bulk that a step carries to every worker."""
        return self._config.bytes_of(batch.n_prefill_tokens)

    # The scheduler.

    def write(
        self,
        actor: Actor,
        ring: Ring,
        slots: Site,
        message: Message,
        own_bytes: int,
        n_bulk: int,
        work_ns: int,
    ) -> Process:
        """Pickle, wait for a slot of the ring, then place the bulk.

        Parameters
        ----------
        actor, ring, slots, message
            As of `Actor.publish`, which comes next.
        own_bytes, n_bulk
            Of the message without its bulk, and of the bulk.
        work_ns
            Work before that.

        Returns
        -------
        tuple
            Bytes that the publication is priced by, and the time of the copies before it.
        """
        plan, draws = self._config.plan, actor.draws
        in_band = n_bulk < plan.divert_bytes
        # What is kept out of the stream leaves a stub, as dear as the smallest array measured.
        work_ns += self._cost_ns(draws, "pickle", n_bulk if in_band else 0)
        yield from actor.busy(work_ns)
        yield from actor.await_slot(ring, slots, message)
        sizes = (own_bytes + n_bulk,) if in_band else (own_bytes, n_bulk)
        placement = place(sizes, plan.divert_bytes, self._routes, self._slot_bytes, self._arena)
        self._written.count(placement)
        self._n_fallbacks += placement.n_fallbacks
        assert message.batch is not None, "only a step carries bulk"
        sent = _Sent(placement, own_bytes, n_bulk, in_band)
        self._sent[message.step] = sent
        self._n_unread[message.step] = len(self._read)
        copy_ns = self._memcpy_ns(draws, sent, into_arena=True)
        for part in placement.parts:
            if part.route == SOCKET:
                for _ in self._read:
                    copy_ns += self._cost_ns(draws, "socket_send", part.n_bytes)
        return _ring_bytes(sent), copy_ns

    # The workers.

    def read(
        self, actor: Actor, rank: int, ring: Ring, inbox: Inbox, batch: Batch, work_ns: int
    ) -> Process:
        """Take the message of a step that carries bulk, and send the bulk on to the device.

        ``work_ns`` is by how much the wait for it slows that.
        """
        step, draws = batch.step, actor.draws
        sent = self._sent[step]
        self._n_unread[step] -= 1
        if self._n_unread[step] == 0:
            del self._sent[step], self._n_unread[step]
        self._read[rank].count(sent.placement)
        # What lies in the slot is copied out while the slot is held.
        actor.owe(self._memcpy_ns(draws, sent, into_arena=False))
        work_ns += draws.next("decode_request", batch.n_sequences)
        work_ns += self._cost_ns(draws, "unpickle", sent.n_bulk if sent.in_band else 0)
        for part in sent.placement.parts:
            if part.route == SOCKET:
                work_ns += self._cost_ns(draws, "socket_receive", part.n_bytes)
        yield from actor.read(ring, inbox, _ring_bytes(sent), work_ns)
        has_device = rank < self._n_devices
        if has_device:
            yield from self._to_device(actor, rank, step, sent)
        yield from actor.busy(draws.next("launch"))
        if not has_device:
            self._let_go(rank, sent)

    def _to_device(self, actor: Actor, rank: int, step: int, sent: _Sent) -> Process:
        """Call for the copy; the step begins, and slots of the arena come free, when it lands."""
        is_pinned = self._config.memory == "pinned"
        # Only the arena can be registered: the other routes end in memory of their own.
        in_arena = sent.placement.parts[-1].route == ARENA
        memory = self._memory if in_arena or is_pinned else "pageable"
        if is_pinned:
            yield from actor.busy(self._cost_ns(actor.draws, "memcpy", sent.n_bulk))
            self._let_go(rank, sent)
        if memory == "pageable" and sent.n_bulk >= _BLOCKS_FROM_BYTES:
            yield from self._await_stream(actor, step)
        call_ns = self._cost_ns(actor.draws, f"h2d_call_{memory}", sent.n_bulk)
        lands_after_ns = self._cost_ns(actor.draws, f"h2d_{memory}", sent.n_bulk) - call_ns
        yield from actor.busy(call_ns)
        landed = _nothing if is_pinned else partial(self._let_go, rank, sent)
        self._device.copy(step, max(lands_after_ns, 0), landed)

    def _await_stream(self, actor: Actor, step: int) -> Process:
        """Spin in the driver until everything launched before has ended."""
        ended = self._device.end_before(step)
        if ended is None:
            return
        thread = actor.lane.thread
        if thread is None:
            started_ns = actor.env.now_ns
            yield ended
            actor.cpu_ns += actor.env.now_ns - started_ns
        else:
            assert ended.callbacks is not None, "it has not ended yet"
            ended.callbacks.append(lambda _: thread.poke())
            yield thread.spin(lambda: ended.triggered, FOREVER_NS, yields=False)

    def _let_go(self, rank: int, sent: _Sent) -> None:
        for part in sent.placement.parts:
            if part.hold is not None:
                self._arena.let_go(part.hold)
                self._read[rank].n_let_go += 1

    def output_ns(self, draws: Draws) -> int:
        """Time of the copy from the device that a reply waits for."""
        n_bytes = self._config.output_bytes
        return self._cost_ns(draws, "d2h", n_bytes) if n_bytes else 0

    # Costs.

    def _memcpy_ns(self, draws: Draws, sent: _Sent, *, into_arena: bool) -> int:
        """Copies between private and shared memory that publish and read do not hold already."""
        copy_ns = 0
        for index, part in enumerate(sent.placement.parts):
            if part.route == INLINE:
                n_bytes = part.n_bytes - (sent.own_bytes if index == 0 else 0)
            else:
                n_bytes = part.n_bytes if part.route == ARENA and into_arena else 0
            if n_bytes:
                copy_ns += self._cost_ns(draws, "memcpy", n_bytes)
        return copy_ns

    def _cost_ns(self, draws: Draws, name: str, n_bytes: int) -> int:
        """A cost by size: beyond the largest that was measured, in proportion to it."""
        largest_bytes = self._largest_bytes(name)
        if n_bytes <= largest_bytes or largest_bytes == 0:
            return draws.next(name, n_bytes)
        return draws.next(name, largest_bytes) * n_bytes // largest_bytes

    def _largest_bytes(self, name: str) -> int:
        curve = self._profile.costs.get(name)
        if curve is None:
            raise ValueError(
                f"this [payload] needs the cost {name} ({OPTIONAL_COSTS[name][1]}), which the "
                f"profile of {self._profile.machine.get('cpu', 'this machine')} does not have; "
                f"{_WAY_OUT[name.partition('_')[0]]}, or take a profile that has it"
            )
        return int(curve.xs[-1])

    # Records.

    def account(self, rows: list[ProcessRow]) -> list[ProcessRow]:
        """Add to the rows of the scheduler and the workers what they did with payloads."""
        if not self._config.carries_bulk:
            return rows
        scheduler, *workers = rows
        arena = self._arena
        return [
            self._written.account(scheduler, arena.n_released)._replace(
                fallbacks=self._n_fallbacks,
                arena_most=arena.n_most_held,
                arena_slots=arena.n_slots,
            ),
            *(
                tally.account(row, tally.n_let_go)
                for row, tally in zip(workers, self._read, strict=True)
            ),
        ]


def _nothing() -> None:
    """Of a copy that nobody waits for."""


def _ring_bytes(sent: _Sent) -> int:
    """What of the slot publish and read are priced by; bulk in it is a copy of its own."""
    stream = sent.placement.parts[0]
    return sent.placement.table_bytes + (sent.own_bytes if stream.route == INLINE else 0)
