"""The least that a step can cost, whatever the policies at its waits are told."""

from collections import defaultdict
from typing import Final

import numpy as np

from shmsim.bounds.compare import means_at
from shmsim.bounds.law import Float64Array
from shmsim.bounds.limits import least_with_features
from shmsim.bounds.recorded import recorded_waits
from shmsim.bounds.trace import WaitTrace
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords, WaitRow, role
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV

_SCHEDULER: Final = "scheduler"


def least_step_cost_ns(spun: RunRecords, profile: MachineProfile, delay_price: float) -> float:
    """CPU time and *r* times the time added to spinning, per step, that no policy goes below.

    The work of a step stays as it is; each wait on its critical path, for the first call at the
    workers and for the last reply at the scheduler, costs what L2 says (docs/bounds.md); waits that
    the device hides cost nothing. Work after a wait is as slow as after the kindest way to rest.

    Parameters
    ----------
    spun
        A run of the model in which everybody spun (`shmsim.policies.BusySpin`), scheduled
        synchronously, with at least ten steps.
    profile
        Its costs.
    delay_price
        *r*, core-seconds for a second.

    Returns
    -------
    float
        In the unit of ``cost_ns`` of `shmsim.sim.race.Standing`, if the spinner is the reference:
        less than 0 if so much time could be saved.

    Raises
    ------
    ValueError
        If steps overlap, as they do in asynchronous scheduling: waits are then hidden by each
        other, and what is on the critical path cannot be told from records.

    Notes
    -----
    It holds for the gaps of this run, and for plans that rest once in a wait: who rests again and
    again leaves less slowness behind than any single rest, in the model too. Several workers wait
    for the same call and the latest counts, which is at least their mean.
    """
    if any(b.scheduled_ns < a.seen_ns for a, b in zip(spun.steps, spun.steps[1:], strict=False)):
        raise ValueError(
            "steps of this run overlap, and the bound of a step is known for synchronous "
            'scheduling only; set engine.scheduling = "sync"'
        )
    waits: defaultdict[tuple[str, int, int], list[WaitRow]] = defaultdict(list)
    for row in spun.waits:
        if row.pending:
            waits[row.process, row.site, row.call].append(row)
    n_workers = sum(role(row.process) != _SCHEDULER for row in spun.processes)
    last_call = max(call for _, site, call in waits if site == SCHEDULER_RECV)
    total_ns = float(sum(row.cpu_ns for row in spun.processes))
    total_ns -= sum(row.cpu_ns for row in spun.waits)
    for (process, site, call), rows in waits.items():
        if (site, call) not in ((SCHEDULER_RECV, last_call), (WORKER_RECV, 0)):
            continue
        price = delay_price / (n_workers if site == WORKER_RECV else 1)
        trace = _pending_of(recorded_waits(spun, process, site, call))
        late_ns = sum(row.seen_ns - max(row.published_ns, row.started_ns) for row in rows)
        total_ns += float(_least_ns(trace, profile, price).sum()) - price * late_ns
        total_ns -= float(_kinder_ns(trace, profile, price, site).sum())
    return total_ns / len(spun.steps)


def _pending_of(trace: WaitTrace) -> WaitTrace:
    """Those in which the peer was at work."""
    at_work = trace.pending
    return WaitTrace(
        trace.gap_ns[at_work],
        trace.n_decode[at_work],
        trace.n_prefill_tokens[at_work],
        trace.n_kv_tokens[at_work],
        at_work[at_work],
        trace.since_seen_ns[at_work],
    )


def _least_ns(trace: WaitTrace, profile: MachineProfile, price: float) -> Float64Array:
    """L2 of each wait."""
    wake_ns, park_ns = (means_at(profile.costs[c], trace) for c in ("wake_latency", "park_cpu"))
    awake_ns = price * float(means_at(profile.costs["spin_detection"], trace)[0])
    penalty_ns = np.maximum(price * wake_ns + park_ns, 1.0)
    return least_with_features(trace, penalty_ns, awake_ns)


def _kinder_ns(trace: WaitTrace, profile: MachineProfile, price: float, site: int) -> Float64Array:
    """What another rest than spinning can save in the work that follows each wait."""
    whose = "" if site == SCHEDULER_RECV else "worker_"

    def slow_ns(rest: str) -> Float64Array:
        return np.maximum(means_at(profile.costs[f"{whose}slow_after_{rest}"], trace), 0.0)

    each = 1.0 + price
    spun = each * slow_ns("spin")
    rehearsal_ns = means_at(profile.costs[f"{whose}rehearsal"], trace)
    others = (
        each * slow_ns("park"),
        each * slow_ns("doze"),
        each * slow_ns("rehearsal") + rehearsal_ns,
    )
    kindest: Float64Array = np.minimum.reduce(others)
    return np.maximum(spun - kindest, 0.0)
