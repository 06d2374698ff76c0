"""Whoever dies, everybody hears of it within a second, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import realrun.run
from realrun.run import RunFailed, run_once
from realrun.segment import SHM, reap_abandoned
from shmsim.policies import GraceThenPoll, Park, WakeAhead
from shmsim.units import MS, S
from tests.real.conftest import alive, children, eventually, left_behind
from tests.real.policies import EndsTooEarly, EveryKind, RaisesInTheWorker
from tests.real.runs import ROOT, config, spec

pytestmark = [pytest.mark.real, pytest.mark.timeout(30)]

LONG = {"output_p50": 1000, "output_p95": 1000}
NAMES = ["scheduler", "worker 0", "worker 1"]


@pytest.fixture(autouse=True)
def _children_find_the_policies(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def pid_of(process: int) -> int:
    """The child that is this process of the run."""
    [pid] = [
        pid
        for pid in children()
        if f"realrun.child\0{process}\0" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return pid


class Killer:
    """Kills one process of a run that is under way, and remembers when."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.pid = 0
        self.killed_at = 0.0

    def __call__(self, step: int) -> None:
        if step > 10 and not self.pid:
            self.pid = pid_of(self.process)
            self.killed_at = time.monotonic()
            os.kill(self.pid, signal.SIGKILL)


@pytest.mark.parametrize("process", range(3), ids=NAMES)
@pytest.mark.parametrize(
    ("policy", "scheduling"),
    [(Park(), "sync"), (WakeAhead(), "async"), (GraceThenPoll(0, 2 * MS), "sync")],
    ids=["park", "wake-ahead", "poll"],
)
def test_a_killed_process_is_named_within_a_second(policy, scheduling, process):
    killer = Killer(process)
    with pytest.raises(RunFailed) as failure:
        run_once(spec(config(2, scheduling=scheduling, **LONG), policy), killer)
    assert time.monotonic() - killer.killed_at < 1.0
    assert f"{NAMES[process]} (pid {killer.pid}) was killed by SIGKILL" in str(failure.value)
    assert children() == set()
    assert left_behind() == set()


def test_a_process_that_hears_nothing_for_seconds_does_not_delay_the_news():
    # Both workers sleep for the 8 s of a step on their device when the scheduler is killed.
    killer = Killer(0)

    def kill_when_asleep() -> None:
        eventually(lambda: len(children()) == 3)
        eventually(left_behind)
        eventually(lambda: not any(path.parent == SHM for path in left_behind()))
        time.sleep(0.7)  # the warm-up
        killer(11)

    thread = threading.Thread(target=kill_when_asleep)
    thread.start()
    with pytest.raises(RunFailed, match=r"scheduler .* was killed by SIGKILL at step 0"):
        run_once(spec(config(2, step_ns=8 * S)))
    assert time.monotonic() - killer.killed_at < 1.0
    thread.join()


@pytest.mark.parametrize("process", range(3), ids=NAMES)
def test_who_sleeps_for_ever_leaves_by_itself_when_told_to(monkeypatch, process):
    monkeypatch.setattr(realrun.run, "_GRACE_S", 1e9)  # nobody is made to
    with pytest.raises(RunFailed):
        run_once(spec(config(2, **LONG), Park()), Killer(process))


def test_processes_share_cores_as_those_of_one_program_do_and_ctrl_c_is_for_the_launcher_alone():
    # A session is an autogroup where no cgroup says otherwise: with one for each process, a
    # sched_yield leaves the core to nobody of the others.
    ids = set()

    def look(_n_steps: int) -> None:
        ids.update((os.getsid(pid), os.getpgid(pid)) for pid in children())

    run_once(spec(config(2)), look)
    assert {session for session, _ in ids} == {os.getsid(0)}
    assert len(ids) == 3
    assert os.getpgid(0) not in {group for _, group in ids}


@pytest.fixture
def launcher(request):
    """A launcher in a process of its own, and its children."""
    command = [sys.executable, ROOT / "tests/real/launches.py", request.param]
    pids = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            pids = json.loads(process.stdout.readline())
            assert len(pids) == 3
            yield process, pids
        finally:
            process.kill()
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)
    reap_abandoned()


def left_by(pid: int) -> list[Path]:
    folders = (SHM, Path(tempfile.gettempdir()))
    return [path for folder in folders for path in folder.glob(f"shmsim-{pid}-*")]


@pytest.mark.parametrize("launcher", ["during"], indirect=True)
def test_a_killed_launcher_takes_its_children_along_and_leaves_no_shared_memory(launcher):
    process, pids = launcher
    process.kill()
    eventually(lambda: not any(map(alive, pids)))
    assert [path.parent for path in left_by(process.pid)] == [Path(tempfile.gettempdir())]
    process.wait()
    reap_abandoned()  # as the next run does
    assert left_by(process.pid) == []


@pytest.mark.parametrize("launcher", ["starting"], indirect=True)
def test_children_of_a_launcher_killed_before_they_were_ready_end_too(launcher):
    process, pids = launcher
    process.kill()
    eventually(lambda: not any(map(alive, pids)))
    process.wait()
    reap_abandoned()
    assert left_by(process.pid) == []


@pytest.mark.parametrize("launcher", ["during"], indirect=True)
def test_ctrl_c_at_the_launcher_stops_everybody_and_removes_everything(launcher):
    process, pids = launcher
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert said.strip().endswith(b"KeyboardInterrupt")
    assert not any(map(alive, pids))
    assert left_by(process.pid) == []


def test_a_policy_defined_in_main_is_refused_before_anything_starts():
    mine = type("Mine", (EveryKind,), {"__module__": "__main__"})
    with pytest.raises(ValueError, match=r"Mine is defined in __main__.*; move it into a module"):
        run_once(spec(config(), mine()))


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_an_error_in_a_policy_is_quoted_with_the_process_that_met_it(scheduling):
    policy = RaisesInTheWorker(on_n_kv_tokens=150)
    with pytest.raises(RunFailed, match=r"worker 0 .* exit code 1: LookupError: no plan for 1\d\d"):
        run_once(spec(config(scheduling=scheduling), policy))


def test_a_plan_that_ends_too_early_is_quoted():
    with pytest.raises(RunFailed, match=r"ValueError: .* its last stage must last for ever"):
        run_once(spec(config(), EndsTooEarly()))


def test_a_policy_that_no_child_can_import_is_quoted():
    stray = type("Stray", (EveryKind,), {"__module__": "nowhere"})
    with pytest.raises(RunFailed, match="ModuleNotFoundError: No module named 'nowhere'"):
        run_once(spec(config(), stray()))


def test_an_error_on_the_reply_thread_ends_its_worker_and_is_quoted(tmp_path, monkeypatch):
    # Else the scheduler waits for a reply that nobody will send.
    (tmp_path / "sitecustomize.py").write_text(
        "import realrun.cycle\nrealrun.cycle.encode_reply = lambda *_: 1 / 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    with pytest.raises(RunFailed, match=r"worker 0 .* exit code 1: ZeroDivisionError"):
        run_once(spec(config(scheduling="async")))
