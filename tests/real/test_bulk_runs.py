"""Runs whose steps carry bulk: every byte comes to the device, and no slot comes back early."""

from dataclasses import replace

import pytest

from realrun.run import RunFailed, make_spec, run_once
from shmsim.config import DeviceConfig, PayloadConfig
from shmsim.laws import check_laws
from shmsim.policies import PRESETS
from shmsim.routing import SlotClass
from shmsim.sim.run import simulate
from shmsim.units import MS
from tests.real.policies import EveryKind
from tests.real.runs import ROOT, config
from tests.theory.test_payloads import bulk_profile
from tests.toy import toy_profile

CARELESS = """
from realrun.device.bulk import Bulk

Bulk.hold_until = lambda bulk, event: None
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

KIB = 1024
N_BULK = 256 * KIB
TWO_SLOTS = (SlotClass(N_BULK, 2),)
IN_ARENA = PayloadConfig(0, N_BULK, "all-shm", 16 * KIB, TWO_SLOTS, "registered")


@pytest.fixture(scope="module", autouse=True)
def _children_find_the_policies():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def carrying(payload, workers=1, scheduling="sync", kind="cpu", **device):
    plain = config(workers, scheduling=scheduling)
    engine = replace(plain.engine, max_sequences=4, max_batched_tokens=64)
    computed = plain.device
    if kind == "cpu":
        pytest.importorskip("torch", reason="a device that computes needs torch")
        computed = DeviceConfig(kind="cpu", max_len=128, **device)
    return replace(plain, engine=engine, device=computed, payload=payload)


def run(of, policy=PRESETS["park"], profile=None):
    records = run_once(make_spec(of, policy, profile or toy_profile(), 0))
    check_laws(records, n_workers=of.engine.workers, n_threads=3, n_devices=of.engine.n_devices)
    return records


@pytest.mark.parametrize(
    ("memory", "scheduling"),
    [("registered", "async"), ("registered", "sync"), ("pinned", "async"), ("pageable", "sync")],
)
def test_what_is_on_the_device_is_what_was_sent(memory, scheduling):
    payload = replace(IN_ARENA, memory=memory, arena=(SlotClass(N_BULK, 4),))
    records = run(carrying(payload, 2, scheduling), EveryKind())
    scheduler = records.processes[0]
    assert scheduler.payloads == len(records.steps)
    # A second worker may be late to give a slot back, which the scheduler does not wait for.
    assert scheduler.arena + scheduler.socket == scheduler.payloads
    assert scheduler.arena > scheduler.payloads / 2
    assert 1 <= scheduler.arena_most <= scheduler.arena_slots == 4
    for device in records.meta["devices"]:
        bulk = device["bulk"]
        assert bulk["memory"] == memory
        assert bulk["copies"] > len(records.steps), "those of the warm-up too"
        assert bulk["bytes"] == N_BULK * bulk["copies"]
        assert bulk["digest"] == records.meta["bulk_digest"] > 0
        assert 0 < bulk["slot_held_mean_ns"] <= bulk["slot_held_most_ns"]


def test_a_copy_from_the_arena_holds_its_slot_while_it_waits_for_the_step_before():
    records = run(carrying(IN_ARENA, 1, "async", sleep_ns=8 * MS))
    # Called for while the step before had hardly begun.
    assert records.meta["devices"][0]["bulk"]["slot_held_mean_ns"] > 6 * MS


def test_slots_that_are_released_too_early_are_found_out(tmp_path, monkeypatch):
    """One slot, three batches in flight: it is written again while its copy waits for a step.

    With two the next write comes when the step before has ended, and so races with the copy.
    """
    one = replace(IN_ARENA, arena=(SlotClass(N_BULK, 1),))
    of = carrying(one, 1, "async", sleep_ns=8 * MS)
    of = replace(of, engine=replace(of.engine, batches_in_flight=3))
    records = run(of)
    assert records.processes[0].fallbacks > 0, "the slot was still in use, and another way taken"
    (tmp_path / "sitecustomize.py").write_text(CARELESS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with pytest.raises(RunFailed, match=r"the bulk on the device of worker 0 is not what was sent"):
        run(of)


@pytest.mark.parametrize("routes", ["vllm", "all-shm"])
def test_every_route_carries_bulk_also_where_there_is_no_device_to_copy_to(routes):
    payload = replace(IN_ARENA, routes=routes, memory="none")
    records = run(carrying(payload, 2, kind="echo"))
    row = records.processes[0]
    assert row.payloads == len(records.steps)
    assert (row.arena > 0) == (routes == "all-shm")
    assert row.arena + row.socket >= row.payloads


def test_the_model_carries_the_same_bulk_by_the_same_ways():
    of = carrying(replace(IN_ARENA, memory="none"), 2, kind="echo")
    real, modelled = run(of), simulate(of, PRESETS["park"], bulk_profile())
    names = ("payloads", "inline", "arena", "socket", "fallbacks", "arena_released", "arena_slots")
    for row, expected in zip(real.processes, modelled.processes, strict=True):
        assert [getattr(row, n) for n in names] == [getattr(expected, n) for n in names]


def test_a_device_without_memory_is_told_from_one_that_has_some():
    of = carrying(IN_ARENA, kind="echo")
    with pytest.raises(ValueError, match=r'payload.memory = "registered", but .* "echo" has no'):
        run(of)
    with pytest.raises(ValueError, match=r"payload.output_bytes is for the model only"):
        run(replace(of, payload=PayloadConfig(output_bytes=1)))
