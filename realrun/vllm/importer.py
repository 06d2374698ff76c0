"""Makes one run of the traces that the processes of an engine left.

Instants are on the monotonic clock of the machine, which all processes share; a run counts from its
first. A step is what ``execute_model`` and ``sample_tokens`` with one number are about.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from realrun.vllm.trace import SAMPLE, SEND, WAIT
from realrun.vllm.traces import ProcessTrace, Rows
from shmsim.records import ProcessRow, RunRecords, StepRow, WaitRow
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT, WORKER_RECV


def to_records(traces: list[ProcessTrace]) -> RunRecords:
    """One run of all processes, from the first row that every process still has."""
    origin_ns = max(int(t.rows["started_ns"][0]) for t in traces)
    traces = [t._replace(rows=t.rows[t.rows["started_ns"] >= origin_ns]) for t in traces]
    steps = _steps(traces, origin_ns)
    known = {step.step for step in steps}
    waits = [row for t in traces for row in _waits(t, origin_ns) if row.step in known]
    waits.sort(key=lambda row: row.seen_ns)
    about = traces[0].about
    meta = {
        "world": "machine",
        "engine": about["vllm"],
        "policy": "; ".join(about["arms"]),
        "origin_ns": origin_ns,
    }
    processes = [_process_row(t) for t in traces]
    return RunRecords(steps=steps, waits=waits, processes=processes, meta=meta)


def _of(trace: ProcessTrace, kind: int, *sites: int) -> Rows:
    rows = trace.rows
    found: Rows = rows[(rows["kind"] == kind) & np.isin(rows["site"], sites)]
    return found


def _steps(traces: list[ProcessTrace], origin_ns: int) -> list[StepRow]:
    """Steps of which every part was kept."""
    engine = traces[0]
    sends = _by_step(_of(engine, SEND, SCHEDULER_SLOT), call=0)
    replies: dict[int, Any] = {}
    for call in 0, 1:  # the last call's reply ends the step
        replies |= _by_step(_of(engine, WAIT, SCHEDULER_RECV), call)
    begun: dict[int, list[int]] = defaultdict(list)
    for trace in traces[1:]:
        for call in 0, 1:
            for step, row in _by_step(_of(trace, WAIT, WORKER_RECV), call).items():
                begun[step].append(int(row["seen_ns"]))
    steps = []
    for step in sorted(sends.keys() & replies.keys() & begun.keys()):
        sent, reply = sends[step], replies[step]
        replied_ns = int(reply["published_ns"])
        launched_ns = min(max(begun[step]), replied_ns)
        instants = (
            sent["started_ns"], sent["published_ns"], launched_ns, replied_ns, replied_ns,
            reply["seen_ns"],
        )  # fmt: skip
        steps.append(
            StepRow(
                step,
                int(sent["n_decode"]),
                int(sent["n_prefill_tokens"]),
                *(int(instant) - origin_ns for instant in instants),
            )
        )
    return steps


def _by_step(rows: Rows, call: int) -> dict[int, Any]:
    rows = rows[(rows["call"] == call) & (rows["step"] >= 0)]
    return {int(row["step"]): row for row in rows}


def _waits(trace: ProcessTrace, origin_ns: int) -> Iterable[WaitRow]:
    rows = _of(trace, WAIT, WORKER_RECV, SCHEDULER_RECV)
    for row in rows[np.isin(rows["call"], (0, 1))]:
        yield WaitRow(
            trace.name,
            int(row["site"]),
            int(row["call"]),
            int(row["step"]),
            bool(row["pending"]),
            int(row["started_ns"]) - origin_ns,
            int(row["published_ns"]) - origin_ns,
            int(row["seen_ns"]) - origin_ns,
            int(row["stage"]),
            int(row["cpu_ns"]),
            int(row["overshoot_ns"]),
            bool(row["belled"]),
            int(row["preempted"]),
            int(row["stage_kind"]),
        )


def _process_row(trace: ProcessTrace) -> ProcessRow:
    samples = trace.rows[trace.rows["kind"] == SAMPLE]
    first, last = (samples[0], samples[-1]) if len(samples) else (None, None)

    def used(field: str) -> int:
        return 0 if first is None or last is None else int(last[field]) - int(first[field])

    sends = trace.rows[trace.rows["kind"] == SEND]
    return ProcessRow(
        trace.name,
        wall_ns=used("started_ns"),
        cpu_ns=used("work_cpu_ns"),
        emulation_cpu_ns=0,
        run_queue_ns=0,
        voluntary=used("n_decode"),
        involuntary=used("n_prefill_tokens"),
        notified=0,
        elided=0,
        payloads=len(sends),
        inline=int((sends["route"] == 0).sum()),
        socket=int((sends["route"] == 2).sum()),
    )


class Share(NamedTuple):
    """Where the cores of one process go, each in cores (CPU time over the time between samples).

    Parameters
    ----------
    process
        Its name.
    seconds
        Between its first and last sample.
    total
        All its threads.
    ring_wait, ring_read
        Waiting for a message of the scheduler, and reading it; of a worker.
    reply_wait, reply_read
        The same for replies; of the scheduler.
    slot_wait, write
        Waiting for a slot by policy, and writing: calls or replies. What vLLM itself spins for a
        slot counts as writing.
    work
        What the waiting thread does between its reads: of the scheduler, scheduling; of a worker,
        the call, its device included.
    others
        Other threads, and what came before the first row.
    """

    process: str
    seconds: float
    total: float
    ring_wait: float
    ring_read: float
    reply_wait: float
    reply_read: float
    slot_wait: float
    write: float
    work: float
    others: float


def shares(traces: list[ProcessTrace]) -> list[Share]:
    """Attribute the CPU time of each process, between its first and its last sample."""
    return [_share(trace) for trace in traces]


def _share(trace: ProcessTrace) -> Share:
    rows = trace.rows
    samples = rows[rows["kind"] == SAMPLE]
    if len(samples) < 2:
        raise ValueError(f"{trace.name} left less than two samples of its CPU time: run for longer")
    from_ns, until_ns = int(samples["started_ns"][0]), int(samples["started_ns"][-1])
    wall_ns = until_ns - from_ns
    inside = rows[(rows["started_ns"] >= from_ns) & (rows["ended_ns"] <= until_ns)]
    here = ProcessTrace(trace.about, inside)

    def cores(rows_of: Rows, field: str) -> float:
        return float(rows_of[field].sum()) / wall_ns

    calls, replies = _of(here, WAIT, WORKER_RECV), _of(here, WAIT, SCHEDULER_RECV)
    sends = inside[inside["kind"] == SEND]
    waits = inside[inside["kind"] == WAIT]
    writing_ns, within_ns = _writing(waits, sends)
    work = cores(waits, "between_cpu_ns") - within_ns / wall_ns
    total = float(samples["work_cpu_ns"][-1] - samples["work_cpu_ns"][0]) / wall_ns
    known = (
        cores(calls, "cpu_ns"),
        cores(calls, "work_cpu_ns"),
        cores(replies, "cpu_ns"),
        cores(replies, "work_cpu_ns"),
        cores(sends, "cpu_ns"),
        writing_ns / wall_ns,
        work,
    )
    return Share(trace.name, wall_ns / 1e9, total, *known, max(total - sum(known), 0.0))


def _writing(waits: Rows, sends: Rows) -> tuple[int, int]:
    """CPU time of writing, and how much of the CPU time between reads it is with its waits, ns.

    A row has the time that writing took. Between two reads of its thread it took no more CPU than
    that thread used there: the rest is time without a core.
    """
    writing_ns = within_ns = 0
    for thread in np.unique(sends["thread"]):
        sent, read = (rows[rows["thread"] == thread] for rows in (sends, waits))
        next_read = np.searchsorted(read["started_ns"], sent["started_ns"])
        slot_ns, took_ns = (
            np.bincount(next_read, weights=sent[field], minlength=len(read) + 1)
            for field in ("cpu_ns", "work_cpu_ns")
        )
        *spent_ns, _ = np.minimum(slot_ns + took_ns, np.append(read["between_cpu_ns"], 0))
        within_ns += int(np.sum(spent_ns))
        # What no read came after is taken as it is.
        writing_ns += int(np.maximum(np.array(spent_ns) - slot_ns[:-1], 0).sum() + took_ns[-1])
    return writing_ns, within_ns
