"""What no policy can beat in a step: library and model against the bound."""

import numpy as np
import pytest

from shmsim.bounds.step_bound import least_step_cost_ns
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from shmsim.units import MS, US
from tests.toy import toy_profile

R = 10.0
STEADY = WorkloadConfig(
    requests=2, concurrency=2, prompt_p50=16, prompt_p95=16, output_p50=200, output_p95=200
)


def config_of(calls=1, workers=1, jitter=0.02, scheduling="sync"):
    return RunConfig(
        engine=EngineConfig(workers=workers, calls_per_step=calls, scheduling=scheduling),
        device=DeviceConfig(step_ns=2 * MS, jitter=jitter),
        workload=STEADY,
        delay_price=R,
    )


def cost_ns(records, spun):
    """CPU of a step, and what it took longer than with spinning at the price R."""

    def step_ns(run):
        return np.diff([step.seen_ns for step in run.steps]).mean()

    cpu_ns = sum(row.cpu_ns for row in records.processes) / len(records.steps)
    return cpu_ns + R * (step_ns(records) - step_ns(spun))


@pytest.mark.parametrize(
    ("calls", "workers", "jitter"), [(1, 1, 0.02), (2, 1, 0.02), (1, 2, 0.02), (1, 1, 0.3)]
)
@pytest.mark.parametrize("costs", ["toy", "vm-2cpu"])
def test_no_policy_costs_less_than_the_bound(calls, workers, jitter, costs):
    profile = toy_profile() if costs == "toy" else MachineProfile.shipped(costs)
    config = config_of(calls, workers, jitter)
    spun = simulate(config, PRESETS["spin"], profile)
    bound_ns = least_step_cost_ns(spun, profile, R)
    for name in ("spin", "park", "wake-ahead", "rehearse-ahead", "step-ahead"):
        assert cost_ns(simulate(config, PRESETS[name], profile), spun) > bound_ns, name


def test_where_the_next_step_is_known_little_more_than_the_work_is_left():
    profile = toy_profile()
    spun = simulate(config_of(jitter=0.0), PRESETS["spin"], profile)
    work_ns = sum(row.cpu_ns for row in spun.processes) - sum(row.cpu_ns for row in spun.waits)
    bound_ns = least_step_cost_ns(spun, profile, R)
    assert bound_ns == pytest.approx(work_ns / len(spun.steps), abs=20 * US)


def test_the_less_is_known_of_the_next_step_the_more_it_costs():
    profile = toy_profile()
    bounds_ns = []
    for jitter in (0.01, 0.05, 0.3):
        spun = simulate(config_of(jitter=jitter), PRESETS["spin"], profile)
        bounds_ns.append(least_step_cost_ns(spun, profile, R))
    assert bounds_ns == sorted(bounds_ns)
    assert bounds_ns[0] < bounds_ns[-1]


def test_steps_that_overlap_have_no_such_bound():
    spun = simulate(config_of(scheduling="async"), PRESETS["spin"], toy_profile())
    with pytest.raises(ValueError, match="overlap"):
        least_step_cost_ns(spun, toy_profile(), R)
