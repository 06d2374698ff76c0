"""A comparison survives its folder."""

import json

import pytest

from realrun.vllm.ab import LOG
from realrun.vllm.arms import read_costs
from realrun.vllm.stored import (
    PREDICTIONS,
    TRACE_FOLDER,
    arm_policies,
    clear,
    read_comparison,
    write_comparison,
    write_costs,
)
from shmsim.policies import PRESETS, GraceThenPark
from shmsim.profile import MachineProfile
from shmsim.units import MS
from shmsim.wait import TYPICAL_COSTS
from tests.vllm.comparisons import ARMS, PLAN, write_stored


def test_what_was_stored_comes_back_with_the_hash_of_its_tokens(tmp_path):
    stored = write_stored(tmp_path / "ab")
    back = read_comparison(tmp_path / "ab")
    assert list(map(repr, back.blocks)) == list(map(repr, stored.blocks))  # NaN is not even itself
    assert {block.tokens_sha256 for block in back.blocks} == {"abc"}
    assert back.plan == PLAN
    assert (back.engine, back.machine) == (stored.engine, stored.machine)


def test_one_from_before_there_were_hashes_and_threads_is_read_too(tmp_path):
    write_stored(tmp_path / "ab")
    path = tmp_path / "ab" / f"{PLAN.cell}.json"
    content = json.loads(path.read_text())
    for block in content["blocks"]:
        del block["threads"], block["tokens_sha256"]
        block |= {"main_share": 0.75, "tokens": []}
    path.write_text(json.dumps(content))
    block = read_comparison(tmp_path / "ab").blocks[0]
    assert block.threads["scheduler"] == pytest.approx({"main": 0.675, "others": 0.225})
    assert block.tokens_sha256 == ""


def test_one_that_does_not_say_which_engine_it_was_is_told_by_its_records(tmp_path):
    write_stored(tmp_path / "ab")
    path = tmp_path / "ab" / f"{PLAN.cell}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine": ""}))
    assert read_comparison(tmp_path / "ab").engine == "vllm 0"
    for trace in (tmp_path / "ab" / TRACE_FOLDER).rglob("*.trace"):
        trace.unlink()
    assert read_comparison(tmp_path / "ab").engine == "unknown"


def test_what_is_no_comparison_is_refused_with_its_name(tmp_path):
    with pytest.raises(ValueError, match="0 comparisons"):
        read_comparison(tmp_path)
    (tmp_path / "tp1-sync-1.json").write_text('{"plan": {}}')
    with pytest.raises(ValueError, match=r"tp1-sync-1\.json"):
        read_comparison(tmp_path)


def test_two_comparisons_in_one_folder_are_refused(tmp_path):
    stored = write_stored(tmp_path / "ab")
    write_comparison(tmp_path / "ab", stored._replace(plan=PLAN._replace(workers=2)))
    with pytest.raises(ValueError, match="2 comparisons"):
        read_comparison(tmp_path / "ab")


def test_a_new_one_takes_nothing_over_and_removes_nothing_else(tmp_path):
    write_stored(tmp_path / "ab")
    (tmp_path / "ab" / "notes.txt").touch()
    (tmp_path / "ab" / PREDICTIONS).touch()
    clear(tmp_path / "ab")
    left = {path.name for path in (tmp_path / "ab").rglob("*") if path.is_file()}
    assert left == {"notes.txt"}


def test_policy_files_that_are_of_no_comparison_are_not_overwritten(tmp_path):
    mine = tmp_path / "arm1.json"
    mine.touch()
    with pytest.raises(ValueError, match=r"arm1\.json is no file of an earlier comparison"):
        clear(tmp_path)
    (tmp_path / LOG).touch()  # one that was interrupted
    clear(tmp_path)
    assert not mine.exists()


def test_policies_are_told_the_price_of_delay_with_or_without_a_profile(tmp_path):
    box = MachineProfile.shipped("vm-2cpu")
    assert read_costs(write_costs(tmp_path, box, 30.0)) == box.wait_costs(30.0)
    typical = TYPICAL_COSTS._replace(delay_price=100.0)
    assert read_costs(write_costs(tmp_path, None, 100.0)) == typical


def test_another_price_is_another_cell_and_an_old_comparison_had_the_usual_one(tmp_path):
    assert PLAN._replace(delay_price=30.0).cell == PLAN.cell + "-r30"
    write_stored(tmp_path / "ab")
    path = tmp_path / "ab" / f"{PLAN.cell}.json"
    content = json.loads(path.read_text())
    del content["plan"]["delay_price"]
    path.write_text(json.dumps(content))
    assert read_comparison(tmp_path / "ab").plan == PLAN


def test_every_arm_is_a_policy_of_the_model(tmp_path):
    write_stored(tmp_path / "ab")
    policies = arm_policies(tmp_path / "ab", ARMS)
    assert policies["vllm"] == policies["vllm again"] == PRESETS["vllm-1s"]
    assert policies["park"] == PRESETS["park"]
    assert policies["window=2ms"] == GraceThenPark(2 * MS)
    with pytest.raises(ValueError, match="'other'"):
        arm_policies(tmp_path / "ab", ["other"])
