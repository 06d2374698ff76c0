"""A comparison survives its folder."""

import json

import pytest

from realrun.vllm.ab import LOG
from realrun.vllm.arms import read_costs
from realrun.vllm.stored import (
    PREDICTIONS,
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


def without_tokens(blocks):
    # NaN is not even itself.
    return [repr(block._replace(tokens=[])) for block in blocks]


def test_what_was_stored_comes_back_without_its_tokens(tmp_path):
    stored = write_stored(tmp_path / "ab")
    back = read_comparison(tmp_path / "ab")
    assert without_tokens(back.blocks) == without_tokens(stored.blocks)
    assert back.plan == PLAN
    assert (back.engine, back.machine) == (stored.engine, stored.machine)


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
