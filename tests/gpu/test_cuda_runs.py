"""The loop on GPUs: scheduler, workers and policies as on any device."""

import os
import re
import signal
import threading
from dataclasses import replace
from itertools import product

import pytest

from realrun.run import RunFailed, make_spec, run_once
from shmsim.config import DeviceConfig, PayloadConfig, RunConfig
from shmsim.laws import check_laws
from shmsim.policies import PRESETS
from shmsim.routing import SlotClass
from shmsim.units import MS
from shmsim.wait import DEVICE_DONE
from tests.real.conftest import children, eventually
from tests.real.policies import EveryKind
from tests.real.runs import N_REQUESTS, N_TOKENS, ROOT, config
from tests.toy import toy_profile

torch = pytest.importorskip("torch", reason="a device that computes needs torch")

pytestmark = [pytest.mark.gpu, pytest.mark.real, pytest.mark.timeout(300)]

POLICIES = ("spin", "vllm-1s", "forks-2ms", "park", "wake-ahead", "step-ahead-rehearsed")


@pytest.fixture(scope="module", autouse=True)
def _children_find_the_policies():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def on_gpu(workers=1, scheduling="sync", devices=0, **device) -> RunConfig:
    """The short run of the tests, on GPUs."""
    plain = config(workers, 2, scheduling)
    engine = replace(plain.engine, max_sequences=4, max_batched_tokens=64, devices=devices)
    asked = DeviceConfig(**({"kind": "cuda", "model": "tiny", "max_len": 128} | device))
    return replace(plain, engine=engine, device=asked)


def run(of: RunConfig, policy=PRESETS["park"]):
    records = run_once(make_spec(of, policy, toy_profile(), 0))
    check_laws(records, n_workers=of.engine.workers, n_threads=3, n_devices=of.engine.n_devices)
    return records


@pytest.fixture(scope="module")
def crc_of():
    """Tokens of one rank that parks, by scheduling.

    With two batches in flight batches are others: their products may round otherwise, and in bf16
    the two likeliest tokens may be equal.
    """
    how = ("sync", "async")
    return {one: run(on_gpu(scheduling=one)).meta["tokens_crc32"] for one in how}


@pytest.fixture
def expected_crc(crc_of):
    """Tokens of one rank, in step, parked."""
    return crc_of["sync"]


@pytest.mark.parametrize(
    ("name", "scheduling"),
    list(product(POLICIES, ["sync", "async"])),
)
def test_the_tokens_do_not_depend_on_the_policy(name, scheduling, crc_of):
    records = run(on_gpu(scheduling=scheduling), PRESETS[name])
    assert records.meta["tokens_crc32"] == crc_of[scheduling]
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS
    waits = [wait for wait in records.waits if wait.site == DEVICE_DONE]
    assert len(waits) == len(records.steps)
    assert sum(row.emulation_cpu_ns for row in records.processes) == 0


@pytest.mark.parametrize("observe", ["write", "copy", "query", "blocking", "sync"])
def test_every_way_to_see_the_end_of_a_step_serves_the_loop(observe, expected_crc):
    records = run(on_gpu(observe=observe), EveryKind())
    assert records.meta["tokens_crc32"] == expected_crc
    (device,) = records.meta["devices"]
    assert device["observe"] == observe, device["not_registered"]


def test_a_step_that_sleeps_takes_as_long_as_it_says():
    records = run(on_gpu(sleep_ns=2 * MS), PRESETS["spin"])
    took_ns = sorted(step.done_ns - step.launched_ns for step in records.steps)
    assert took_ns[len(took_ns) // 2] == pytest.approx(2 * MS, rel=0.15)


def test_the_records_say_what_the_device_was():
    (device,) = run(on_gpu()).meta["devices"]
    assert device["kind"] == "cuda"
    assert device["name"] == torch.cuda.get_device_name(0)
    assert device["memory"] == "registered", device["not_registered"]


@pytest.mark.parametrize("memory", ["registered", "pinned", "pageable"])
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_bulk_comes_to_the_gpu_as_it_was_sent_and_every_slot_comes_back(memory, scheduling):
    n_bytes = 4 << 20
    payload = PayloadConfig(0, n_bytes, "all-shm", 1 << 20, (SlotClass(n_bytes, 4),), memory)
    # Each step takes longer than its copy, behind which it stands.
    of = replace(on_gpu(scheduling=scheduling, sleep_ns=2 * MS), payload=payload)
    records = run(of)
    bulk = records.meta["devices"][0]["bulk"]
    assert bulk["memory"] == memory
    assert bulk["digest"] == records.meta["bulk_digest"] > 0
    assert records.processes[0].arena == records.processes[0].arena_released > 0


def test_ranks_without_a_gpu_only_receive_and_are_labelled(expected_crc):
    records = run(on_gpu(workers=4, devices=1))
    assert records.meta["emulated"] is True
    assert records.meta["tokens_crc32"] == expected_crc


def test_more_ranks_than_gpus_are_refused():
    n_gpus = torch.cuda.device_count()
    workers = next(n for n in (2, 4, 8, 16, 32) if n > n_gpus)
    geometry = {"model": "llama-3.2-1b"} if workers > 4 else {}
    with pytest.raises(RunFailed, match=rf"{workers} workers want a GPU each and there are"):
        run(on_gpu(workers, **geometry))


def test_a_cache_that_does_not_fit_is_refused():
    huge = on_gpu(model="llama-3.1-8b", max_len=1 << 20)
    huge = replace(huge, engine=replace(huge.engine, max_sequences=4096, max_batched_tokens=4096))
    with pytest.raises(RunFailed, match=r"MiB free, and .* are needed: .* max_len"):
        run(huge)


def test_a_worker_that_is_killed_on_the_gpu_is_named_and_gives_its_memory_back():
    torch.zeros(1, device="cuda")
    free_before = torch.cuda.mem_get_info()[0]
    long = on_gpu(sleep_ns=5 * MS)
    long = replace(long, workload=replace(long.workload, requests=500))
    before = children()

    def kill_the_worker():
        workers = eventually(lambda: sorted(children() - before)[1:], within_s=60)
        eventually(lambda: steps and steps[-1] > 20, within_s=120)
        os.kill(workers[0], signal.SIGKILL)

    steps: list[int] = []
    killer = threading.Thread(target=kill_the_worker)
    killer.start()
    with pytest.raises(RunFailed, match=r"worker 0 .* was killed by SIGKILL") as failed:
        run_once(make_spec(long, PRESETS["park"], toy_profile(), 0), steps.append)
    killer.join()
    assert re.search(r"at step \d+", str(failed.value))
    eventually(lambda: torch.cuda.mem_get_info()[0] > free_before - (64 << 20), within_s=30)


@pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.device_count() < 2, reason="needs two GPUs"
)
@pytest.mark.parametrize("collective", ["nccl", "gloo"])
def test_two_gpus_say_what_one_says(collective, expected_crc):
    if collective == "gloo":
        with pytest.raises(RunFailed, match="gloo cannot be part of a CUDA graph"):
            run(on_gpu(2, collective=collective))
        return
    # bf16 sums in another order may tip a tie, so the tokens need not be the same for ever.
    records = run(on_gpu(2, collective=collective))
    assert [device["index"] for device in records.meta["devices"]] == [0, 1]
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS


def test_two_ranks_may_share_a_gpu_by_symmetric_memory():
    records = run(on_gpu(2, collective="symm"))
    assert records.meta["emulated"] is True, "they take turns: no time of theirs means anything"
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS
