"""A harmless repeat of the work that follows a wait."""

from typing import Final

from realrun.cycle import SchedulerCycle, Sent, WorkerCycle
from realrun.device.echo import EchoDevice
from realrun.publisher import Publisher
from realrun.ring import RingReader, RingWriter, SlotWatch
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from realrun.waiting import RawWait
from shmsim.batching import Batcher
from shmsim.message import decode_request, encode_reply, encode_request
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.units import US
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT, TYPICAL_COSTS, WaitPolicy
from shmsim.workload import Request, Workload

KNOWN: Final = Known(0, True, 4, 0, 4000)


class Rehearsal:
    """Both ends of the loop within one process: what a run does between two waits, harmlessly.

    Calibration times it; a REHEARSE stage of a plan runs it, so that the code and the interpreter's
    data are in the caches when the real work comes. It has rings, a device and a batcher of its
    own: a rehearsal on the live slot would read it while the scheduler writes it.

    Parameters
    ----------
    segment
        Private to this process.
    policy
        Whose plans and successors are computed.
    """

    def __init__(self, segment: Segment, policy: WaitPolicy) -> None:
        """Open rings, device and a batcher that never runs out of work."""
        self.segment = segment
        layout = segment.layout
        self.requests = RingWriter(segment, layout.request)
        self.request_reader = RingReader(segment, layout.request, 0)
        self.replies = RingWriter(segment, layout.replies[0])
        self.reply_reader = RingReader(segment, layout.replies[0], 0)
        tape = Tape(0)
        self.waiter = Waiter(
            "calibration",
            SCHEDULER_RECV,
            self.reply_reader,
            policy,
            TYPICAL_COSTS,  # a policy's own CPU does not depend on them
            tape.uniform("calibration", "policy"),
        )
        self.device = EchoDevice(segment, 0, StepTime(300 * US), tape, 100 * US)
        self.batcher = endless_batcher(4)
        self.scheduler = SchedulerCycle(self._publisher(self.requests, tape, policy))
        publisher = self._publisher(self.replies, tape, policy)
        self.worker = WorkerCycle(self.device, publisher, replies=True, is_output=True)
        batch = self.batcher.schedule()
        self.sent = Sent(batch, 0, 0)
        self._request = encode_request(batch)
        self._reply = encode_reply(decode_request(self._request))

    def _publisher(self, writer: RingWriter, tape: Tape, policy: WaitPolicy) -> Publisher:
        watch, uniform = SlotWatch(writer, self.segment), tape.uniform("calibration", "slots")
        waiter = Waiter("calibration", SCHEDULER_SLOT, watch, policy, TYPICAL_COSTS, uniform)
        return Publisher(writer, waiter)

    def wait_once(self, lasting_ns: int = 0) -> None:
        """Wait for a reply that is there already, so that there is a wait to learn from.

        Parameters
        ----------
        lasting_ns
            How long it shall seem to have been: what policies do goes by that.
        """
        waiter = self.waiter
        self.replies.publish(1, 0, [self._reply])
        plan = waiter.begin(0, KNOWN)
        seen_ns, numbers, message = self.reply_reader.receive(plan, waiter.rehearse)
        raw = RawWait.of(numbers)
        began = raw._replace(started_ns=raw.started_ns - lasting_ns)
        waiter.end(seen_ns, began.numbers, message.published_ns)
        waiter.rows.clear()

    def prepare_scheduler_work(self) -> None:
        """Put a reply into the ring."""
        self.replies.publish(1, 0, [self._reply])

    def scheduler_work(self) -> None:
        """What a scheduler does from a reply to its next call."""
        message = self.reply_reader.read()
        self.scheduler.take_in(self.batcher, self.sent, message, message.published_ns)
        self.scheduler.admit(self.batcher)
        self.sent = self.scheduler.send(self.batcher)

    def decide(self) -> None:
        """What follows that work, up to the next wait: learn from the last one, and plan."""
        self.waiter.learn()
        self.waiter.begin(0, KNOWN)

    def finish_scheduler_work(self) -> None:
        """Take the request out of the ring again; have a wait to learn from."""
        self.request_reader.read()
        self.scheduler.steps.clear()
        self.wait_once()

    def prepare_worker_work(self) -> None:
        """Put a request into the ring."""
        self.requests.publish(1, 0, [self._request])

    def worker_work(self) -> None:
        """What a worker does from a call to its reply, the device's time left out."""
        task = self.worker.launch(self.request_reader.read())
        self.worker.reply(task, 0, 0)

    def finish_worker_work(self) -> None:
        """Take the reply out of the ring again; have a wait to learn from."""
        self.reply_reader.read()
        self.worker.steps.clear()
        self.wait_once()

    def rehearse_scheduler(self, waiter: Waiter) -> None:
        """Do a scheduler's work once, and decide as the one who waits would.

        `prepare_scheduler_work` comes before the first time.
        """
        self.scheduler_work()
        self._decide_as(waiter)
        self.finish_scheduler_work()
        self.prepare_scheduler_work()

    def rehearse_worker(self, waiter: Waiter) -> None:
        """Do a worker's work once, and decide as the one who waits would.

        `prepare_worker_work` comes before the first time.
        """
        self.worker_work()
        self._decide_as(waiter)
        self.finish_worker_work()
        self.prepare_worker_work()

    def _decide_as(self, waiter: Waiter) -> None:
        # With its policies and waits: on its own, whose waits have no length, a policy that looks
        # at the length of waits would go another way than the one who is to be warmed.
        self.waiter.imitate(waiter)
        self.waiter.learn()
        for call in (0, 1):
            self.waiter.begin(call, KNOWN)


def endless_batcher(n_sequences: int) -> Batcher:
    """A batcher whose every batch decodes that many sequences."""
    request = Request(0, 1, 1 << 30)
    batcher = Batcher(Workload((request,) * n_sequences), n_sequences, 1 << 20)
    batcher.admit(0)
    batcher.complete(batcher.schedule(), 0)
    return batcher
