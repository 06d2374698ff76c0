"""Traces as an engine with one worker would leave them, without an engine."""

import os
from pathlib import Path

from realrun.vllm.trace import SAMPLE, SEND, WAIT, Row, Trace
from shmsim.units import MS, US
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT, WORKER_RECV, WORKER_SLOT, YIELD

STEP_NS = 4 * MS
WAIT_CPU_NS = 300 * US
READ_CPU_NS = 20 * US
WRITE_CPU_NS = 30 * US
WORK_CPU_NS = 500 * US


def write_engine(folder: Path, n_steps: int) -> None:
    """Two calls a step; the worker replies to the second 3 ms after the step began."""
    scheduler = Trace(folder, {"vllm": "vllm 0", "arms": ["vllm"]}, n_rows=64 * n_steps)
    worker = Trace(folder, {"vllm": "vllm 0", "arms": ["vllm"]}, n_rows=64 * n_steps)
    for trace in scheduler, worker:
        trace.write(Row(started_ns=1000, work_cpu_ns=5 * MS, kind=SAMPLE))
    for step in range(n_steps):
        at_ns = 10 * MS + step * STEP_NS
        for call in 0, 1:
            now_ns = at_ns + call * MS
            scheduler.write(_send(SCHEDULER_SLOT, step, call, now_ns))
            worker.write(_wait(WORKER_RECV, step, call, now_ns - 100 * US, now_ns + 10 * US))
        worker.write(_send(WORKER_SLOT, step, 1, at_ns + 3 * MS))
        scheduler.write(_wait(SCHEDULER_RECV, step, 1, at_ns + 2 * MS, at_ns + 3 * MS + 10 * US))
    end_ns = 10 * MS + n_steps * STEP_NS
    for trace in scheduler, worker:
        trace.write(Row(started_ns=end_ns, work_cpu_ns=5 * MS + n_steps * 3 * MS, kind=SAMPLE))


def _send(site: int, step: int, call: int, at_ns: int) -> Row:
    return Row(
        site,
        thread=os.getpid(),
        call=call,
        step=step,
        started_ns=at_ns,
        published_ns=at_ns + 5 * US,
        seen_ns=at_ns,
        ended_ns=at_ns + 8 * US,
        work_cpu_ns=WRITE_CPU_NS,
        n_bytes=2000,
        n_decode=3,
        kind=SEND,
    )


def _wait(site: int, step: int, call: int, started_ns: int, seen_ns: int) -> Row:
    return Row(
        site,
        thread=os.getpid(),
        call=call,
        step=step,
        pending=1,
        started_ns=started_ns,
        published_ns=seen_ns - 5 * US,
        seen_ns=seen_ns,
        ended_ns=seen_ns + 20 * US,
        stage_kind=YIELD,
        cpu_ns=WAIT_CPU_NS,
        work_cpu_ns=READ_CPU_NS,
        between_cpu_ns=WORK_CPU_NS,
        n_decode=3,
        kind=WAIT,
    )
