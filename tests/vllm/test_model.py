"""From a trace to what the model predicts with."""

import tomllib

import numpy as np
import pytest

from realrun.vllm.model import engine_config, engine_facts, engine_profile
from realrun.vllm.traces import read_traces
from shmsim.config import parse_config
from shmsim.profile import MachineProfile
from tests.vllm.traces import READ_CPU_NS, WORK_CPU_NS, write_engine

N = 80


@pytest.fixture
def facts(tmp_path):
    write_engine(tmp_path, N)
    return engine_facts(read_traces(tmp_path))


def test_the_work_of_a_step_is_its_cpu_time_without_the_waits(facts):
    assert len(facts.schedule_ns) == N
    assert np.all(facts.schedule_ns == WORK_CPU_NS + READ_CPU_NS)  # one reply a step
    assert np.all(facts.launch_ns == 2 * (WORK_CPU_NS + READ_CPU_NS))  # two calls
    assert (facts.workers, facts.sequences, facts.asynchronous) == (1, 3, False)


def test_the_profile_keeps_the_box_and_takes_the_work_of_the_engine(facts):
    box = MachineProfile.shipped("vm-2cpu")
    profile = engine_profile(box, facts)
    assert profile.costs["schedule"].at(0.5, 1.0) == pytest.approx(WORK_CPU_NS + READ_CPU_NS)
    assert profile.costs["wake_latency"] == box.costs["wake_latency"]
    assert "live vLLM" in profile.source_of("schedule").text


def test_the_config_is_one_that_the_model_reads(facts):
    config = parse_config(tomllib.loads(engine_config(facts, 2)))
    assert config.engine.workers == 1
    assert config.engine.scheduling == "sync"
    assert config.workload.concurrency == 3


def test_a_short_trace_is_refused(tmp_path):
    write_engine(tmp_path, 10)
    with pytest.raises(ValueError, match="10 steps"):
        engine_facts(read_traces(tmp_path))


def test_who_is_done_first_and_spins_for_the_others_works_no_more_than_they(tmp_path):
    write_engine(tmp_path, N, n_workers=3)
    facts = engine_facts(read_traces(tmp_path))
    assert facts.workers == 3
    assert np.all(facts.launch_ns == 2 * (WORK_CPU_NS + READ_CPU_NS))


def test_what_was_recorded_under_a_policy_is_not_vllms_own(facts, tmp_path):
    write_engine(tmp_path / "both", N, n_by_policy=N)
    both = engine_facts(read_traces(tmp_path / "both"))
    assert len(both.schedule_ns) == len(facts.schedule_ns)
    assert np.array_equal(both.launch_ns, facts.launch_ns)
