"""What the waits of a validation cost on this machine, and the least that they could have."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from realrun.report.stored import StoredValidation, profile_of, read_records
from shmsim.bounds.law import Float64Array
from shmsim.bounds.limits import limits_of
from shmsim.bounds.recorded import recorded_waits
from shmsim.bounds.trace import Int64Array, WaitTrace
from shmsim.distribution import Curve, Distribution
from shmsim.policies import BusySpin
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords, WaitRow
from shmsim.wait import SCHEDULER_RECV, WaitPolicy

_FEWEST: Final = 100  # waits: each fifth of them is judged by what the other four tell

#: Told what is being read, and which share of it is.
Progress = Callable[[str, float], None]


class _Waits(NamedTuple):
    """The scheduler's waits for the reply with the tokens, while a step was at work."""

    rows: list[WaitRow]
    trace: WaitTrace


def waits_of(
    stored: StoredValidation, policies: Mapping[str, tuple[str, WaitPolicy]], progress: Progress
) -> dict[str, Any]:
    """Cost of the scheduler's waits for the tokens of a step under each policy, and the bound.

    Parameters
    ----------
    stored
        A validation, with its records and its profile.
    policies
        By the name that the bundle gives them: the owner's name, and the policy.
    progress
        Told before each policy.

    Returns
    -------
    dict
        ``cost_ns``: of each policy the mean over its waits of CPU time (its own thinking, as
        calibrated, included) plus *r* times delay, and half the range over the repeats. ``L2_ns``:
        the mean that no policy goes below which knows the law of these gaps given the batch
        (docs/bounds.md), on the ``n_waits`` gaps of the first run of ``gaps_of``. Without records,
        a profile of their time, enough waits or a core for each process only ``why_not``.
    """
    price = float(stored.content["config"].get("delay_price", 10.0))
    if 1 + stored.n_workers > len(stored.content["machine"].get("affinity", [])):
        # A spinner then lengthens the waits of others, and a bound on given gaps says nothing.
        return {"why_not": "fewer cores than processes"}
    try:
        profile = profile_of(stored.folder)
    except ValueError:
        return {"why_not": "its profile is one of another version"}
    if profile is None or profile.measured_at != stored.content.get("profile_measured_at"):
        return {"why_not": "its profile is not beside it"}
    spinner = next((n for n, (_, p) in policies.items() if isinstance(p, BusySpin)), None)
    if spinner is None:
        return {"why_not": "nobody spun"}
    costs: dict[str, list[float]] = {}
    least = None
    for done, (name, (own, policy)) in enumerate(policies.items()):
        progress(f"waits of {name}", done / len(policies))
        waits = [_waits(read_records(folder)) for folder in stored.folders_of(own)]
        if waits:
            thought = profile.costs_of_policy(type(policy).__name__)
            each = [
                _cost_ns(found.rows, price) + _thinking_ns(found.rows, thought) for found in waits
            ]
            costs[name] = [float(np.mean(each)), (max(each) - min(each)) / 2]
        if waits and name == spinner:
            least = waits[0]
    if least is None:
        return {"why_not": "its records are not beside it"}
    if least.trace.n_waits < _FEWEST:
        return {"why_not": f"fewer than {_FEWEST} waits were recorded"}
    return {
        "gaps_of": spinner,
        "n_waits": least.trace.n_waits,
        "delay_price": price,
        "L2_ns": _least_ns(least.trace, profile, price),
        "cost_ns": costs,
    }


def _waits(records: RunRecords) -> _Waits:
    rows = [row for row in records.waits if row.site == SCHEDULER_RECV]
    call = max(row.call for row in rows)
    trace = recorded_waits(records, rows[0].process, SCHEDULER_RECV, call)
    at_work = trace.pending
    return _Waits(
        [row for row in rows if row.call == call and row.pending],
        WaitTrace(
            trace.gap_ns[at_work],
            trace.n_decode[at_work],
            trace.n_prefill_tokens[at_work],
            trace.n_kv_tokens[at_work],
            trace.pending[at_work],
            trace.since_seen_ns[at_work],
        ),
    )


def _cost_ns(rows: list[WaitRow], price: float) -> float:
    late_ns = [row.seen_ns - max(row.published_ns, row.started_ns) for row in rows]
    return float(np.mean([row.cpu_ns for row in rows]) + price * np.mean(late_ns))


def _thinking_ns(rows: list[WaitRow], costs: dict[str, Curve]) -> float:
    """Mean of what deciding took, cold where the wait was slept through."""
    lengths_ns = np.array([row.seen_ns - row.started_ns for row in rows])
    cpu_ns = np.array([row.cpu_ns for row in rows])
    asleep_ns = np.where(2 * cpu_ns < lengths_ns, lengths_ns, 0)
    return float(sum(_along(curve, asleep_ns).mean() for curve in costs.values()))


def _least_ns(trace: WaitTrace, profile: MachineProfile, price: float) -> float:
    wake_ns, park_ns, timer_ns = (
        _along(profile.costs[name], trace.gap_ns)
        for name in ("wake_latency", "park_cpu", "doze_cpu")
    )
    penalty_ns = np.maximum(price * wake_ns + park_ns, 1.0)
    awake_ns = price * _mean_ns(profile.costs["spin_detection"].points[0])
    return float(limits_of(trace, penalty_ns, timer_ns, awake_ns).with_features.mean())


def _along(cost: Curve, rests_ns: Int64Array) -> Float64Array:
    """Mean of a cost after each of these rests."""
    return np.interp(rests_ns, cost.xs, [_mean_ns(point) for point in cost.points])


def _mean_ns(cost: Distribution) -> float:
    return float(cost.all_at((np.arange(2000) + 0.5) / 2000).mean())
