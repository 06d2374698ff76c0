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


DECORATED = """
from typing import NamedTuple
import helpers

class Wait(NamedTuple):
    @helpers.decorated
    def plan(self, ctx):
        return 1
"""
TAKEN = DECORATED.replace("    @helpers.decorated\n", "").replace(
    "def plan(self, ctx):\n        return 1", "plan = helpers.plan"
)
WITHOUT_WRAPS = """
def more(x): return x
def plan(self, ctx): return 1
def decorated(function):
    def wrapper(self, ctx):
        return function(self, ctx) + 4
    return wrapper
"""
AS_A_LIBRARY = WITHOUT_WRAPS.replace(
    "    def wrapper",
    "    import functools, math\n    @functools.wraps(math.fsum)\n    def wrapper",
)


@pytest.mark.parametrize(
    ("source", "more", "before", "after"),
    [
        (DECORATED, WITHOUT_WRAPS, "return 1\n", "return 2\n"),
        (DECORATED, WITHOUT_WRAPS, "+ 4", "+ 5"),
        (DECORATED, AS_A_LIBRARY, "+ 4", "+ 5"),
        (TAKEN, WITHOUT_WRAPS, "return 1\n", "return 2\n"),
    ],
)
def test_a_method_that_was_made_in_another_file_counts(source, more, before, after):
    assert before in source + more
    changed = [text.replace(before, after) for text in (source, more)]
    assert name_of(source, more) == name_of(source, more)
    assert name_of(*changed) != name_of(source, more)


def test_what_a_named_tuple_is_given_does_not_count_but_what_takes_its_place_does():
    own = SOURCE.replace(
        "    def own", "    def __repr__(self):\n        return 'a'\n\n    def own"
    )
    assert name_of(own) != name_of()
    assert name_of(own.replace("'a'", "'b'")) != name_of(own)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would pass for that of other source
    yield tmp_path
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "lochelp"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def name_of_importing(folder, how, what="f", value=1):
    """Name of a function that imports something itself, from a module with this value."""
    package = folder / "lochelp"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text(f"def local():\n    return {value}\n")
    forget()
    names = {"__name__": "lochelp.made", "__package__": "lochelp"}
    exec(f"def plan(self, ctx):\n    {how}\n    return {what}()\n", names)
    found = CodeHash()
    found.add(names["plan"])
    return found.hexdigest()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("from lochelp.deep import local", "local"),
        ("from lochelp.deep import local as f", "f"),
        ("from lochelp import deep", "deep.local"),
        ("import lochelp.deep", "lochelp.deep.local"),
        ("import lochelp.deep as f", "f.local"),
        ("from .deep import local", "local"),
        ("from . import deep", "deep.local"),
        ("from math import floor\n    def f():\n        from .deep import local; local()", "f"),
    ],
)
def test_what_a_function_imports_itself_counts(folder, how, what):
    before = name_of_importing(folder, how, what)
    assert name_of_importing(folder, how, what) == before
    assert name_of_importing(folder, how, what, value=2) != before


def test_a_library_that_a_function_imports_is_told_by_its_version(folder):
    name_of_importing(folder, "from os import environ as f")  # which changes unseen


@pytest.mark.parametrize("how", ["import not_there", "from lochelp.deep import not_there"])
def test_an_import_that_cannot_be_followed_is_refused(folder, how):
    with pytest.raises(TypeError, match=r"plan imports .*; import it at the top of the file"):
        name_of_importing(folder, how)


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
