"""A profile with round numbers, so that a test can add costs up by hand."""

from shmsim.policies import POLICIES
from shmsim.profile import COSTS, Curve, Distribution, MachineProfile
from shmsim.units import US

#: Constant cost of everything not named here is 0.
TOY_COSTS_NS = {
    "schedule": 20 * US,
    "complete": 5 * US,
    "encode_request": 10 * US,
    "decode_request": 8 * US,
    "encode_reply": 7 * US,
    "decode_reply": 6 * US,
    "ring_publish": 2 * US,
    "ring_read": 3 * US,
    "launch": 4 * US,
    "wake_latency": 50 * US,
    "park_cpu": 15 * US,
    "doze_cpu": 12 * US,
    "notify_armed": 9 * US,
    "timer_overshoot": 30 * US,
    "rehearsal": 60 * US,
    "worker_rehearsal": 60 * US,
}


def constant(ns: float) -> Distribution:
    """A distribution that never varies."""
    return Distribution.of([[ns]])


def toy_profile(**costs_ns: int) -> MachineProfile:
    """A profile of constants; keyword arguments replace `TOY_COSTS_NS`."""
    known = TOY_COSTS_NS | costs_ns
    curves = {
        name: Curve(by, (0.0,), (constant(known.get(name, 0)),))
        for name, (by, _) in COSTS.items()
        if by != "policy"
    }
    policy_costs = {
        name: {
            what: Curve("", (0.0,), (constant(known.get(what, 0)),)) for what in ("plan", "after")
        }
        for name in POLICIES
    }
    return MachineProfile(curves, policy_costs, {"cpu": "toy"}, "2026-01-01T00:00:00+00:00")
