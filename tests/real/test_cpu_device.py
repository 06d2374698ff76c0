"""The loop on a device that computes: real tokens, and waits for it by every policy."""

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from realrun.run import RunFailed, make_spec, run_once
from realrun.validate import predict
from shmsim.config import ConfigError, DeviceConfig, EngineConfig, RunConfig, parse_config
from shmsim.laws import check_laws
from shmsim.policies import PRESETS
from shmsim.sim.run import simulate
from shmsim.units import MS, US
from shmsim.wait import DEVICE_DONE
from tests.real.policies import EveryKind
from tests.real.runs import N_REQUESTS, N_TOKENS, ROOT, config
from tests.toy import toy_profile

pytest.importorskip("torch", reason="a device that computes needs torch")
pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", autouse=True)
def _children_find_the_policies():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def on_cpu(
    workers=1, calls=2, scheduling="sync", doorbell="futex", in_flight=2, **device
) -> RunConfig:
    """The short run of this folder, computed."""
    plain = config(workers, calls, scheduling, in_flight=in_flight)
    engine = replace(plain.engine, max_sequences=4, max_batched_tokens=64)
    handoff = replace(plain.handoff, doorbell=doorbell)
    computed = DeviceConfig(**({"kind": "cpu", "max_len": 128} | device))
    return replace(plain, engine=engine, device=computed, handoff=handoff)


def waited_for(of: RunConfig, policy: str) -> RunConfig:
    """The run with a policy named by which workers wait for the device, as the model asks."""
    return replace(of, engine=replace(of.engine, device_wait=policy))


def run(of: RunConfig, policy=PRESETS["park"]):
    profile = toy_profile()
    if of.handoff.doorbell != "futex":
        profile = replace(profile, machine=profile.machine | {"doorbell": of.handoff.doorbell})
    records = run_once(make_spec(of, policy, profile, 0))
    check_laws(records, n_workers=of.engine.workers, n_threads=3, n_devices=of.engine.n_devices)
    return records


@pytest.fixture(scope="module")
def expected_crc():
    """Tokens of one rank, in step, parked."""
    return run(on_cpu()).meta["tokens_crc32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheduling"),
    [
        *product(["spin", "vllm-1s", "forks-2ms", "hybrid-half", "wake-ahead"], ["sync"]),
        *product(["step-ahead-rehearsed"], ["sync", "async"]),  # which is judged on GPUs
    ],
)
def test_the_tokens_do_not_depend_on_the_policy(name, scheduling, expected_crc):
    records = run(on_cpu(scheduling=scheduling), PRESETS[name])
    assert records.meta["tokens_crc32"] == expected_crc
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS


@pytest.mark.parametrize(("workers", "scheduling"), list(product((1, 2), ("sync", "async"))))
def test_two_ranks_and_two_batches_in_flight_say_what_one_says(workers, scheduling, expected_crc):
    records = run(on_cpu(workers, scheduling=scheduling), EveryKind())
    assert records.meta["tokens_crc32"] == expected_crc
    assert [device["kind"] for device in records.meta["devices"]] == ["cpu"] * workers
    assert records.meta["emulated"] is False


def test_more_batches_in_flight_than_an_end_ring_had_slots_say_what_one_says(expected_crc):
    """The next token of a sequence is asked for before the last one is known; its device knows."""
    records = run(on_cpu(scheduling="async", in_flight=9))
    assert records.meta["tokens_crc32"] == expected_crc
    assert records.steps[8].scheduled_ns < records.steps[0].seen_ns


def test_other_weights_say_something_else(expected_crc):
    other = replace(on_cpu(), seed=12)
    assert run(other).meta["tokens_crc32"] != expected_crc


@pytest.mark.parametrize("doorbell", ["eventfd", "zmq"])
def test_a_device_rings_every_kind_of_bell(doorbell, expected_crc):
    records = run(on_cpu(doorbell=doorbell))
    assert records.meta["tokens_crc32"] == expected_crc
    assert sum(row.rescued for row in records.processes) == 0


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_every_step_is_waited_for_by_policy_after_it_was_launched(scheduling):
    records = run(on_cpu(scheduling=scheduling), EveryKind())
    waits = {wait.step: wait for wait in records.waits if wait.site == DEVICE_DONE}
    assert sorted(waits) == [step.step for step in records.steps]
    for step in records.steps:
        wait = waits[step.step]
        assert step.launched_ns <= step.done_ns == wait.published_ns <= wait.seen_ns


def test_the_wait_for_the_device_may_have_a_policy_of_its_own():
    spinning = on_cpu(sleep_ns=2 * MS)
    engine = replace(spinning.engine, device_wait="park")
    records = run(replace(spinning, engine=engine), PRESETS["spin"])
    kinds = {
        site: {w.stage_kind for w in records.waits if w.site == site} for site in (0, DEVICE_DONE)
    }
    assert kinds[DEVICE_DONE] == {5}
    assert kinds[0] == {0}


def test_the_work_of_the_device_is_not_booked_as_the_workers():
    records = run(on_cpu(sleep_ns=0))
    worker = next(row for row in records.processes if row.process == "worker0")
    assert worker.emulation_cpu_ns > len(records.steps) * 50 * US


def test_a_step_that_sleeps_takes_as_long_as_it_says_and_the_model_knows():
    asleep = on_cpu(sleep_ns=3 * MS)
    records = run(asleep)
    for step in records.steps:
        assert step.done_ns - step.launched_ns >= 3 * MS
    modelled = simulate(waited_for(asleep, "park"), PRESETS["park"], toy_profile())
    assert len(modelled.steps) == len(records.steps)
    assert np.mean([s.done_ns - s.launched_ns for s in modelled.steps]) == 3 * MS


def test_ranks_without_a_device_only_receive_and_are_labelled():
    several = on_cpu()
    several = replace(several, engine=replace(several.engine, workers=3, devices=1))
    records = run(several)
    assert records.meta["emulated"] is True
    assert [device["kind"] for device in records.meta["devices"]] == ["cpu", "none", "none"]
    waited = {wait.process for wait in records.waits if wait.site == DEVICE_DONE}
    assert waited == {"worker0"}


def test_model_and_machine_wait_for_a_device_in_one_way():
    asleep = on_cpu(sleep_ns=1 * MS)
    with pytest.raises(ValueError, match=r"engine\.device_wait is empty"):
        predict(asleep, PRESETS["spin"], toy_profile(), 0)
    records = predict(waited_for(asleep, "park"), PRESETS["spin"], toy_profile(), 0)
    assert {w.stage_kind for w in records.waits if w.site == DEVICE_DONE} <= {5, -1}


@pytest.mark.parametrize(
    ("workers", "devices", "kind", "collective"),
    [(1, 0, "cpu", "none"), (2, 0, "cpu", "gloo"), (2, 0, "cuda", "nccl"), (4, 1, "cuda", "none")],
)
def test_ranks_add_up_by_what_their_devices_can(workers, devices, kind, collective):
    plain = on_cpu(workers, kind=kind)
    several = replace(plain, engine=replace(plain.engine, devices=devices))
    spec = make_spec(several, PRESETS["spin"], toy_profile(), 0)
    assert spec.collective == collective
    assert len(spec.layout.ends) == (devices or workers)


def test_the_model_asks_for_the_step_time_of_what_is_computed():
    with pytest.raises(ValueError, match=r"computes its steps, .* 'realrun run --steps"):
        simulate(waited_for(on_cpu(), "spin"), PRESETS["spin"], toy_profile())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"device": {"kind": "cpu", "observe": "query"}}, "observe plays no part"),
        ({"device": {"kind": "cpu", "collective": "nccl"}}, "needs GPUs"),
        (
            {"engine": {"workers": 2}, "device": {"kind": "cpu", "collective": "none"}},
            "is for one device, and there are 2",
        ),
        (
            {"engine": {"max_batched_tokens": 9}, "device": {"kind": "cuda"}},
            "max_batched_tokens = 9 must be at least engine.max_sequences = 64",
        ),
        ({"device": {"kind": "cuda", "step": "1ms"}}, "device.step plays no part"),
    ],
    ids=["observe", "collective", "alone", "budget", "law"],
)
def test_a_config_that_cannot_be_is_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(table)


@pytest.mark.parametrize(
    ("engine", "device", "message"),
    [
        ({}, {"max_len": 70}, r"longest request has 84 tokens and device\.max_len is 70"),
        ({"workers": 3}, {}, "3 ranks cannot share 4 heads"),
        ({}, {"model": "lama"}, "unknown model 'lama'"),
    ],
    ids=["context", "shares", "model"],
)
def test_a_run_that_cannot_be_is_refused_before_anything_starts(engine, device, message):
    asked = on_cpu(**device)
    asked = replace(asked, engine=EngineConfig(**{**vars(asked.engine), **engine}))
    with pytest.raises(ValueError, match=message):
        make_spec(asked, PRESETS["spin"], toy_profile(), 0)


def test_a_worker_without_torch_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    with pytest.raises(RunFailed, match=r"needs torch, .*pip install .*\[torch\]"):
        run_once(make_spec(on_cpu(), PRESETS["park"], toy_profile(), 0))


def test_an_error_on_the_thread_that_computes_ends_the_run_and_is_quoted(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import realrun.device.cpu\nrealrun.device.cpu.run_eagerly = lambda *_: 1 / 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    with pytest.raises(RunFailed, match=r"worker 0 .* ZeroDivisionError"):
        run_once(make_spec(on_cpu(), PRESETS["park"], toy_profile(), 0))


def test_a_gpu_that_is_not_there_is_refused_with_the_way_out():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(RunFailed, match=r"without CUDA|finds no GPU .* device\.kind = \"cpu\""):
        run_once(make_spec(on_cpu(kind="cuda"), PRESETS["park"], toy_profile(), 0))
