"""Loops that two processes compile side by side."""

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from shmsim.policies import BusySpin, Clamped, Park
from shmsim.sim.recurrence import ahead, loop
from shmsim.wait import PARK, only

RUN = """
from shmsim.policies import BusySpin, Park, SpinThenPark
from shmsim.sim.recurrence import compile_ahead, loop

policies = [BusySpin(), Park(), SpinThenPark(300_000), SpinThenPark(2)]
compile_ahead(policies, "", one_worker=True)
print([bool(each.signatures) for each in loop._LOOPS.values()])
print([loop.is_at_hand(each) for each in loop._LOOPS.values()])
for each in loop._LOOPS.values():
    loop.compile_loop(each)
print(sum(sum(each.stats.cache_hits.values()) for each in loop._LOOPS.values()))
"""


class Mine(NamedTuple):
    """Not of the library."""

    def plan(self, ctx):
        return only(PARK)

    def after(self, ctx, outcome):
        return self


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, and so no second process")
def test_another_process_compiles_some_of_them_and_they_are_found_on_disk(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    # Of three loops one was compiled elsewhere; the next session finds all, and starts nobody.
    assert outputs[0] == ["[False, True, True]", "[True, True, True]", "1"]
    assert outputs[1] == ["[False, False, False]", "[True, True, True]", "3"]


class StartedError(Exception):
    pass


def start(*_, **__):
    raise StartedError


@pytest.mark.parametrize(
    ("policies", "starts"),
    [
        ([BusySpin(), Park()], True),
        ([Mine(), Clamped(Park())], True),
        ([Mine(), Clamped(Mine())], False),
        ([Park(), Park()], False),
    ],
)
def test_it_is_asked_for_policies_that_it_knows_and_where_two_are_missing(
    policies, starts, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loop, "_LOOPS", {})
    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    if starts:
        with pytest.raises(StartedError):
            ahead.compile_ahead(policies, "", one_worker=True)
    else:
        ahead.compile_ahead(policies, "", one_worker=True)


def test_nobody_is_asked_where_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr(loop, "_LOOPS", {})
    monkeypatch.setattr("subprocess.Popen", start)
    ahead.compile_ahead([BusySpin(), Park()], "", one_worker=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError])
def test_after_an_error_here_no_process_is_left(error, tmp_path, monkeypatch):
    begun = []
    popen = subprocess.Popen

    def noted(*arguments, **options):
        begun.append(popen(*arguments, **options))
        return begun[0]

    def fails(_):
        raise error

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loop, "_LOOPS", {})
    monkeypatch.setattr("subprocess.Popen", noted)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ahead, "compile_loop", fails)
    with pytest.raises(error):
        ahead.compile_ahead([BusySpin(), Park()], "", one_worker=True)
    assert begun[0].returncode is not None, "it was waited for"
