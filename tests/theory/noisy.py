"""A profile and a step time that vary."""

import numpy as np

from shmsim.profile import Curve, Distribution, MachineProfile
from shmsim.steptime import StepTime
from shmsim.units import MS, US
from tests.toy import TOY_COSTS_NS, toy_profile

JITTERY = StepTime(1 * MS, 10 * US, 1 * US, 0.1)


def noisy_profile() -> MachineProfile:
    """The toy profile with wake-ups, overshoots and work that vary, upwards from the toy costs."""
    profile = toy_profile()
    for name in ("wake_latency", "timer_overshoot", "schedule", "launch"):
        values = TOY_COSTS_NS[name] + np.random.default_rng(1).exponential(20 * US, 500)
        profile.costs[name] = Curve(profile.costs[name].by, (0.0,), (Distribution.of([values]),))
    return profile
