"""The figures of a run without its rows: those of `shmsim.metrics.summarize`, bit for bit.

Every sequence that decodes in a step waited for its token as long as the others in it, since the
step before. So the inter-token latencies are a gap for each step, and how often it counts; their
sum is a whole number below 2**53, of which no order of summation loses a bit.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shmsim.metrics import Quantiles, Summary, between, quantiles
from shmsim.sim.recurrence.memory import entry
from shmsim.units import S

if TYPE_CHECKING:
    from shmsim.sim.recurrence.engine_run import EngineRun

_N_BINS: Final = 1 << 14
_LEVELS: Final = 5  # so often are the bins refined at most: 5 * 14 bits
_EXACT: Final = 1 << 53
_NARROW_NS: Final = 1 << 32


class Figures:
    """What is kept of a policy's run: a gap and a count of each step, and instants of requests."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self._gaps_ns: list[NDArray[Any]] = []
        self._counts: list[NDArray[np.uint16]] = []
        self._last_seen_ns = 0
        self._requests: list[NDArray[Any]] = []
        self._cpu_ns: list[list[int]] = []
        self._end_ns = 0
        self._n_steps = 0

    def add_steps(self, steps: Any) -> None:
        """Take in the steps of a window, `shmsim.sim.recurrence.state.TOKENS`."""
        if not len(steps):
            return
        gaps_ns = np.diff(steps["seen_ns"], prepend=self._last_seen_ns)
        self._last_seen_ns = int(steps["seen_ns"][-1])
        if gaps_ns.max() < _NARROW_NS:
            gaps_ns = gaps_ns.astype(np.uint32)
        self._gaps_ns.append(gaps_ns)
        self._counts.append(steps["n_decode"].astype(np.uint16))

    def add_run(self, run: "EngineRun") -> None:
        """Take in the end of an engine's run; that of the next engine on the box may follow."""
        self._requests.append(run.requests)
        n_processes = 1 + run.shared.config.engine.workers
        self._cpu_ns.append([run.cpu_ns(number) for number in range(n_processes)])
        self._end_ns = max(self._end_ns, run.end_ns)
        self._n_steps += run.n_steps
        self._last_seen_ns = 0

    def summary(self) -> Summary:
        """The figures."""
        requests = np.concatenate(self._requests)
        arrival_ns, output = requests["arrival_ns"], requests["output"]
        first_ns, last_ns = requests["first_ns"], requests["last_ns"]
        ttft_ns = (first_ns - arrival_ns).astype(np.float64)
        tpot_ns = np.full(len(requests), np.nan)
        np.divide(last_ns - first_ns, output - 1, out=tpot_ns, where=output > 1)
        duration_s = int(last_ns.max() - arrival_ns.min()) / S
        wall_ns = max(self._end_ns, 1)
        n_tokens = int(output.sum())
        return Summary(
            ttft=quantiles(ttft_ns),
            ttft_after_idle=quantiles(ttft_ns[requests["after_idle"] != 0]),
            tpot=quantiles(tpot_ns),
            itl=_weighted(np.concatenate(self._gaps_ns), np.concatenate(self._counts)),
            scheduler_cores=float(np.mean([cpu[0] / wall_ns for cpu in self._cpu_ns])),
            worker_cores=float(np.mean([ns / wall_ns for cpu in self._cpu_ns for ns in cpu[1:]])),
            duration_s=duration_s,
            requests_per_s=len(requests) / duration_s,
            output_tokens_per_s=n_tokens / duration_s,
            total_tokens_per_s=(n_tokens + int(requests["prompt"].sum())) / duration_s,
            n_steps=self._n_steps,
        )


def _weighted(values: NDArray[Any], counts: NDArray[np.uint16]) -> Quantiles:
    """`shmsim.metrics.quantiles` of values that count several times."""
    n, total, least, most = _sums(values, counts)
    if n == 0:
        return quantiles(np.empty(0))
    if total >= _EXACT:
        raise OverflowError(
            f"the inter-token latencies of this run add up to {total} ns, more than the {_EXACT} ns"
            " up to which their mean is exact; run fewer requests, or several replications"
        )
    positions = [(n - 1) * share for share in (0.5, 0.99)]
    lefts = [int(position) for position in positions]
    ranks = np.array([rank for left in lefts for rank in (left, min(left + 1, n - 1))])
    found = _ranked(values, counts, ranks, least, most).tolist()
    p50, p99 = (
        between(float(found[2 * i]), float(found[2 * i + 1]), positions[i] - lefts[i])
        for i in range(2)
    )
    return Quantiles(n, total / n, p50, p99)


@entry
def _sums(values: Any, counts: Any) -> Any:
    """How many values there are, their sum, the least and the greatest."""
    n = total = np.int64(0)
    least, most = np.int64(values[0]), np.int64(values[0])
    for i in range(len(values)):
        value = np.int64(values[i])
        n += counts[i]
        total += value * counts[i]
        least, most = min(least, value), max(most, value)
    return n, total, least, most


@entry
def _ranked(values: Any, counts: Any, ranks: Any, least: Any, most: Any) -> Any:
    """Order statistics of values that count several times, by histograms of ever finer bins.

    Ranks that lie together look into the same bins, which are counted once.
    """
    found = np.empty(len(ranks), np.int64)
    counted_from, counted_to = np.zeros((2, _LEVELS), np.int64)
    n_in_bin = np.empty((_LEVELS, _N_BINS), np.int64)
    for j in range(len(ranks)):
        low, high, left = least, most, ranks[j]
        level = 0
        while low < high:
            width = (high - low) // _N_BINS + 1
            bins = n_in_bin[level]
            if counted_from[level] != low or counted_to[level] != high:
                counted_from[level], counted_to[level] = low, high
                _count(values, counts, low, high, width, bins)
            number = 0
            while left >= bins[number]:
                left -= bins[number]
                number += 1
            low += number * width
            high = min(low + width - 1, high)
            level += 1
        found[j] = low
    return found


@entry
def _count(values: Any, counts: Any, low: Any, high: Any, width: Any, bins: Any) -> Any:
    bins[:] = 0
    for i in range(len(values)):
        value = np.int64(values[i])
        if low <= value <= high:
            bins[(value - low) // width] += counts[i]
