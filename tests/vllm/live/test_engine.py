"""A live engine of an installed vLLM, with one worker and with two: some minutes."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from realrun.vllm.beside import PREFIX, SHM
from realrun.vllm.engine import FRONT_END, MAIN, Engine, Setup, cpu_environment, find_vllm
from realrun.vllm.generate import engine_arguments, write_tiny_model
from realrun.vllm.in_force import check_in_force, moved
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
N_WARM, N_TOKENS = 40, 100


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def engine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    before = set(SHM.glob("*-cpushm_*"))
    write_tiny_model(folder / "model")
    policy = {"format": "shmsim-policy", "version": 1, "kind": "Park", "name": "park"}
    (folder / "park.json").write_text(json.dumps({**policy, "parameters": {}}))
    python, workers = Path(sys.executable), request.param
    arguments = engine_arguments(folder / "model", workers, asynchronous=True)
    setup = Setup(
        python,
        arguments,
        str(folder / "park.json"),
        folder / "trace",
        None,
        cpu_environment(find_vllm(python), workers),
    )
    with Engine(setup, folder / "vllm.log") as engine:
        engine.folder, engine.workers = folder, workers
        yield engine
    assert list(SHM.glob(f"{PREFIX}*")) == []
    assert set(SHM.glob("*-cpushm_*")) == before


def test_the_environment_has_vllm_and_this_package():
    assert find_vllm(Path(sys.executable)).startswith("vllm")


def test_it_says_the_same_however_it_waits_and_the_counters_tell(engine):
    said = {}
    for arm in (0, 1, 0, 1):
        engine.control.arm = arm
        engine.generate(1, N_WARM)
        before = engine.counters()
        said.setdefault(arm, []).append(engine.generate(1, N_TOKENS)["tokens"])
        went = {name: moved(before[name], after) for name, after in engine.counters().items()}
        check_in_force(f"arm {arm}", went, engine.workers, by_policy=arm == 1)
        assert went["scheduler"].sent > N_TOKENS
        assert {counted.rescued for counted in went.values()} == {0}
    assert said[0] == said[1]
    assert said[0][0] == said[0][1]


def test_every_process_left_its_waits(engine):
    scheduler, *workers = read_traces(engine.folder / "trace")
    names = [f"worker{rank}" for rank in range(engine.workers)]
    assert [trace.name for trace in (scheduler, *workers)] == ["scheduler", *names]
    for trace in scheduler, *workers:
        site = WORKER_RECV if trace.is_worker else SCHEDULER_RECV
        waits = trace.rows[trace.rows["site"] == site]
        assert len(waits) > N_TOKENS
        assert (waits["seen_ns"] >= waits["published_ns"]).all()


def test_cpu_time_is_told_by_process_and_thread(engine):
    used = engine.usage().processes
    names = ["scheduler", *(f"worker{rank}" for rank in range(engine.workers)), FRONT_END]
    assert list(used) == names
    for threads in used.values():
        assert threads[MAIN] > 0
        assert len(threads) > 1


def test_after_a_silence_the_first_token_does_not_wait_for_a_recheck(engine):
    engine.control.arm = 1
    assert engine.generate(1, 2, idle_s=3.0)["ttft_s"][0] < 2.0


def test_when_its_time_is_over_a_generation_is_given_up(engine):
    engine.control.arm = 1
    answer = engine.generate(1, 4000, within_s=0.5)
    assert 0 < len(answer["tokens"][0]) < 4000
    assert answer["wall_s"] < 30
    assert len(engine.generate(1, 20)["tokens"][0]) == 20
