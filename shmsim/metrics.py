"""What a serving engineer asks of a run: TTFT, TPOT, ITL, cores; from records of either world."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmsim.records import RequestRow, RunRecords
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
    p50, p99 = np.percentile(values, [50, 99])
    return Quantiles(len(values), float(values.mean()), float(p50), float(p99))


def ttft_ns(requests: list[RequestRow]) -> Float64Array:
    """Arrival to first token of each request, shape ``(n_requests,)``."""
    return np.array([r.token_ns[0] - r.arrival_ns for r in requests], dtype=np.float64)


def tpot_ns(requests: list[RequestRow]) -> Float64Array:
    """Time per output token of each request, its first token left out.

    Returns
    -------
    ndarray of float64, shape (n_requests,)
        ``(last - first) / (n_output - 1)``; NaN for a request of one token, which has no TPOT.
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
    """Every gap between two tokens of one request, shape ``(n_gaps,)``."""
    gaps = [np.diff(np.array(r.token_ns, dtype=np.int64)) for r in requests]
    return np.concatenate([*gaps, np.empty(0, np.int64)]).astype(np.float64)


def wait_delay_ns(records: RunRecords, site: int, *, call: int = 0) -> Float64Array:
    """Publication (or the start of the wait, if later) to seen, of pending waits at one site."""
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
    first_ns = min(r.arrival_ns for r in requests)
    last_ns = max(r.token_ns[-1] for r in requests)
    duration_s = (last_ns - first_ns) / S
    n_output = sum(len(r.token_ns) for r in requests)
    n_prompt = sum(r.prompt_tokens for r in requests)
    cores = {p.process: p.cpu_ns / p.wall_ns for p in records.processes}
    workers = [share for name, share in cores.items() if name != "scheduler"]
    return Summary(
        ttft=quantiles(ttft_ns(requests)),
        ttft_after_idle=quantiles(ttft_ns([r for r in requests if r.after_idle])),
        tpot=quantiles(tpot_ns(requests)),
        itl=quantiles(itl_ns(requests)),
        scheduler_cores=cores["scheduler"],
        worker_cores=float(np.mean(workers)),
        duration_s=duration_s,
        requests_per_s=len(requests) / duration_s,
        output_tokens_per_s=n_output / duration_s,
        total_tokens_per_s=(n_output + n_prompt) / duration_s,
        n_steps=len(records.steps),
    )
