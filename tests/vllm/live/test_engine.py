"""A live engine of an installed vLLM, with one worker: a minute."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from realrun.host import usable_cores
from realrun.vllm.beside import PREFIX, SHM
from realrun.vllm.engine import Engine, Setup, find_vllm
from realrun.vllm.generate import engine_arguments, write_tiny_model
from realrun.vllm.traces import read_traces
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"
    ),
]
N_TOKENS = 100


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    write_tiny_model(folder / "model")
    policy = {"format": "shmsim-policy", "version": 1, "kind": "Park", "name": "park"}
    (folder / "park.json").write_text(json.dumps({**policy, "parameters": {}}))
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": str(usable_cores()[-1]),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    arguments = engine_arguments(folder / "model", 1, asynchronous=True)
    setup = Setup(
        Path(sys.executable),
        arguments,
        str(folder / "park.json"),
        folder / "trace",
        None,
        environment,
    )
    with Engine(setup, folder / "vllm.log") as engine:
        engine.folder = folder
        yield engine
    assert list(SHM.glob(f"{PREFIX}*")) == []


def test_the_environment_has_vllm_and_this_package():
    assert find_vllm(Path(sys.executable)).startswith("vllm")


def test_it_says_the_same_however_it_waits_and_the_counters_tell(engine):
    said = {}
    for arm in (0, 1, 0, 1):
        engine.control.arm = arm
        engine.generate(1, 20)
        before = engine.counters()["scheduler"]
        said.setdefault(arm, []).append(engine.generate(1, N_TOKENS)["tokens"])
        after = engine.counters()["scheduler"]
        moved = {n: getattr(after, n) - getattr(before, n) for n in after._fields}
        assert moved["sent"] > N_TOKENS
        ours, theirs = moved["waits"], moved["vllm_waits"] + moved["pinged"]
        assert (ours > N_TOKENS and theirs < 20) if arm else (ours < 20 and theirs > N_TOKENS)
        assert moved["overtaken"] == moved["rescued"] == 0
    assert said[0] == said[1]
    assert said[0][0] == said[0][1]


def test_every_process_left_its_waits(engine):
    scheduler, worker = read_traces(engine.folder / "trace")
    assert (scheduler.name, worker.name) == ("scheduler", "worker0")
    for trace, site in (scheduler, SCHEDULER_RECV), (worker, WORKER_RECV):
        waits = trace.rows[trace.rows["site"] == site]
        assert len(waits) > N_TOKENS
        assert (waits["seen_ns"] >= waits["published_ns"]).all()


def test_after_a_silence_the_first_token_does_not_wait_for_a_recheck(engine):
    engine.control.arm = 1
    assert engine.generate(1, 2, idle_s=3.0)["ttft_s"][0] < 2.0


def test_when_its_time_is_over_a_generation_is_given_up(engine):
    engine.control.arm = 1
    answer = engine.generate(1, 4000, within_s=0.5)
    assert 0 < len(answer["tokens"][0]) < 4000
    assert answer["wall_s"] < 30
    assert len(engine.generate(1, 20)["tokens"][0]) == 20
