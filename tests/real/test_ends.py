"""Whoever publishes the end of a step, a waiter sees it once, in order, and never too early.

The GPU is played by a thread that moves the word or lets an event come to pass; what only a GPU can
show is in tests/gpu.
"""

import os
import sys
import threading
import time

import pytest

from realrun.cores import ANY
from realrun.cuda.ends import BY_GPU, KINDS, Ends, deafened
from realrun.layout import SegmentLayout
from realrun.native import IMPLEMENTATION
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from realrun.waiting import Stopped
from shmsim.policies import PRESETS
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import (
    DEVICE_DONE,
    DOZE,
    KIND_NAMES,
    NAP,
    PARK,
    POLL,
    REHEARSE,
    SPIN,
    TYPICAL_COSTS,
    YIELD,
    Stage,
    WaitPlan,
    only,
    then_park,
)
from tests.real.policies import EveryKind

pytestmark = [pytest.mark.real, pytest.mark.timeout(30)]

KNOWN = Known(0, True, 1, 0, 0)


class TimedEvent:
    """An event that comes to pass at an instant."""

    def __init__(self, at_ns):
        self.at_ns = at_ns

    def query(self):
        return time.monotonic_ns() >= self.at_ns

    def synchronize(self):
        time.sleep(max(self.at_ns - time.monotonic_ns(), 0) / 1e9)
        while not self.query():
            pass


def seen_ns_of(ended):
    """Nobody else knows when it came to pass."""
    return ended.seen_ns


class FakeGpu:
    """Ends steps at instants, as a GPU would in this way of observing it."""

    def __init__(self, segment, kind, core=ANY):
        self._segment = segment
        self._ring = segment.layout.ends[0]
        self._kind = kind
        self.ends = Ends(segment, self._ring, kind, seen_ns_of, lambda: None, core)
        self.done_ns = {}
        self._writing = []

    def launch(self, serial, duration_ns):
        done_ns = max(time.monotonic_ns(), max(self.done_ns.values(), default=0)) + duration_ns
        self.done_ns[serial] = done_ns
        self.ends.prepare(serial)
        # The event lies behind the word, by a little.
        self.ends.expect(serial, TimedEvent(done_ns + (20 * US if self._kind in BY_GPU else 0)))
        if self._kind in BY_GPU:
            self._writing.append(threading.Thread(target=self._write, args=(serial, done_ns)))
            self._writing[-1].start()

    def close(self):
        for thread in self._writing:
            thread.join()
        self.ends.close()

    def _write(self, serial, done_ns):
        TimedEvent(done_ns).synchronize()
        while self._segment.load(self._ring.head_at) != serial - 1:
            time.sleep(10e-6)  # steps end in order
        self._segment.store(self._ring.head_at, serial)


@pytest.fixture(params=KINDS)
def gpu(request):
    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        fake = FakeGpu(segment, request.param)
        yield fake
        fake.close()


def waiter_of(gpu, policy):
    uniform = Tape(0).uniform("worker0 device", "policy")
    return Waiter("worker0", DEVICE_DONE, gpu.ends, policy, TYPICAL_COSTS, uniform, lambda _: None)


@pytest.mark.parametrize("policy", [EveryKind(), *PRESETS.values()], ids=["every", *PRESETS])
def test_every_end_is_seen_once_in_order_and_not_before_it_came(gpu, policy):
    waiter = waiter_of(gpu, policy)
    serial = 0
    for n_in_flight in (1, 2, 1, 2, 2):
        for _ in range(n_in_flight):
            serial += 1
            gpu.launch(serial, 400 * US)
        for awaited in range(serial - n_in_flight + 1, serial + 1):
            message, seen_ns = waiter.wait(0, KNOWN)
            waiter.learn()
            assert message.call_id == awaited
            assert seen_ns >= gpu.done_ns[awaited]
            assert message.published_ns <= seen_ns
    assert [row.site for row in waiter.rows] == [DEVICE_DONE] * serial
    assert all(row.started_ns <= row.seen_ns for row in waiter.rows)


def stages(*given):
    return WaitPlan(*(Stage(*stage) for stage in given))


PLANS = {
    "rehearse": stages(
        (DOZE, 200 * US, 0), (REHEARSE, 200 * US, 0), (SPIN, FOREVER_NS, 0), (PARK, FOREVER_NS, 0)
    ),
    "parks after all": stages(
        (NAP, 50 * US, 0), (SPIN, 100 * US, 0), (YIELD, 200 * US, 0), (PARK, FOREVER_NS, 0)
    ),
    "polls for ever": only(POLL)._replace(first=Stage(POLL, FOREVER_NS, 100 * US)),
    "dozes for ever": only(DOZE),
    "parks at once": then_park(PARK, 300 * US, 0),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_of_several_stages_is_carried_out_to_its_end(gpu, plan):
    rehearsed = []
    flat = tuple(number for stage in plan for number in stage)
    rehearses = plan == PLANS["rehearse"]
    for serial in (1, 2):
        gpu.launch(serial, 50 * MS if rehearses else 2 * MS)
        seen_ns, _, message = gpu.ends.receive(flat, lambda: rehearsed.append(1), None)
        assert message.call_id == serial
        assert seen_ns >= gpu.done_ns[serial]
    assert len(rehearsed) == (2 if rehearses else 0)


def test_an_end_that_came_already_is_seen_whatever_the_plan(gpu):
    for serial, kind in enumerate((SPIN, DOZE, PARK), 1):
        gpu.launch(serial, 100 * US)
        time.sleep(0.005)
        flat = tuple(number for stage in only(kind) for number in stage)
        _, _, message = gpu.ends.receive(flat, lambda: None, None)
        assert message.call_id == serial, KIND_NAMES[kind]


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "query"])
def test_a_stop_ends_the_wait_for_a_step_that_never_does(kind):
    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        gpu = FakeGpu(segment, kind)
        gpu.ends.prepare(1)
        over = threading.Event()
        never = TimedEvent(0)
        never.query = lambda: False
        never.synchronize = over.wait
        gpu.ends.expect(1, never)
        stop = threading.Timer(0.05, segment.stop)
        stop.start()
        with pytest.raises(Stopped):
            gpu.ends.receive(tuple(n for s in only(PARK) for n in s), lambda: None, None)
        stop.join()
        over.set()
        gpu.close()


@pytest.mark.parametrize(
    ("plan", "stage"),
    [(only(SPIN), 4), (only(PARK), 0), (PLANS["rehearse"], 4), (PLANS["parks after all"], 3)],
)
def test_somebody_is_asked_to_ring_only_where_a_sleep_has_no_end(plan, stage):
    flat = tuple(number for s in plan for number in s)
    deaf, before, bell_stage = deafened(flat)
    assert bell_stage == stage
    assert DOZE not in deaf[0::3]
    if stage < 4:
        assert before[: 3 * stage] == deaf[: 3 * stage]
        assert max(before[1::3]) < FOREVER_NS, "what comes before it has an end"


def test_the_thread_that_waits_in_the_driver_stays_where_it_was_told(monkeypatch):
    stayed = []

    def stay(_, cores):
        stayed.append((threading.current_thread().name, cores))

    monkeypatch.setattr(os, "sched_setaffinity", stay)
    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        for core in (3, ANY):
            FakeGpu(segment, "blocking", core).close()
    assert stayed == [("device bell", {3})]


class AskedEvent:
    """An event that comes to pass when a thread beside has got somewhere, or it is asked for long.

    Asking keeps the GIL, as torch's does.
    """

    def __init__(self, is_there):
        self._is_there = is_there
        self.n_asked = 0

    def query(self):
        self.n_asked += 1
        return self._is_there() or self.n_asked > 100_000


@pytest.mark.skipif(IMPLEMENTATION != "native", reason="in Python every wait keeps the GIL")
@pytest.mark.parametrize("kind", [SPIN, YIELD])
def test_who_asks_again_and_again_lets_other_threads_of_its_process_run(kind):
    done = []

    def launch():
        for _ in range(20):
            time.sleep(50e-6)  # gives the GIL up, as every launch does, and wants it back
            done.append(1)

    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        gpu = FakeGpu(segment, "query")
        event = AskedEvent(lambda: len(done) == 20)
        gpu.ends.prepare(1)
        gpu.ends.expect(1, event)
        launching = threading.Thread(target=launch)
        # Nobody is made to give it up.
        switches_every_s = sys.getswitchinterval()
        sys.setswitchinterval(1000.0)
        try:
            launching.start()
            gpu.ends.receive(tuple(n for s in only(kind) for n in s), lambda: None, None)
            assert len(done) == 20, f"after {event.n_asked} questions"
        finally:
            sys.setswitchinterval(switches_every_s)
        launching.join()
        gpu.close()


def test_who_asks_is_stopped_between_two_questions():
    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        gpu = FakeGpu(segment, "query")
        gpu.ends.prepare(1)
        gpu.ends.expect(1, TimedEvent(time.monotonic_ns() + 60_000 * MS))
        stop = threading.Timer(0.05, segment.stop)
        stop.start()
        with pytest.raises(Stopped):
            gpu.ends.receive(tuple(n for s in only(SPIN) for n in s), lambda: None, None)
        stop.join()
        gpu.close()
