"""What observing takes from a message: vLLM's queue as it is, observed, and recorded, in turns.

``python -m realrun.vllm.overhead`` runs in vLLM's environment and prints medians as JSON. Writer
and reader are one thread here and the clock is its CPU time, so nothing waits and who else uses the
machine shows little; a message is written and read, so all that is added on either side counts.
What a reader settles before it waits for the next message is on nobody's way: it is left out here,
and given by itself.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from realrun.vllm.arms import Arm
from realrun.vllm.control import Control
from realrun.vllm.plugin import join_engine, join_worker
from realrun.vllm.process import Process
from realrun.vllm.trace import Trace
from shmsim.wait import TYPICAL_COSTS

_N_BLOCKS: Final = 60
_N_MESSAGES: Final = 200
_BATCH: Final = SimpleNamespace(
    total_num_scheduled_tokens=1,
    num_scheduled_tokens={"a": 1},
    scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=[100]),
)


def main() -> dict[str, float]:
    """CPU time that one message takes, written and read, ns, by what is done beside.

    ``settled`` is what recording takes before the next wait.
    """
    with tempfile.TemporaryDirectory() as folder:
        control = Control.private(0)
        trace = Trace(Path(folder), {"vllm": "", "arms": []})
        pairs = {
            "plain": _pair(None),
            "observed": _pair(Process((Arm("vllm"),), TYPICAL_COSTS, control, None, None)),
            "recorded": _pair(Process((Arm("vllm"),), TYPICAL_COSTS, control, None, trace)),
        }
        took: dict[str, list[float]] = {name: [] for name in (*pairs, "settled")}
        for _ in range(_N_BLOCKS):
            for name in (*pairs, *reversed(pairs)):
                way_ns, settled_ns = _block(*pairs[name])
                took[name].append(way_ns)
                if name == "recorded":
                    took["settled"].append(settled_ns)
    return {name: statistics.median(values) for name, values in took.items()}


def _pair(process: Process | None) -> tuple[Any, Any]:
    """A queue's writer and reader, told to a process if there is one."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    writers = [MessageQueue(1, 1) for _ in range(2)]
    readers = [MessageQueue.create_from_handle(w.export_handle(), 0) for w in writers]
    for writer, reader in zip(writers, readers, strict=True):
        thread = threading.Thread(target=writer.wait_until_ready)
        thread.start()
        reader.wait_until_ready()
        thread.join()
    if process is not None:
        join_worker(
            process,
            SimpleNamespace(rpc_broadcast_mq=readers[0], worker_response_mq=writers[1], rank=0),
        )
        join_engine(
            process, SimpleNamespace(rpc_broadcast_mq=writers[0], response_mqs=[readers[1]])
        )
    return writers[0], readers[0]


def _block(writer: Any, reader: Any) -> tuple[float, float]:
    messages: list[Any] = [("execute_model", (_BATCH,), {}, 0), ("sample_tokens", (None,), {}, 0)]
    end = getattr(reader, "realrun_end", None)
    way_ns = settled_ns = 0
    for n in range(_N_MESSAGES):
        before_ns = time.thread_time_ns()
        if end is not None:
            end.settle()
        begun_ns = time.thread_time_ns()
        writer.enqueue(messages[n % 2])
        reader.dequeue()
        way_ns += time.thread_time_ns() - begun_ns
        settled_ns += begun_ns - before_ns
    return way_ns / _N_MESSAGES, settled_ns / _N_MESSAGES


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
