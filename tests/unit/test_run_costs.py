"""Which costs of a profile a config meets."""

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from realrun.validate import predict as predict_run
from shmsim.cli import app
from shmsim.config import DeviceConfig
from shmsim.policies import BusySpin
from shmsim.profile import Curve
from shmsim.run_costs import costs_of_run, notes_on_costs
from shmsim.sim.engine import ENGINES, choose, simulate_with
from shmsim.sim.recurrence import refuses
from shmsim.sim.tune import tune
from shmsim.sweep.key import point_key
from shmsim.sweep.plan import plan_of
from shmsim.tuner import parse_goal
from tests.toy import constant, toy_profile
from tests.ways import LATE_NS, LAUNCH_NS, ON_GPU, observed, with_ways

GPU = with_ways(toy_profile())
NOT_MEASURED = r'device\.observe = "sync"'


def median(profile, name):
    return profile.costs[name].at(0.5, 1e6)


@pytest.mark.parametrize("way", LATE_NS)
def test_a_gpu_is_launched_and_waited_for_as_there(way):
    found = costs_of_run(observed(way), GPU)
    assert found.ways == (way,)
    assert median(found, "launch") == LAUNCH_NS
    assert median(found, "device_spin_detection") == LATE_NS[way]
    assert median(found, "spin_detection") == median(GPU, "spin_detection")
    again = costs_of_run(observed(way), found)
    assert (again.costs, again.machine) == (found.costs, found.machine)


def test_a_cpu_knows_nothing_of_the_gpu_and_a_law_meets_the_profile_as_it_is():
    cpu = replace(ON_GPU, device=replace(ON_GPU.device, kind="cpu", observe="sync"))
    assert costs_of_run(cpu, GPU).costs == toy_profile().costs
    law = replace(ON_GPU, device=DeviceConfig())
    echo = replace(law, engine=replace(law.engine, device_wait=""))
    assert costs_of_run(law, GPU) is costs_of_run(echo, GPU) is GPU


def test_a_way_that_nobody_measured_is_refused_and_those_that_were_are_named():
    message = (
        r"holds what waiting for a GPU by write, query, blocking costs, and the config has "
        r'device.observe = "sync"; name another, or calibrate'
    )
    with pytest.raises(ValueError, match=message):
        costs_of_run(observed("sync"), GPU)
    why = {"gpu": {"rests": {"not_observed": {"copy": "no counter"}}}}
    told = replace(GPU, machine=GPU.machine | why)
    with pytest.raises(ValueError, match=r'"copy", which cannot be had there \(no counter\)'):
        costs_of_run(observed("copy"), told)


def test_a_profile_without_a_gpu_does_not_stand_for_one():
    with pytest.raises(ValueError, match="what waiting for a GPU costs, as device"):
        costs_of_run(ON_GPU, toy_profile())
    left_out = {"gpu": {"left_out": {"rests": "no time"}}}
    for machine in (left_out, {"gpu": "NVIDIA H200"}):
        named = replace(toy_profile(), machine=machine)
        with pytest.raises(ValueError, match="calibrate where the GPU is") as caught:
            costs_of_run(ON_GPU, named)
        assert ("(no time)" in str(caught.value)) == (machine is left_out)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_whoever_asks_must_say_how_a_device_that_computes_is_waited_for(kind):
    engine = replace(ON_GPU.engine, device_wait="")
    silent = replace(ON_GPU, engine=engine, device=replace(ON_GPU.device, kind=kind))
    with pytest.raises(ValueError, match=r"engine\.device_wait is empty"):
        costs_of_run(silent, GPU)
    with pytest.raises(ValueError, match=r"engine\.device_wait is empty"):
        predict_run(silent, BusySpin(), GPU, 0)


def test_where_workers_fall_back_the_costs_do_and_it_is_said():
    fallen = with_ways(toy_profile(), first="blocking")
    for way in ("write", "copy"):
        if way == "write":  # what this machine cannot do was not measured there
            fallen.costs.pop("device_spin_detection@write")
            fallen.costs.pop("device_wake_latency@write")
        found = costs_of_run(observed(way), fallen)
        assert median(found, "device_spin_detection") == LATE_NS["blocking"]
        (note,) = notes_on_costs(observed(way), fallen)
        assert f"by '{way}': costs are those of 'blocking'" in note
    assert notes_on_costs(observed("blocking"), fallen) == []
    assert notes_on_costs(observed("query"), GPU) == []
    with pytest.raises(ValueError, match=NOT_MEASURED):
        notes_on_costs(observed("sync"), fallen)
    law = replace(ON_GPU, device=DeviceConfig())
    assert notes_on_costs(law, fallen) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_refuses_what_was_not_measured(engine):
    with pytest.raises(ValueError, match=NOT_MEASURED):
        simulate_with(observed("sync"), BusySpin(), GPU, engine=engine)


def test_whoever_chooses_plans_tunes_or_validates_refuses_it_at_once(tmp_path):
    asked = observed("sync")
    with pytest.raises(ValueError, match=NOT_MEASURED):
        choose(asked, GPU)
    with pytest.raises(ValueError, match=f"run on toy: .*{NOT_MEASURED}"):
        plan_of(asked, ON_GPU.policies, {"toy": GPU})
    with pytest.raises(ValueError, match=NOT_MEASURED):
        tune(asked, GPU, parse_goal("then cpu"), tmp_path)
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match=NOT_MEASURED):
        predict_run(asked, BusySpin(), GPU, 0)


def test_an_engine_is_chosen_by_the_costs_of_the_run():
    early = with_ways(toy_profile())
    early.costs["device_launch"] = Curve("", (0.0,), (constant(-1),))
    assert "the profile's cost launch can be negative" in refuses(ON_GPU, early)
    assert refuses(replace(ON_GPU, device=DeviceConfig()), early) is None
    assert choose(ON_GPU, early) == "events"


def test_a_way_has_keys_of_its_own_and_the_same_in_every_process():
    def key(way, profile=GPU):
        return point_key(observed(way), BusySpin(), profile, 0)

    assert len({key(way) for way in LATE_NS}) == len(LATE_NS)
    assert key("query") == key("query", with_ways(toy_profile()))
    # Plain names say nothing by themselves.
    other = replace(GPU, machine=GPU.machine | {"observe": "copy"})
    assert key("write") != key("write", other)


@pytest.fixture
def stored(tmp_path):
    """Writes a config that observes ends of steps in one way, and a profile that falls back."""

    def write(way):
        fallen = with_ways(toy_profile(), first="blocking")
        for name in ("spin_detection", "wake_latency"):
            fallen.costs.pop(f"device_{name}@write")
        fallen.write(tmp_path / "profile.json")
        (tmp_path / "config.toml").write_text(f"""\
[engine]
max_sequences = 2
device_wait = "spin"
[device]
kind = "cuda"
sleep = "2ms"
observe = "{way}"
[workload]
requests = 2
concurrency = 2
output_p50 = 5
output_p95 = 5
""")
        (tmp_path / "sweep.toml").write_text(
            'profiles = ["profile.json"]\nconfigs = ["config.toml"]\nreplications = 2\n'
            '[[policy]]\npreset = "spin"\n'
        )
        return {
            "simulate": ["config.toml", "-p", "profile.json", "--policy", "spin", "-r", "2"],
            "sweep": ["sweep.toml", "-o", "runs", "-j", "1"],
            "tune": ["config.toml", "-p", "profile.json", "--quick", "-j", "1"],
            "export": ["park", "-e", "vllm", "-c", "config.toml", "-p", "profile.json", "-r", "2"],
        }

    return write


@pytest.mark.parametrize("command", ["simulate", "sweep", "tune", "export"])
def test_the_commands_say_what_stands_for_what_and_refuse_what_was_not_measured(
    command, stored, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    said = " by 'write': costs are those of 'blocking', to which its workers fall back"
    for way, code, text in (("write", 0, said), ("query", 0, ""), ("sync", 2, NOT_MEASURED)):
        done = CliRunner().invoke(app, [command, *stored(way)[command]])
        assert done.exit_code == code, done.output
        words = " ".join(done.output.split())
        assert re.search(text, words)
        assert (said in words) == (way == "write")
