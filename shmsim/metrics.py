"""What a serving engineer asks of a run: TTFT, TPOT, ITL, cores; from records of either world.

Each metric is a formula of the records, written once: in its docstring. docs/metrics.md lists them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmsim.records import RequestRow, RunRecords, StepRow, column, role
from shmsim.units import S

Float64Array = NDArray[np.float64]


class Quantiles(NamedTuple):
    """Mean, median and 99th percentile of one quantity; NaN where there was no value."""

    n: int
    mean: float
    p50: float
    p99: float


def quantiles(values: Float64Array) -> Quantiles:
    """Summarise values, shape ``(n,)``, leaving NaN out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Quantiles(0, float("nan"), float("nan"), float("nan"))
    # Numpy's percentiles bit for bit, and ten times as fast where there are few values.
    last = len(values) - 1
    positions = [last * share for share in (0.5, 0.99)]
    ranks = [(int(position), min(int(position) + 1, last)) for position in positions]
    found = np.partition(values, [rank for pair in ranks for rank in pair])
    p50, p99 = (
        between(float(found[left]), float(found[right]), position - left)
        for (left, right), position in zip(ranks, positions, strict=True)
    )
    return Quantiles(len(values), float(values.mean()), p50, p99)


def between(low: float, high: float, share: float) -> float:
    """As numpy's percentiles: from the nearer end, so that each end is met exactly."""
    if share >= 0.5:
        return high - (high - low) * (1 - share)
    return low + (high - low) * share


def ttft_ns(requests: list[RequestRow]) -> Float64Array:
    """Time to first token of each request, shape ``(n_requests,)``.

    Notes
    -----
    Formula: ``token_ns[0] - arrival_ns``
    """
    return np.array([r.token_ns[0] - r.arrival_ns for r in requests], dtype=np.float64)


def tpot_ns(requests: list[RequestRow]) -> Float64Array:
    """Time per output token of each request, its first token left out, shape ``(n_requests,)``.

    Notes
    -----
    Formula: ``(token_ns[-1] - token_ns[0]) / (len(token_ns) - 1)``

    NaN for a request of one token, which has none; vLLM's ``benchmarks/serve.py`` divides alike.
    """
    return np.array(
        [
            (r.token_ns[-1] - r.token_ns[0]) / (len(r.token_ns) - 1)
            if len(r.token_ns) > 1
            else float("nan")
            for r in requests
        ],
        dtype=np.float64,
    )


def itl_ns(requests: list[RequestRow]) -> Float64Array:
    """Inter-token latency: every gap between two tokens of one request, shape ``(n_gaps,)``.

    Notes
    -----
    Formula: ``token_ns[k] - token_ns[k - 1]``
    """
    gaps = [np.diff(np.array(r.token_ns, dtype=np.int64)) for r in requests]
    return np.concatenate([*gaps, np.empty(0, np.int64)]).astype(np.float64)


def e2e_ns(requests: list[RequestRow]) -> Float64Array:
    """End-to-end latency of each request, shape ``(n_requests,)``.

    Notes
    -----
    Formula: ``token_ns[-1] - arrival_ns``
    """
    return np.array([r.token_ns[-1] - r.arrival_ns for r in requests], dtype=np.float64)


def queue_ns(records: RunRecords) -> Float64Array:
    """How long each request waited to be scheduled, shape ``(n_requests,)``.

    Raises
    ------
    ValueError
        If a first token left when no step was seen, so that nobody knows which step made it.

    Notes
    -----
    Formula: ``scheduled_ns(step whose seen_ns == token_ns[0]) - arrival_ns``

    The step is the one that gives the first token. Of a prompt longer than the token budget the
    earlier chunks count as queueing too; vLLM's queue time ends at the first chunk.
    """
    scheduled_ns = {step.seen_ns: step.scheduled_ns for step in records.steps}
    lost = [r for r in records.requests if r.token_ns[0] not in scheduled_ns]
    if lost:
        raise ValueError(
            f"the first token of request {lost[0].request} left at {lost[0].token_ns[0]} ns,"
            f" when none of {len(records.steps)} steps was seen; are these all rows of one run?"
        )
    return np.array(
        [scheduled_ns[r.token_ns[0]] - r.arrival_ns for r in records.requests], dtype=np.float64
    )


def duration_s(requests: list[RequestRow]) -> float:
    """First arrival to last token, which rates are counted over.

    Notes
    -----
    Formula: ``(max(token_ns[-1]) - min(arrival_ns)) / 1e9``
    """
    return (max(r.token_ns[-1] for r in requests) - min(r.arrival_ns for r in requests)) / S


def requests_per_s(requests: list[RequestRow]) -> float:
    """Throughput in requests.

    Notes
    -----
    Formula: ``n_requests / duration_s``
    """
    return len(requests) / duration_s(requests)


def output_tokens_per_s(requests: list[RequestRow]) -> float:
    """Throughput in output tokens.

    Notes
    -----
    Formula: ``sum(len(token_ns)) / duration_s``
    """
    return sum(len(r.token_ns) for r in requests) / duration_s(requests)


def total_tokens_per_s(requests: list[RequestRow]) -> float:
    """Throughput in tokens, those of the prompts included.

    Notes
    -----
    Formula: ``sum(len(token_ns) + prompt_tokens) / duration_s``
    """
    n_tokens = sum(len(r.token_ns) + r.prompt_tokens for r in requests)
    return n_tokens / duration_s(requests)


def goodput_per_s(
    requests: list[RequestRow], *, ttft_limit_ns: float, tpot_limit_ns: float
) -> float:
    """Requests per second that kept to both limits.

    Notes
    -----
    Formula: ``count(ttft_ns <= ttft_limit_ns and tpot_ns <= tpot_limit_ns) / duration_s``

    A request of one token has no TPOT to break. vLLM's ``benchmarks/serve.py`` counts alike.
    """
    is_good = (ttft_ns(requests) <= ttft_limit_ns) & ~(tpot_ns(requests) > tpot_limit_ns)
    return int(is_good.sum()) / duration_s(requests)


def mean_in_system(requests: list[RequestRow]) -> float:
    """Requests in the system on average; Little: their rate times their mean stay.

    Notes
    -----
    Formula: ``sum(e2e_ns) / 1e9 / duration_s``
    """
    return float(e2e_ns(requests).sum()) / S / duration_s(requests)


def step_time_ns(steps: list[StepRow]) -> Float64Array:
    """How long the device worked on each step, shape ``(n_steps,)``.

    Notes
    -----
    Formula: ``done_ns[s] - max(launched_ns[s], done_ns[s - 1])``

    A device works on one step at a time, so one launched early starts when the last is done.
    """
    done_ns = column(steps, "done_ns")
    began_ns = column(steps, "launched_ns")
    np.maximum(began_ns[1:], done_ns[:-1], out=began_ns[1:])
    return (done_ns - began_ns).astype(np.float64)


def step_gap_ns(steps: list[StepRow]) -> Float64Array:
    """How long the device was idle before each step but the first, shape ``(n_steps - 1,)``.

    Notes
    -----
    Formula: ``max(0, launched_ns[s] - done_ns[s - 1])``
    """
    gaps_ns = column(steps, "launched_ns")[1:] - column(steps, "done_ns")[:-1]
    return gaps_ns.clip(min=0).astype(np.float64)


def host_share(steps: list[StepRow]) -> float:
    """Share of the time with a step under way in which the device had nothing to do.

    Notes
    -----
    Formula: ``1 - sum(step_time_ns) / length(union over s of [scheduled_ns[s], seen_ns[s]])``

    0 if the host hides behind the device altogether, as asynchronous scheduling tries to; NaN
    without a step.
    """
    scheduled_ns, seen_ns = column(steps, "scheduled_ns"), column(steps, "seen_ns")
    began_ns = scheduled_ns.copy()
    np.maximum(began_ns[1:], seen_ns[:-1], out=began_ns[1:])
    under_way_ns = int((seen_ns - began_ns).sum())
    return 1 - float(step_time_ns(steps).sum()) / under_way_ns if under_way_ns else float("nan")


def device_utilisation(records: RunRecords) -> float:
    """Share of the run in which the device worked; in [0, 1].

    Notes
    -----
    Formula: ``sum(step_time_ns) / max(wall_ns)``
    """
    wall_ns = max(row.wall_ns for row in records.processes)
    return float(step_time_ns(records.steps).sum()) / wall_ns


def core_utilisation(records: RunRecords) -> dict[int, float]:
    """Share of the run in which each core worked for a process of the run; in [0, 1].

    Notes
    -----
    Formula: ``busy_ns / wall_ns``
    """
    return {row.core: row.busy_ns / row.wall_ns for row in records.cores}


def cores_of(records: RunRecords) -> dict[str, float]:
    """Cores that each process kept busy, emulation left out.

    Notes
    -----
    Formula: ``cpu_ns / wall_ns``
    """
    return {row.process: row.cpu_ns / row.wall_ns for row in records.processes}


def cpu_per_token_ns(records: RunRecords) -> float:
    """CPU time of all processes for each output token, emulation left out.

    Notes
    -----
    Formula: ``sum(cpu_ns) / sum(len(token_ns))``
    """
    n_tokens = sum(len(r.token_ns) for r in records.requests)
    return sum(row.cpu_ns for row in records.processes) / n_tokens


def wait_cores_of(records: RunRecords) -> dict[str, float]:
    """Cores that each process kept busy by waiting.

    Notes
    -----
    Formula: ``sum(cpu_ns of its waits) / wall_ns``
    """
    used_ns = {row.process: 0 for row in records.processes}
    for wait in records.waits:
        used_ns[wait.process] += wait.cpu_ns
    return {row.process: used_ns[row.process] / row.wall_ns for row in records.processes}


def wait_delay_ns(records: RunRecords, site: int, *, call: int = 0) -> Float64Array:
    """Detection: from published to seen in pending waits at one site, shape ``(n_waits,)``.

    Notes
    -----
    Formula: ``seen_ns - max(published_ns, started_ns)``
    """
    return np.array(
        [
            w.seen_ns - max(w.published_ns, w.started_ns)
            for w in records.waits
            if w.site == site and w.call == call and w.pending
        ],
        dtype=np.float64,
    )


class Summary(NamedTuple):
    """The figures of one run.

    Parameters
    ----------
    ttft, ttft_after_idle, tpot, itl
        Nanoseconds; the second over requests that found the engine idle.
    scheduler_cores, worker_cores
        CPU time over wall time of the scheduler, and of one worker on average.
    duration_s, requests_per_s, output_tokens_per_s, total_tokens_per_s
        Length of the run and throughput.
    n_steps
        Steps.
    """

    ttft: Quantiles
    ttft_after_idle: Quantiles
    tpot: Quantiles
    itl: Quantiles
    scheduler_cores: float
    worker_cores: float
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    n_steps: int


def summarize(records: RunRecords) -> Summary:
    """Work out the figures of one run.

    Raises
    ------
    ValueError
        If the run holds no request.
    """
    requests = records.requests
    if not requests:
        raise ValueError("the run holds no finished request, so there is nothing to summarise")
    cores = cores_of(records)
    schedulers = [share for name, share in cores.items() if role(name) == "scheduler"]
    workers = [share for name, share in cores.items() if role(name) != "scheduler"]
    return Summary(
        ttft=quantiles(ttft_ns(requests)),
        ttft_after_idle=quantiles(ttft_ns([r for r in requests if r.after_idle])),
        tpot=quantiles(tpot_ns(requests)),
        itl=quantiles(itl_ns(requests)),
        scheduler_cores=float(np.mean(schedulers)),
        worker_cores=float(np.mean(workers)),
        duration_s=duration_s(requests),
        requests_per_s=requests_per_s(requests),
        output_tokens_per_s=output_tokens_per_s(requests),
        total_tokens_per_s=total_tokens_per_s(requests),
        n_steps=len(records.steps),
    )
