"""Replies from the output rank, or from all: what the model makes of both."""

from dataclasses import replace

import pytest

from shmsim.config import EngineConfig, HandoffConfig, RunConfig, WorkloadConfig
from shmsim.policies import PRESETS
from shmsim.sim.run import simulate
from tests.toy import toy_profile

WORKLOAD = WorkloadConfig(requests=4, output_p50=20, output_p95=20)


def run(workers: int, replies: str, scheduling: str = "sync", calls: int = 2):
    engine = EngineConfig(workers, calls_per_step=calls, scheduling=scheduling)
    config = RunConfig(engine, HandoffConfig(replies=replies), WORKLOAD)
    return simulate(config, PRESETS["park"], toy_profile())


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_one_worker_is_all_of_them(scheduling):
    one, everybody = run(1, "rank0", scheduling), run(1, "all", scheduling)
    assert one == everybody


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_the_scheduler_waits_for_each_reply_and_goes_on_behind_the_last(scheduling, calls):
    one, everybody = run(3, "rank0", scheduling, calls), run(3, "all", scheduling, calls)
    n_waits = [sum(w.process == "scheduler" for w in r.waits) for r in (one, everybody)]
    assert n_waits[1] == 3 * n_waits[0]
    assert len(everybody.steps) == len(one.steps)
    # Each reply costs its reader something, so nobody is faster for more of them.
    assert everybody.processes[0].wall_ns > one.processes[0].wall_ns
    for step in everybody.steps:
        seen = [
            w.seen_ns
            for w in everybody.waits
            if (w.process, w.step, w.call) == ("scheduler", step.step, calls - 1)
        ]
        assert step.seen_ns == max(seen)


def test_a_profile_does_not_stand_for_a_doorbell_it_does_not_know():
    config = RunConfig(handoff=HandoffConfig(doorbell="zmq"), workload=WORKLOAD)
    profile = toy_profile()
    with pytest.raises(ValueError, match="realrun calibrate --doorbell zmq"):
        simulate(config, PRESETS["park"], profile)
    measured = replace(profile, machine={**profile.machine, "doorbell": "zmq"})
    assert simulate(config, PRESETS["park"], measured).steps
