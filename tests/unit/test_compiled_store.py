"""Compiled policies on disk: found by the next session, unless what they are made of differs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HELPERS = """
def more(x):
    return x + 1
"""
MINE = """
from typing import NamedTuple

from helpers import more
from shmsim.wait import WaitContext, WaitOutcome, WaitPlan, doze_spin_park


class Inner(NamedTuple):
    window_ns: int = 7

    def plan(self, ctx: WaitContext) -> WaitPlan:
        return doze_spin_park(0, more(self.window_ns))

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Inner":
        return self


class Outer(NamedTuple):
    inner: Inner = Inner()

    def plan(self, ctx: WaitContext) -> WaitPlan:
        return self.inner.plan(ctx)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Outer":
        return self
"""
RUN = """
import sys
import mine
from shmsim.sim.compiled import compile_policy, random_waits

policy = getattr(mine, sys.argv[1])()
compiled = compile_policy(policy)
((ctx, _),) = random_waits(1, 1)
print(*(sum(method.stats.cache_hits.values()) for method in compiled))
print(compiled.plan(policy, ctx) == policy.plan(ctx))
"""


@pytest.fixture
def session(tmp_path):
    """Compiles a class in a process of its own; says how many methods were found on disk."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "mine.py").write_text(MINE)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",  # its date has seconds, in which a test writes twice
    }

    def begin(name):
        output = subprocess.check_output(
            [sys.executable, "-c", RUN, name], env=environment, text=True, cwd=tmp_path
        )
        found, same = output.splitlines()
        assert same == "True"
        return [int(n) for n in found.split()]

    return begin


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Inner", "Outer"])
def test_the_next_session_finds_it_until_a_helper_is_another(name, session, tmp_path):
    assert [session(name), session(name)] == [[0, 0], [1, 1]]
    (tmp_path / "helpers.py").write_text(HELPERS.replace("+ 1", "+ 2"))
    assert session(name)[0] == 0


@pytest.mark.slow
def test_a_line_of_a_class_that_is_carried_counts_too(session, tmp_path):
    assert session("Outer") == [0, 0]
    (tmp_path / "mine.py").write_text(MINE.replace("(0, more", "(1, more"))
    assert session("Outer")[0] == 0
