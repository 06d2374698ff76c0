"""Traces as an engine with one worker would leave them, without an engine."""

import os
from collections.abc import Callable
from pathlib import Path

from realrun.vllm.trace import SAMPLE, SEND, WAIT, Row, Trace
from shmsim.units import MS, US
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT, WORKER_RECV, WORKER_SLOT, YIELD

STEP_NS = 4 * MS
WAIT_CPU_NS = 300 * US
READ_CPU_NS = 20 * US
WRITE_CPU_NS = 30 * US
WORK_CPU_NS = 500 * US
REPLY_NS = 3 * MS


def reply_ns(_step: int) -> int:
    """When a step's reply is published, since the step began."""
    return REPLY_NS


def write_engine(
    folder: Path,
    n_steps: int,
    n_by_policy: int = 0,
    n_workers: int = 1,
    write_ns: int = WRITE_CPU_NS,
    replied_ns: Callable[[int], int] = reply_ns,
    tokens: tuple[int, int] = (0, 0),
    vllm: str = "vllm 0",
) -> None:
    """Two calls a step; the worker replies to the second 3 ms after the step began.

    Behind them come steps of the first policy, which take twice the work. Further workers take more
    than the first, which replies: the second twice as much, and so on. With lengths of prompt and
    output three requests come together as often as those before are done.
    """
    n_all = n_steps + n_by_policy
    about = {"vllm": vllm, "arms": ["vllm"]}
    scheduler, *workers = (Trace(folder, about, n_rows=64 * n_all) for _ in range(1 + n_workers))
    for trace in scheduler, *workers:
        trace.write(Row(started_ns=1000, work_cpu_ns=5 * MS, kind=SAMPLE))
    for step in range(n_all):
        arm = int(step >= n_steps)
        at_ns = 10 * MS + step * STEP_NS
        for call in 0, 1:
            now_ns = at_ns + call * MS
            sent = _send(SCHEDULER_SLOT, step, call, now_ns, arm, write_ns)
            scheduler.write(sent._replace(**_batch(step, *tokens)))
            row = _wait(WORKER_RECV, step, call, now_ns - 100 * US, now_ns + 10 * US, arm)
            for rank, worker in enumerate(workers):
                work_ns = (1 + rank) * row.between_cpu_ns
                worker.write(row._replace(rank=rank, between_cpu_ns=work_ns))
        reply_at_ns = at_ns + replied_ns(step)
        workers[0].write(_send(WORKER_SLOT, step, 1, reply_at_ns, arm, write_ns))
        seen_ns = reply_at_ns + 10 * US
        scheduler.write(_wait(SCHEDULER_RECV, step, 1, at_ns + 2 * MS, seen_ns, arm))
    end_ns = 10 * MS + n_all * STEP_NS
    for trace in scheduler, *workers:
        trace.write(Row(started_ns=end_ns, work_cpu_ns=5 * MS + n_all * 3 * MS, kind=SAMPLE))


def _batch(step: int, prompt: int, output: int) -> dict[str, int]:
    if not output:
        return {}
    done = step % output
    if not done:
        return {"n_decode": 0, "n_prefill_tokens": 3 * prompt}
    return {"n_kv_tokens": 3 * (prompt + done - 1)}


def _send(site: int, step: int, call: int, at_ns: int, arm: int, write_ns: int) -> Row:
    return Row(
        site,
        thread=os.getpid(),
        call=call,
        step=step,
        arm=arm,
        started_ns=at_ns,
        published_ns=at_ns + 5 * US,
        seen_ns=at_ns,
        ended_ns=at_ns + 8 * US,
        work_cpu_ns=write_ns,
        n_bytes=2000,
        n_decode=3,
        kind=SEND,
    )


def _wait(site: int, step: int, call: int, started_ns: int, seen_ns: int, arm: int) -> Row:
    return Row(
        site,
        thread=os.getpid(),
        call=call,
        step=step,
        arm=arm,
        pending=1,
        started_ns=started_ns,
        published_ns=seen_ns - 5 * US,
        seen_ns=seen_ns,
        ended_ns=seen_ns + 20 * US,
        stage_kind=YIELD,
        cpu_ns=WAIT_CPU_NS,
        work_cpu_ns=READ_CPU_NS,
        between_cpu_ns=WORK_CPU_NS * (1 + arm),
        n_decode=3,
        kind=WAIT,
    )
