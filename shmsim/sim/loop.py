"""The step loop in virtual time: the definition of the model, in SimPy.

requests -> continuous batching -> scheduler -> request ring -> workers -> device -> reply ring.

Every duration is either a cost of the profile or the step time of the device; nothing is fitted.
"""

from collections import deque
from functools import lru_cache
from typing import Final

import simpy

from shmsim.batching import Batch, Batcher
from shmsim.config import EngineConfig, PayloadConfig
from shmsim.message import (
    decode_batch,
    decode_request,
    encode_reply,
    encode_request,
    encode_second_call,
)
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords, StepRow
from shmsim.sim.actor import Actor, Site
from shmsim.sim.box import Box
from shmsim.sim.clock import Process
from shmsim.sim.contended import CARRYING, Lane
from shmsim.sim.device import Device
from shmsim.sim.draws import Draws
from shmsim.sim.echo import meet
from shmsim.sim.payload import Payloads
from shmsim.sim.source import Message, Ring
from shmsim.sim.waiter import DOZED, PARKED
from shmsim.steptime import StepTimeLaw
from shmsim.tape import Tape
from shmsim.wait import (
    DEVICE_DONE,
    SCHEDULER_RECV,
    SCHEDULER_SLOT,
    WORKER_RECV,
    WORKER_SLOT,
    WaitPolicy,
    echo_guard_ns,
)
from shmsim.workload import Workload


@lru_cache(maxsize=4096)
def _request_bytes(n_sequences: int) -> int:
    return len(encode_request(decode_batch(n_sequences)))


@lru_cache(maxsize=4096)
def _reply_bytes(n_sequences: int) -> int:
    return len(encode_reply(decode_request(encode_request(decode_batch(n_sequences)))))


_SECOND_CALL_BYTES: Final = len(encode_second_call(1000))


class StepLoop:
    """One engine in the model.

    Parameters
    ----------
    profile
        Costs of the machine.
    engine
        Workers, calls per step, sync or async, batch limits.
    step_time
        Law of the device.
    workload
        Requests.
    policy
        How scheduler and workers wait; every (process, call) starts from this value.
    tape
        Random numbers.
    delay_price
        The *r* that policies are told.
    n_replies
        How many workers, from the output rank on, reply to each call.
    n_slots
        Slots of each ring.
    payload, slot_bytes
        Bulk that steps carry, and what a slot of the request ring holds of it.
    device_policy
        How workers wait for the device; None: as realrun waits for its echo device.
    box
        The clock and the cores, if other engines are on them too.
    shares_cores
        Whether policies are told that there are more processes than cores.
    name
        Before the names of its processes.
    """

    def __init__(
        self,
        profile: MachineProfile,
        engine: EngineConfig,
        step_time: StepTimeLaw,
        workload: Workload,
        policy: WaitPolicy,
        tape: Tape,
        delay_price: float,
        *,
        n_replies: int = 1,
        n_slots: int = 8,
        payload: PayloadConfig = PayloadConfig(),  # noqa: B008 - immutable
        slot_bytes: int = 1 << 16,
        device_policy: WaitPolicy | None = None,
        box: Box | None = None,
        shares_cores: bool = False,
        name: str = "",
    ) -> None:
        """Build the processes; nothing runs yet."""
        self.box = box or Box()
        self.env = self.box.env
        self.profile = profile
        self.engine = engine
        self.policy = policy
        self.device_policy = device_policy
        self.tape = tape
        self.costs = profile.wait_costs(delay_price, shares_cores)
        self.guard_ns = echo_guard_ns(self.costs)
        self.batcher = Batcher(workload, engine.max_sequences, engine.max_batched_tokens)
        most = engine.calls_per_step * engine.depth
        # A worker without a device keeps nobody waiting, so it can fall behind by any number.
        is_gated = engine.n_devices == engine.workers
        most_requests = most if is_gated else n_slots
        self.requests = Ring(self.env, engine.workers, n_slots, most_requests)
        self.replies = [Ring(self.env, 1, n_slots, most) for _ in range(n_replies)]
        self.name = name
        self.scheduler = self._actor("scheduler", SCHEDULER_RECV)
        self.request_slots = self.scheduler.site(
            SCHEDULER_SLOT, f"{self.scheduler.name} slots", policy
        )
        # As on the machine: each ring that is read has policies and random numbers of its own.
        self.reply_sites = [
            self.scheduler.site(SCHEDULER_RECV, f"{self.scheduler.name}{i or ''}", policy)
            for i in range(n_replies)
        ]
        self.workers = [self._actor(f"worker{r}", WORKER_RECV) for r in range(engine.workers)]
        self.n_devices = engine.n_devices
        self.device = Device(
            self.env, step_time, tape.normal("device", "step"), self.n_devices, self.box.slowdown
        )
        self.payloads = Payloads(payload, profile, slot_bytes, engine, self.device)
        self.steps: list[StepRow] = []
        # Luck of rests that are no waits by plan.
        self.idle_draws = Draws(profile, tape, f"{self.scheduler.name} idle")
        self.n_idles = 0
        self.end_draws = [Draws(profile, tape, f"{w.name} end") for w in self.workers]

    def _actor(self, name: str, kind: int) -> Actor:
        name = self.name + name
        lane = self.box.lane(name)
        courier = self.box.courier(name) if CARRYING in self.profile.costs else None
        return Actor(self.env, self.profile, self.tape, self.costs, name, kind, lane, courier)

    def run(self) -> RunRecords:
        """Run until every request has its tokens."""
        self.box.run([self])
        return self.records()

    def start(self) -> list[simpy.Process]:
        """Start every process; returns them."""
        workers = [self._worker(rank, actor) for rank, actor in enumerate(self.workers)]
        return [self.env.process(process) for process in [*workers, self._scheduler()]]

    def records(self) -> RunRecords:
        """What happened."""
        wall_ns = max(self.env.now_ns, 1)
        actors = [self.scheduler, *self.workers]
        rows = [actor.row(wall_ns, self.box.lanes_of(actor.name)) for actor in actors]
        return RunRecords(
            self.steps,
            [row for actor in actors for row in actor.rows],
            self.batcher.request_rows(),
            self.payloads.account(rows),
            slices=self.box.slices,
            cores=self.box.core_rows(wall_ns),
        )

    # The scheduler.

    def _scheduler(self) -> Process:
        actor, batcher = self.scheduler, self.batcher
        in_flight: deque[tuple[Batch, int, int]] = deque()
        depth = self.engine.depth
        actor.wake()
        while not batcher.is_finished:
            batcher.admit(actor.now_ns)
            while batcher.has_work and len(in_flight) < depth:
                in_flight.append((yield from self._send(len(in_flight) == depth - 1)))
            if in_flight:
                actor.learn()  # where nothing was sent since the last reply
                yield from self._await_reply(*in_flight.popleft())
            else:
                yield from self._idle()
        goodbye = Message(len(self.steps), 0, None, False, 0)
        yield from self._publish_request(goodbye, _SECOND_CALL_BYTES, 0)
        yield from actor.busy(0)
        actor.sleep()

    def _idle(self) -> Process:
        """Sleep until the next request arrives; vLLM's engine core blocks on a queue here."""
        actor = self.scheduler
        arrival_ns = self.batcher.next_arrival_ns
        assert arrival_ns is not None, "unfinished, idle, and nobody arrives"
        yield from actor.busy(0)
        rested_ns = max(arrival_ns - self.env.now_ns, 0)
        draws, index = self.idle_draws, self.n_idles
        self.n_idles += 1
        late_ns = draws.at("timer_overshoot", index, rested_ns)
        actor.sleep()
        yield self.env.timeout(rested_ns + late_ns)
        actor.wake()
        actor.book(draws.at("doze_cpu", index, rested_ns))
        actor.lane.cold.rest(PARKED, rested_ns)
        yield from actor.busy(actor.slowness(draws, index, PARKED, rested_ns))

    def _publish_request(self, message: Message, n_bytes: int, work_ns: int) -> Process:
        return self.scheduler.publish(self.requests, self.request_slots, message, n_bytes, work_ns)

    def _send(self, is_last_in_flight: bool) -> Process:
        """Form a batch and publish the first call; async, the second call with it."""
        actor = self.scheduler
        scheduled_ns = actor.now_ns
        batch = self.batcher.schedule()
        n = batch.n_sequences
        draws = actor.draws
        work_ns = draws.next("schedule", n) + draws.next("encode_request", n)
        message = Message(batch.step, 0, batch, batch.pending, 0)
        n_bytes = _request_bytes(n)
        n_bulk = self.payloads.bytes_of(batch)
        if n_bulk:
            n_bytes, work_ns = yield from self.payloads.write(
                actor, self.requests, self.request_slots, message, n_bytes, n_bulk, work_ns
            )
        published_ns = yield from self._publish_request(message, n_bytes, work_ns)
        if self.engine.scheduling == "async" and self.engine.calls_per_step == 2:
            yield from self._send_second_call(batch)
        waits_twice = self.engine.scheduling == "sync" and self.engine.calls_per_step == 2
        if is_last_in_flight and not waits_twice:  # who replies to the first call does so at once
            actor.learn()
        if waits_twice:
            _, work_ns = yield from self._receive_replies(0, batch, _SECOND_CALL_BYTES)
            work_ns += draws.next("decode_reply", 0)
            yield from self._read_reply(self.replies[-1], _SECOND_CALL_BYTES, work_ns)
            yield from self._send_second_call(batch)
            actor.learn()
        return batch, scheduled_ns, published_ns

    def _send_second_call(self, batch: Batch) -> Process:
        work_ns = self.scheduler.draws.next("encode_request", 0)
        message = Message(batch.step, 1, batch, batch.pending, 0)
        yield from self._publish_request(message, _SECOND_CALL_BYTES, work_ns)

    def _receive_replies(self, call: int, batch: Batch, n_bytes: int) -> Process:
        """Wait for one rank after the other: the first reply, and by how much the last wait slows.

        All but the last reply are read.
        """
        first: Message | None = None
        slowness_ns = 0
        for rank, (ring, site) in enumerate(zip(self.replies, self.reply_sites, strict=True)):
            if first is not None:
                yield from self._read_reply(self.replies[rank - 1], n_bytes, slowness_ns)
            message, slowness_ns = yield from self.scheduler.receive(
                site, ring.inboxes[0], call, batch.step, batch, True
            )
            assert message.step == batch.step, "replies come in order"
            first = first or message
        return first, slowness_ns

    def _read_reply(self, ring: Ring, n_bytes: int, work_ns: int) -> Process:
        return self.scheduler.read(ring, ring.inboxes[0], n_bytes, work_ns)

    def _await_reply(self, batch: Batch, scheduled_ns: int, published_ns: int) -> Process:
        """Wait for the tokens of a step, and take them in."""
        actor, step = self.scheduler, batch.step
        n = batch.n_sequences
        message, work_ns = yield from self._receive_replies(
            self.engine.calls_per_step - 1, batch, _reply_bytes(n)
        )
        seen_ns = self.env.now_ns
        work_ns += actor.draws.next("decode_reply", n) + actor.draws.next("complete", n)
        self.batcher.complete(batch, seen_ns)
        self.steps.append(
            StepRow(
                step,
                len(batch.decode),
                batch.n_prefill_tokens,
                scheduled_ns,
                published_ns,
                self.device.launched_ns[step],
                self.device.done_ns[step],
                message.published_ns,
                seen_ns,
            )
        )
        self.device.leave(step)
        yield from self._read_reply(self.replies[-1], _reply_bytes(n), work_ns)

    # The workers.

    def _worker(self, rank: int, actor: Actor) -> Process:
        is_async = self.engine.scheduling == "async"
        two_calls = self.engine.calls_per_step == 2
        inbox = self.requests.inboxes[rank]
        site = actor.site(WORKER_RECV, actor.name, self.policy)
        reply_slots = actor.site(WORKER_SLOT, f"{actor.name} slots", self.policy)
        end_site = None
        if self.device_policy is not None:
            end_site = actor.site(DEVICE_DONE, f"{actor.name} device", self.device_policy)
        sites = reply_slots, end_site
        launched: simpy.Store = simpy.Store(self.env)
        replies: simpy.Process | None = None
        if is_async:
            lane = self.box.lane(actor.name)
            thread = self._reply_thread(rank, actor, sites, launched, lane)
            replies = self.env.process(thread)
        known: Batch | None = None
        pending = False  # the first wait lasts until an arrival
        step = 0
        actor.wake()
        while True:
            message, work_ns = yield from actor.receive(site, inbox, 0, step, known, pending)
            batch = message.batch
            if batch is None:
                yield from actor.busy(0)
                actor.sleep()
                if replies is not None:
                    launched.put(None)
                    yield replies
                return
            n = batch.n_sequences
            draws = actor.draws
            if self.payloads.bytes_of(batch):
                yield from self.payloads.read(actor, rank, self.requests, inbox, batch, work_ns)
            else:
                work_ns += draws.next("decode_request", n) + draws.next("launch")
                yield from actor.read(self.requests, inbox, _request_bytes(n), work_ns)
            if rank < self.n_devices:
                self.device.launch(batch)
            known, pending, step = batch, message.pending, batch.step + 1
            if two_calls:
                if not is_async and rank < len(self.replies):
                    work_ns = draws.next("encode_reply")
                    yield from actor.publish(
                        self.replies[rank],
                        reply_slots,
                        Message(batch.step, 0, batch, True, 0),
                        _SECOND_CALL_BYTES,
                        work_ns,
                    )
                second, work_ns = yield from actor.receive(site, inbox, 1, batch.step, known, True)
                work_ns += draws.next("decode_request", 0)
                yield from actor.read(self.requests, inbox, _SECOND_CALL_BYTES, work_ns)
                assert second.step == batch.step, "calls come in order"
            if is_async:
                launched.put(batch)
                actor.learn()
            else:
                actor.learn()  # while the device is at work, and not when its result is waited for
                yield from self._finish(rank, actor, sites, batch, None)

    def _finish(
        self,
        rank: int,
        actor: Actor,
        sites: tuple[Site, Site | None],
        batch: Batch,
        lane: Lane | None,
    ) -> Process:
        """Wait for the device, if this worker has one, and reply, where it is due."""
        reply_slots, end_site = sites
        draws = actor.draws
        work_ns = 0
        if rank < self.n_devices:
            work_ns = yield from self._await_device(rank, actor, end_site, batch, lane)
        if rank < len(self.replies):
            if rank < self.n_devices:
                work_ns += self.payloads.output_ns(draws)
            work_ns += draws.next("encode_reply", batch.n_sequences)
            message = Message(batch.step, 1, batch, True, 0)
            n_bytes = _reply_bytes(batch.n_sequences)
            yield from actor.publish(
                self.replies[rank], reply_slots, message, n_bytes, work_ns, lane
            )
        else:
            yield from actor.busy(work_ns, lane)

    def _await_device(
        self, rank: int, actor: Actor, end_site: Site | None, batch: Batch, lane: Lane | None
    ) -> Process:
        """Wait for the end of a step; returns what the wait adds to the work that follows."""
        if end_site is None:
            yield from actor.busy(0, lane)
            rested_from_ns = self.env.now_ns
            lane = lane or actor.lane
            yield from meet(
                self.env, lane, self.device, batch.step, rank, self.guard_ns, actor.draws
            )
            rested_ns = self.env.now_ns - rested_from_ns
            lane.cold.rest(DOZED, rested_ns)
            draws = self.end_draws[rank]
            work_ns = actor.draws.next("device_return")
            work_ns += actor.slowness(draws, batch.step, DOZED, rested_ns)
        else:
            end = self.device.end_of(batch.step, rank)
            work_ns = yield from actor.await_source(end_site, end, 0, batch.step, batch, True, lane)
        self.device.leave(batch.step)
        return work_ns

    def _reply_thread(
        self,
        rank: int,
        actor: Actor,
        sites: tuple[Site, Site | None],
        launched: simpy.Store,
        lane: Lane | None,
    ) -> Process:
        """What vLLM's async output thread does: wait for the device beside the main thread."""
        is_awake = False
        while True:
            if is_awake and not launched.items:
                yield from actor.busy(0, lane)
                actor.sleep(lane)
                is_awake = False
            batch = yield launched.get()
            if not is_awake:
                actor.wake(lane)
                is_awake = True
            if batch is None:
                actor.sleep(lane)
                return
            yield from self._finish(rank, actor, sites, batch, lane)
