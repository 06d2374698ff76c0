"""What observing takes from a message: vLLM's queue as it is, and with its ends told, in turns.

``python -m realrun.vllm.overhead`` runs in vLLM's environment and prints medians as JSON. Writer
and reader are one thread here and the clock is its CPU time, so nothing waits and who else uses the
machine shows little; a message is written and read, so all that is added on its way counts. What a
writer keeps once its readers are at work, and what a reader does before it waits, is not on that
way: it is left out there, and given by itself.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from realrun.vllm.arms import Arm
from realrun.vllm.control import Control
from realrun.vllm.plugin import join_engine, join_worker
from realrun.vllm.process import Process
from realrun.vllm.trace import Trace
from shmsim.policies import Park
from shmsim.wait import TYPICAL_COSTS

_N_BLOCKS: Final = 60
_N_STEPS: Final = 50
_REPLY: Final = "SUCCESS", None
_BATCH: Final = SimpleNamespace(
    total_num_scheduled_tokens=1,
    num_scheduled_tokens={"a": 1},
    scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=[100]),
)


def main() -> dict[str, float]:
    """CPU time that one message takes, written and read, ns, by what is done with it.

    ``plain`` is vLLM's queue; ``recorded`` the same with rows kept; ``switchable`` the same with
    policies, of which none is in force. With ``_beside``: what is done off a message's way, the
    looks at the clock included.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(Path(folder), {"vllm": "", "arms": []})
        own, other = Arm("vllm"), Arm("park", Park())
        pairs = {
            "plain": _Pair(None),
            "recorded": _Pair(_process((own,), trace)),
            "switchable": _Pair(_process((own, other), None)),
        }
        took: dict[str, list[float]] = defaultdict(list)
        for _ in range(_N_BLOCKS):
            for name in (*pairs, *reversed(pairs)):
                on_way_ns, beside_ns = pairs[name].block()
                took[name].append(on_way_ns)
                took[f"{name}_beside"].append(beside_ns)
    return {name: statistics.median(values) for name, values in took.items()}


def _process(arms: tuple[Arm, ...], trace: Trace | None) -> Process:
    return Process(arms, TYPICAL_COSTS, Control.private(0), None, trace)


class _Pair:
    """Calls and replies between an engine and a worker, told to a process if there is one."""

    def __init__(self, process: Process | None) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        writers = [MessageQueue(1, 1) for _ in range(2)]
        readers = [MessageQueue.create_from_handle(w.export_handle(), 0) for w in writers]
        for writer, reader in zip(writers, readers, strict=True):
            thread = threading.Thread(target=writer.wait_until_ready)
            thread.start()
            reader.wait_until_ready()
            thread.join()
        ends = tuple(zip(writers, readers, strict=True))
        if process is not None:
            worker = {"rpc_broadcast_mq": readers[0], "worker_response_mq": writers[1], "rank": 0}
            join_worker(process, SimpleNamespace(**worker))
            engine = {"rpc_broadcast_mq": writers[0], "response_mqs": [readers[1]]}
            join_engine(process, SimpleNamespace(**engine))
        calls, replies = (_Way(*pair) for pair in ends)
        self._messages: list[tuple[_Way, Any]] = [
            (calls, ("execute_model", (_BATCH,), {}, 0)),
            (replies, _REPLY),
            (calls, ("sample_tokens", (None,), {}, 0)),
            (replies, _REPLY),
        ]

    def block(self) -> tuple[float, float]:
        """CPU time of a message on its way and beside it, ns."""
        took = [way.send(message) for _ in range(_N_STEPS) for way, message in self._messages]
        on_way_ns, beside_ns = zip(*took, strict=True)
        return statistics.fmean(on_way_ns), statistics.fmean(beside_ns)


class _Way:
    """A queue from its writer to its reader."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writer, self._reader = writer, reader
        self._before = self._after = _nothing
        reading, writing = (getattr(q, "realrun_end", None) for q in (reader, writer))
        if reading is not None and writing is not None:
            self._before, reading.begin = reading.begin, _nothing
            self._after, writing.finish = writing.finish, _nothing

    def send(self, message: Any) -> tuple[int, int]:
        """CPU time of a message on its way and beside it, ns."""
        started_ns = time.thread_time_ns()
        self._before()
        begun_ns = time.thread_time_ns()
        self._writer.enqueue(message)
        self._reader.dequeue()
        read_ns = time.thread_time_ns()
        self._after()
        ended_ns = time.thread_time_ns()
        return read_ns - begun_ns, begun_ns - started_ns + ended_ns - read_ns


def _nothing() -> None:
    """In the place of what is timed by itself."""


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
