"""Compiled loops on disk: whatever they were compiled from gives them another name."""

import errno
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from types import ModuleType

import numba
import pytest

from shmsim.policies import BusySpin, Park, SpinThenPark
from shmsim.sim import kept
from shmsim.sim.recurrence import engine_run, store

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


KEEPS = """
import resource, sys
import numba
from shmsim.sim.events.store import keep_on_disk as keep_engine
from shmsim.sim.recurrence.store import keep_on_disk as keep_loop

def one(x):
    return x + 1

def two(x):
    return x + 2

resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
for keep in (keep_engine, keep_loop):
    for function in (one, two):
        compiled = numba.njit(function)
        print(keep(compiled), compiled(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "said", "why"),
    [
        ("{tmp}", ["True 2", "True 3"], "File too large; make room there"),
        ("/proc/nowhere", ["False 2", "False 3"], "No such file or directory; make room there"),
    ],
    ids=["a full disk", "no folder"],
)
def test_where_nothing_can_be_written_it_is_said_once_and_all_goes_on(tmp_path, place, said, why):
    path = tmp_path / "program.py"
    path.write_text(KEEPS)
    environment = {**os.environ, "XDG_CACHE_HOME": place.format(tmp=tmp_path)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == [*said, *said, ""]
    assert done.stderr.count("compiled code is not kept in") == done.stderr.count("\n") == 1
    assert why in done.stderr


def test_numba_does_not_take_another_folder_whose_name_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def plain(x):
        return x + 1

    monkeypatch.setattr(kept, "_numba_keeps_in", lambda _: nullcontext())
    assert not store.keep_on_disk(numba.njit(plain))


def test_what_was_torn_by_a_crash_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def plain(x):
        return x + 1

    for n_hits in (0, 1):
        function = numba.njit(plain)
        assert store.keep_on_disk(function)
        assert function(1) == 2
        assert sum(function.stats.cache_hits.values()) == n_hits
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(b"")
    function = numba.njit(plain)
    assert store.keep_on_disk(function)
    assert function(1) == 2


def test_it_is_known_of_few_shapes_of_policies_what_they_were_compiled_from(monkeypatch):
    monkeypatch.setattr(engine_run, "MOST_KNOWN", 2)
    monkeypatch.setattr(engine_run, "_KNOWN", {})
    for policy in (BusySpin(), Park(), SpinThenPark(1), BusySpin()):
        engine_run.Compiled.of(policy, None, 1)
    shapes = [(SpinThenPark, int), (BusySpin,)]
    assert list(engine_run._KNOWN) == [(shape, type(None), True) for shape in shapes]
