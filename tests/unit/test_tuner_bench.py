"""What experiments/bench/policies.py makes of runs, on tiny ones of the model."""

from dataclasses import replace

import numpy as np
import pytest

from shmsim.config import RunConfig, WorkloadConfig
from shmsim.policies import BusySpin, Park, StepAhead
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from shmsim.wait import SCHEDULER_RECV
from tests.scripts import BENCH, imported

PROFILE = MachineProfile.shipped("vm-2cpu")
TINY = RunConfig(
    workload=WorkloadConfig(
        requests=4, concurrency=2, prompt_p50=16, prompt_p95=16, output_p50=20, output_p95=20
    )
)


@pytest.fixture(scope="module")
def bench():
    with imported([BENCH], "crowded", "regret", "turns") as modules:
        yield modules


@pytest.mark.slow
def test_regret_is_counted_from_the_best_of_each_tape(bench):
    found = bench["regret"].regret_of(TINY, PROFILE, 10.0, 5)
    assert {found.chosen, "spin"} <= set(found.rivals)
    assert len(set(found.rivals)) == len(found.rivals) > 8
    assert found.estimate.n == 5
    assert 0 <= found.estimate.value < 0.5
    assert (found.share > 0) == (found.estimate.value > 0)


def test_turns_compare_delay_and_cpu_with_spin(bench):
    config = replace(bench["turns"].CONFIGS["2ms"], workload=TINY.workload)
    policies = BusySpin(), StepAhead(), Park()
    runs = {type(p).__name__: simulate(config, p, PROFILE) for p in policies}
    found = bench["turns"]._compared(runs)
    medians = {
        name: np.median(
            [
                w.seen_ns - w.published_ns
                for w in records.waits
                if (w.site, w.call) == (SCHEDULER_RECV, 1) and w.published_ns > w.started_ns
            ]
        )
        for name, records in runs.items()
    }
    assert found.added_ns == pytest.approx(medians["StepAhead"] - medians["BusySpin"])
    assert 0 < found.park_share < found.cpu_share < 1


def test_a_crowd_is_compared_turn_by_turn(bench):
    turn = bench["crowded"].Turn
    turns = [
        {"step-ahead": turn(900.0 + n, 0.3), "park": turn(1000.0, 0.2), "spin": turn(450.0, 1.9)}
        for n in range(2)
    ]
    crowd = bench["crowded"].Crowd({}, turns)
    assert crowd.ratios("park") == pytest.approx([0.9, 0.901])
    assert crowd.ratios("spin") == pytest.approx([2.0, 2.0], rel=0.01)
    assert bench["crowded"].config_of(50).engine.workers == bench["crowded"].PROCESSES - 1
