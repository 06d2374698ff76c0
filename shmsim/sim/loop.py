"""The step loop in virtual time: the definition of the model, in SimPy.

requests -> continuous batching -> scheduler -> request ring -> workers -> device -> reply ring.

Every duration is either a cost of the profile or the step time of the device; nothing is fitted.
What is not modelled yet: contention for cores (each process runs as if it had one), ring
back-pressure, and the transfer of large payloads.
"""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import simpy

from shmsim.batching import Batch, Batcher
from shmsim.config import EngineConfig
from shmsim.message import (
    decode_batch,
    decode_request,
    encode_reply,
    encode_request,
    encode_second_call,
)
from shmsim.profile import MachineProfile
from shmsim.records import ProcessRow, RunRecords, StepRow, WaitRow
from shmsim.sim.draws import Draws
from shmsim.sim.waiter import DOZED, Seen, VirtualWait
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.wait import (
    SCHEDULER_RECV,
    WORKER_RECV,
    WaitContext,
    WaitOutcome,
    WaitPolicy,
    check_plan,
)
from shmsim.workload import Workload

Process = Generator[simpy.Event, Any, Any]


class VirtualClock(simpy.Environment):
    """SimPy's environment, whose time is whole nanoseconds here."""

    @property
    def now_ns(self) -> int:
        """The instant, from the start of the run."""
        return int(self.now)


@lru_cache(maxsize=4096)
def _request_bytes(n_sequences: int) -> int:
    return len(encode_request(decode_batch(n_sequences)))


@lru_cache(maxsize=4096)
def _reply_bytes(n_sequences: int) -> int:
    return len(encode_reply(decode_request(encode_request(decode_batch(n_sequences)))))


_SECOND_CALL_BYTES: Final = len(encode_second_call(1000))


@dataclass(frozen=True, slots=True)
class _Message:
    """What a slot holds."""

    step: int
    call: int
    batch: Batch | None  # None tells the workers to leave
    pending: bool
    published_ns: int


class _Reader:
    """One reader of a virtual ring."""

    def __init__(self) -> None:
        self.inbox: deque[_Message] = deque()
        self.wait: VirtualWait | None = None
        self.wait_started_ns = 0
        self.arrival: simpy.Event | None = None


class _Ring:
    """Messages from one writer to its readers, visible at once; the doorbell is the writer's."""

    def __init__(self, env: VirtualClock, n_readers: int) -> None:
        self.env = env
        self.readers = [_Reader() for _ in range(n_readers)]

    def publish(self, message: _Message) -> tuple[int, int]:
        """Make a message visible now; returns how many readers are armed, and how long at most."""
        n_armed = longest_ns = 0
        for reader in self.readers:
            reader.inbox.append(message)
            if reader.wait is None or reader.arrival is None or reader.arrival.triggered:
                continue
            rested_ns = self.env.now_ns - reader.wait_started_ns
            if reader.wait.is_armed(rested_ns):
                n_armed += 1
                longest_ns = max(longest_ns, rested_ns)
            reader.arrival.succeed()
        return n_armed, longest_ns


class _Actor:
    """A process of the model: its costs, its CPU time, its policies and its records."""

    def __init__(self, loop: "StepLoop", name: str, site: int, readers: list[_Reader]) -> None:
        self.loop = loop
        self.env = loop.env
        self.name = name
        self.site = site
        self.readers = readers
        self.draws = Draws(loop.profile, loop.tape, name)
        # As on the machine: each ring that is read has policies and random numbers of its own.
        self.uniforms = [
            loop.tape.uniform(name, f"policy{index or ''}") for index in range(len(readers))
        ]
        self.policies = [[loop.policy, loop.policy] for _ in readers]
        self.policy_cost = loop.profile.costs_of_policy(type(loop.policy).__name__)
        self.plan_noise = loop.tape.uniform(name, "plan")
        self.after_noise = loop.tape.uniform(name, "after")
        self.cpu_ns = 0
        self.n_waits = [0 for _ in readers]
        self.notified = 0
        self.elided = 0
        self.last_seen_ns = [0 for _ in readers]
        self.rehearsal = "rehearsal" if site == SCHEDULER_RECV else "worker_rehearsal"
        self.work = "slow" if site == SCHEDULER_RECV else "worker_slow"
        self.rows: list[WaitRow] = []
        self.finished: list[tuple[int, WaitContext, WaitOutcome]] = []

    def busy(self, duration_ns: int) -> simpy.Event:
        """Occupy a core for some time."""
        self.cpu_ns += duration_ns
        return self.env.timeout(duration_ns)

    def slowness(self, mode: str, rested_ns: int) -> int:
        """Extra time of the work that follows a wait."""
        if rested_ns <= 0:
            return 0
        return max(0, self.draws.next(f"{self.work}_after_{mode}", rested_ns))

    def publish(self, ring: _Ring, message: _Message, n_bytes: int, work_ns: int) -> Process:
        """Work, publish, notify."""
        yield self.busy(work_ns + self.draws.next("ring_publish", n_bytes))
        published = _Message(
            message.step, message.call, message.batch, message.pending, self.env.now_ns
        )
        n_armed, asleep_ns = ring.publish(published)
        if n_armed:
            self.notified += 1
            # One wake-up call serves all, but it wakes them one after another.
            cost_ns = n_armed * self.draws.next("notify_armed", asleep_ns)
        else:
            self.elided += 1
            cost_ns = self.draws.next("notify_unarmed")
        yield self.busy(cost_ns)
        return published.published_ns

    def learn(self) -> Process:
        """Let the policy learn from the last wait, off the critical path."""
        finished, self.finished = self.finished, []
        for index, ctx, outcome in finished:
            policies = self.policies[index]
            policies[ctx.call] = policies[ctx.call].after(ctx, outcome)
            u = self.after_noise.at(sum(self.n_waits) - len(finished) + 1)
            yield self.busy(int(self.policy_cost["after"].at(u)))

    def receive(
        self, call: int, step: int, known: Batch | None, pending: bool, ring: int = 0
    ) -> Process:
        """Wait for the next message by plan; returns it with how the wait ended."""
        index = self.n_waits[ring]
        noise_index = sum(self.n_waits)
        self.n_waits[ring] += 1
        reader = self.readers[ring]
        ctx = WaitContext(
            self.site,
            call,
            self.env.now_ns - self.last_seen_ns[ring],
            pending,
            len(known.decode) if known else 0,
            known.n_prefill_tokens if known else 0,
            known.n_kv_tokens if known else 0,
            self.uniforms[ring].at(index),
            self.loop.costs,
        )
        plan = self.policies[ring][call].plan(ctx)
        check_plan(plan)
        u = self.plan_noise.at(noise_index)
        enter_ns = int(self.policy_cost["plan"].at(u)) + self.draws.next("wait_enter")
        yield self.busy(enter_ns)
        started_ns = self.env.now_ns
        wait = VirtualWait(plan, self.draws, noise_index, self.rehearsal)
        if not reader.inbox:
            reader.wait, reader.wait_started_ns = wait, started_ns
            reader.arrival = self.env.event()
            yield reader.arrival
            reader.wait = reader.arrival = None
        message = reader.inbox.popleft()
        published_after_ns = message.published_ns - started_ns
        seen = wait.see(published_after_ns)
        seen_ns = started_ns + seen.seen_after_ns
        yield self.env.timeout(seen_ns - self.env.now_ns)
        self.cpu_ns += sum(seen.cpu_ns)
        self.last_seen_ns[ring] = seen_ns
        outcome = WaitOutcome(
            published_after_ns,
            seen.seen_after_ns,
            seen.stage,
            seen.cpu_ns,
            seen.overshoot_ns,
            seen.belled,
            0,
        )
        self.finished.append((ring, ctx, outcome))
        self.rows.append(
            WaitRow(
                self.name,
                self.site,
                call,
                step,
                pending,
                started_ns,
                message.published_ns,
                seen_ns,
                seen.stage,
                sum(seen.cpu_ns),
                seen.overshoot_ns,
                seen.belled,
                0,
            )
        )
        return message, seen

    def read_ns(self, n_bytes: int, seen: Seen) -> int:
        """From seen to the payload in hand, and what the wait slowed down."""
        return (
            self.slowness(seen.resumed_from, seen.rested_ns)
            + self.draws.next("wait_exit")
            + self.draws.next("ring_read", n_bytes)
        )

    def row(self, wall_ns: int) -> ProcessRow:
        """What it consumed."""
        return ProcessRow(self.name, wall_ns, self.cpu_ns, 0, 0, 0, 0, self.notified, self.elided)


class _Device:
    """The devices of all workers: a step starts once all have launched it and the last is done."""

    def __init__(self, loop: "StepLoop") -> None:
        self.env = loop.env
        self.step_time = loop.step_time
        self.noise = loop.tape.normal("device", "step")
        self.n_workers = loop.engine.workers
        self.n_launched: dict[int, int] = {}
        self.launched_ns: dict[int, int] = {}
        self.done_ns: dict[int, int] = {}
        self.finished: dict[int, simpy.Event] = {}
        self.last_done_ns = 0

    def launch(self, batch: Batch) -> None:
        step = batch.step
        self.n_launched[step] = self.n_launched.get(step, 0) + 1
        event = self.finished.setdefault(step, self.env.event())
        if self.n_launched[step] < self.n_workers:
            return
        self.launched_ns[step] = self.env.now_ns
        duration_ns = self.step_time.draw_ns(
            len(batch.decode), batch.n_prefill_tokens, self.noise.at(step)
        )
        done_ns = max(self.env.now_ns, self.last_done_ns) + duration_ns
        self.last_done_ns = self.done_ns[step] = done_ns
        self.env.process(self._finish(event, done_ns - self.env.now_ns))

    def _finish(self, event: simpy.Event, after_ns: int) -> Process:
        yield self.env.timeout(after_ns)
        event.succeed()

    def wait(self, step: int) -> simpy.Event:
        return self.finished[step]


class StepLoop:
    """One run of the model.

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
    """

    def __init__(
        self,
        profile: MachineProfile,
        engine: EngineConfig,
        step_time: StepTime,
        workload: Workload,
        policy: WaitPolicy,
        tape: Tape,
        delay_price: float,
        *,
        n_replies: int = 1,
    ) -> None:
        """Build the processes; nothing runs yet."""
        self.env = VirtualClock()
        self.profile = profile
        self.engine = engine
        self.step_time = step_time
        self.policy = policy
        self.tape = tape
        self.costs = profile.wait_costs(delay_price)
        self.batcher = Batcher(workload, engine.max_sequences, engine.max_batched_tokens)
        self.requests = _Ring(self.env, engine.workers)
        self.replies = [_Ring(self.env, 1) for _ in range(n_replies)]
        readers = [ring.readers[0] for ring in self.replies]
        self.scheduler = _Actor(self, "scheduler", SCHEDULER_RECV, readers)
        self.workers = [
            _Actor(self, f"worker{rank}", WORKER_RECV, [self.requests.readers[rank]])
            for rank in range(engine.workers)
        ]
        self.device = _Device(self)
        self.steps: list[StepRow] = []

    def run(self) -> RunRecords:
        """Run until every request has its tokens."""
        for rank, actor in enumerate(self.workers):
            self.env.process(self._worker(rank, actor))
        self.env.process(self._scheduler())
        self.env.run()
        wall_ns = max(self.env.now_ns, 1)
        actors = [self.scheduler, *self.workers]
        return RunRecords(
            self.steps,
            [row for actor in actors for row in actor.rows],
            self.batcher.request_rows(),
            [actor.row(wall_ns) for actor in actors],
        )

    # The scheduler.

    def _scheduler(self) -> Process:
        actor, batcher = self.scheduler, self.batcher
        in_flight: deque[tuple[Batch, int, int]] = deque()
        depth = 2 if self.engine.scheduling == "async" else 1
        while not batcher.is_finished:
            batcher.admit(self.env.now_ns)
            while batcher.has_work and len(in_flight) < depth:
                in_flight.append((yield from self._send(len(in_flight) == depth - 1)))
            if in_flight:
                yield from actor.learn()  # where nothing was sent since the last reply
                yield from self._await_reply(*in_flight.popleft())
            else:
                yield from self._idle()
        goodbye = _Message(len(self.steps), 0, None, False, 0)
        yield from actor.publish(self.requests, goodbye, _SECOND_CALL_BYTES, 0)

    def _idle(self) -> Process:
        """Sleep until the next request arrives; vLLM's engine core blocks on a queue here."""
        actor = self.scheduler
        arrival_ns = self.batcher.next_arrival_ns
        assert arrival_ns is not None, "unfinished, idle, and nobody arrives"
        rested_ns = max(arrival_ns - self.env.now_ns, 0)
        late_ns = actor.draws.next("timer_overshoot", rested_ns)
        yield self.env.timeout(rested_ns + late_ns)
        actor.cpu_ns += actor.draws.next("doze_cpu", rested_ns)
        yield actor.busy(actor.slowness("park", rested_ns))

    def _send(self, is_last_in_flight: bool) -> Process:
        """Form a batch and publish the first call; async, the second call with it."""
        actor = self.scheduler
        scheduled_ns = self.env.now_ns
        batch = self.batcher.schedule()
        n = batch.n_sequences
        draws = actor.draws
        work_ns = draws.next("schedule", n) + draws.next("encode_request", n)
        message = _Message(batch.step, 0, batch, batch.pending, 0)
        published_ns = yield from actor.publish(self.requests, message, _request_bytes(n), work_ns)
        if self.engine.scheduling == "async" and self.engine.calls_per_step == 2:
            yield from self._send_second_call(batch)
        if is_last_in_flight:
            yield from actor.learn()
        if self.engine.scheduling == "sync" and self.engine.calls_per_step == 2:
            _, seen = yield from self._receive_replies(0, batch, _SECOND_CALL_BYTES)
            yield actor.busy(
                actor.read_ns(_SECOND_CALL_BYTES, seen) + draws.next("decode_reply", 0)
            )
            yield from self._send_second_call(batch)
            yield from actor.learn()
        return batch, scheduled_ns, published_ns

    def _send_second_call(self, batch: Batch) -> Process:
        actor = self.scheduler
        work_ns = actor.draws.next("encode_request", 0)
        message = _Message(batch.step, 1, batch, batch.pending, 0)
        yield from actor.publish(self.requests, message, _SECOND_CALL_BYTES, work_ns)

    def _receive_replies(self, call: int, batch: Batch, n_bytes: int) -> Process:
        """Wait for one rank after the other: the first reply, and how the last wait ended."""
        first: _Message | None = None
        seen: Seen | None = None
        for ring in range(len(self.replies)):
            if seen is not None:
                yield self.scheduler.busy(self.scheduler.read_ns(n_bytes, seen))
            message, seen = yield from self.scheduler.receive(call, batch.step, batch, True, ring)
            assert message.step == batch.step, "replies come in order"
            first = first or message
        return first, seen

    def _await_reply(self, batch: Batch, scheduled_ns: int, published_ns: int) -> Process:
        """Wait for the tokens of a step, and take them in."""
        actor = self.scheduler
        call = self.engine.calls_per_step - 1
        n = batch.n_sequences
        message, seen = yield from self._receive_replies(call, batch, _reply_bytes(n))
        seen_ns = self.env.now_ns
        work_ns = (
            actor.read_ns(_reply_bytes(n), seen)
            + actor.draws.next("decode_reply", n)
            + actor.draws.next("complete", n)
        )
        self.batcher.complete(batch, seen_ns)
        self.steps.append(
            StepRow(
                batch.step,
                len(batch.decode),
                batch.n_prefill_tokens,
                scheduled_ns,
                published_ns,
                self.device.launched_ns[batch.step],
                self.device.done_ns[batch.step],
                message.published_ns,
                seen_ns,
            )
        )
        yield actor.busy(work_ns)

    # The workers.

    def _worker(self, rank: int, actor: _Actor) -> Process:
        is_async = self.engine.scheduling == "async"
        two_calls = self.engine.calls_per_step == 2
        launched: simpy.Store = simpy.Store(self.env)
        if is_async:
            self.env.process(self._reply_thread(rank, actor, launched))
        known: Batch | None = None
        pending = False  # the first wait lasts until an arrival
        step = 0
        while True:
            message, seen = yield from actor.receive(0, step, known, pending)
            batch = message.batch
            if batch is None:
                return
            n = batch.n_sequences
            draws = actor.draws
            yield actor.busy(
                actor.read_ns(_request_bytes(n), seen)
                + draws.next("decode_request", n)
                + draws.next("launch")
            )
            self.device.launch(batch)
            known, pending, step = batch, message.pending, batch.step + 1
            if two_calls:
                if not is_async and rank < len(self.replies):
                    acknowledgement = _Message(batch.step, 0, batch, True, 0)
                    yield from actor.publish(
                        self.replies[rank],
                        acknowledgement,
                        _SECOND_CALL_BYTES,
                        draws.next("encode_reply"),
                    )
                yield from actor.learn()
                second, seen = yield from actor.receive(1, batch.step, known, True)
                yield actor.busy(
                    actor.read_ns(_SECOND_CALL_BYTES, seen) + draws.next("decode_request", 0)
                )
                assert second.step == batch.step, "calls come in order"
            if is_async:
                launched.put(batch)
                yield from actor.learn()
            else:
                yield from self._finish(rank, actor, batch)

    def _finish(self, rank: int, actor: _Actor, batch: Batch) -> Process:
        """Wait for the device and, where it is due, reply."""
        rested_from_ns = self.env.now_ns
        yield self.device.wait(batch.step)
        draws = actor.draws
        rested_ns = self.env.now_ns - rested_from_ns
        work_ns = draws.next("device_return") + actor.slowness(DOZED, rested_ns)
        if rank < len(self.replies):
            work_ns += draws.next("encode_reply", batch.n_sequences)
            message = _Message(batch.step, 1, batch, True, 0)
            yield from actor.publish(
                self.replies[rank], message, _reply_bytes(batch.n_sequences), work_ns
            )
        else:
            yield actor.busy(work_ns)
        if self.engine.scheduling == "sync":
            yield from actor.learn()

    def _reply_thread(self, rank: int, actor: _Actor, launched: simpy.Store) -> Process:
        """What vLLM's async output thread does: wait for the device beside the main thread."""
        while True:
            batch = yield launched.get()
            yield from self._finish(rank, actor, batch)
