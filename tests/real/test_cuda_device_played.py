"""What the GPU's device asks of the GPU, played on the CPU; tests/gpu asks a real one."""

import os
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from realrun.arena import Lease
from realrun.cores import ANY
from realrun.cuda.ends import BY_GPU, KINDS
from realrun.device.bulk import NO_UPLOADS, STRIDE, Bulk, Uploads, weight_of
from realrun.layout import SegmentLayout
from realrun.model.geometry import TINY
from realrun.segment import Segment
from realrun.spec import TOKEN_BYTES
from realrun.waiter import Waiter
from shmsim.config import DeviceConfig
from shmsim.policies import PRESETS
from shmsim.routing import ArenaPlan, SlotClass
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.wait import DEVICE_DONE, TYPICAL_COSTS
from tests.real.policies import EveryKind
from tests.serving import N_STEPS, calls, served

torch = pytest.importorskip("torch", reason="a device that computes needs torch")

from realrun.device.cuda import CudaDevice  # noqa: E402 - it needs torch
from tests.real.played_gpu import Event, played_gpu  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

N_ROWS = 6
LAYOUT = SegmentLayout(1, n_devices=1, end_slot_bytes=2 * TOKEN_BYTES * N_ROWS)
MEMORIES = ("registered", "pinned", "pageable")


@pytest.fixture
def driver():
    with played_gpu() as driver:
        yield driver


@pytest.fixture
def segment():
    with Segment.create(LAYOUT, with_folder=True) as segment:
        yield segment


def device_on(segment, policy=PRESETS["park"], core=ANY, uploads=NO_UPLOADS, **config):
    def make_waiter(source):
        uniform = Tape(0).uniform("worker0 device", "policy")
        args = ("worker0", DEVICE_DONE, source, policy, TYPICAL_COSTS, uniform)
        return Waiter(*args, lambda _: None)

    asked = DeviceConfig(kind="cuda", max_len=64, **config)
    return CudaDevice(segment, 0, 1, "none", N_ROWS, asked, TINY, 1, make_waiter, core, uploads)


@pytest.fixture(scope="module")
def plain():
    """Tokens seen in the simplest way."""
    with played_gpu(), Segment.create(LAYOUT, with_folder=True) as segment:
        device = device_on(segment, observe="sync", memory="pageable")
        tokens = served(device)
        device.close()
    assert [len(step) for step in tokens] == [2] * 6 + [3] + [2] * 5
    return tokens


@pytest.mark.parametrize(("observe", "memory", "depth"), list(product(KINDS, MEMORIES, (1, 2))))
def test_tokens_do_not_depend_on_how_ends_are_seen_and_inputs_copied(
    driver, segment, plain, observe, memory, depth
):
    device = device_on(segment, EveryKind(), observe=observe, memory=memory)
    device.begin()
    assert served(device, depth) == plain
    facts = device.facts()
    device.close()
    assert (facts["observe"], facts["memory"]) == (observe, memory)
    assert facts["not_registered"] == facts["not_observed"] == ""
    assert driver.registered == {}, "given back"
    assert driver.log.count("write") == (N_STEPS + 1 if observe == "write" else 0)
    assert len(device.waiters[0].rows) == N_STEPS


@pytest.mark.parametrize("memory", MEMORIES)
def test_tokens_do_not_depend_on_how_many_steps_are_in_flight(driver, plain, memory):
    with Segment.create(replace(LAYOUT, n_end_slots=2 * 5), with_folder=True) as segment:
        device = device_on(segment, EveryKind(), memory=memory)
        device.begin()
        assert served(device, 5) == plain
        device.close()


@pytest.mark.parametrize("observe", KINDS)
@pytest.mark.parametrize("depth", [1, 2])
def test_the_policy_that_a_check_judges_gets_the_same_tokens(
    driver, segment, plain, observe, depth
):
    device = device_on(segment, PRESETS["step-ahead-rehearsed"], observe=observe)
    device.begin()
    assert served(device, depth) == plain
    device.close()


@pytest.mark.parametrize("observe", BY_GPU)
def test_the_event_behind_a_word_may_come_after_the_word(
    driver, segment, plain, observe, monkeypatch
):
    def query(event):
        """The device sees to stamps before the word, and to the end of a step behind it."""
        return bool(event.kinds.get("enable_timing"))

    monkeypatch.setattr(Event, "query", query)
    device = device_on(segment, PRESETS["spin"], observe=observe)
    assert served(device, depth=2) == plain
    device.close()


def test_the_thread_that_waits_in_the_driver_has_a_core_of_its_own(driver, segment, monkeypatch):
    stayed = []

    def stay(_, cores):
        stayed.append((threading.current_thread().name, cores))

    monkeypatch.setattr(os, "sched_setaffinity", stay)
    device_on(segment, observe="sync", core=2).close()
    assert stayed == [("device bell", {2})]


def test_without_registration_it_goes_on_in_slower_ways_and_says_why(driver, segment, plain):
    driver.refuses.add("register")
    device = device_on(segment)
    assert served(device) == plain
    facts = device.facts()
    device.close()
    assert (facts["observe"], facts["memory"]) == ("blocking", "pinned")
    assert "error 801" in facts["not_registered"]


def test_where_no_stream_may_write_a_word_one_is_copied(driver, segment, plain):
    driver.refuses.add("write")
    device = device_on(segment)
    assert served(device) == plain
    facts = device.facts()
    device.close()
    assert (facts["observe"], facts["memory"]) == ("copy", "registered")
    assert "write failed with error 801" in facts["not_observed"]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("memory", MEMORIES)
def test_bulk_goes_to_the_device_before_its_step(driver, plain, memory, refused):
    if refused:
        driver.refuses.add("register")
    layout = replace(LAYOUT, arena=ArenaPlan((SlotClass(8192, 2),), 8192))
    arena = layout.arena_layout
    with Segment.create(layout, with_folder=True) as segment:
        device = device_on(segment, uploads=Uploads(memory, 8192, 2))
        # What copies from pageable memory are compared with may not be registered.
        registered = 0 if refused else layout.size if memory == "registered" else arena.data_at
        assert sum(driver.registered.values()) == registered
        _, at = arena.slots[0]
        bulk = np.frombuffer(segment.memory, np.uint8, 8192, at)
        lease = Lease(0, 1)
        digest = 0
        for n in range(3):
            bulk[:] = n + 1
            device.upload(Bulk(bulk, (lease,)))
            digest += weight_of(n) * (n + 1) * (8192 // STRIDE)
        del bulk
        assert served(device) == plain
        facts = device.facts()["bulk"]
        device.close()
    by = "pinned" if memory == "registered" and refused else memory
    assert facts == {"memory": by, "copies": 3, "bytes": 3 * 8192, "digest": digest}
    assert len(lease.events) == (0 if by == "pinned" else 3), "each copy holds the slot"
    assert driver.registered == {}, "given back"


def test_a_sleep_computes_nothing(driver, segment):
    device = device_on(segment, sleep_ns=1 * MS)
    for call in calls():
        device.load(call)
        step = device.launch(call, is_warm_up=False)
        launched_ns, done_ns = device.wait(step)
        assert device.outputs(step) is None
        device.waiters[0].learn()
        assert done_ns - launched_ns < 60 * MS
    device.close()


def test_a_workload_that_begins_forgets_the_sequences_of_the_last_one(driver, segment, plain):
    device = device_on(segment)
    assert served(device) == plain
    device.forget()
    device.begin()
    assert served(device) == plain
    assert len(device.waiters[0].rows) == N_STEPS
    device.close()


def test_a_collective_that_no_graph_can_hold_is_refused(driver, segment):
    with pytest.raises(RuntimeError, match="gloo cannot be part of a CUDA graph"):
        CudaDevice(segment, 0, 2, "gloo", N_ROWS, DeviceConfig(kind="cuda"), TINY, 1, None, ANY)


def test_steps_are_launched_loaded_and_waited_for_in_order(driver, segment):
    device = device_on(segment)
    first, second, *_ = calls()
    with pytest.raises(RuntimeError, match="launched but not loaded"):
        device.launch(first, is_warm_up=False)
    steps = []
    for call in (first, second):
        device.load(call)
        steps.append(device.launch(call, is_warm_up=False))
    with pytest.raises(RuntimeError, match="step 1 ended, expected step 2"):
        device.wait(steps[1])
    device.close()
