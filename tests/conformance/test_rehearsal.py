"""A rehearsal is run once where the plan says, and the wait goes on behind it."""

import threading
import time

import pytest

from realrun.layout import SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment
from realrun.waiting import Stopped
from shmsim.sim.draws import Draws
from shmsim.sim.waiter import REHEARSED, VirtualWait
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import ASLEEP, DOZE, PARK, REHEARSE, SPIN, Stage, WaitPlan, check_plan
from tests.conformance.carriers import CARRIERS, carry_by
from tests.toy import toy_profile

pytestmark = [pytest.mark.real, pytest.mark.timeout(20)]

PLAN = WaitPlan(
    Stage(DOZE, 20 * MS, 0), Stage(REHEARSE, 20 * MS, 0), Stage(SPIN, FOREVER_NS, 0), ASLEEP
)
FLAT = tuple(number for stage in PLAN for number in stage)


@pytest.fixture(params=CARRIERS)
def ring(request, monkeypatch):
    carry_by(request.param, monkeypatch.setattr)
    with Segment.create(SegmentLayout(1)) as segment:
        layout = segment.layout.request
        yield RingWriter(segment, layout), RingReader(segment, layout, 0), segment


def publish_after(writer: RingWriter, delay_ns: int) -> threading.Thread:
    def publish() -> None:
        time.sleep(delay_ns / 1e9)
        writer.publish(1, 0, [b""])

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


def test_what_comes_after_the_rehearsal_is_met_by_the_stage_behind_it(ring):
    writer, reader, _ = ring
    rehearsed = []
    thread = publish_after(writer, 60 * MS)
    raw = reader.wait(FLAT, lambda: rehearsed.append(time.monotonic_ns()))
    message = reader.read()
    thread.join()
    assert len(rehearsed) == 1
    assert raw.stage == 2
    assert raw.started_ns + 20 * MS <= rehearsed[0] <= message.published_ns <= raw.seen_ns


def test_what_comes_before_the_rehearsal_does_without_it(ring):
    writer, reader, _ = ring
    writer.publish(1, 0, [b""])
    raw = reader.wait(FLAT, lambda: pytest.fail("nobody needs it any more"))
    assert raw.stage == 0


def test_what_comes_during_the_rehearsal_is_seen_right_behind_it(ring):
    writer, reader, _ = ring
    raw = reader.wait(FLAT, lambda: writer.publish(1, 0, [b""]))
    assert raw.stage == 2
    assert raw.seen_ns >= reader.read().published_ns


def test_the_cpu_of_a_rehearsal_is_booked_to_its_stage(ring):
    writer, reader, _ = ring

    def rehearse() -> None:
        end_ns = time.thread_time_ns() + 10 * MS
        while time.thread_time_ns() < end_ns:
            pass
        writer.publish(1, 0, [b""])

    raw = reader.wait(FLAT, rehearse)
    assert raw.cpu1_ns >= 10 * MS
    assert raw.cpu0_ns < 10 * MS


def test_a_stop_during_the_rehearsal_ends_the_wait(ring):
    _, reader, segment = ring
    with pytest.raises(Stopped):
        reader.wait(FLAT, lambda: segment.stop())


def test_a_rehearsal_without_end_is_no_plan():
    with pytest.raises(ValueError, match="without end"):
        check_plan(WaitPlan(Stage(REHEARSE, FOREVER_NS, 0), ASLEEP, ASLEEP, ASLEEP))


def virtual(publish_after_ns: int):
    profile = toy_profile(rehearsal=100 * US, timer_overshoot=30 * US)
    wait = VirtualWait(PLAN, Draws(profile, Tape(1), "scheduler"), 0)
    return wait.see(publish_after_ns), wait.armed_for(publish_after_ns) is not None


def test_the_model_rehearses_for_as_long_as_that_takes_and_is_deaf_meanwhile():
    awake_ns = 20 * MS + 30 * US
    during, armed = virtual(awake_ns + 50 * US)
    assert (during.seen_after_ns, during.stage, armed) == (awake_ns + 100 * US, 2, False)
    after, armed = virtual(awake_ns + 300 * US)
    assert (after.seen_after_ns, after.stage, armed) == (awake_ns + 300 * US, 2, False)
    assert during.resumed_from == after.resumed_from == REHEARSED
    assert after.cpu_ns.second == 100 * US
    before, armed = virtual(10 * MS)
    assert (before.stage, before.cpu_ns.second, armed) == (0, 0, True)


def test_the_model_is_armed_once_it_parks_behind_a_rehearsal():
    profile = toy_profile(rehearsal=100 * US, timer_overshoot=0)
    plan = WaitPlan(Stage(DOZE, MS, 0), Stage(REHEARSE, MS, 0), Stage(PARK, FOREVER_NS, 0), ASLEEP)
    wait = VirtualWait(plan, Draws(profile, Tape(1), "scheduler"), 0)
    assert wait.armed_for(MS + 50 * US) is None
    assert wait.armed_for(MS + 200 * US) is not None
