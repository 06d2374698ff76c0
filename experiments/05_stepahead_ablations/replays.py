"""The arms on made-up traces: what each costs over what the whole policy costs."""

import math
from typing import Any

import numpy as np
from arms import ANNOUNCED, ARMS, WHOLE, charged_alike

from runner import Plan, Progress
from shmsim.bounds.compare import Estimate, ground, ratio_of, report
from shmsim.bounds.replay import Replayed, replay
from shmsim.bounds.synthetic import PREDICTABLE, UNPREDICTABLE, level_shifts
from shmsim.bounds.trace import WaitTrace
from shmsim.policies import StepAhead
from shmsim.profile import MachineProfile
from shmsim.tape import Tape
from shmsim.units import parse_duration_ns

_TRACES = {**PREDICTABLE, **UNPREDICTABLE, "level shifts": level_shifts}
_ETA_UNIT_NS = 64  # in which an announced end is told, so that it is of the order of the features


def trace_named(name: str, plan: Plan) -> WaitTrace:
    """A made-up trace."""
    return _TRACES[name](Tape(plan["seed"]), plan["waits"])  # type: ignore[call-arg]


def announced(trace: WaitTrace, levels_ns: list[int]) -> WaitTrace:
    """The trace as a producer would tell it who knows which of some kinds of step it has begun.

    There is no ETA word in the slot header. What one would be worth is found by telling the policy
    the mean of the kind, the nearest of ``levels_ns``, in place of the batch.
    """
    levels = np.array(sorted(levels_ns))
    off = np.abs(np.log(np.maximum(trace.gap_ns, 1))[:, None] - np.log(levels)[None, :])
    told_ns = levels[off.argmin(axis=1)]
    zero = np.zeros_like(told_ns)
    return trace._replace(n_decode=zero, n_prefill_tokens=zero, n_kv_tokens=told_ns // _ETA_UNIT_NS)


def ablation(name: str, plan: Plan, progress: Progress) -> dict[str, Any]:
    """The arms of one trace, by price: J, J over that of the whole policy, delay and CPU."""
    profile = charged_alike(MachineProfile.shipped(plan["profile"]))
    trace = trace_named(name, plan)
    names = [WHOLE, *plan["replay"][name]]
    found: dict[str, Any] = {}
    for index, price in enumerate(plan["prices"]):
        rows = found[f"{price:g}"] = {}
        whole: Replayed | None = None
        for done, arm in enumerate(names):
            progress(f"{name}, {arm}", (index + done / len(names)) / len(plan["prices"]))
            told = trace
            if arm == ANNOUNCED:
                levels = [parse_duration_ns(level) for level in plan["announced"][name]]
                told = announced(trace, levels)
            one = replay(ARMS[arm].policy, told, profile, Tape(plan["seed"] + 1), price)
            whole = whole or one
            rows[arm] = {
                "cost_ns": round(float(one.cost_ns.mean())),
                "ratio": rounded(ratio_of(one.cost_ns, whole.cost_ns)),
                "delay_ns": round(float(one.delay_ns.mean())),
                "delay_p99_ns": round(float(np.quantile(one.delay_ns, 0.99))),
                "cpu_ns": round(float(one.cpu_ns.mean())),
            }
    return found


def sweep_of_prices(name: str, plan: Plan, progress: Progress) -> dict[str, Any]:
    """The whole policy on one trace, at every price."""
    profile = MachineProfile.shipped(plan["profile"])
    trace = trace_named(name, plan)
    found = {}
    for index, price in enumerate(plan["sweep"]):
        progress(f"{name}, r = {price:g}", index / len(plan["sweep"]))
        on = ground(trace, profile, Tape(plan["seed"] + 1), price)
        ours = report(StepAhead(), on)
        found[f"{price:g}"] = {
            "cost_ns": rounded(ours.cost_ns, 0),
            "delay_ns": round(ours.delay_ns),
            "cpu_share": round(ours.cpu_share, 4),
            "spin_ns": round(float(on.spin.cost_ns.mean())),
            "park_ns": round(float(on.park.cost_ns.mean())),
            "L2_ns": round(float(on.limits.with_features.mean())),
            "gap_closed": rounded(ours.gap_closed),
        }
    return found


def rounded(found: Estimate, digits: int = 3) -> list[float | None]:
    """Value and interval, as JSON can hold them."""
    return [round(x, digits) if math.isfinite(x) else None for x in found]
