"""vLLM's own queues between threads, joined as the plugin joins an engine and its workers."""

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

    def __init__(self, arms=(), arm=0, trace=None, chunk_bytes=1 << 16, **of_calls) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self.control = Control.private(arm)
        everything = (Arm("vllm"), *arms)
        self.engine, self.worker = (
            Process(everything, TYPICAL_COSTS, self.control, None, trace) for _ in range(2)
        )
        self.calls = MessageQueue(1, 1, max_chunk_bytes=chunk_bytes, **of_calls)
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


class Crew:
    """A broadcast queue with a reader for each of several workers, and the reply queue of each.

    Attributes
    ----------
    calls, called
        Writer and readers of the broadcast queue; the last `n_remote` read as from another machine.
    replies, replied
        Writers and readers of the reply queues.
    engine, workers
        What the plugin knows of either side.
    """

    def __init__(self, arms=(), arm=0, trace=None, n_local=2, n_remote=0) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        n = n_local + n_remote
        everything, control = (Arm("vllm"), *arms), Control.private(arm)
        self.engine, *self.workers = (
            Process(everything, TYPICAL_COSTS, control, None, trace) for _ in range(1 + n)
        )
        how = {"max_chunk_bytes": 1 << 16, "connect_ip": "127.0.0.1"}
        self.calls = MessageQueue(n, n_local, **how)
        handle = self.calls.export_handle()
        self.called = [MessageQueue.create_from_handle(handle, rank) for rank in range(n)]
        self.replies = [MessageQueue(1, int(rank < n_local), **how) for rank in range(n)]
        self.replied = [
            MessageQueue.create_from_handle(queue.export_handle(), 0) for queue in self.replies
        ]
        _make_ready(self.calls, *self.called)
        for ends in zip(self.replies, self.replied, strict=True):
            _make_ready(*ends)

    def joined(self) -> "Crew":
        """All of them, the engine last."""
        for rank, ends in enumerate(zip(self.workers, self.called, self.replies, strict=True)):
            worker, called, replies = ends
            join_worker(
                worker,
                SimpleNamespace(rpc_broadcast_mq=called, worker_response_mq=replies, rank=rank),
            )
        join_engine(
            self.engine, SimpleNamespace(rpc_broadcast_mq=self.calls, response_mqs=self.replied)
        )
        return self


def _make_ready(writer: Any, *readers: Any) -> None:
    thread = threading.Thread(target=writer.wait_until_ready)
    thread.start()
    for reader in readers:
        reader.wait_until_ready()
    thread.join()


@contextlib.contextmanager
def serving(pair: Pair, work_s: float = 0.0, *, n_calls: int):
    """A worker that answers every call; what it got, in order."""
    got: list[Any] = []

    thread = threading.Thread(target=_serve, args=(pair.called, pair.replies, got, n_calls, work_s))
    thread.start()
    yield got
    thread.join(30)
    assert not thread.is_alive()


@contextlib.contextmanager
def all_serving(crew: Crew, *, n_calls: int):
    """Workers that answer what they are to answer; what each got, in order."""
    got: list[list[Any]] = [[] for _ in crew.workers]
    threads = [
        threading.Thread(target=_serve, args=(called, replies, got[rank], n_calls, 0.0, rank))
        for rank, (called, replies) in enumerate(zip(crew.called, crew.replies, strict=True))
    ]
    for thread in threads:
        thread.start()
    yield got
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def _serve(
    called: Any, replies: Any, got: list[Any], n_calls: int, work_s: float, rank: int = 0
) -> None:
    for _ in range(n_calls):
        got.append(called.dequeue(indefinite=True))
        if work_s:
            time.sleep(work_s)
        if got[-1][3] in (None, rank):
            replies.enqueue(("SUCCESS", len(got)))


def until(condition, limit_s: float = 20.0) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that in time"
        time.sleep(0.001)
