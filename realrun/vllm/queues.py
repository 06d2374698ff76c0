"""Subclasses of vLLM's queue and condition that tell our ends what happens.

An instance is given the subclass after vLLM has made it (`observe`): vLLM's classes stay as they
are, as do all queues that are not part of the step loop, and what vLLM's code does is done by
vLLM's code. Which of its lines this relies on: `realrun.vllm.facts`.
"""

import os
import time
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

from realrun.vllm.reading import ReadEnd
from realrun.vllm.writing import WriteEnd
from shmsim.units import S

_NO_LIMIT_NS: Final = 3600 * S


def observe_reader(queue: Any, end: ReadEnd) -> None:
    """Have a queue's reader tell an end, which then decides how it waits."""
    _become(queue, end, "reader")


def observe_writer(queue: Any, end: WriteEnd) -> None:
    """Have a queue's writer tell an end, which then decides how it waits and whether it pings."""
    _become(queue, end, "writer")


def _become(queue: Any, end: ReadEnd | WriteEnd, side: str) -> None:
    queue_class, condition_class = _classes()[side]
    queue.realrun_end = queue._spin_condition.realrun_end = end
    queue._spin_condition.__class__ = condition_class
    queue.__class__ = queue_class


class _Reading:
    """VLLM's context of a read, which says when it begins; a class, as a generator takes longer."""

    __slots__ = ("_end", "_inner")

    def __init__(self, inner: AbstractContextManager[Any], end: ReadEnd) -> None:
        self._inner = inner
        self._end = end

    def __enter__(self) -> Any:
        slot = self._inner.__enter__()
        self._end.seen()
        return slot

    def __exit__(self, *error: Any) -> bool | None:
        return self._inner.__exit__(*error)


class _Writing:
    """VLLM's context of a write: what was written is published before vLLM sets its flag."""

    __slots__ = ("_end", "_inner", "_slot")

    def __init__(self, inner: AbstractContextManager[Any], end: WriteEnd) -> None:
        self._inner = inner
        self._end = end

    def __enter__(self) -> Any:
        self._slot = self._inner.__enter__()
        return self._slot

    def __exit__(self, *error: Any) -> bool | None:
        if error[0] is None:
            self._end.publish(self._slot)
        return self._inner.__exit__(*error)


@cache
def _classes() -> dict[str, tuple[type, type]]:
    from vllm.distributed.device_communicators import shm_broadcast as vllm_queue

    class ObservedReader(vllm_queue.MessageQueue):  # type: ignore[misc] # no types here
        realrun_end: ReadEnd

        def dequeue(self, *args: Any, **kwargs: Any) -> Any:
            end = self.realrun_end
            end.begin()
            message = super().dequeue(*args, **kwargs)
            end.finish(message)
            return message

        def acquire_read(self, *args: Any, **kwargs: Any) -> Any:
            reading = super().acquire_read(*args, **kwargs)
            end = self.realrun_end
            return _Reading(reading, end) if end.keeps and end.is_used else reading

    class ReaderCondition(vllm_queue.SpinCondition):  # type: ignore[misc] # no types here
        realrun_end: ReadEnd
        busy_loop_s: float

        def wait(self, timeout_ms: int | None = None) -> None:
            end = self.realrun_end
            if end.by_policy and end.carry_out(timeout_ms):
                return
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
            super().record_read()
            self.realrun_end.read()

        def cancel(self) -> None:
            super().cancel()
            self.realrun_end.stop()

    class ObservedWriter(vllm_queue.MessageQueue):  # type: ignore[misc] # no types here
        realrun_end: WriteEnd

        def enqueue(self, obj: Any, *args: Any, **kwargs: Any) -> None:
            end = self.realrun_end
            end.begin(obj)
            super().enqueue(obj, *args, **kwargs)
            end.finish()

        def acquire_write(self, timeout: float | None = None) -> Any:
            end = self.realrun_end
            if (reader := end.full_behind()) is not None:
                timeout = self._await_slot(end, reader, timeout)
            return _Writing(super().acquire_write(timeout), end)

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
                left_ns = _NO_LIMIT_NS if timeout is None else int((timeout - elapsed) * S)
                end.await_slot(reader, left_ns)
                reader = end.full_behind()
            return None if timeout is None else max(timeout - (time.monotonic() - started), 0.0)

    class WriterCondition(vllm_queue.SpinCondition):  # type: ignore[misc] # no types here
        realrun_end: WriteEnd

        def notify(self) -> None:
            if self.realrun_end.must_ping():
                super().notify()

        def cancel(self) -> None:
            super().cancel()
            self.realrun_end.stop()

    return {
        "reader": (ObservedReader, ReaderCondition),
        "writer": (ObservedWriter, WriterCondition),
    }
