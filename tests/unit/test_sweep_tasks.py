"""What a sweep sends to a cluster, and what a worker checks before it runs it."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

import shmsim.sim.sweep as running
from shmsim.config import RunConfig, WorkloadConfig, parse_policy
from shmsim.metrics import summarize
from shmsim.sim.cluster import _refuse_unlike
from shmsim.sim.fingerprint import differences, fingerprint
from shmsim.sim.run import simulate
from shmsim.sim.sweep import Task, sweep
from shmsim.sweep.plan import plan_of
from tests.toy import toy_profile

SHORT = RunConfig(
    workload=WorkloadConfig(requests=3, output_p50=5, output_p95=9, prompt_p50=20, prompt_p95=30)
)
POLICIES = [parse_policy(name) for name in ("spin", "park")]
PLAN = plan_of(SHORT, POLICIES, {"toy": toy_profile()}, replications=3)


class Here:
    """Stands for a cluster: what it is sent is pickled, and run by this process."""

    def __init__(self):
        self.sent = []

    def map(self, function, shared, items):
        self.sent += items
        for item in items:
            sent = pickle.loads(pickle.dumps((function, shared, item)))
            yield item, sent[0](*sent[1:])


def test_a_cluster_finds_what_one_process_finds_and_keeps_it_here(tmp_path):
    here = Here()
    expected = sweep(PLAN, jobs=1)
    assert sweep(PLAN, tmp_path, cluster=here) == expected
    assert [len(task.points) for task in here.sent] == [1] * 6
    assert sweep(PLAN, tmp_path, cluster=here) == expected
    assert len(here.sent) == 6
    assert sweep(PLAN, cluster=here) == expected  # without a folder, too


def test_what_the_recurrence_runs_at_once_is_one_task(tmp_path, monkeypatch):
    expected = sweep(PLAN, jobs=1)
    together = []

    def run_many(config, policies, profile, replication, threads):
        together.append((len(policies), threads))
        return [summarize(simulate(config, policy, profile, replication)) for policy in policies]

    fake = type(sys)("shmsim.sim.recurrence")
    fake.run_many = run_many
    fake.UndecidedError = type("UndecidedError", (ValueError,), {})
    monkeypatch.setitem(sys.modules, "shmsim.sim.recurrence", fake)
    chosen = lambda plan, points: dict.fromkeys(points, "recurrence")  # noqa: E731
    monkeypatch.setattr(running, "engines_for", chosen)
    assert sweep(PLAN, tmp_path, cluster=Here()) == expected
    assert together == [(2, 1)] * 3


def test_a_worker_runs_no_point_that_is_another_one_there():
    (point, *_) = PLAN.points(0, 0, 1)
    key = running._key(PLAN, point)
    assert len(running._run_task(PLAN, Task((point,), (key,), "simpy"))) == 1
    with pytest.raises(ValueError, match="run on toy, spin: the files that the config names"):
        running._run_task(PLAN, Task((point,), ("0" * 64,), "simpy"))


def test_a_worker_started_elsewhere_finds_the_files_under_the_same_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00,9,3\n"
    )
    config = replace(SHORT, workload=WorkloadConfig("trace", trace="trace.csv"))
    plan = plan_of(config, POLICIES, {"toy": toy_profile()}, replications=1)
    sent = running._findable(plan)
    (point, *_) = plan.points(0, 0, 1)
    key = running._key(plan, point)
    monkeypatch.chdir(os.sep)
    assert running._key(sent, point) == key
    assert running._findable(PLAN).cells == PLAN.cells


def test_a_process_with_anything_else_is_refused_with_what_differs():
    here = dict(fingerprint())
    _refuse_unlike("tcp://node2:1", here, dict(here))
    with pytest.raises(ValueError, match="the worker tcp://node2:1 could give other bits") as told:
        _refuse_unlike("tcp://node2:1", here, here | {"numpy": "1.0", "arithmetic": "ab"})
    assert f"numpy: {here['numpy']} here, 1.0 there; arithmetic: " in str(told.value)
    assert "scipy" not in str(told.value)
    assert differences({"a": "1"}, {"b": "2"}) == "a: 1 here, none there; b: none here, 2 there"


def test_two_processes_of_one_machine_have_one_fingerprint():
    code = "from shmsim.sim.fingerprint import fingerprint; print(dict(fingerprint()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(dict(fingerprint()))


def test_a_cluster_without_dask_says_what_to_install():
    code = (
        "import sys; sys.modules['distributed'] = None\n"
        "from shmsim.cli import app; app(['sweep', sys.argv[1], '--cluster', 'tcp://a:1'])"
    )
    sweep_file = 'profiles = ["vm-2cpu"]\n'
    done = subprocess.run(
        [sys.executable, "-c", code, "/dev/stdin"],
        input=sweep_file, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "-e '.[cluster]'" in done.stderr.replace("\n", " ")


def test_jobs_and_a_cluster_exclude_each_other(tmp_path):
    from typer.testing import CliRunner

    from shmsim.cli import app

    path = tmp_path / "sweep.toml"
    path.write_text('profiles = ["vm-2cpu"]\n')
    for command in (["sweep", str(path)], ["tune", "-p", "vm-2cpu"]):
        done = CliRunner().invoke(app, [*command, "--jobs", "2", "--cluster", "tcp://a:1"])
        assert done.exit_code == 2
        assert "--jobs 2 says how many processes run here" in done.output.replace("\n", " ")
