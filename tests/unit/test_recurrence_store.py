"""Compiled loops on disk: whatever they were compiled from gives them another name."""

import errno
import os
import subprocess
import sys
import time
from types import ModuleType

import numba
import pytest

from shmsim.sim import kept
from shmsim.sim.recurrence import store

SOURCE = """
from typing import NamedTuple
import helpers

FACTOR = 3

class Wait(NamedTuple):
    window_ns: int = 7

    def plan(self, ctx):
        return self.window_ns + 1

def half(x):
    return x // 2

def run(x):
    return half(x) * FACTOR + Wait().window_ns + helpers.more(x)
"""


def name_of(source=SOURCE, more="def more(x): return x + 1", **options):
    """The name of what is compiled from this source."""
    helpers = ModuleType("helpers")
    exec(more, vars(helpers))
    names = {"__name__": "made"}
    exec(source.replace("import helpers", ""), names | {"helpers": helpers}, names)
    names["helpers"] = helpers
    run = numba.njit(**options)(names["run"])
    run.py_func.__globals__.update(names)
    return store.fingerprint(run)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x // 2", "x // 3"),
        ("FACTOR = 3", "FACTOR = 4"),
        ("FACTOR = 3", "FACTOR = 3.0"),
        ("window_ns: int = 7", "window_ns: int = 8"),
        ("window_ns: int", "window_ns: float"),
        ("self.window_ns + 1", "self.window_ns + 2"),
        ("* FACTOR", "+ FACTOR"),
    ],
)
def test_another_line_anywhere_is_another_name(before, after):
    assert name_of() == name_of()
    assert before in SOURCE
    assert name_of(SOURCE.replace(before, after)) != name_of()


def test_a_function_of_another_module_and_an_option_count_too():
    assert name_of(more="def more(x): return x + 2") != name_of()
    assert name_of(forceinline=True) != name_of()


def test_what_refers_to_something_that_may_change_unseen_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    values = [1, 2]
    assert not store.keep_on_disk(numba.njit(lambda i: values[i]))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def plain(x):
        return x + 1

    assert store.keep_on_disk(numba.njit(plain))
    (folder,) = (tmp_path / "shmsim").iterdir()
    folder.chmod(0o777)
    assert not store.keep_on_disk(numba.njit(plain))


def test_a_folder_where_nothing_can_be_written_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", full)

    def plain(x):
        return x + 1

    assert not store.keep_on_disk(numba.njit(plain))


def test_a_disk_that_fills_up_costs_time_and_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def plain(x):
        return x + 1

    function = numba.njit(plain)
    assert store.keep_on_disk(function)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert function(1) == 2


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_was_not_used_for_longest_makes_room(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "MOST", 3)
    folder = tmp_path / "shmsim"
    for age_s, name in enumerate(("recurrence-a", "recurrence-b", "recurrence-c", "events-d")):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, times=(time.time() - 100 * (1 + age_s),) * 2)

    def plain(x):
        return x + 1

    assert store.keep_on_disk(numba.njit(plain))
    left = {path.name for path in folder.iterdir()}
    assert len(left) == 4
    assert {"recurrence-a", "recurrence-b", "events-d"} <= left


RUN = """
from shmsim.config import RunConfig, WorkloadConfig
from shmsim.policies import SpinThenPark
from shmsim.profile import MachineProfile
from shmsim.sim.recurrence import loop, run_many

workload = WorkloadConfig("closed", 2, concurrency=1, output_p50=9, output_p95=9)
profile = MachineProfile.shipped("vm-2cpu")
found = run_many(RunConfig(workload=workload), [SpinThenPark(300_000)], profile)
(compiled,) = loop._LOOPS.values()
print(sum(compiled.stats.cache_hits.values()))
print(found)
"""


@pytest.mark.slow
def test_the_next_session_finds_the_loop_and_gives_the_same_bits(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert (first[0], second[0]) == ("0", "1")
    assert first[1:] == second[1:]


def test_what_two_processes_compile_has_symbols_of_its_own():
    # Two loops with equal symbols in one process: the linker gave the second the first one's code.
    program = (
        "from shmsim.sim.recurrence import store\n"
        "from numba.core.bytecode import FunctionIdentity\n"
        "print(FunctionIdentity.from_function(store.fingerprint).unique_id)"
    )
    command = [sys.executable, "-c", program]
    first, second = (int(subprocess.check_output(command)) for _ in range(2))
    # So far apart that neither counts up to where the other began.
    assert abs(first - second) > 1_000_000
