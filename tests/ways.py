"""A box with a GPU whose waits cost something else in each way to observe its ends of steps."""

from dataclasses import replace

from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.profile import Curve, MachineProfile
from shmsim.units import MS, US
from tests.toy import constant

#: How late a spinner sees the end of a step, and what a launch costs there.
LATE_NS = {"write": 1 * US, "query": 7 * US, "blocking": 100 * US}
LAUNCH_NS = 22 * US
STEP_NS = 2 * MS

#: A run on that GPU, of steps that take exactly so long.
ON_GPU = RunConfig(
    engine=EngineConfig(max_sequences=2, device_wait="spin"),
    device=DeviceConfig(kind="cuda", sleep_ns=STEP_NS),
    workload=WorkloadConfig(
        requests=2, concurrency=2, prompt_p50=16, prompt_p95=16, output_p50=20, output_p95=20
    ),
)


def with_ways(profile: MachineProfile, first: str = "write") -> MachineProfile:
    """The profile with a GPU; one way has the plain names, as a calibration gives them."""
    costs = dict(profile.costs)
    for way, ns in LATE_NS.items():
        ending = "" if way == first else f"@{way}"
        for name in ("spin_detection", "wake_latency"):
            by = profile.costs[name].by
            costs[f"device_{name}{ending}"] = Curve(by, (0.0,), (constant(ns),))
    costs["device_launch"] = Curve("", (0.0,), (constant(LAUNCH_NS),))
    return replace(profile, costs=costs, machine=profile.machine | {"observe": first})


def observed(way: str, config: RunConfig = ON_GPU) -> RunConfig:
    """The run, its ends of steps observed in another way."""
    return replace(config, device=replace(config.device, observe=way))
