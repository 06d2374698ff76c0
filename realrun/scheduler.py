"""The scheduler of the real loop: batches, publishes, waits for replies.

Twin of ``StepLoop._scheduler`` in shmsim/sim/loop.py: the same steps in the same order, so that
each of its costs has one place in both.
"""

import time
from collections import deque
from zlib import crc32

from realrun.accounting import Accounting
from realrun.bulk import BulkPublisher
from realrun.calls import Replies
from realrun.cycle import SchedulerCycle, Sent, known_of_batch
from realrun.layout import ORIGIN_AT
from realrun.publisher import Publisher
from realrun.rehearsal import Rehearsal
from realrun.ring import LEAVE, PENDING, START, WARM_UP, RingReader, RingWriter, SlotWatch
from realrun.segment import Segment
from realrun.spec import RunSpec
from realrun.waiter import Known, Waiter
from realrun.waiting import Stopped
from shmsim.batching import Batch, Batcher
from shmsim.message import decode_second_call, encode_second_call
from shmsim.records import RunRecords
from shmsim.tape import Tape
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT
from shmsim.workload import Lengths, Workload, closed_loop

_N_WARM_UP_TOKENS = 40
_CONTROL = Known(0, True, 0, 0, 0)  # known about messages that are no call
_LOOK_S = 0.001  # while others start
_SETTLE_S = 0.03  # for the workers to see START before time begins


class Scheduler:
    """One scheduler process.

    Parameters
    ----------
    segment
        Shared with the workers.
    spec
        What to run.
    rehearsal
        Private to this process.
    """

    def __init__(self, segment: Segment, spec: RunSpec, rehearsal: Rehearsal) -> None:
        """Open both rings."""
        self._segment = segment
        self._engine = spec.engine
        self._is_async = spec.engine.scheduling == "async"
        self._two_calls = spec.engine.calls_per_step == 2
        self._tape = Tape(spec.seed, spec.replication)
        self._workload = spec.workload.build(self._tape)
        writer = RingWriter(segment, segment.layout.request)
        slot_waiter = Waiter(
            "scheduler",
            SCHEDULER_SLOT,
            SlotWatch(writer, segment),
            spec.policy,
            spec.costs,
            self._tape.uniform("scheduler", "slot policy"),
            rehearsal.rehearse_scheduler,
        )
        self._bulk: BulkPublisher | None = None
        if spec.payload.carries_bulk:
            self._bulk = BulkPublisher(segment, writer, slot_waiter, spec)
        self._publisher = self._bulk or Publisher(writer, slot_waiter)
        self._cycle = SchedulerCycle(self._publisher, computes=spec.device.computes)
        self._replies = Replies(
            [
                Waiter(
                    "scheduler",
                    SCHEDULER_RECV,
                    RingReader(segment, ring, 0),
                    spec.policy,
                    spec.costs,
                    self._tape.uniform("scheduler", f"policy{rank or ''}"),
                    rehearsal.rehearse_scheduler,
                )
                for rank, ring in enumerate(spec.reply_rings)
            ]
        )
        rehearsal.prepare_scheduler_work()

    def run(self) -> RunRecords:
        """Warm up, run the workload, tell the workers to leave."""
        cycle = self._cycle
        self._await_everybody()
        constant = Lengths(_N_WARM_UP_TOKENS, _N_WARM_UP_TOKENS, _N_WARM_UP_TOKENS)
        cycle.flags = WARM_UP
        cycle.origin_ns = time.monotonic_ns()
        self._serve(closed_loop(2, 1, constant, constant, self._tape))
        self._tell(0, START)
        time.sleep(_SETTLE_S)
        self._replies.reset()
        cycle.steps = []
        cycle.tokens = {}
        cycle.flags = 0
        self._publisher.reset()
        accounting = Accounting("scheduler")
        # Time begins when nothing is left to prepare: the first request shall not wait for it.
        cycle.origin_ns = time.monotonic_ns()
        self._segment.store(ORIGIN_AT, cycle.origin_ns)
        batcher = self._serve(self._workload)
        self._replies.learn()
        waiters = [*self._replies.waiters, self._publisher.waiter]
        process = accounting.row(0, self._publisher, waiters, self._replies.n_late)
        self._tell(2 * len(cycle.steps), LEAVE)
        if self._bulk is not None:
            self._bulk.await_slots(lambda: self._segment.stopped)
            process = self._bulk.account(process)
            self._bulk.close()
        rows = [row for waiter in waiters for row in waiter.rows_since(cycle.origin_ns)]
        # Of every request's tokens, in order: the same whatever the policy, the ranks, the batches.
        meta = {"tokens_crc32": crc32(repr(sorted(cycle.tokens.items())).encode())}
        if self._bulk is not None:
            meta["bulk_digest"] = self._bulk.digest()
        return RunRecords(cycle.steps, rows, batcher.request_rows(), [process], meta=meta)

    def _await_everybody(self) -> None:
        """Wait until all workers are there: policies shall not learn how long one takes to start.

        A device that computes has a model to load first.
        """
        while not all(pid for pid, _ in self._segment.attendance()):
            if self._segment.stopped:
                raise Stopped
            time.sleep(_LOOK_S)

    def _tell(self, call_id: int, flags: int) -> None:
        """Publish what is no call."""
        self._publisher.send(call_id, flags | self._cycle.flags, [b""], _CONTROL)

    def _serve(self, workload: Workload) -> Batcher:
        """Serve every request of a workload."""
        cycle = self._cycle
        batcher = Batcher(workload, self._engine.max_sequences, self._engine.max_batched_tokens)
        in_flight: deque[Sent] = deque()
        depth = self._engine.depth
        while not batcher.is_finished:
            cycle.admit(batcher)
            while batcher.has_work and len(in_flight) < depth:
                in_flight.append(self._send(batcher, len(in_flight) == depth - 1))
            if in_flight:
                self._replies.learn()  # where nothing was left to send
                sent = in_flight.popleft()
                call, call_id = int(self._two_calls), 2 * sent.batch.step + 1
                message, seen_ns = self._replies.receive(call, call_id, known_of_batch(sent.batch))
                cycle.take_in(batcher, sent, message, seen_ns)
            else:
                # vLLM's engine core blocks on a queue here, fed by the API server.
                arrival_ns = batcher.next_arrival_ns
                assert arrival_ns is not None, "unfinished, idle, and nobody arrives"
                _sleep_until(cycle.origin_ns + arrival_ns)
        return batcher

    def _send(self, batcher: Batcher, is_last_in_flight: bool) -> Sent:
        """Form a batch and publish the first call; async, the second call with it."""
        sent = self._cycle.send(batcher)
        if self._two_calls and self._is_async:
            self._send_second_call(sent.batch)
        waits_twice = self._two_calls and not self._is_async
        if is_last_in_flight and not waits_twice:  # who replies to the first call does so at once
            self._replies.learn()
        if waits_twice:
            batch = sent.batch
            message, _ = self._replies.receive(0, 2 * batch.step, known_of_batch(batch))
            decode_second_call(message.payload)
            self._send_second_call(batch)
            self._replies.learn()
        return sent

    def _send_second_call(self, batch: Batch) -> None:
        pending = PENDING if batch.pending else 0
        self._cycle.publish(batch, 2 * batch.step + 1, pending, encode_second_call(batch.step))


def _sleep_until(instant_ns: int) -> None:
    left_ns = instant_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
