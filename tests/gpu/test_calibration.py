"""What is measured of a GPU: every part, what its figures keep to, and what a profile gets."""

import json
import time
from itertools import pairwise

import pytest

from realrun.calibrate_gpu import measure_gpu, wait_samples, with_gpu
from realrun.cores import ANY
from realrun.cuda.ends import KINDS
from realrun.cuda.facts import link_facts, pci_address
from realrun.cuda.parts import Reports, run_parts
from realrun.gpu_check.judge import NEEDED
from shmsim.inputs.measured_steps import read_measured_steps
from shmsim.units import MS, US
from tests.toy import toy_profile

torch = pytest.importorskip("torch", reason="the parts of a calibration need torch")

from realrun.cuda import calibrate, copies, pages, rests, steps  # noqa: E402 - they need torch
from realrun.cuda.calls import single_calls  # noqa: E402
from realrun.cuda.memory import shared_memory  # noqa: E402
from realrun.cuda.sleep import cycles_per_ns  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _context():
    torch.zeros(1, device="cuda")


def quiet(_):
    """Say nothing."""


@pytest.fixture
def few(monkeypatch):
    """Two sizes, each copied a few times."""
    monkeypatch.setattr(copies, "SIZES", (4096, 8 << 20))
    monkeypatch.setattr(copies, "_n_of", lambda _: 10)


def test_shared_memory_is_to_the_gpu_what_the_hand_off_takes_it_for():
    answers = shared_memory(quiet).facts
    assert {name: answers[name] for name in NEEDED} == dict.fromkeys(NEEDED, True)


def test_a_call_is_no_longer_than_its_copy_and_a_large_copy_takes_longer(few):
    found = copies.copies(quiet)
    assert found.facts["not_registered"] == ""
    samples = {(cost, x): values for cost, x, values in found.samples}
    for memory in ("registered", "pageable"):
        for n_bytes in (4096.0, float(8 << 20)):
            calls, ends = (samples[f"{name}_{memory}", n_bytes] for name in ("h2d_call", "h2d"))
            assert all(call <= end for call, end in zip(calls, ends, strict=True))
    for cost in ("h2d_registered", "h2d_pageable", "d2h"):
        assert min(samples[cost, float(8 << 20)]) > min(samples[cost, 4096.0])


def test_copies_from_registered_memory_return_while_the_stream_is_busy(few):
    busy = copies.copies(quiet).facts["busy"]
    returned = [(n_back, n) for memory, _, _, n_back, n in busy if memory == "registered"]
    assert returned == [(3, 3), (3, 3)]


def test_registering_more_memory_is_no_cheaper(monkeypatch):
    monkeypatch.setattr(pages, "SIZES", (1 << 20, 256 << 20))
    found = pages.registrations(quiet).facts
    assert found["not_registered"] == {}
    (few, least_ns, _), (many, most_ns, _) = found["rows"]
    assert many > few
    assert most_ns > least_ns


def test_every_way_to_see_an_end_is_measured_and_none_is_early(monkeypatch):
    monkeypatch.setattr(rests, "RESTS", ((300 * US, 8), (1 * MS, 8)))
    found = rests.rests(ANY, quiet).facts
    assert found["not_observed"] == {}
    rows = found["rests"]
    assert {way for way, *_ in rows} == set(KINDS)
    for _, mode, rest_ns, waits in rows:
        assert len(waits) == 8
        least_ns = rest_ns + (rests.MEET_NS if mode == "doze" else 0)
        for wall_ns, device_ns, cpu_ns, *_ in waits:
            assert wall_ns > 0.8 * device_ns
            # It counts cycles of a clock that may be a little faster than when it was timed.
            assert device_ns > 0.8 * least_ns
            assert cpu_ns >= 0
    samples = wait_samples(rows)
    asked = samples["device_spin_detection@query", 0.0]
    assert sum(asked) / len(asked) >= 0
    assert samples["device_timer_overshoot", float(1 * MS)]


def test_single_calls_are_measured_and_a_word_is_seen_after_it_was_asked_for():
    found = single_calls(quiet).facts
    assert "write_failed" not in found
    assert found["write_seen_ns"]["p50_ns"] >= found["write_call_ns"]["p50_ns"]
    assert found["graph_end_ns"]["p50_ns"] > found["graph_replay_ns"]["p50_ns"] > 0


def test_steps_are_measured_by_batch_and_after_pauses(monkeypatch):
    monkeypatch.setattr(steps, "BATCHES", (1, 2))
    monkeypatch.setattr(steps, "GAPS", ((0, 5), (2 * MS, 5)))
    monkeypatch.setattr(steps, "_N", 25)
    found = steps.steps_by_batch(ANY, quiet)
    samples = {(cost, x): values for cost, x, values in found.samples}
    for batch in (1.0, 2.0):
        took_ns = samples["device_step", batch]
        assert len(took_ns) == 25
        assert min(took_ns) > 100 * US, "it reads gigabytes"
    assert len(samples["device_launch", 0.0]) == 50
    assert samples["device_prefill", 64.0]
    assert [row["gap_ns"] for row in found.facts["gaps"]] == [0, 2 * MS]


def test_more_room_for_context_costs_no_less(monkeypatch):
    monkeypatch.setattr(steps, "ROOMS", (256, 8192))
    monkeypatch.setattr(steps, "_N", 25)
    small, large = steps.steps_by_room(ANY, quiet).facts["rooms"]
    assert large["p50_ns"] > small["p50_ns"]


@pytest.mark.quick
def test_the_place_of_the_gpu_is_known():
    found = calibrate.facts(quiet).facts
    assert found["name"] == torch.cuda.get_device_name(0)
    if "pci_address" not in found:
        pytest.skip("nvidia-smi does not say where it is")
    address = pci_address(found["nvidia_smi"]["pci.bus_id"])
    assert link_facts(address)["pci_address"] == found["pci_address"]


@pytest.mark.quick
def test_a_kernel_takes_as_long_as_it_was_told():
    torch.cuda.synchronize()
    cycles = round(20 * MS * cycles_per_ns())
    begun_ns = time.monotonic_ns()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    assert time.monotonic_ns() - begun_ns > 16 * MS


def test_parts_that_fail_leave_the_gpu_to_the_next(monkeypatch):
    def fails(_):
        raise RuntimeError("of purpose")

    monkeypatch.setattr(pages, "SIZES", (1 << 20,))
    parts = [
        calibrate.Part("copies", 1.0, fails),
        calibrate.Part("registrations", 1.0, pages.registrations),
    ]
    reports = Reports(lambda *_: None)
    run_parts(parts, 60.0, reports.take)
    assert [each.reason for each in reports.reported] == ["RuntimeError: of purpose", ""]


def test_a_profile_of_this_gpu_predicts_steps_by_batch(tmp_path):
    reported = measure_gpu(0, lambda *_: None, limit_s=75.0)
    profile = with_gpu(toy_profile(), reported)
    path = tmp_path / "profile.json"
    profile.write(path)
    gpu = json.loads(path.read_text())["machine"]["gpu"]
    assert not {"facts", "copies", "rests", "steps"} & set(gpu["left_out"]), gpu["left_out"]
    law = read_measured_steps(path).value
    assert law.buckets == steps.BATCHES
    means_ns = [law.mean_ns(batch, 0, 0) for batch in law.buckets]
    assert all(a < 1.5 * b for a, b in pairwise(means_ns)), "larger batches are hardly faster"
    for way in KINDS:
        costs = profile.at_device(way).costs
        assert costs["launch"].at(0.5) > 1 * US
        assert costs["device_wake_latency"].at(0.5, 2 * MS) > 0
