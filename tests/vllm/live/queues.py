"""vLLM's own queues between two threads, joined as the plugin joins an engine and its worker."""

import contextlib
import threading
import time
from types import SimpleNamespace
from typing import Any

from realrun.vllm.arms import Arm
from realrun.vllm.control import Control
from realrun.vllm.plugin import join_engine, join_worker
from realrun.vllm.process import Process
from shmsim.wait import TYPICAL_COSTS

EXECUTE = (
    "execute_model",
    (
        SimpleNamespace(
            total_num_scheduled_tokens=2,
            num_scheduled_tokens={"a": 1, "b": 1},
            scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=[5, 6]),
        ),
    ),
    {},
    0,
)
SAMPLE = ("sample_tokens", (None,), {}, 0)


class Pair:
    """A broadcast queue with its reader, and the reply queue the other way.

    Attributes
    ----------
    calls, called
        Writer and reader of the broadcast queue.
    replies, replied
        Writer and reader of the reply queue.
    engine, worker
        What the plugin knows of either side.
    """

    def __init__(self, arms=(), arm=0, trace=None, chunk_bytes=1 << 16) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self.control = Control.private(arm)
        everything = (Arm("vllm"), *arms)
        self.engine, self.worker = (
            Process(everything, TYPICAL_COSTS, self.control, None, trace) for _ in range(2)
        )
        self.calls = MessageQueue(1, 1, max_chunk_bytes=chunk_bytes)
        self.called = MessageQueue.create_from_handle(self.calls.export_handle(), 0)
        self.replies = MessageQueue(1, 1, max_chunk_bytes=chunk_bytes)
        self.replied = MessageQueue.create_from_handle(self.replies.export_handle(), 0)
        _make_ready(self.calls, self.called)
        _make_ready(self.replies, self.replied)

    def join_worker(self) -> None:
        """As behind ``WorkerProc._init_message_queues``."""
        join_worker(
            self.worker,
            SimpleNamespace(rpc_broadcast_mq=self.called, worker_response_mq=self.replies, rank=0),
        )

    def join_engine(self) -> None:
        """As behind ``MultiprocExecutor._init_executor``."""
        join_engine(
            self.engine,
            SimpleNamespace(rpc_broadcast_mq=self.calls, response_mqs=[self.replied]),
        )

    def joined(self) -> "Pair":
        """Both."""
        self.join_worker()
        self.join_engine()
        return self

    def counted(self, process: Process) -> dict[str, int]:
        """What a process has counted."""
        return process.counters()._asdict()


def _make_ready(writer: Any, reader: Any) -> None:
    thread = threading.Thread(target=writer.wait_until_ready)
    thread.start()
    reader.wait_until_ready()
    thread.join()


@contextlib.contextmanager
def serving(pair: Pair, work_s: float = 0.0, *, n_calls: int):
    """A worker that answers every call; what it got, in order."""
    got: list[Any] = []

    def serve() -> None:
        for _ in range(n_calls):
            got.append(pair.called.dequeue(indefinite=True))
            if work_s:
                time.sleep(work_s)
            pair.replies.enqueue(("SUCCESS", len(got)))

    thread = threading.Thread(target=serve)
    thread.start()
    yield got
    thread.join(30)
    assert not thread.is_alive()


def until(condition, limit_s: float = 20.0) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that in time"
        time.sleep(0.001)
