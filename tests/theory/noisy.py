"""A profile and a step time that vary."""

from dataclasses import replace

import numpy as np

from shmsim.profile import Curve, Distribution, MachineProfile
from shmsim.steptime import StepTime
from shmsim.units import MS, US
from tests.toy import TOY_COSTS_NS, toy_profile

JITTERY = StepTime(1 * MS, 10 * US, 1 * US, 0.1)


def noisy_profile() -> MachineProfile:
    """The toy profile with costs that vary, upwards from the toy's, and grow with a rest."""
    profile = toy_profile()
    for name in ("wake_latency", "timer_overshoot", "schedule", "launch"):
        values = TOY_COSTS_NS[name] + np.random.default_rng(1).exponential(20 * US, 500)
        curve = profile.costs[name]
        points = (Distribution.of([values]), Distribution.of([2 * values]))
        along = curve.by == "asleep_ns"
        profile.costs[name] = Curve(curve.by, (0.0, 4e6)[: 1 + along], points[: 1 + along])
    for name in (
        "notify_armed",
        "park_cpu",
        "doze_cpu",
        "slow_after_park",
        "worker_slow_after_doze",
    ):
        short, long = (Distribution.of([[ns]]) for ns in (5 * US, 25 * US))
        profile.costs[name] = Curve("asleep_ns", (0.0, 4e6), (short, long))
    for both in profile.policy_costs.values():
        for what, seed in (("plan", 3), ("after", 4)):
            hot = np.random.default_rng(seed).exponential(3 * US, 500)
            points = (Distribution.of([hot]), Distribution.of([12 * hot]))
            both[what] = Curve("asleep_ns", (0.0, 4e6), points)
    return profile


def resting_at(profile: MachineProfile, ns: int) -> MachineProfile:
    """The same where `StepAhead` costs so much that it rests, and a plan at rest takes ``ns``."""
    dear, little = (Curve("", (0.0,), (Distribution.of([[x]]),)) for x in (50 * US, ns))
    costs = {
        "StepAhead": {"plan": dear, "after": dear},
        "AtRest": {"plan": little, "after": little},
    }
    return replace(profile, policy_costs=profile.policy_costs | costs)
