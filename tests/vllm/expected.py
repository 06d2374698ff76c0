"""What this package relies on in vLLM, and nothing else: to be changed, and then to be refused.

Only its source is looked at; nothing of it runs.
"""

import inspect
import types
from contextlib import contextmanager
from pathlib import Path


class MessageQueue:
    @contextmanager
    def acquire_read(self, timeout=None, indefinite=False):
        self._spin_condition.wait(timeout_ms=1)
        if self.shutting_down:
            raise RuntimeError
        try:
            yield buf  # noqa: F821
        finally:
            metadata_buffer = {}
            metadata_buffer[self.local_reader_rank + 1] = 1
            self._spin_condition.record_read()

    @contextmanager
    def acquire_write(self, timeout=None):
        sched_yield()  # noqa: F821
        raise TimeoutError
        yield buf  # noqa: F821
        metadata_buffer[0] = 1  # noqa: F821
        memory_fence()  # noqa: F821

    def enqueue(self, obj, timeout=None):
        with self.acquire_write(timeout):
            pass
        self._spin_condition.notify()

    def dequeue(self, timeout=None):
        with self.acquire_read(timeout):
            pass

    def shutdown(self):
        self.shutting_down = True
        self._spin_condition.cancel()


class SpinCondition:
    def wait(self, timeout_ms=None):
        return self.last_read + self.busy_loop_s, self.poller.poll()

    def notify(self):
        self.local_notify_socket.send(b"")

    def cancel(self):
        self.write_cancel_socket.send(b"")

    def record_read(self):
        self.last_read = 0


class ShmRingBuffer:
    def __init__(self, n_reader, max_chunks):
        self.n_reader = n_reader
        self.max_chunks = max_chunks
        self.shared_memory = None


class MultiprocExecutor:
    def _init_executor(self):
        self.rpc_broadcast_mq = None
        self.response_mqs = []

    def collective_rpc(self, send_method, args, kwargs, output_rank, mq):
        self.rpc_broadcast_mq.enqueue((send_method, args, kwargs, output_rank))
        mq.dequeue(timeout=1)


class WorkerProc:
    def _init_message_queues(self):
        self.rpc_broadcast_mq = None
        self.worker_response_mq = None


def modules(**changed):
    queue = types.SimpleNamespace(
        __name__="shm_broadcast",
        memory_fence=None,
        logger=None,
        LONG_WAIT_TIME_LOG_MSG="",
        SHM_READER_RECHECK_INTERVAL_MS=5000,
        MessageQueue=changed.get("MessageQueue", MessageQueue),
        SpinCondition=changed.get("SpinCondition", SpinCondition),
        ShmRingBuffer=ShmRingBuffer,
    )
    executor = types.SimpleNamespace(
        MultiprocExecutor=changed.get("MultiprocExecutor", MultiprocExecutor),
        WorkerProc=WorkerProc,
    )
    return queue, executor


_CLASSES = {"MessageQueue", "SpinCondition", "ShmRingBuffer", "__name__"}
_QUEUE = Path("vllm/distributed/device_communicators/shm_broadcast.py")
_EXECUTOR = Path("vllm/v1/executor/multiproc_executor.py")


def write_package(folder: Path, old: str = "", new: str = "") -> None:
    """Write a ``vllm`` that can be imported, with a piece of its source replaced."""
    sources = {
        _QUEUE: (MessageQueue, SpinCondition, ShmRingBuffer),
        _EXECUTOR: (MultiprocExecutor, WorkerProc),
    }
    names = "".join(f"{name} = None\n" for name in vars(modules()[0]) if name not in _CLASSES)
    n_changed = 0
    for path, classes in sources.items():
        text = "from contextlib import contextmanager\n" + names * (path == _QUEUE)
        text += "\n\n".join(inspect.getsource(each) for each in classes)
        n_changed += text.count(old) if old else 0
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text.replace(old, new) if old else text)
        for parent in path.parents[:-1]:
            (folder / parent / "__init__.py").touch()
    assert n_changed == bool(old), f"{old!r} is there {n_changed} times"
