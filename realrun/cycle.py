"""What scheduler and workers do between two waits, in a run and in its rehearsals.

Both use what is here, so that a rehearsal warms the very code that follows, and calibration times
it: work after a sleep is the slower, the more code it runs through.
"""

import time
from typing import NamedTuple

from realrun.device.bulk import Bulk
from realrun.device.interface import Device, Launched
from realrun.publisher import Publisher
from realrun.ring import PENDING, WARM_UP, Message
from realrun.waiter import Known
from shmsim.batching import Batch, Batcher
from shmsim.message import (
    CallOne,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from shmsim.records import StepRow


class Sent(NamedTuple):
    """A batch in flight."""

    batch: Batch
    scheduled_ns: int
    published_ns: int


class SchedulerCycle:
    """From a reply to the next call.

    Parameters
    ----------
    publisher
        Of calls.
    computes
        Whether replies hold tokens that are to be kept.

    Attributes
    ----------
    steps
        A row for each step taken in.
    tokens
        By request, where they are kept.
    origin_ns
        When time began.
    flags
        Of every message.
    """

    def __init__(self, publisher: Publisher, *, computes: bool = False) -> None:
        """Nothing was sent yet."""
        self.publisher = publisher
        self.steps: list[StepRow] = []
        self.tokens: dict[int, list[int]] = {}
        self.origin_ns = 0
        self.flags = 0
        self._computes = computes

    def take_in(self, batcher: Batcher, sent: Sent, message: Message, seen_ns: int) -> None:
        """Take in the tokens of a step."""
        batch = sent.batch
        _, _, tokens = decode_reply(message.payload)
        if self._computes:
            self._keep(batch, tokens)
        origin_ns = self.origin_ns
        batcher.complete(batch, seen_ns - origin_ns)
        self.steps.append(
            StepRow(
                batch.step,
                len(batch.decode),
                batch.n_prefill_tokens,
                sent.scheduled_ns - origin_ns,
                sent.published_ns - origin_ns,
                0,  # when it was launched and done, the worker knows
                0,
                message.published_ns - origin_ns,
                seen_ns - origin_ns,
            )
        )

    def admit(self, batcher: Batcher) -> None:
        """Let in who has arrived by now."""
        batcher.admit(time.monotonic_ns() - self.origin_ns)

    def send(self, batcher: Batcher) -> Sent:
        """Form a batch and publish its first call."""
        scheduled_ns = time.monotonic_ns()
        batch = batcher.schedule()
        pending = PENDING if batch.pending else 0
        request = encode_request(batch)
        return Sent(batch, scheduled_ns, self.publish(batch, 2 * batch.step, pending, request))

    def publish(self, batch: Batch, call_id: int, flags: int, payload: bytes) -> int:
        """Publish a call about a batch; returns the stamp."""
        return self.publisher.send(call_id, flags | self.flags, [payload], known_of_batch(batch))

    def _keep(self, batch: Batch, tokens: list[list[int]]) -> None:
        """Append the tokens of a step to those of their requests."""
        n_decode = len(batch.decode)
        for request, token in zip(batch.decode, tokens[:n_decode], strict=True):
            self.tokens.setdefault(request, []).extend(token)
        for chunk, token in zip(batch.prefill, tokens[n_decode:], strict=True):
            if chunk.is_last:
                self.tokens.setdefault(chunk.request, []).extend(token)


class Task(NamedTuple):
    """A step that a worker has launched."""

    call: CallOne
    launched: Launched
    known: Known
    pending: bool


class WorkerCycle:
    """From a call to its launch, and from the end of the step to the reply.

    Parameters
    ----------
    device
        Computes steps.
    publisher
        Of replies.
    replies, is_output
        Whether this worker replies, and whether it writes down steps.

    Attributes
    ----------
    steps
        A row for each step, of the output rank.
    """

    def __init__(
        self, device: Device, publisher: Publisher, *, replies: bool, is_output: bool
    ) -> None:
        """Nothing was launched yet."""
        self.steps: list[StepRow] = []
        self._device = device
        self._publisher = publisher
        self._replies = replies
        self._is_output = is_output

    def launch(self, message: Message, bulk: Bulk | None = None) -> Task:
        """Launch what a message calls for, with the bulk that came with it."""
        call = decode_request(message.payload)
        self._device.load(call)
        if bulk is not None:
            self._device.upload(bulk)
        launched = self._device.launch(call, is_warm_up=bool(message.flags & WARM_UP))
        return Task(call, launched, known_of_call(call), bool(message.flags & PENDING))

    def reply(self, task: Task, launched_ns: int, done_ns: int) -> None:
        """Reply where it is due, and write down when the device worked."""
        call = task.call
        if self._replies:
            payload = encode_reply(call, self._device.outputs(task.launched))
            self._publisher.send(2 * call.step + 1, 0, [payload], known_of_call(call))
        if self._is_output:
            self.steps.append(
                StepRow(
                    call.step,
                    call.n_decode,
                    call.n_prefill_tokens,
                    0,
                    0,
                    launched_ns,
                    done_ns,
                    0,
                    0,
                )
            )


def known_of_batch(batch: Batch) -> Known:
    """The scheduler knows its batch, and that the workers are at it."""
    return Known(batch.step, True, len(batch.decode), batch.n_prefill_tokens, batch.n_kv_tokens)


def known_of_call(call: CallOne) -> Known:
    """The worker knows its batch, and that the scheduler is at the next one."""
    return Known(call.step, True, call.n_decode, call.n_prefill_tokens, call.n_kv_tokens)
