"""Lays out the memory of a run: what `shmsim.sim.box` and `shmsim.sim.loop` build in SimPy."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from shmsim.config import RunConfig
from shmsim.message import encode_second_call, largest_bytes
from shmsim.profile import AT_DEVICE, AT_REST, Curve, MachineProfile
from shmsim.routing import ROUTE_PRESETS
from shmsim.sim.cores import AMPLE, Schedule, balance_ns
from shmsim.sim.events import words as w
from shmsim.sim.events.acting import BALANCER, PERIODS, REPLIES, SCHEDULER, THIEF, WORKER
from shmsim.sim.events.luck import BLOCK
from shmsim.sim.events.memory import Float64Array, Int64Array, Memory
from shmsim.sim.events.policy import looks_number, route_function, store_policy, wait_function
from shmsim.sim.events.step_law import StepLuck, store_law
from shmsim.sim.run import _device_policy, _schedule
from shmsim.tape import Tape
from shmsim.wait import (
    DEVICE_DONE,
    SCHEDULER_RECV,
    SCHEDULER_SLOT,
    WORKER_RECV,
    WORKER_SLOT,
    WaitCosts,
    WaitPolicy,
    echo_guard_ns,
)
from shmsim.workload import Workload

#: Rows of each kind that wait in memory until Python takes them.
_ROWS_ROOM: Final = 8192
_LUCK_ROOM: Final = 1024
_THEFTS_ROOM: Final = 256

_RING_COSTS: Final = (
    "ring_publish", "ring_read", "wait_exit", "notify_unarmed", "notify_armed", "notify_further",
    "memcpy",
)  # fmt: skip
_SCHEDULER_COSTS: Final = (
    *_RING_COSTS, "schedule", "complete", "encode_request", "decode_reply", "pickle",
    "socket_send",
)  # fmt: skip
_WORKER_COSTS: Final = (
    *_RING_COSTS, "decode_request", "launch", "encode_reply", "device_return", "timer_overshoot",
    "unpickle", "socket_receive", "h2d_call_registered", "h2d_registered", "h2d_call_pageable",
    "h2d_pageable", "d2h",
)  # fmt: skip
_WAIT_COSTS: Final = (
    "wait_enter", "spin_detection", "yield_detection", "wake_latency", "park_cpu",
    "timer_overshoot", "doze_cpu", "io_thread_cpu",
)  # fmt: skip
_SLOW: Final = tuple(f"slow_after_{mode}" for mode in ("spin", "park", "doze", "rehearsal"))


class Thief(NamedTuple):
    """Who takes a core away: address of its process and of its buffer, and its luck."""

    process: int
    buffer: int
    rng: np.random.Generator


class Engine(NamedTuple):
    """Addresses of one engine, for whoever reads the results."""

    name: str
    address: int
    actors: tuple[int, ...]
    requests: int
    n_requests: int
    batcher: int
    device: int
    bulk: int
    luck: StepLuck


class Run(NamedTuple):
    """A run that can start.

    Parameters
    ----------
    s, x
        Its memory.
    engines, thieves
        Where to find what.
    process_names
        By the number of an actor.
    """

    s: Int64Array
    x: Float64Array
    engines: tuple[Engine, ...]
    thieves: tuple[Thief, ...]
    process_names: tuple[str, ...]


class _Box:
    """The cores, and whoever was given a thread on them."""

    def __init__(self, memory: Memory, config: RunConfig, tape: Tape) -> None:
        rules: Schedule = _schedule(config.cores)
        engine, n_engines = config.engine, config.cores.engines
        n_processes = n_engines * (1 + engine.workers)
        self._memory = memory
        self._is_guarded = config.cores.guarded
        self._pins = config.pin and n_processes <= rules.n_cores
        self._pinned: dict[str, int] = {}
        self._n_threads = 0
        self.cores: list[int] = []
        self.host = 0
        self.rules = rules
        if rules == AMPLE:
            return
        n_cores = rules.n_cores or 3 * max(n_processes, 1)
        stride = w.K_QUEUE + 3 * n_processes
        host = self.host = memory.words(w.BOX)
        self.cores = [memory.words(stride) for _ in range(n_cores)]
        for number, core in enumerate(self.cores):
            phase = tape.uniform(f"core{number}", "tick").at(0)
            memory[core + w.K_PHASE] = int(phase * rules.tick_ns)
        memory.fill(
            host,
            {
                w.H_CORES: self.cores[0],
                w.H_N_CORES: n_cores,
                w.H_STRIDE: stride,
                w.H_SLICE: rules.slice_ns,
                w.H_TICK: rules.tick_ns,
                w.H_QUOTA: rules.quota_ns,
                w.H_PERIOD: rules.period_ns,
                w.H_STEAL_EVERY: rules.steal_every_ns,
                w.H_STEAL: rules.steal_ns,
                w.H_LEFT: rules.quota_ns,
            },
        )

    def thread(self, pinned: int | None) -> int:
        """A new thread, asleep."""
        if not self.host:
            return 0
        number = self._n_threads % len(self.cores) if pinned is None else pinned
        self._n_threads += 1
        return self._memory.record(
            w.THREAD, {w.T_CORE: self.cores[number], w.T_IS_PINNED: pinned is not None}
        )

    def lane(self, process: str) -> int:
        """A thread of a process, beside its others."""
        pinned = None
        if self.host and self._pins:
            pinned = self._pinned.setdefault(process, len(self._pinned))
        return self._memory.record(
            w.LANE, {w.L_THREAD: self.thread(pinned), w.L_IS_GUARDED: self._is_guarded}
        )


class _Luck:
    """Streams of random numbers of one tape, and the curves they are sent through."""

    def __init__(self, memory: Memory, profile: MachineProfile, tape: Tape) -> None:
        self._memory = memory
        self._costs = profile.costs
        self._tape = tape
        self._curves: dict[int, tuple[int, int, int]] = {}

    def stream(self, entity: str, purpose: str, curve: Curve | None = None) -> int:
        """A stream; of a cost, with its curve."""
        memory = self._memory
        key = self._tape.key(entity, purpose).view(np.int64)
        memory.align(w.STREAM)
        n, xs, quantiles = self._curve(curve) if curve else (0, 0, 0)
        return memory.record(
            w.STREAM,
            {
                w.S_KEY: int(key[0]),
                w.S_KEY + 1: int(key[1]),
                w.S_BLOCK: -1,
                w.S_AT: memory.numbers(BLOCK),
                w.S_POINTS: n,
                w.S_XS: xs,
                w.S_QUANTILES: quantiles,
            },
        )

    def _curve(self, curve: Curve) -> tuple[int, int, int]:
        """How many points a curve has, and addresses of where they are and of what they hold."""
        if id(curve) not in self._curves:
            # Level by level: what is interpolated between lies side by side.
            levels = zip(*(point.quantiles for point in curve.points), strict=True)
            quantiles = [q for level in levels for q in level]
            xs = self._memory.store_numbers(curve.xs)
            found = len(curve.points), xs, self._memory.store_numbers(quantiles)
            self._curves[id(curve)] = found
        return self._curves[id(curve)]

    def table(self, entity: str, names: Iterable[str], prefix: str = "") -> int:
        """Streams of several costs, as `shmsim.sim.draws.Draws`; 0 for what the profile lacks."""
        table = self._memory.words(w.COST_TABLE)
        for name in names:
            curve = self._costs.get(prefix + name) or self._costs.get(name)
            if curve:
                place: int = getattr(w, name.upper())
                self._memory[table + place] = self.stream(entity, name, curve)
        return table


class _Actors:
    """Makes the processes of one engine."""

    def __init__(
        self,
        memory: Memory,
        box: _Box,
        luck: _Luck,
        profile: MachineProfile,
        first: int,
        n_workers: int,
    ) -> None:
        # Whoever may wait for one I/O thread at a time: every worker, and threads of its own.
        self._most_carried = n_workers + 8
        self._memory = memory
        self._box = box
        self._luck = luck
        self._profile = profile
        self._n = first
        self.names: list[str] = []

    def actor(self, name: str, is_scheduler: bool, n_sites: int) -> int:
        """A process."""
        memory, luck = self._memory, self._luck
        rests = ("timer_overshoot", "doze_cpu", "slow_after_park")
        lane = self._box.lane(name)
        courier = self._courier() if "io_thread_cpu" in self._profile.costs else 0
        self.names.append(name)
        actor = memory.words(w.ACTOR + n_sites)
        memory.fill(
            actor,
            {
                w.A_NUMBER: self._n + len(self.names) - 1,
                w.A_IS_SCHEDULER: is_scheduler,
                w.A_LANE: lane,
                w.A_COURIER: courier,
                w.A_DRAWS: luck.table(name, _SCHEDULER_COSTS if is_scheduler else _WORKER_COSTS),
                w.A_RELEASE_DRAWS: luck.table(f"{name} release", ["notify_armed"]),
                w.A_REST_DRAWS: luck.table(f"{name} idle", rests)
                if is_scheduler
                else luck.table(f"{name} end", ["worker_slow_after_doze"]),
            },
        )
        return actor

    def _courier(self) -> int:
        return self._memory.record(
            w.COURIER,
            {
                w.Q_THREAD: self._box.thread(None),
                w.Q_WAITING: self._memory.words(self._most_carried),
            },
        )

    def site(self, actor: int, kind: int, entity: str, policy: WaitPolicy, asked: int) -> int:
        """A place where a process waits; ``asked`` is the address of `wait_function`."""
        memory, luck = self._memory, self._luck
        is_scheduler = memory[actor + w.A_IS_SCHEDULER] != 0
        prefix = AT_DEVICE if kind == DEVICE_DONE else ""
        worker = "" if is_scheduler else "worker_"
        names = (*_WAIT_COSTS, f"{worker}rehearsal", *(f"{worker}{name}" for name in _SLOW))
        cost = self._profile.costs_of_policy(type(policy).__name__)
        looks = looks_number(policy)
        idle = self._profile.costs_of_policy(AT_REST) if looks >= 0 else {}
        state, n_words, numbers, n_numbers = store_policy(memory, policy)
        store_policy(memory, policy)  # the second call's, right behind
        site = memory.record(
            w.SITE,
            {
                w.Z_KIND: kind,
                w.Z_POLICY: asked,
                w.Z_STATE: state,
                w.Z_STATE_WORDS: n_words,
                w.Z_NUMBERS: numbers,
                w.Z_STATE_NUMBERS: n_numbers,
                w.Z_UNIFORM: luck.stream(entity, "policy"),
                w.Z_DRAWS: luck.table(entity, names, prefix),
                w.Z_PLAN: luck.stream(entity, "plan", cost["plan"]),
                w.Z_AFTER: luck.stream(entity, "after", cost["after"]),
                w.Z_IDLE_PLAN: luck.stream(entity, "plan", idle["plan"]) if idle else 0,
                w.Z_IDLE_AFTER: luck.stream(entity, "after", idle["after"]) if idle else 0,
                w.Z_LOOKS: looks,
                w.Z_FINISHED: memory.words(w.LESSON * w.FINISHED_ROOM),
                w.Z_FINISHED_UNIFORM: memory.numbers(w.FINISHED_ROOM),
            },
        )
        n = memory[actor + w.A_N_SITES]
        memory[actor + w.A_SITES + n] = site
        memory[actor + w.A_N_SITES] = n + 1
        return site


def _ring(memory: Memory, n_readers: int, n_slots: int, most_in_flight: int) -> int:
    most = n_slots if n_slots <= most_in_flight else most_in_flight
    room = 1 << (most + 8).bit_length()
    ring = memory.words(w.RING)
    source = {w.W_RING: ring, w.W_ARMED_SINCE: -1}
    memory.fill(
        ring,
        {
            w.R_CAN_FILL: n_slots <= most_in_flight,
            w.R_N_SLOTS: n_slots,
            w.R_N_READERS: n_readers,
            w.R_INBOXES: memory.words(w.SOURCE * n_readers),
            w.R_SLOTS: memory.record(w.SOURCE, {**source, w.W_TYPE: w.SLOTS}),
            w.R_MESSAGES: memory.words(w.MESSAGE * room),
            w.R_MASK: room - 1,
        },
    )
    for reader in range(n_readers):
        inbox = memory[ring + w.R_INBOXES] + w.SOURCE * reader
        memory.fill(inbox, {**source, w.W_TYPE: w.INBOX})
    return ring


def _device(memory: Memory, config: RunConfig, luck: StepLuck) -> int:
    n = config.engine.n_devices
    stride = w.STEP
    slots = [memory.words(stride) for _ in range(w.STEPS_ROOM)]
    for slot in slots:
        memory.fill(
            slot,
            {
                w.SS_STEP: -1,
                w.SS_AWAITING: memory.words(n),
                w.SS_COPIES: memory.words(w.COPY * n),
                w.SS_ENDS: memory.words(w.SOURCE * n),
            },
        )
    law, words, numbers = store_law(memory, luck.law)
    return memory.record(
        w.DEVICE,
        {
            w.DE_N_DEVICES: n,
            w.DE_LAW: law,
            w.DE_LAW_WORDS: words,
            w.DE_LAW_NUMBERS: numbers,
            w.DE_SLOWDOWN: memory.store_numbers([config.cores.slowdown]),
            w.DE_LUCK: memory.store_numbers(luck.next(_LUCK_ROOM)),
            w.DE_LUCK_ROOM: _LUCK_ROOM,
            w.DE_ASKED: -1,
            w.DE_STEPS: slots[0],
            w.DE_STRIDE: stride,
        },
    )


def _batcher(memory: Memory, config: RunConfig, workload: Workload) -> int:
    n_sequences = config.engine.max_sequences
    rows = [
        value
        for request in workload.requests
        for value in (
            *request,
            request.prompt_tokens,
            *(0,) * (w.REQUEST - w.RQ_N_SCHEDULED),
        )
    ]
    words_each = w.BT_TOKENS + 2 * n_sequences
    n_batches = config.engine.depth + 1  # those in flight, and the one in the making
    batcher = memory.record(
        w.BATCHER,
        {
            w.BA_N_REQUESTS: len(workload.requests),
            w.BA_REQUESTS: memory.store(rows),
            w.BA_CONCURRENCY: workload.concurrency,
            w.BA_MAX_SEQUENCES: n_sequences,
            w.BA_MAX_TOKENS: config.engine.max_batched_tokens,
            w.BA_LAST_COMPLETED: -1,
            w.BA_RUNNING: memory.words(n_sequences + 1),
            w.BA_BATCHES: memory.words(n_batches * words_each),
            w.BA_N_BATCHES: n_batches,
            w.BA_BATCH_WORDS: words_each,
        },
    )
    if workload.concurrency:
        # As `admit_next`: whoever is in from the start found the engine idle.
        n = min(workload.concurrency, len(workload.requests))
        memory[batcher + w.BA_N_ADMITTED] = n
        memory[memory[batcher + w.BA_REQUESTS] + w.RQ_AFTER_IDLE] = 1
    return batcher


def _bulk(memory: Memory, config: RunConfig) -> int:
    payload, engine = config.payload, config.engine
    is_gated = engine.n_devices == engine.workers
    n_sent = w.STEPS_ROOM + (0 if is_gated else config.handoff.slots)
    sent = memory.words(w.SENT * n_sent)
    for number in range(n_sent):
        memory[sent + w.SENT * number + w.SE_STEP] = -1
    routing = ROUTE_PRESETS[payload.routes]
    routes, _, route_numbers, _ = store_policy(memory, routing)
    carries = payload.carries_bulk
    return memory.record(
        w.BULK,
        {
            w.BU_PER_STEP: payload.bytes_per_step if carries else 0,
            w.BU_PER_TOKEN: payload.bytes_per_prefill_token if carries else 0,
            w.BU_DIVERT: payload.divert_bytes,
            w.BU_SLOT_BYTES: config.handoff.slot_bytes or largest_bytes(engine.max_sequences),
            w.BU_MEMORY: ("none", "registered", "pinned", "pageable").index(payload.memory),
            w.BU_OUTPUT: payload.output_bytes,
            w.BU_N_DEVICES: engine.n_devices if payload.memory != "none" else 0,
            w.BU_N_READERS: engine.workers,
            w.BU_N_CLASSES: len(payload.arena),
            w.BU_CLASSES: memory.store(value for c in payload.arena for value in c),
            w.BU_N_SLOTS: sum(c.n_slots for c in payload.arena),
            w.BU_SENT: sent,
            w.BU_N_SENT: n_sent,
            w.BU_TALLIES: memory.words(w.TALLY * (1 + engine.workers)),
            w.BU_ROUTE: route_function(routing) if carries else 0,
            w.BU_ROUTE_STATE: routes,
            w.BU_ROUTE_NUMBERS: route_numbers,
        },
    )


def _process(memory: Memory, routine: int, registers: dict[int, int]) -> int:
    return memory.record(
        w.PROCESS, {w.P_ROUTINE: routine, w.P_UNIFORM: memory.numbers(1), **registers}
    )


def _engine(
    memory: Memory,
    box: _Box,
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    tape: Tape,
    name: str,
    first_actor: int,
) -> tuple[Engine, list[int], list[str]]:
    """One engine; also its processes in the order of their start, and their names."""
    engine = config.engine
    is_async = engine.scheduling == "async"
    asked = wait_function(policy)
    n_replies = engine.workers if config.handoff.replies == "all" else 1
    most = engine.calls_per_step * engine.depth
    is_gated = engine.n_devices == engine.workers
    n_slots = config.handoff.slots
    luck = _Luck(memory, profile, tape)
    steps = StepLuck(config.device.step_time, tape)
    workload = config.workload.build(tape)
    requests = _ring(memory, engine.workers, n_slots, most if is_gated else n_slots)
    replies = [_ring(memory, 1, n_slots, most) for _ in range(n_replies)]
    actors = _Actors(memory, box, luck, profile, first_actor, engine.workers)
    scheduler = actors.actor(f"{name}scheduler", True, 1 + n_replies)
    slots_site = actors.site(scheduler, SCHEDULER_SLOT, f"{name}scheduler slots", policy, asked)
    reply_sites = [
        actors.site(scheduler, SCHEDULER_RECV, f"{name}scheduler{i or ''}", policy, asked)
        for i in range(n_replies)
    ]
    names = [f"{name}worker{rank}" for rank in range(engine.workers)]
    workers = [actors.actor(worker, False, 3) for worker in names]
    device_policy = _device_policy(engine)
    asked_device = wait_function(device_policy) if device_policy is not None else 0
    for actor, entity in zip(workers, names, strict=True):
        actors.site(actor, WORKER_RECV, entity, policy, asked)
        actors.site(actor, WORKER_SLOT, f"{entity} slots", policy, asked)
        if device_policy is not None:
            actors.site(actor, DEVICE_DONE, f"{entity} device", device_policy, asked_device)
    batcher, device, bulk = (
        _batcher(memory, config, workload),
        _device(memory, config, steps),
        _bulk(memory, config),
    )
    costs: WaitCosts = profile.wait_costs(config.delay_price)
    address = memory.record(
        w.ENGINE,
        {
            w.EN_IS_ASYNC: is_async,
            w.EN_N_CALLS: engine.calls_per_step,
            w.EN_DEPTH: engine.depth,
            w.EN_N_WORKERS: engine.workers,
            w.EN_N_DEVICES: engine.n_devices,
            w.EN_N_REPLIES: n_replies,
            w.EN_REQUESTS: requests,
            w.EN_REPLIES: memory.store(replies),
            w.EN_SCHEDULER: scheduler,
            w.EN_SLOTS_SITE: slots_site,
            w.EN_REPLY_SITES: memory.store(reply_sites),
            w.EN_REQUEST_BYTES: memory.words(engine.max_sequences + 1, -1),
            w.EN_REPLY_BYTES: memory.words(engine.max_sequences + 1, -1),
            w.EN_SECOND_BYTES: len(encode_second_call(1000)),
            w.EN_GUARD: echo_guard_ns(costs),
            w.EN_DEVICE: device,
            w.EN_BATCHER: batcher,
            w.EN_BULK: bulk,
        },
    )
    processes: list[int] = []
    for rank, actor in enumerate(workers):
        registers = {w.P_ENGINE: address, w.P_ACTOR: actor, w.P_RANK: rank}
        worker = _process(memory, WORKER, {**registers, w.P_LANE: memory[actor + w.A_LANE]})
        processes.append(worker)
        if is_async:
            reply_thread = _process(
                memory,
                REPLIES,
                {
                    **registers,
                    w.P_OTHER: worker,
                    w.E_ITEMS: memory.words(w.MESSAGE * w.STEPS_ROOM),
                },
            )
            memory[worker + w.P_OTHER] = reply_thread
    processes.append(
        _process(
            memory,
            SCHEDULER,
            {
                w.P_ENGINE: address,
                w.P_ACTOR: scheduler,
                w.P_LANE: memory[scheduler + w.A_LANE],
            },
        )
    )
    found = Engine(
        name,
        address,
        (scheduler, *workers),
        memory[batcher + w.BA_REQUESTS],
        len(workload.requests),
        batcher,
        device,
        bulk,
        steps,
    )
    return found, processes, actors.names


def build(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int,
    *,
    keeps_rows: bool,
) -> Run:
    """Lay out a run; parameters are those of `shmsim.sim.run.simulate`.

    Parameters
    ----------
    config, policy, profile, replication
        What to run, on which costs, with which luck.
    keeps_rows
        Whether to record waits and steps.
    """
    memory = Memory()
    memory.words(w.GLOBALS)
    box_tape = Tape(config.seed, replication)
    n_engines = config.cores.engines
    memory.store_numbers([config.delay_price])
    box = _Box(memory, config, box_tape)
    engines: list[Engine] = []
    processes: list[int] = []
    names: list[str] = []
    for number in range(n_engines):
        tape = Tape(config.seed, n_engines * replication + number)
        name = f"engine{number}/" if n_engines > 1 else ""
        engine, started, found = _engine(
            memory, box, config, policy, profile, tape, name, len(names)
        )
        memory[engine.address + w.EN_NUMBER] = number
        engines.append(engine)
        processes += started
        names += found
    n_main = len(processes)
    if config.engine.scheduling == "async":
        _add_reply_lanes(memory, box, processes, names)
    thieves = []
    if box.host and box.rules.quota_ns:
        processes.append(_process(memory, PERIODS, {}))
    if box.host and box.rules.steal_every_ns and box.rules.steal_ns:
        for number, core in enumerate(box.cores):
            thief = _thief(memory, core, box_tape.generator(f"core{number}", "steal"))
            thieves.append(thief)
            processes.append(thief.process)
    if box.host and len(box.cores) > 1:
        every_ns = balance_ns(len(box.cores), box.rules.tick_ns)
        for core in box.cores:
            registers = {w.P_OTHER: core, w.P_RANK: every_ns}
            processes.append(_process(memory, BALANCER, registers))
    _start(memory, processes, n_main, len(box.cores), config)
    memory[w.HOST] = box.host
    *told, _, shares_cores = profile.wait_costs(config.delay_price, config.shares_cores())
    memory.fill(0, {w.TOLD_COSTS + i: value for i, value in enumerate(told)})
    memory[w.TOLD_SHARING] = shares_cores
    memory.fill(0, {w.N_UNENDED: n_main, w.N_ENTITIES: 1, w.KEEPS_ROWS: keeps_rows})
    _reserve(memory, engines)
    s, x = memory.arrays()
    return Run(s, x, tuple(engines), tuple(thieves), tuple(names))


def _add_reply_lanes(memory: Memory, box: _Box, processes: list[int], names: list[str]) -> None:
    """Give each reply thread a lane: in SimPy it gets one when its worker starts."""
    for process in processes:
        reply_thread, actor = memory[process + w.P_OTHER], memory[process + w.P_ACTOR]
        if reply_thread:
            lane = box.lane(names[memory[actor + w.A_NUMBER]])
            memory[actor + w.A_REPLY_LANE] = memory[reply_thread + w.P_LANE] = lane


def _thief(memory: Memory, core: int, rng: np.random.Generator) -> Thief:
    buffer = memory.store_numbers(draw_thefts(rng))
    process = _process(memory, THIEF, {w.P_OTHER: core, w.P_RANK: _THEFTS_ROOM})
    memory[process + w.P_UNIFORM] = buffer
    return Thief(process, buffer, rng)


def draw_thefts(rng: np.random.Generator) -> list[float]:
    """Luck for the next thefts of a core, one by one as `shmsim.sim.box` draws it."""
    return [rng.standard_exponential() for _ in range(_THEFTS_ROOM)]


def _start(
    memory: Memory, processes: list[int], n_main: int, n_cores: int, config: RunConfig
) -> None:
    """Put the start of every process into the agenda: urgent, by nobody, in this order."""
    n_sources = config.cores.engines * (8 + 8 * config.engine.workers)
    room = 512 + 16 * (len(processes) + n_cores + n_sources)
    agenda = memory.words(w.ENTRY * (room + 1))
    for number, process in enumerate(processes):
        memory.fill(agenda + w.ENTRY * number, {1: number, 2: w.RESUME, 3: process})
    n = len(processes)
    memory.fill(0, {w.HEAP: agenda, w.HEAP_ROOM: room, w.N_HEAP: n, w.NEXT_ID: n})


def _reserve(memory: Memory, engines: list[Engine]) -> None:
    """Room for what grows with the run: tokens, and rows until Python takes them."""
    for engine in engines:
        for number in range(engine.n_requests):
            request = engine.requests + w.REQUEST * number
            memory[request + w.RQ_TOKENS] = memory.reserve(memory[request + w.RQ_OUTPUT])
    memory.fill(
        0,
        {
            w.WAIT_ROWS: memory.reserve(w.WAIT_ROW * _ROWS_ROOM),
            w.WAIT_ROOM: _ROWS_ROOM,
            w.STEP_ROWS: memory.reserve(w.STEP_ROW * _ROWS_ROOM),
            w.STEP_ROOM: _ROWS_ROOM,
        },
    )
