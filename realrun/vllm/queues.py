"""Subclasses of vLLM's queue and condition that tell our ends what happens.

An instance is given the subclass after vLLM has made it (`observe`): vLLM's classes stay as they
are, as do all queues that are not part of the step loop, and what vLLM's code does is done by
vLLM's code. Which of its lines this relies on: `realrun.vllm.facts`.
"""

import os
import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from realrun.vllm.beside import Beside
from realrun.vllm.ends import End
from realrun.vllm.process import Process
from realrun.vllm.reading import ReadEnd
from realrun.vllm.recording import ReadRecorder, WriteRecorder
from realrun.vllm.writing import WriteEnd
from shmsim.units import S

if TYPE_CHECKING:
    from collections.abc import Generator


def observe_reader(
    queue: Any, process: Process, beside: Beside, site: int, rank: int, reader: int
) -> None:
    """Have a queue's reader tell an end of ours, which decides how it waits if there are policies.

    Parameters
    ----------
    queue
        The reader's ``MessageQueue``.
    process, beside, site, rank
        As of `realrun.vllm.ends.End`.
    reader
        Which of the ring's readers this is.
    """
    known = process, beside, site, rank, queue._spin_condition.busy_loop_s
    if process.has_policies:
        end = ReadEnd(*known, reader)
        _become(queue, end, _Reading(end), "reader", "reader condition")
    else:
        recorder = ReadRecorder(*known)
        _become(queue, recorder, _Reading(recorder), "recorded reader")


def observe_writer(
    queue: Any, process: Process, beside: Beside, site: int, rank: int, ranks: Sequence[int]
) -> None:
    """Have a queue's writer tell an end of ours, which decides how it waits and whether it pings.

    Parameters
    ----------
    queue
        The writer's ``MessageQueue``.
    process, beside, site, rank, ranks
        As of `realrun.vllm.recording.WriteRecorder`.
    """
    known = process, beside, site, rank, ranks
    if process.has_policies:
        end = WriteEnd(*known)
        _become(queue, end, _Writing(end), "writer", "writer condition")
    else:
        recorder = WriteRecorder(*known)
        _become(queue, recorder, _Writing(recorder), "recorded writer")


def _become(
    queue: Any, end: End, context: "_Reading | _Writing", queue_name: str, condition_name: str = ""
) -> None:
    queue.realrun_end, queue.realrun_context = end, context
    if condition_name:
        queue._spin_condition.realrun_end = end
        queue._spin_condition.__class__ = _classes()[condition_name]
    queue.__class__ = _classes()[queue_name]


class _Context:
    """VLLM's context of a read or a write, told to an end; one for all those of a queue.

    vLLM makes it with ``contextlib.contextmanager`` of a generator. The generator is run here as it
    would be there, which takes less than a wrapper around a wrapper.
    """

    __slots__ = ("_end", "generator")

    def __init__(self, end: Any) -> None:
        self._end = end
        self.generator: Generator[memoryview]

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None:
            self._done()
            next(self.generator, None)
            return False
        try:
            self.generator.throw(error)
        except StopIteration:
            return True
        except BaseException as raised:
            if raised is not error:
                raise
            # As ``contextlib`` does. With this frame in it the error's traceback would be a cycle
            # that holds all its frames and their queue, for the collector to end; and before 0.32
            # that hangs in pyzmq, which ends the context of sockets that are open.
            error.__traceback__ = trace
            return False
        raise RuntimeError("vLLM's queue goes on after an error")

    def _done(self) -> None:
        """The block ends without an error."""


class _Reading(_Context):
    __slots__ = ()
    _end: ReadRecorder

    def __enter__(self) -> memoryview:
        slot = next(self.generator)
        self._end.seen()
        return slot


class _Writing(_Context):
    """What was written is published before vLLM sets its flag."""

    __slots__ = ("_slot",)
    _end: WriteRecorder

    def __enter__(self) -> memoryview:
        self._slot = slot = next(self.generator)
        return slot

    def _done(self) -> None:
        self._end.publish(self._slot)


@cache
def _classes() -> dict[str, type]:
    from vllm.distributed.device_communicators import shm_broadcast as vllm_queue

    # By their names: a look for what is above a class takes as long as some of these calls.
    theirs: Any = vllm_queue.MessageQueue
    dequeue, acquire_read = theirs.dequeue, theirs.acquire_read.__wrapped__
    enqueue, acquire_write = theirs.enqueue, theirs.acquire_write.__wrapped__
    condition: Any = vllm_queue.SpinCondition
    wait_as_vllm, record_read = condition.wait, condition.record_read
    notify, monotonic = condition.notify, time.monotonic

    class RecordedReader(vllm_queue.MessageQueue):  # type: ignore[misc] # no types here
        realrun_end: ReadRecorder
        realrun_context: _Reading

        def dequeue(self, *args: Any, **kwargs: Any) -> Any:
            end = self.realrun_end
            end.begin()
            message = dequeue(self, *args, **kwargs)
            end.finish(message)
            return message

        def acquire_read(self, *args: Any, **kwargs: Any) -> Any:
            context = self.realrun_context
            context.generator = acquire_read(self, *args, **kwargs)
            return context

    class ObservedReader(RecordedReader):
        realrun_end: ReadEnd

        def acquire_read(self, *args: Any, **kwargs: Any) -> Any:
            if self.realrun_end.keeps:
                return super().acquire_read(*args, **kwargs)
            return theirs.acquire_read(self, *args, **kwargs)

    class ReaderCondition(vllm_queue.SpinCondition):  # type: ignore[misc] # no types here
        realrun_end: ReadEnd
        busy_loop_s: float

        def wait(self, timeout_ms: int | None = None) -> None:
            end = self.realrun_end
            if end.by_policy and end.carry_out(timeout_ms):
                return
            if end.window_s is None and monotonic() <= self.last_read + self.busy_loop_s:
                wait_as_vllm(self, timeout_ms)  # one round of a spin
            else:
                self._wait_as_vllm_does(end, timeout_ms)

        def _wait_as_vllm_does(self, end: ReadEnd, timeout_ms: int | None) -> None:
            own_s = self.busy_loop_s
            if end.window_s is not None:
                self.busy_loop_s = end.window_s
            try:
                if not end.is_used or time.monotonic() <= self.last_read + self.busy_loop_s:
                    super().wait(timeout_ms)
                    return
                end.start_poll()
                vllm_queue.memory_fence()
                if end.has_nothing():
                    super().wait(timeout_ms)
                else:
                    os.sched_yield()  # its flag is set in an instant
                end.after_poll()
            finally:
                self.busy_loop_s = own_s

        def record_read(self) -> None:
            record_read(self)
            self.realrun_end.read()

        def cancel(self) -> None:
            super().cancel()
            self.realrun_end.stop()

    class RecordedWriter(vllm_queue.MessageQueue):  # type: ignore[misc] # no types here
        realrun_end: WriteRecorder
        realrun_context: _Writing

        def enqueue(self, obj: Any, *args: Any, **kwargs: Any) -> None:
            end = self.realrun_end
            end.begin(obj)
            enqueue(self, obj, *args, **kwargs)
            end.finish()

        def acquire_write(self, timeout: float | None = None) -> Any:
            context = self.realrun_context
            context.generator = acquire_write(self, timeout)
            return context

    class ObservedWriter(RecordedWriter):
        realrun_end: WriteEnd

        def acquire_write(self, timeout: float | None = None) -> Any:
            end = self.realrun_end
            if (reader := end.full_behind()) is not None:
                timeout = self._await_slot(end, reader, timeout)
            return super().acquire_write(timeout)

        def _await_slot(self, end: WriteEnd, first: int, timeout: float | None) -> float | None:
            """Wait until all readers are done with the slot; what is left of the timeout."""
            interval = vllm_queue.VLLM_RINGBUFFER_WARNING_INTERVAL
            started, n_warning = time.monotonic(), 1
            reader: int | None = first
            while reader is not None:
                elapsed = time.monotonic() - started
                if timeout is not None and elapsed > timeout:
                    raise TimeoutError
                if elapsed > interval * n_warning:
                    vllm_queue.logger.info(vllm_queue.LONG_WAIT_TIME_LOG_MSG, interval)
                    n_warning += 1
                left_s = interval * n_warning - elapsed
                if timeout is not None:
                    left_s = min(left_s, timeout - elapsed)
                end.await_slot(reader, int(left_s * S))
                reader = end.full_behind()
            return None if timeout is None else max(timeout - (time.monotonic() - started), 0.0)

    class WriterCondition(vllm_queue.SpinCondition):  # type: ignore[misc] # no types here
        realrun_end: WriteEnd

        def notify(self) -> None:
            if self.realrun_end.must_ping():
                notify(self)

        def cancel(self) -> None:
            super().cancel()
            self.realrun_end.stop()

    return {
        "recorded reader": RecordedReader,
        "recorded writer": RecordedWriter,
        "reader": ObservedReader,
        "reader condition": ReaderCondition,
        "writer": ObservedWriter,
        "writer condition": WriterCondition,
    }
