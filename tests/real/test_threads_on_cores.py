"""Threads of a run stay on the cores that were assigned to them."""

import os
from dataclasses import replace

import pytest

from realrun import placement
from realrun.run import make_spec, run_once
from shmsim.config import DeviceConfig
from shmsim.policies import PRESETS
from shmsim.units import MS
from tests.real.runs import ROOT, config
from tests.toy import toy_profile

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

#: Writes down who would stay where; this box may have fewer cores.
NOTES = """
import os, sys, threading
def note(_, cores):
    with open(os.environ["NOTED"], "a") as file:
        name = threading.current_thread().name
        file.write(f"{sys.argv[1]} {name} {','.join(map(str, cores))}\\n")
os.sched_setaffinity = note
"""


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Run something as if there were so many cores; who stayed where, in order."""

    def run(of, n_cores):
        (tmp_path / "sitecustomize.py").write_text(NOTES)
        path = tmp_path / "noted"
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
        monkeypatch.setenv("NOTED", str(path))
        monkeypatch.setattr(placement, "spread_cores", lambda: list(range(n_cores)))
        records = run_once(make_spec(of, PRESETS["park"], toy_profile(), 0))
        return path.read_text().splitlines() if path.exists() else [], records.meta["cores"]

    return run


def test_the_thread_that_replies_has_a_core_beside_that_of_the_one_that_receives(noted):
    stayed, cores = noted(config(1, 2, "async"), 3)
    assert sorted(stayed) == ["0 MainThread 0", "1 MainThread 1", "1 reply 2"]
    assert cores == [
        {"main": 0, "replies": 0, "device": -1},
        {"main": 1, "replies": 2, "device": -1},
    ]


def test_with_a_core_for_each_process_its_threads_share_it(noted):
    stayed, _ = noted(config(1, 2, "async"), 2)
    assert sorted(stayed) == ["0 MainThread 0", "1 MainThread 1", "1 reply 1"]


def test_with_fewer_cores_than_processes_nobody_stays_anywhere(noted):
    assert noted(config(2), 2) == ([], [])


def test_a_device_that_computes_is_there_before_its_worker_takes_a_core(noted):
    pytest.importorskip("torch", reason="a device that computes needs torch")
    plain = config(1, 2, "async")
    computed = replace(
        plain,
        engine=replace(plain.engine, max_sequences=4, max_batched_tokens=64),
        device=DeviceConfig(kind="cpu", max_len=128, sleep_ns=1 * MS),
    )
    stayed, _ = noted(computed, 4)
    worker = [who for who in stayed if who.startswith("1 ")]
    # What libraries start meanwhile would inherit the core of a thread that had taken one.
    assert worker == ["1 device 2", "1 MainThread 1", "1 reply 3"]
