"""The policies an engine is told, read without what its environment lacks."""

import json
import subprocess
import sys

import pytest

from realrun.vllm.arms import read_arms
from shmsim.config import NamedPolicy
from shmsim.policies import PRESETS, StepAhead
from shmsim.policy_file import read_policy, write_policy


@pytest.mark.parametrize("name", PRESETS)
def test_it_reads_what_the_policy_files_of_this_package_say(name, tmp_path):
    path = tmp_path / "policy.json"
    write_policy(path, NamedPolicy(name, PRESETS[name]), {})
    own, arm = read_arms(str(path))
    assert own.policy is None
    assert arm.policy == read_policy(path).policy
    assert arm.name == read_policy(path).name


def test_a_window_of_vllms_own_is_an_arm_too():
    arm = read_arms("window=2ms")[1]
    assert arm.policy is None
    assert arm.window_s == 0.002


def test_no_policies_leave_vllms_own_waiting():
    assert [arm.name for arm in read_arms("")] == ["vllm"]


@pytest.mark.parametrize(
    "change",
    [{"kind": "NoSuch"}, {"version": 2}, {"parameters": {"clamp": 7.0}}, {"parameters": {"x": 1}}],
)
def test_a_wrong_file_is_refused(change, tmp_path):
    path = tmp_path / "policy.json"
    write_policy(path, NamedPolicy("p", StepAhead()), {})
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=r"policy\.json"):
        read_arms(str(path))


def test_within_an_engine_only_policies_and_the_hand_off_are_imported():
    code = (
        "import sys, realrun.vllm.plugin, realrun.vllm.arms, realrun.vllm.process\n"
        "import realrun.vllm.reading, realrun.vllm.writing\n"
        "heavy = 'numpy', 'scipy', 'pyarrow', 'numba', 'simpy', 'rich', 'typer', 'torch'\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
