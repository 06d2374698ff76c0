"""Who misspells a name is shown the nearest, and how to see all; so is who misspells a file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from realrun.cli import app as realrun_app
from shmsim.cli import app as shmsim_app
from shmsim.nearest import did_you_mean, did_you_mean_file, instead, nearest
from shmsim.policies import POLICIES, PRESETS

POLICY_NAMES = [*PRESETS, *POLICIES]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_name_that_differs_in_nothing_but_case_and_dashes_is_found_first(name):
    for word in (name.upper(), name.replace("-", "_"), name.replace("-", "")):
        found = nearest(word, POLICY_NAMES)[0]
        assert found.lower().replace("-", "") == name.lower().replace("-", "")


@given(st.text(max_size=12), st.lists(st.text(min_size=1, max_size=12), unique=True))
def test_what_is_near_is_known_and_few_and_a_known_name_is_nearest_to_itself(word, known):
    found = nearest(word, known)
    assert set(found) <= set(known)
    assert len(found) <= 3
    if word in known:
        assert found[0] == word


def test_several_names_that_are_as_near_are_all_named_and_far_ones_are_not():
    assert did_you_mean("tpot-p98", ["tpot-p99", "tpot-p90", "tpot-p95", "cpu"]) == (
        "; did you mean tpot-p99, tpot-p90 or tpot-p95?"
    )
    assert did_you_mean("wake-ahed", ["spin", "wake-ahead", "yield"], "policy.") == (
        "; did you mean policy.wake-ahead?"
    )
    assert did_you_mean("zzz", ["spin"]) == ""


def test_a_long_list_is_cut_and_a_command_that_lists_all_takes_its_place():
    many = [f"name{i}" for i in range(40)]
    assert instead("zzz", many).endswith("name22, name23 and 16 others")
    assert instead("zzz", many, "shmsim policies") == "; 'shmsim policies' lists all 40"
    assert instead("zzz", []) == "; known are none"


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name in ("config.toml", "configs/short.toml", "runs/mine/meta.json", "profile.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given_path", "meant"),
    [
        ("confg.toml", "config.toml"),
        ("config/short.toml", "configs/short.toml"),
        ("configs/shrt.toml", "configs/short.toml"),
        ("runs/mime", "runs/mine"),
        ("profil.json", "profile.json"),
    ],
)
def test_a_file_that_is_not_there_is_told_from_what_is(files, given_path, meant):
    assert did_you_mean_file(Path(given_path)) == f"; did you mean {meant}?"
    assert did_you_mean_file(files / given_path) == f"; did you mean {files / meant}?"


@pytest.mark.parametrize(
    "given_path",
    [
        "config.toml",  # is there
        "config.json",  # another kind
        "records/other.txt",  # nothing of that name is in what comes near
        "profile.json/x",  # below a file
    ],
)
def test_what_does_not_exist_is_not_asked_for(files, given_path):
    assert did_you_mean_file(Path(given_path)) == ""


@pytest.mark.parametrize(
    ("app", "words", "said"),
    [
        (shmsim_app, "simulate confg.toml", "did you mean config.toml?"),
        (shmsim_app, "simulate -p profil.json", "did you mean profile.json?"),
        (shmsim_app, "simulate -p vm2cpu", "did you mean vm-2cpu?"),
        (shmsim_app, "profile h20", "did you mean h200?"),
        (shmsim_app, "simulate -p vm-2cpu --policy prak", "did you mean park"),
        (shmsim_app, "simulate -p vm-2cpu --policy polcy.json", "did you mean policy.json?"),
        (shmsim_app, "export prak -e vllm", "'shmsim policies' lists all"),
        (shmsim_app, "export park -e vlm", "did you mean vllm?"),
        (shmsim_app, "export park -e vllm -f kubernets", "did you mean kubernetes?"),
        (shmsim_app, "sweep swep.toml", "did you mean sweep.toml?"),
        (shmsim_app, "timeline runs/mime", "did you mean runs/mine?"),
        (shmsim_app, "arena -w one-imag", "did you mean one-image?"),
        (shmsim_app, "arena -w photos --hold finish", "did you mean finished?"),
        (shmsim_app, "claims clams.json", "did you mean claims.json?"),
        (shmsim_app, "tune -p vm-2cpu --goal tpott", "did you mean tpot"),
        (realrun_app, "report runs/mime", "did you mean runs/mine?"),
        (realrun_app, "contribute runs/mime", "did you mean runs/mine?"),
        (realrun_app, "validate --grid cels.toml", "did you mean cells.toml?"),
        (realrun_app, "run confg.toml", "did you mean config.toml?"),
        (realrun_app, "vllm-import trases", "did you mean traces?"),
        (realrun_app, "demo --trace trce.csv", "did you mean trace.csv?"),
    ],
)
def test_every_command_asks_whether_the_nearest_was_meant(files, app, words, said):
    for name in ("policy.json", "sweep.toml", "claims.json", "cells.toml", "trace.csv"):
        (files / name).write_text("")
    (files / "traces").mkdir()
    done = CliRunner().invoke(app, words.split())
    assert said in " ".join(done.stderr.split())
    assert done.exit_code == 2
    assert done.stdout == ""


@pytest.mark.parametrize(("app", "words"), [(shmsim_app, "tuen"), (realrun_app, "validat")])
def test_a_misspelt_command_and_option_are_told_too(app, words):
    assert "Did you mean" in CliRunner().invoke(app, [words]).stderr
    named = "tune" if app is shmsim_app else "validate"
    assert "--profile" in CliRunner().invoke(app, [named, "--profil", "x"]).stderr


def test_an_unknown_policy_in_a_config_does_not_list_the_library(files):
    (files / "config.toml").write_text('[[policy]]\npreset = "spn"\n')
    done = CliRunner().invoke(shmsim_app, ["simulate", "config.toml", "-p", "vm-2cpu", "--json"])
    assert "did you mean spin?" in " ".join(done.stderr.split())
    assert len(done.stderr) < 200
