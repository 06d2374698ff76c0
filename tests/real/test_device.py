"""The echo device keeps its own clock, however late anybody looks at it."""

import threading
import time

import pytest

from realrun.device.echo import EchoDevice
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from realrun.waiting import Stopped
from shmsim.message import CallOne
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.units import MS, US, S

pytestmark = [pytest.mark.real, pytest.mark.timeout(20)]


@pytest.fixture
def segment():
    with Segment.create(SegmentLayout(2)) as segment:
        yield segment


@pytest.fixture
def devices(segment):
    return devices_of(segment, StepTime(200 * US, jitter=0.3))


def devices_of(segment: Segment, step_time: StepTime) -> list[EchoDevice]:
    return [EchoDevice(segment, rank, step_time, Tape(3), 100 * US) for rank in range(2)]


def launch(device: EchoDevice, step: int, *, is_warm_up: bool = False):
    return device.launch(CallOne(step, (), (), 1, 0, 0), is_warm_up=is_warm_up)


def test_a_step_begins_once_all_have_launched_it_and_the_last_one_is_done(devices):
    steps = [[launch(device, step) for device in devices] for step in range(6)]
    time.sleep(0.02)  # they are over by now, but nobody has looked
    last_done_ns = 0
    for both in steps:
        met = [device.wait(step) for device, step in zip(devices, both, strict=True)]
        assert met[0] == met[1], "both workers agree"
        launched_ns, done_ns = met[0]
        assert launched_ns == max(step.launched_ns for step in both)
        assert both[0].duration_ns == both[1].duration_ns
        assert done_ns == max(launched_ns, last_done_ns) + both[0].duration_ns
        last_done_ns = done_ns


def test_a_wait_returns_once_the_step_is_done_and_not_before(devices):
    for step in range(20):
        both = [launch(device, step) for device in devices]
        for device, launched in zip(devices, both, strict=True):
            _, done_ns = device.wait(launched)
            assert time.monotonic_ns() >= done_ns


def test_a_step_that_another_worker_launches_late_begins_late(devices):
    first = launch(devices[0], 0)
    late = threading.Thread(target=lambda: (time.sleep(0.02), launch(devices[1], 0)))
    late.start()
    launched_ns, done_ns = devices[0].wait(first)
    late.join()
    assert launched_ns - first.launched_ns >= 20 * MS
    assert done_ns == launched_ns + first.duration_ns


def test_a_thread_that_falls_behind_by_more_steps_than_the_board_has_rows_catches_up(segment):
    devices = devices_of(segment, StepTime(US))
    n_steps = 3 * segment.layout.board.n_rows
    steps = [[launch(device, step) for device in devices] for step in range(n_steps)]
    done = [devices[1].wait(late)[1] for _, late in steps]
    assert done == sorted(done)
    assert len(set(done)) == n_steps


def test_a_warm_up_step_is_short_and_draws_the_same_number(segment):
    slow = devices_of(segment, StepTime(10 * S))[0]
    assert launch(slow, 0, is_warm_up=True).duration_ns <= MS
    assert launch(slow, 0).duration_ns == 10 * S


def test_the_stop_word_ends_the_wait_for_a_worker_that_never_launches(segment, devices):
    first = launch(devices[0], 0)
    stop = threading.Timer(0.02, segment.stop)
    stop.start()
    with pytest.raises(Stopped):
        devices[0].wait(first)
    stop.join()


def test_the_cpu_time_of_the_wait_is_booked_as_emulation(devices):
    both = [launch(device, 0) for device in devices]
    devices[0].wait(both[0])
    assert devices[0].emulation_cpu_ns > 0
    assert devices[1].emulation_cpu_ns == 0
