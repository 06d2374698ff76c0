"""How much slower work is after a sleep in an engine, read off waits that policies slept through.

A profile has that of a small interpreter loop. A forward pass loses more: what it needs of the
caches is more, and its core was given away meanwhile.
"""

from typing import Final

import numpy as np

from realrun.vllm.trace import WAIT
from realrun.vllm.traces import ProcessTrace
from shmsim.distribution import Curve, Distribution
from shmsim.wait import PARK, SCHEDULER_RECV, WORKER_RECV

_FEWEST: Final = 50  # waits of each kind
_VLLMS_OWN: Final = 0  # arm


def slow_after_park(traces: list[ProcessTrace]) -> dict[str, Curve]:
    """CPU time by which work is dearer after a park than after vLLM's own waiting.

    The work after a wait is reading its message and all until the next wait. Of both calls of a
    step, each at the length of its sleeps; values differ quantile by quantile, so that steps vary
    as they did. Of several workers the one that lost least counts: the others wait for each other
    in their work.

    Returns
    -------
    dict
        ``slow_after_park`` and ``worker_slow_after_park`` of `shmsim.profile.COSTS`; without one of
        which too few waits were recorded.
    """
    found = {
        "slow_after_park": [_by_call(traces[0], SCHEDULER_RECV)],
        "worker_slow_after_park": [_by_call(worker, WORKER_RECV) for worker in traces[1:]],
    }
    curves = {}
    for name, processes in found.items():
        calls = [[calls[n] for calls in processes if n in calls] for n in (0, 1)]
        points = sorted(min(call, key=_lost) for call in calls if call)
        if points:
            xs, lost = zip(*points, strict=True)
            distributions = tuple(Distribution.of([np.array(values)]) for values in lost)
            curves[name] = Curve("asleep_ns", xs, distributions)
    return curves


#: Median length of the sleeps, and what each lost; ns.
_Point = tuple[float, tuple[float, ...]]


def _lost(point: _Point) -> float:
    return float(np.mean(point[1]))


def _by_call(trace: ProcessTrace, site: int) -> dict[int, _Point]:
    rows = trace.rows[(trace.rows["kind"] == WAIT) & (trace.rows["site"] == site)]
    now, then = rows[:-1], rows[1:]
    work = now["work_cpu_ns"] + then["between_cpu_ns"]
    # A row that nobody kept in between, or a step with a prompt, is no step like the others.
    whole = (then["sequence"] == now["sequence"] + 1) & (then["between_cpu_ns"] > 0)
    whole &= (now["arm"] == then["arm"]) & (now["step"] >= 0) & (now["n_prefill_tokens"] == 0)
    points = {}
    for call in 0, 1:
        of_call = whole & (now["call"] == call)
        own = work[of_call & (now["arm"] == _VLLMS_OWN)]
        parked = of_call & (now["arm"] != _VLLMS_OWN) & (now["stage_kind"] == PARK)
        n = int(np.count_nonzero(parked))
        if min(len(own), n) < _FEWEST:
            continue
        levels = (np.arange(n) + 0.5) / n
        lost = np.sort(work[parked]) - np.quantile(own, levels)
        asleep_ns = float(np.median((now["seen_ns"] - now["started_ns"])[parked]))
        points[call] = asleep_ns, tuple(lost.tolist())
    return points
