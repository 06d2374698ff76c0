"""A worker of the real loop: receives calls, launches steps, and replies if it is its turn.

Twin of ``StepLoop._worker`` in shmsim/sim/loop.py.
"""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final

from realrun.accounting import Accounting
from realrun.bulk import BulkReader
from realrun.cores import stay_on
from realrun.cycle import Task, WorkerCycle
from realrun.device.make import make_device
from realrun.host import exact_timers
from realrun.layout import ORIGIN_AT
from realrun.publisher import Publisher
from realrun.rehearsal import Rehearsal
from realrun.ring import LEAVE, START, RingReader, RingWriter, SlotWatch
from realrun.run_queue import counted
from realrun.segment import Segment
from realrun.spec import RunSpec
from realrun.waiter import Known, Waiter
from realrun.waiting import Stopped
from shmsim.message import decode_second_call, encode_second_call
from shmsim.records import RunRecords
from shmsim.tape import Tape
from shmsim.wait import WORKER_RECV, WORKER_SLOT

_NOTHING_KNOWN: Final = Known(0, False, 0, 0, 0)  # the first wait lasts until an arrival


class Worker:
    """One worker process.

    Parameters
    ----------
    segment
        Shared with the scheduler and the other workers.
    spec
        What to run.
    rank
        From 0, which is the output rank.
    rehearsal
        Private to this process.
    """

    def __init__(self, segment: Segment, spec: RunSpec, rank: int, rehearsal: Rehearsal) -> None:
        """Open both rings and the device."""
        self._segment = segment
        self._name = f"worker{rank}"
        self._replies = rank < len(spec.reply_rings)
        self._is_async = spec.engine.scheduling == "async"
        self._two_calls = spec.engine.calls_per_step == 2
        tape = Tape(spec.seed, spec.replication)
        # The thread that waits for the device; a rehearsal must not be at work twice at once.
        replying = rehearsal
        if self._is_async and spec.device.computes:
            layout = rehearsal.segment.layout
            replying = Rehearsal(Segment.private(layout), spec.policy)
            replying.prepare_worker_work()
        self._device = make_device(segment, spec, rank, tape, replying.rehearse_worker)
        writer = RingWriter(segment, segment.layout.replies[rank])
        slot_waiter = Waiter(
            self._name,
            WORKER_SLOT,
            SlotWatch(writer, segment),
            spec.policy,
            spec.costs,
            tape.uniform(self._name, "slot policy"),
            rehearsal.rehearse_worker,
        )
        self._publisher = Publisher(writer, slot_waiter)
        self._bulk = BulkReader(segment, spec, rank) if spec.payload.carries_bulk else None
        self._waiter = Waiter(
            self._name,
            WORKER_RECV,
            self._bulk or RingReader(segment, segment.layout.request, rank),
            spec.policy,
            spec.costs,
            tape.uniform(self._name, "policy"),
            rehearsal.rehearse_worker,
        )
        rehearsal.prepare_worker_work()
        self._cycle = WorkerCycle(
            self._device, self._publisher, replies=self._replies, is_output=rank == 0
        )
        self._reply_core = spec.cores_of(1 + rank).replies
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self) -> RunRecords:
        """Serve calls until told to leave."""
        thread = threading.Thread(target=counted(self._reply_thread), name="reply", daemon=True)
        if self._is_async:
            thread.start()
        accounting = self._receive_until_leave()
        if self._is_async:
            self._jobs.put(None)
            thread.join()
        device = self._device
        for waiter in device.waiters:
            waiter.learn()
        waiters = [self._waiter, self._publisher.waiter, *device.waiters]
        process = accounting.row(device.emulation_cpu_ns, self._publisher, waiters)
        facts = device.facts()
        if self._bulk is not None:
            process = self._bulk.account(process)
            facts["bulk"] = {**facts.get("bulk", {}), **self._bulk.facts()}
            self._bulk.close()
        device.close()
        origin_ns = self._segment.load(ORIGIN_AT)
        steps = [
            row._replace(launched_ns=row.launched_ns - origin_ns, done_ns=row.done_ns - origin_ns)
            for row in self._cycle.steps
        ]
        waits = [row for waiter in waiters for row in waiter.rows_since(origin_ns)]
        return RunRecords(steps, waits, [], [process], meta={"device": facts})

    def _receive_until_leave(self) -> Accounting:
        waiter, device = self._waiter, self._device
        accounting = Accounting(self._name)
        known = _NOTHING_KNOWN
        while True:
            message, _ = waiter.wait(0, known)
            if message.flags & LEAVE:
                return accounting
            if message.flags & START:
                waiter.reset()
                device.forget()
                self._when_done(self._start_records)
                accounting = Accounting(self._name)
                known = _NOTHING_KNOWN
                continue
            bulk = None if self._bulk is None else self._bulk.take()
            task = self._cycle.launch(message, bulk)
            del bulk  # or its slot of the arena would be held until the next call
            known = task.known
            if self._two_calls:
                if self._replies and not self._is_async:
                    reply = encode_second_call(task.call.step)
                    self._publisher.send(2 * task.call.step, 0, [reply], known)
                second, _ = waiter.wait(1, known)
                decode_second_call(second.payload)
            # Learning is for when nobody waits for this worker: its device is at work now.
            if not self._is_async:
                self._learn()
            self._when_done(partial(self._finish, task))
            if self._is_async:
                waiter.learn()
            known = known._replace(step=known.step + 1, pending=task.pending)

    def _learn(self) -> None:
        for waiter in (self._waiter, *self._device.waiters):
            waiter.learn()

    def _when_done(self, job: Callable[[], None]) -> None:
        """Do something behind all steps launched so far: here, or async on the reply thread."""
        if self._is_async:
            self._jobs.put(job)
        else:
            job()

    def _start_records(self) -> None:
        """Forget the warm-up."""
        self._cycle.steps = []
        self._publisher.reset()
        self._device.begin()
        if self._bulk is not None:
            self._bulk.reset()

    def _finish(self, task: Task) -> None:
        """Wait for the device and, where it is due, reply."""
        self._cycle.reply(task, *self._device.wait(task.launched))
        if self._bulk is not None:
            self._bulk.release()  # what was copied for this step has landed
        if self._is_async:  # on the reply thread, of which this is all the work
            for waiter in self._device.waiters:
                waiter.learn()

    def _reply_thread(self) -> None:
        """What vLLM's async output thread does: wait for the device beside the main thread."""
        exact_timers()
        stay_on(self._reply_core)
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Stopped:
                return
