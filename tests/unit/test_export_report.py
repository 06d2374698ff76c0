import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from realrun.vllm.arms import read_arms
from shmsim.cli import app
from shmsim.config import (
    EngineConfig,
    HandoffConfig,
    NamedPolicy,
    PayloadConfig,
    RunConfig,
    WorkloadConfig,
)
from shmsim.export.engines import GENERIC, load_engine
from shmsim.export.idle import ParkWhenIdle
from shmsim.export.pause import Round
from shmsim.export.report import Request, export
from shmsim.export.shm import shm_need
from shmsim.policies import PRESETS, SpinThenPark
from shmsim.routing import MIB, SlotClass
from shmsim.units import MS
from tests.toy import toy_profile

SMALL = RunConfig(
    workload=WorkloadConfig(
        requests=3, prompt_p50=10, prompt_p95=10, output_p50=12, output_p95=12, concurrency=1
    )
)
VLLM = load_engine("vllm").at("0.33.0")


def asked(policy, engine=VLLM, config=None, profile=None, spin_round=None):
    if isinstance(policy, str):
        policy = NamedPolicy(policy, PRESETS[policy])
    return export(Request(policy, engine, config, profile, spin_round, 2), lambda done, total: None)


def named(answer):
    return [(row.name, value) for row, value in answer.settings]


def test_what_the_engine_does_by_itself_needs_no_setting():
    answer = asked("vllm-1s")
    assert named(answer) == []
    assert "vllm-1s is what it does by itself: keep the default" in answer.said
    assert "nothing to set" in answer.said


def test_what_it_cannot_do_is_told_with_the_reason_and_the_nearest():
    answer = asked("wake-ahead")
    text = "\n".join(answer.said)
    assert named(answer) == []
    assert "vllm 0.33.0 cannot be told to wait as wake-ahead does: WakeAhead guard 100 µs" in text
    assert "its window of 1 s is a constant" in text
    assert "nearest of what it has: GraceThenPark window 1 s" in text
    assert "give --config and -p PROFILE to see what that costs" in text


def test_what_no_setting_does_this_package_does_beside_the_engine(tmp_path):
    path = tmp_path / "a policy.json"
    found = run("step-ahead", "-e", "vllm", "--json")
    (value,) = json.loads(found.stdout)["beside"].values()
    assert value == str(Path("policy.json").resolve())
    text = run("step-ahead", "-e", "vllm").stdout
    assert "no setting of its own to change" in text
    assert "python -m pip install --no-deps ." in text
    assert f"# then start vllm with: REALRUN_VLLM_POLICY={value}\n" in text
    # What is told to be written down is a file that vLLM's processes take.
    (line,) = re.findall("# write the policy down: (.*)\n", text)
    line = line.replace(value, shlex.quote(str(path)))
    subprocess.run(["sh", "-c", line], check=True)
    _, arm = read_arms(str(path))
    assert (arm.name, arm.policy) == ("step-ahead", PRESETS["step-ahead"])
    # Then it has a file, which is named as it is.
    text = run(str(path), "-e", "vllm", "-f", "kubernetes").stdout
    assert "write the policy down" not in text
    assert f"# then start vllm with: REALRUN_VLLM_POLICY={shlex.quote(str(path))}\n" in text


def test_beside_the_engine_means_where_it_is_known_to_work_and_needed():
    assert asked("wake-ahead").beside
    old = asked("wake-ahead", load_engine("vllm").at("0.26.0"))
    assert not old.beside
    assert "from vllm 0.27.0 on this package carries wake-ahead out (docs/vllm.md)" in old.said
    for answer in (asked("vllm-1s"), asked("wake-ahead", load_engine("sglang").at("0.5.0"))):
        assert not answer.beside
        assert not [line for line in answer.said if "this package" in line]
    assert any("nothing is rehearsed there" in line for line in asked("rehearse-ahead").said)


def test_a_setting_of_an_older_version_is_used_there_and_only_there():
    old = asked("sleep-100ms", load_engine("vllm").at("0.17.0"))
    assert named(old) == [("VLLM_SLEEP_WHEN_IDLE", "1")]
    assert "mind: the first token after an idle period comes up to 100 ms later" in old.said
    assert named(asked("sleep-100ms")) == []


def test_with_a_model_the_nearest_comes_with_what_it_costs():
    answer = asked("wake-ahead", config=SMALL, profile=toy_profile())
    text = "\n".join(answer.said)
    assert "in the model wake-ahead: TPOT" in text
    assert "in the model the nearest: TPOT" in text
    assert "10 times the share of delay, is" in text
    assert "that is what it does by itself: keep the default" in text


def test_a_setting_that_gains_is_set_and_one_that_does_not_is_not():
    gomp = load_engine("libgomp").at("13")
    rounds = Round(30, "assumed, not measured: 30 ns")
    dear = replace(SMALL, delay_price=0.1)
    gains = asked("park", gomp, dear, toy_profile(), rounds)
    assert named(gains) == [("GOMP_SPINCOUNT", "0")]
    assert "assumed, not measured: 30 ns" in gains.said

    # Parking delays each step by a wake-up, which is worth more than a core here.
    hasty = replace(SMALL, delay_price=1000.0)
    loses = asked("park", gomp, hasty, toy_profile(), rounds)
    assert named(loses) == []
    assert any("could be told from chance: keep the default" in line for line in loses.said)


def test_a_window_that_differs_from_the_default_without_effect_is_not_set():
    # Steps of 2 ms end within 9 ms and within 20 ms alike.
    gomp = load_engine("libgomp").at("13")
    wider = NamedPolicy("wider", SpinThenPark(20 * MS))
    answer = asked(wider, gomp, SMALL, toy_profile(), Round(30, "30 ns"))
    assert named(answer) == []
    assert any(line.startswith("no gain of 0.01 cores") for line in answer.said)


def test_a_gain_that_is_certain_but_not_worth_a_setting_is_told_and_not_set():
    # The engine is idle for some microseconds, before its first request.
    asleep = NamedPolicy("asleep", ParkWhenIdle())
    answer = asked(asleep, load_engine("sglang").at("0.5.23"), SMALL, toy_profile())
    assert named(answer) == []
    (line,) = [line for line in answer.said if line.startswith("--sleep-on-idle 1: TPOT")]
    gain = float(line.split("price ")[1].split(" ")[0])
    assert 0 < gain < 0.01
    assert any(line.startswith("no gain of 0.01 cores") for line in answer.said)


def test_a_hand_off_of_your_own_is_told_in_words_and_rounds():
    answer = asked("wake-ahead", load_engine(GENERIC), None, None, Round(30, "30 ns"))
    assert answer.said[1:5] == (
        "WakeAhead guard 100 µs, smoothing 0.2, rehearse False",
        "in a wait for a step, after some of 2 ms:",
        "  doze until 1.9 ms",
        "  spin until 2.2 ms (10000 rounds)",
    )


def test_shared_memory_is_the_sum_of_the_queues():
    # research/vllm.md: 160 MiB and 240 for each worker; TP2 640 MiB, TP8 2080.
    for workers, queues_mib in ((1, 400), (2, 640), (8, 2080)):
        need = shm_need(VLLM, {}, workers)
        nccl_mib = 1024 if workers > 1 else 0
        assert queues_mib + nccl_mib < need.mib <= queues_mib + nccl_mib + 64
    with_arena = shm_need(VLLM, {"--enable-shm-tensor-arena": "1"}, 1)
    assert with_arena.mib == shm_need(VLLM, {}, 1).mib + 2048
    chunks = shm_need(VLLM, {"VLLM_MQ_MAX_CHUNK_BYTES_MB": "4"}, 1)
    assert chunks.mib == 320  # 40 + 240 + 1 MiB, rounded up
    assert shm_need(load_engine("llama.cpp").at("b12014"), {}, 8).mib == 0


def test_arena_and_slots_of_a_config_are_exported_where_they_can_be():
    config = replace(
        SMALL,
        engine=EngineConfig(workers=2, scheduling="async"),
        handoff=HandoffConfig(slot_bytes=40 * MIB + 1),
        payload=PayloadConfig(arena=(SlotClass(64 * MIB, 2),)),
    )
    answer = asked("vllm-1s", config=config)
    assert named(answer) == [
        ("--enable-shm-tensor-arena", "1"),
        ("VLLM_MQ_MAX_CHUNK_BYTES_MB", "41"),
    ]
    assert any("slots of its own, 8 of 256 MiB" in line for line in answer.said)
    assert answer.shm_mib == -(-(410 + 480 + 2048 + 1024 + 1) // 64) * 64

    older = asked("vllm-1s", load_engine("vllm").at("0.32.0"), config)
    assert named(older) == [("VLLM_MQ_MAX_CHUNK_BYTES_MB", "41")]
    assert any("0.32.0 has no --enable-shm-tensor-arena" in line for line in older.said)


def test_scheduling_that_differs_from_the_engines_own_is_told_not_set():
    for version, scheduling, flag in (
        ("0.33.0", "sync", "--no-async-scheduling"),
        ("0.12.0", "async", "--async-scheduling"),
    ):
        config = replace(SMALL, engine=EngineConfig(scheduling=scheduling))
        answer = asked("vllm-1s", load_engine("vllm").at(version), config)
        assert any(line.endswith(f"holds with {flag}") for line in answer.said)
        assert flag not in dict(named(answer))


def test_more_batches_in_flight_than_an_engine_has_are_told():
    for in_flight, told in ((2, 0), (3, 1)):
        engine = EngineConfig(scheduling="async", batches_in_flight=in_flight)
        answer = asked("vllm-1s", config=replace(SMALL, engine=engine))
        lines = [line for line in answer.said if "engine.batches_in_flight = 3, and vllm" in line]
        assert len(lines) == told


# The command.


def run(*words):
    return CliRunner().invoke(app, ["export", *words])


def test_the_command_prints_what_can_be_pasted():
    found = run("spin", "-e", "libgomp", "-p", "vm-2cpu")
    assert found.exit_code == 0
    assert found.stdout.splitlines()[-1] == "GOMP_SPINCOUNT=INFINITE"
    assert all(line.startswith("#") for line in found.stdout.splitlines()[:-1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("spin", "-e", "vlm"), "did you mean vllm?"),
        (("spin", "-e", "vllm", "-f", "yaml"), "no format 'yaml'"),
        (("spin", "-e", "vllm", "--engine-version", "0.3"), "the table begins with 0.7.0"),
        (("spin", "-e", "vllm", "--engine-version", "main"), "'main' is no version"),
        (("park", "-e", "llama.cpp"), "--round 30ns"),
        (("sppin", "-e", "vllm"), "unknown policy"),
    ],
)
def test_the_command_explains_what_is_wrong(words, said):
    found = run(*words)
    assert found.exit_code == 2
    assert said in found.stderr.replace("\n", " ")


def test_the_help_of_the_command_names_every_engine():
    text = run("--help").stdout
    for name in ("vllm", "sglang", "llama.cpp", "libgomp", "generic"):
        assert name in text
