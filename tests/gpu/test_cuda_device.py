"""A GPU as the device of a worker: every way to see its ends, every memory, one set of tokens."""

from typing import NamedTuple

import pytest

from realrun.cores import ANY
from realrun.cuda.ends import KINDS
from realrun.model.geometry import TINY
from realrun.segment import Segment
from realrun.waiter import Waiter
from shmsim.config import DeviceConfig
from shmsim.policies import PRESETS
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.wait import DEVICE_DONE, NAP, TYPICAL_COSTS, then_park
from tests.gpu.conftest import MAX_LEN, N_ROWS
from tests.real.policies import EveryKind
from tests.serving import N_STEPS, calls, served

torch = pytest.importorskip("torch", reason="a device that computes needs torch")

from realrun.device.cuda import CudaDevice  # noqa: E402 - it needs torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def fresh(segment):
    """Another one: the end ring of a segment goes on where its first device left it."""
    return Segment.create(segment.layout, with_folder=True)


def device_on(segment, policy=PRESETS["park"], **config) -> CudaDevice:
    def make_waiter(source):
        uniform = Tape(0).uniform("worker0 device", "policy")
        args = ("worker0", DEVICE_DONE, source, policy, TYPICAL_COSTS, uniform)
        return Waiter(*args, lambda _: None)

    asked = DeviceConfig(kind="cuda", max_len=MAX_LEN, **config)
    return CudaDevice(segment, 0, 1, "none", N_ROWS, asked, TINY, 1, make_waiter, ANY)


@pytest.mark.parametrize("memory", ["registered", "pinned", "pageable"])
@pytest.mark.parametrize("observe", KINDS)
def test_tokens_do_not_depend_on_how_ends_are_seen_and_inputs_copied(segment, observe, memory):
    first = device_on(segment, observe="sync", memory="pinned")
    plain = served(first)
    first.close()
    with fresh(segment) as other:
        device = device_on(other, observe=observe, memory=memory)
        assert served(device) == plain
        facts = device.facts()
        device.close()
    assert (facts["observe"], facts["memory"], facts["not_registered"]) == (observe, memory, "")


@pytest.mark.parametrize("observe", KINDS)
@pytest.mark.parametrize("name", ["spin", "park", "vllm-1s", "wake-ahead", "step-ahead-rehearsed"])
def test_tokens_do_not_depend_on_the_policy_and_on_how_many_are_in_flight(segment, observe, name):
    first = device_on(segment, observe="sync")
    plain = served(first)
    first.close()
    with fresh(segment) as other:
        device = device_on(other, PRESETS[name], observe=observe)
        assert served(device, depth=2) == plain
        device.close()


@pytest.mark.parametrize("observe", KINDS)
def test_a_wait_of_every_kind_sees_an_end_soon_and_never_early(segment, observe):
    device = device_on(segment, EveryKind(), observe=observe, sleep_ns=2 * MS)
    for call in calls():
        device.load(call)
        step = device.launch(call, is_warm_up=False)
        launched_ns, done_ns = device.wait(step)
        assert device.outputs(step) is None, "it slept"
        device.waiters[0].learn()
        # The kernel counts cycles of a clock that may be a little faster than when it was timed.
        assert done_ns - launched_ns > 1.7 * MS
    rows = device.waiters[0].rows
    device.close()
    assert all(row.published_ns <= row.seen_ns for row in rows)


class Naps(NamedTuple):
    """See everything late."""

    def plan(self, ctx):
        return then_park(NAP, 6 * MS, 0)

    def after(self, ctx, outcome):
        return self


@pytest.mark.quick
def test_the_stamp_of_an_end_does_not_depend_on_how_late_it_was_seen(segment):
    device = device_on(segment, Naps(), observe="write", sleep_ns=3 * MS)
    device.begin()
    durations = []
    for call in calls():
        device.load(call)
        step = device.launch(call, is_warm_up=False)
        launched_ns, done_ns = device.wait(step)
        device.waiters[0].learn()
        durations.append(done_ns - launched_ns)
    device.close()
    rows = device.waiters[0].rows
    assert min(row.seen_ns - row.started_ns for row in rows) > 5 * MS, "seen late"
    assert 2.5 * MS < sorted(durations)[N_STEPS // 2] < 3.5 * MS


@pytest.mark.quick
def test_a_gpu_without_registration_goes_on_with_slower_ways_and_says_why(segment, monkeypatch):
    from realrun.cuda import driver as driver_module

    def refuse(self, address, n_bytes):
        raise driver_module.DriverError("cuMemHostRegister_v2", 801)

    monkeypatch.setattr(driver_module.Driver, "register", refuse)
    device = device_on(segment, observe="write", memory="registered")
    assert len(served(device)) == N_STEPS
    facts = device.facts()
    device.close()
    assert (facts["observe"], facts["memory"]) == ("blocking", "pinned")
    assert "error 801" in facts["not_registered"]
