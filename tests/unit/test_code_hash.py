"""Names of code: the same for what does the same, another for whatever makes a difference."""

import importlib.util
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from shmsim.code_hash import CodeHash
from shmsim.policies import POLICIES, PRESETS

SOURCE = """
from typing import NamedTuple
import enum
import functools
import math
import helpers

FACTOR = 3
TABLE = (1, 2.5)

class Kind(enum.Enum):
    SHORT = 1

class Base:
    most_ns = 9

    def least(self):
        return 4

class Wait(NamedTuple):
    window_ns: int = 7

    def plan(self, ctx, *, extra=1):
        found = [half(x) for x in TABLE if x in {"a", "b"}]
        return self.own() + FACTOR + helpers.more(1) + extra + Kind.SHORT.value + len(found)

    def own(self):
        return Base().least() + Base.most_ns

    @property
    def twice(self):
        return self.window_ns * 2

@functools.lru_cache(maxsize=8)
def half(x):
    return math.floor(x) // 2
"""


def name_of(source=SOURCE, more="def more(x): return x + 1", is_told=lambda _: False):
    helpers = ModuleType("helpers")
    exec(more, vars(helpers))
    vars(helpers)["more"].__module__ = "helpers"
    names = {"__name__": "made", "helpers": helpers}
    exec(source.replace("import helpers", ""), names)
    found = CodeHash(is_told)
    found.add(names["Wait"])
    return found.hexdigest()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FACTOR = 3", "FACTOR = 3.0"),
        ("(1, 2.5)", "(1, 2.0)"),
        ("SHORT = 1", "SHORT = 2"),
        ("most_ns = 9", "most_ns = 8"),
        ("return 4", "return 5"),
        ("window_ns: int = 7", "window_ns: int = 8"),
        ("window_ns: int", "window_ns: float"),
        ("extra=1", "extra=2"),
        ('{"a", "b"}', '{"a", "c"}'),
        ("window_ns * 2", "window_ns * 3"),
        ("// 2", "// 3"),
    ],
)
def test_whatever_makes_a_difference_is_another_name(before, after):
    assert before in SOURCE
    assert name_of() == name_of()
    assert name_of(SOURCE.replace(before, after)) != name_of()


def test_a_comment_makes_no_difference():
    assert name_of(SOURCE + "# a comment\n") == name_of()


def test_a_helper_in_another_file_counts_unless_it_is_told_otherwise():
    other = "def more(x): return x + 2"
    assert name_of(more=other) != name_of()
    told = {"helpers"}.__contains__
    assert name_of(more=other, is_told=told) == name_of(is_told=told)


@pytest.mark.parametrize("value", ["[1]", "{'a': 1}", "{1}", "bytearray(2)", "object()", "Base()"])
def test_what_may_change_unseen_is_refused(value):
    with pytest.raises(TypeError, match="nobody knows when it changes"):
        name_of(SOURCE.replace("TABLE = (1, 2.5)", "TABLE = ()") + f"\nFACTOR = {value}\n")


def test_an_array_counts_by_what_it_holds_if_nobody_can_write_to_it():
    values = np.arange(3.0)

    def first(x):
        return values[0]

    def name():
        found = CodeHash()
        found.add(first)
        return found.hexdigest()

    with pytest.raises(TypeError, match="nobody knows when it changes"):
        name()
    values.flags.writeable = False
    before = name()
    values = np.arange(1.0, 4.0)
    values.flags.writeable = False
    assert name() != before


def test_code_is_named_as_it_was_imported_and_not_as_it_lies_there_by_now(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def wait():\n    return 1\n")
    spec = importlib.util.spec_from_file_location("mine", path)
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)

    def name():
        found = CodeHash()
        found.add(mine.wait)
        return found.hexdigest()

    before = name()
    path.write_text("def wait():\n    return 2222\n")
    assert name() == before
    spec.loader.exec_module(mine)
    assert name() != before


def test_every_process_gives_the_same_name():
    """The order of a set of texts is another in each."""
    program = (
        "from shmsim.code_hash import CodeHash\n"
        "def f(x): return x in {'a', 'b', 'c', 'd', 'e'}\n"
        "found = CodeHash()\n"
        "found.add(f)\n"
        "print(found.hexdigest())"
    )
    said = {
        subprocess.check_output([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


def test_every_policy_of_the_library_has_a_name_of_its_own():
    names = set()
    for kind in POLICIES.values():
        found = CodeHash()
        found.add(kind)
        names.add(found.hexdigest())
    assert len(names) == len(POLICIES)
    for policy in PRESETS.values():
        CodeHash().add(policy)
