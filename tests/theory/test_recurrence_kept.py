"""Loops that were compiled in several processes, read from disk by one."""

import os
import subprocess
import sys

import pytest

RUN = """
import sys
from dataclasses import replace
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.policies import Park
from shmsim.sim.recurrence import simulate_recurrence
from shmsim.sim.run import simulate
from shmsim.units import US
from tests.theory.noisy import noisy_profile

for device_wait in sys.argv[1:]:
    config = RunConfig(
        engine=EngineConfig(1, 1, "async", 8, 64, device_wait),
        device=DeviceConfig(step_ns=300 * US),
        workload=WorkloadConfig("closed", 3, 1.0, 1.0, 3, 20, 50, 60, 61),
    )
    found = simulate_recurrence(config, Park(), noisy_profile())
    expected = simulate(config, Park(), noisy_profile())
    assert found.waits == expected.waits, device_wait
    assert found.steps == expected.steps, device_wait
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_loops_of_several_processes_do_not_run_one_anothers_code(tmp_path):
    # The linker knows them by their symbols, which numba counts from one in each process.
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    for device_waits in (["wake-ahead"], ["park"], ["spin"], ["wake-ahead", "park", "spin"]):
        done = subprocess.run(
            [sys.executable, "-c", RUN, *device_waits],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "shmsim").glob("recurrence-*"))) == 3
