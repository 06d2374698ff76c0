"""Whether a compiled policy still is what its source says: a cell that ran again is noticed."""

from types import ModuleType

import pytest

from shmsim.policies import WakeAhead
from shmsim.sim.recurrence.unchanged import Unchanged

SOURCE = """
import math
FACTOR = 3

def twice(x):
    return helpers.more(x) * 2

def half(x):
    return twice(x) // 4

class Wait:
    def plan(self, ctx):
        return half(ctx) * FACTOR + int(math.sqrt(2.0))

    def after(self, ctx, outcome):
        return self
"""


@pytest.fixture
def names():
    helpers = ModuleType("helpers")
    exec("LEAST = 1\ndef more(x): return x + LEAST", vars(helpers))
    found = {"__name__": "made", "helpers": helpers}
    exec(SOURCE, found)
    return found


def test_nothing_has_changed_until_something_does(names):
    watched = Unchanged({names["Wait"]})
    assert watched.holds()
    names["unused"] = 1
    assert watched.holds()


@pytest.mark.parametrize("name", ["half", "twice", "FACTOR", "helpers"])
def test_another_meaning_of_a_name_is_noticed(names, name):
    watched = Unchanged({names["Wait"]})
    names[name] = lambda x: x
    assert not watched.holds()


@pytest.mark.parametrize("name", ["more", "LEAST"])
def test_a_module_that_was_loaded_again_is_noticed(names, name):
    watched = Unchanged({names["Wait"]})
    setattr(names["helpers"], name, 5)
    assert not watched.holds()


def test_another_method_and_a_name_that_is_gone_are_noticed(names):
    watched = Unchanged({names["Wait"]})
    del names["twice"]
    assert not watched.holds()
    other = Unchanged({names["Wait"]})
    names["Wait"].after = lambda self, ctx, outcome: None
    assert not other.holds()


def test_what_a_closure_holds_is_not_watched_so_nobody_relies_on_it():
    def made(window_ns):
        class Wait:
            def plan(self, ctx):
                return window_ns

        return Wait

    assert not Unchanged({made(5)}).holds()


def test_a_policy_of_the_library_holds():
    assert Unchanged({WakeAhead}).holds()


@pytest.mark.parametrize("name", ["half", "twice"])
def test_other_code_in_the_same_function_is_noticed(names, name):
    watched = Unchanged({names["Wait"]})
    names[name].__code__ = (lambda x: x).__code__  # as IPython's autoreload does
    assert not watched.holds()
