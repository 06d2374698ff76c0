"""What a calibration asks of a GPU, played on the CPU; tests/gpu/test_calibration.py asks one.

No figure means anything here: it is shown that each part asks in an order that works, says what it
found in the form that a profile takes, and gives back what it registered.
"""

import sys

import pytest

from realrun.calibrate_gpu import run_measuring, wait_samples, with_gpu
from realrun.cores import ANY
from realrun.cuda.ends import KINDS
from realrun.cuda.parts import Reports, run_parts
from realrun.model.geometry import TINY
from shmsim.profile import MachineProfile
from shmsim.units import MS, US
from tests.real.runs import ROOT
from tests.toy import toy_profile

pytest.importorskip("torch", reason="the parts of a calibration need torch")

from realrun.cuda import calibrate, calls, copies, memory, pages, rests, steps
from tests.real.played_gpu import played_gpu

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


@pytest.fixture
def driver(monkeypatch):
    """A GPU that is played, and little to measure on it."""
    monkeypatch.setattr(copies, "SIZES", (8, 4096))
    monkeypatch.setattr(copies, "_BUSY_NS", 1 * MS)
    monkeypatch.setattr(copies, "_n_of", lambda _: 4)
    monkeypatch.setattr(pages, "SIZES", (1 << 16, 1 << 20))
    monkeypatch.setattr(rests, "RESTS", ((100 * US, 2), (300 * US, 2)))
    monkeypatch.setattr(steps, "BATCHES", (1, 2))
    monkeypatch.setattr(steps, "GAPS", ((0, 3), (1 * MS, 3)))
    monkeypatch.setattr(steps, "ROOMS", (256,))
    monkeypatch.setattr(steps, "PROMPTS", (64,))
    monkeypatch.setattr(steps, "_N", 5)
    monkeypatch.setattr(steps, "_N_WARM_UP", 1)
    monkeypatch.setattr(steps, "_N_PROMPTS", 2)
    monkeypatch.setattr(steps, "geometry_of", lambda _: TINY)
    monkeypatch.setattr(calls, "_N", 5)
    with played_gpu() as driver:
        yield driver


def quiet(_):
    """Say nothing."""


def test_copies_are_measured_by_memory_and_size_and_memory_is_given_back(driver):
    found = copies.copies(quiet)
    assert {(memory, n_bytes) for memory, n_bytes, *_ in found.facts["rows"]} == {
        (memory, n) for memory in ("registered", "pinned", "pageable") for n in (8, 4096)
    }
    assert {cost for cost, *_ in found.samples} == {
        *("h2d_registered", "h2d_call_registered", "h2d_pageable", "h2d_call_pageable", "d2h"),
    }
    assert driver.registered == {}


def test_without_registration_the_other_memories_are_measured_and_the_reason_is_told(driver):
    driver.refuses.add("register")
    found = copies.copies(quiet)
    assert "error 801" in found.facts["not_registered"]
    assert {memory for memory, *_ in found.facts["rows"]} == {"pinned", "pageable"}
    assert "d2h" in {cost for cost, *_ in found.samples}


def test_waits_are_measured_in_every_way(driver):
    found = rests.rests(ANY, quiet).facts
    assert found["not_observed"] == {}
    assert [row[0] for row in found["rests"]] == [way for way in KINDS for _ in range(7)]
    assert all(len(waits) == 2 for *_, waits in found["rests"])
    assert driver.registered == {}
    samples = wait_samples(found["rests"])
    assert samples["device_wake_latency@query", float(300 * US)]
    assert samples["device_park_cpu", float(100 * US)]


@pytest.mark.parametrize(
    ("refused", "missing"), [("write", {"write"}), ("register", {"write", "copy"})]
)
def test_a_way_that_cannot_be_had_has_its_reason_and_the_others_are_measured(
    driver, refused, missing
):
    driver.refuses.add(refused)
    found = rests.rests(ANY, quiet).facts
    assert found["not_observed"].keys() == missing
    assert all("error 801" in reason for reason in found["not_observed"].values())
    assert {row[0] for row in found["rests"]} == set(KINDS) - missing


def test_registrations_are_measured_by_size(driver):
    found = pages.registrations(quiet).facts
    assert [n_bytes for n_bytes, *_ in found["rows"]] == [1 << 16, 1 << 20]
    driver.refuses.add("register")
    refused = pages.registrations(quiet).facts
    assert refused["rows"] == []
    assert "error 801" in refused["not_registered"]["65536"]


def test_single_calls_are_measured_and_a_word_that_cannot_be_written_is_told(driver):
    found = calls.single_calls(quiet).facts
    assert found["write_seen_ns"]["n"] == found["graph_replay_ns"]["n"] == 5
    driver.refuses.add("write")
    assert "error 801" in calls.single_calls(quiet).facts["write_failed"]
    assert driver.registered == {}


def test_what_shared_memory_is_to_the_gpu_is_answered_by_a_yes_or_a_reason(driver):
    found = memory.shared_memory(quiet).facts
    assert {name for name, answer in found.items() if answer is True} >= {
        *("same_pointer", "second_registration", "array_interface"),
    }
    # What is played is not page-locked, and does what it captures at once.
    assert found["views_pinned"] == "base is not, slice is not, from numpy is not"
    assert found["graph_write"] == found["graph_copy"] == "1 when captured, 1 when replayed"
    assert driver.registered == {}
    driver.refuses.add("write")
    assert "error 801" in memory.shared_memory(quiet).facts["graph_write"]
    driver.refuses.add("register")
    refused = memory.shared_memory(quiet).facts
    assert refused.keys() == {"futex_waitv", "not_registered"}


@pytest.mark.slow
def test_all_parts_together_make_a_profile_that_is_read_back(driver, tmp_path):
    reports = Reports(lambda *_: None)
    run_parts(calibrate.parts(ANY), 1000.0, reports.take)
    assert [(each.name, each.reason) for each in reports.reported] == [
        (part.name, "") for part in calibrate.parts(ANY)
    ]
    profile = with_gpu(toy_profile(), reports.reported)
    profile.write(tmp_path / "profile.json")
    read = MachineProfile.read(tmp_path / "profile.json")
    assert read.costs == profile.costs
    assert read.costs["device_step"].xs == (1.0, 2.0)
    assert read.costs["device_launch"].points[0].n == 10
    gpu = read.machine["gpu"]
    assert [row["gap_ns"] for row in gpu["steps"]["gaps"]] == [0, 1 * MS]
    assert gpu["rooms"]["rooms"][0]["max_len"] == 256
    assert gpu["facts"]["name"] == "played"


LITTLE = """
import sys
from realrun.cuda import calibrate, copies, pages, rests
from shmsim.units import MS, US
from tests.real.played_gpu import played_gpu
copies.SIZES, copies._BUSY_NS, copies._n_of = (8, 4096), 1 * MS, lambda _: 4
pages.SIZES, rests.RESTS = (1 << 16,), ((100 * US, 2), (300 * US, 2))
all_parts = calibrate.parts
def few(beside):
    return tuple(p for p in all_parts(beside) if p.name in ("copies", "rests", "rooms"))
calibrate.parts = few
sys.argv = ["calibrate", "25", CORE]
with played_gpu():
    calibrate.main()
"""
#: Tells which thread stays on which core, and when the context is made, as what it is doing.
ON_THREE_CORES = """
import json, os, threading
import realrun.cores
def tell(what):  # in one piece, beside what another thread prints
    os.write(1, (json.dumps({"doing": what, "share": 0.0}) + "\\n").encode())
os.sched_setaffinity = lambda _, on: tell(f"{threading.current_thread().name} on {sorted(on)}")
realrun.cores.spread_cores = lambda: [0, 1, 2]
CORE = "1"
"""


@pytest.mark.slow
def test_a_process_reports_line_by_line_what_it_measured_and_what_it_had_no_time_for():
    doing = []
    command = [sys.executable, "-c", 'CORE = "-1"' + LITTLE]
    reported = run_measuring(command, {"PYTHONPATH": str(ROOT)}, lambda *d: doing.append(d), 50.0)
    copied, waited, rooms = reported
    assert copied.reason == waited.reason == ""
    assert {cost for cost, *_ in copied.measured.samples} >= {"d2h", "h2d_registered"}
    assert wait_samples(waited.measured.facts["rests"])
    assert rooms.reason.startswith("no time: 2")
    labels = [label for label, _ in doing]
    assert labels[0] == "copies: begins"
    assert "rests: write, park for 300 us" in labels


MADE = """
real_zeros = calibrate.torch.zeros
calibrate.torch.zeros = lambda *a, **k: (tell("context"), real_zeros(*a, **k))[1]
"""


@pytest.mark.slow
def test_who_waits_in_the_driver_has_not_the_core_of_who_waits_for_it():
    doing = []
    script = ON_THREE_CORES + LITTLE.replace("    calibrate.main()", indented(MADE))
    command = [sys.executable, "-c", script + "    calibrate.main()\n"]
    run_measuring(command, {"PYTHONPATH": str(ROOT)}, lambda what, _: doing.append(what), 50.0)
    stays = [what for what in doing if " on [" in what]
    # A bell for each kind of plan that there was time for.
    assert stays[0] == "MainThread on [1]"
    assert set(stays[1:]) == {"device bell on [2]"}
    # Threads that the context started by then are where the kernel puts them.
    assert doing.index("context") < doing.index(stays[0])


def indented(text):
    """As the body of a block."""
    return "".join(f"    {line}\n" for line in text.strip().splitlines())
