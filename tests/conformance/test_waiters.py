"""What every waiter keeps to, whoever carries the plan out: C, Python, or the model."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from realrun.layout import ARMED, CURSOR, PUBLISHED_NS, SegmentLayout
from realrun.native import ENDED, SEEN, STOPPED
from realrun.segment import Segment
from realrun.waiting import RawWait
from shmsim.sim.draws import Draws
from shmsim.sim.waiter import VirtualWait
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import (
    ASLEEP,
    DOZE,
    KIND_NAMES,
    NAP,
    PARK,
    POLL,
    REHEARSE,
    SPIN,
    YIELD,
    Stage,
    WaitPlan,
    check_plan,
    only,
)
from tests.conformance.carriers import CARRIERS, carrier_named
from tests.toy import toy_profile

pytestmark = [pytest.mark.real, pytest.mark.timeout(20)]

KINDS = [SPIN, YIELD, NAP, DOZE, POLL, PARK]
PERIOD_NS = 7 * MS
NAP_NS = 40 * MS
YIELDS_TOO = "import os\nwhile True: os.sched_yield()"
MOST_CROWDED = 20  # times that a spinner of a busy machine may sleep; after that it is a mistake

each_kind = pytest.mark.parametrize("kind", KINDS, ids=[KIND_NAMES[k] for k in KINDS])


def until(kind: int, until_ns: int) -> Stage:
    return Stage(kind, until_ns, PERIOD_NS if kind == POLL else 0)


def waiting(kind: int) -> WaitPlan:
    """For ever in one way; a nap for as long as it may last."""
    return WaitPlan(until(kind, NAP_NS if kind == NAP else FOREVER_NS), ASLEEP, ASLEEP, ASLEEP)


def flat(plan: WaitPlan) -> tuple[int, ...]:
    return tuple(number for stage in plan for number in stage)


class Sighting(NamedTuple):
    """How a message was met; instants from the start of the wait."""

    published_after_ns: int
    seen_after_ns: int
    stage: int
    overshoot_ns: int
    belled: bool
    n_armed: int


class VirtualWorld:
    """The waiter of the model."""

    def meet(self, plan: WaitPlan, publish_after_ns: int) -> Sighting:
        check_plan(plan)
        wait = VirtualWait(plan, Draws(toy_profile(), Tape(1), "worker0"), 0)
        n_armed = int(wait.armed_for(publish_after_ns) is not None)
        seen = wait.see(publish_after_ns)
        return Sighting(
            publish_after_ns,
            seen.seen_after_ns,
            seen.stage,
            seen.overshoot_ns,
            seen.belled,
            n_armed,
        )


class RealWorld:
    """A ring of one reader in shared memory, and a thread that publishes into it."""

    def __init__(self, carrier, segment: Segment) -> None:
        self.carrier = carrier
        self.segment = segment
        self.ring = segment.layout.request
        self.words = self.ring.reader_words(0)
        self.armed_at = self.words.armed
        self.sequence = 0
        self.n_crowded = 0

    def post(self) -> tuple[int, int]:
        """Publish, and ring if somebody is armed; returns ``(published_ns, armed)``."""
        return self.publish(b"")

    def publish(self, bells: bytes | None) -> tuple[int, int]:
        memory, ring = self.segment.memory, self.ring
        self.segment.store(ring.reader_at(0) + CURSOR, self.sequence)
        self.sequence += 1
        return self.carrier.publish(memory, ring.geometry, bells, 0, 0, [])

    def wake(self) -> int:
        return self.carrier.wake(self.segment.memory, self.words.bell)

    def wait(self, plan: WaitPlan, seen: int | None = None) -> RawWait:
        seen = self.sequence if seen is None else seen
        return RawWait(*self.carrier.wait(self.segment.memory, self.words, seen, flat(plan)))

    def meet(self, plan: WaitPlan, publish_after_ns: int) -> Sighting:
        seen, posted = self.sequence, []
        if publish_after_ns < 0:
            posted.append(self.post())
            raw = self.wait(plan, seen)
        else:
            with later(publish_after_ns, lambda: posted.append(self.post())):
                raw = self.wait(plan, seen)
        [(published_ns, n_armed)] = posted
        if 0 < publish_after_ns > 2 * (published_ns - raw.started_ns):
            return self.meet(plan, publish_after_ns)  # this thread began late: not what was asked
        spun = plan[raw.stage].kind == SPIN
        slept_before = any(stage.kind not in (SPIN, YIELD) for stage in plan[: raw.stage])
        slept = raw.belled or (raw.overshoot_ns and not slept_before)
        if spun and slept and self.n_crowded < MOST_CROWDED:
            self.n_crowded += 1
            time.sleep(0.2)  # somebody took its core lately, so that for a while it slept instead
            return self.meet(plan, publish_after_ns)
        assert raw.over == SEEN
        return Sighting(
            published_ns - raw.started_ns,
            raw.seen_ns - raw.started_ns,
            raw.stage,
            raw.overshoot_ns,
            bool(raw.belled),
            n_armed,
        )


class later:  # noqa: N801 - reads as what it does
    """Do something on a thread, some time after the block began."""

    def __init__(self, after_ns: int, what) -> None:
        self._thread = threading.Thread(target=self._run, args=(after_ns, what))
        self._begin = threading.Event()

    def _run(self, after_ns: int, what) -> None:
        self._begin.wait()
        time.sleep(after_ns / S)
        what()

    def __enter__(self) -> None:
        self._thread.start()
        self._begin.set()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


@pytest.fixture
def segment():
    with Segment.create(SegmentLayout(1)) as segment:
        yield segment


@pytest.fixture(params=CARRIERS)
def real(request, segment):
    return RealWorld(carrier_named(request.param), segment)


@pytest.fixture(params=[*CARRIERS, "model"])
def world(request, segment):
    if request.param == "model":
        return VirtualWorld()
    return RealWorld(carrier_named(request.param), segment)


# Laws of every waiter.


@each_kind
def test_what_was_published_before_the_wait_is_seen_in_the_first_stage(world, kind):
    met = world.meet(waiting(kind), -1 * MS)
    assert met.published_after_ns <= 0 <= met.seen_after_ns
    assert (met.stage, met.n_armed, met.belled) == (0, 0, False)
    assert met.overshoot_ns == 0, "it slept though there was nothing to wait for"


@each_kind
def test_what_is_published_during_a_stage_is_seen_in_it_and_not_before(world, kind):
    met = world.meet(waiting(kind), 20 * MS)
    assert met.stage == 0
    assert met.seen_after_ns >= met.published_after_ns


@each_kind
def test_only_a_doze_and_a_park_are_armed_and_end_by_the_doorbell(world, kind):
    met = world.meet(waiting(kind), 20 * MS)
    is_armed = kind in (DOZE, PARK)
    assert (met.n_armed, met.belled) == (is_armed, is_armed)


def test_a_nap_is_deaf_until_its_end(world):
    met = world.meet(waiting(NAP), 20 * MS)
    assert met.seen_after_ns >= NAP_NS


def test_a_poll_sees_at_a_look(world):
    period_ns = 50 * MS
    plan = WaitPlan(Stage(POLL, FOREVER_NS, period_ns), ASLEEP, ASLEEP, ASLEEP)
    assert world.meet(plan, 20 * MS).seen_after_ns >= period_ns


@each_kind
def test_what_is_published_after_a_stage_is_seen_in_the_next(world, kind):
    plan = WaitPlan(until(kind, 2 * MS), until(SPIN, FOREVER_NS), ASLEEP, ASLEEP)
    met = world.meet(plan, 60 * MS)
    assert met.stage == 1
    assert met.seen_after_ns >= met.published_after_ns


@each_kind
def test_a_stage_of_no_length_is_passed_over(world, kind):
    plan = WaitPlan(until(kind, 0), until(YIELD, 0), ASLEEP, ASLEEP)
    met = world.meet(plan, 20 * MS)
    assert (met.stage, met.n_armed, met.belled) == (2, 1, True)


@each_kind
def test_a_timed_sleep_tells_how_late_it_ended(world, kind):
    plan = WaitPlan(until(kind, 2 * MS), until(SPIN, FOREVER_NS), ASLEEP, ASLEEP)
    met = world.meet(plan, 60 * MS)
    if kind in (SPIN, YIELD):
        assert met.overshoot_ns == 0
    else:
        assert met.overshoot_ns >= 0


# Laws of the waiters that run on a clock.


@each_kind
def test_the_stop_word_ends_every_kind_of_wait(real, kind):
    with later(20 * MS, real.segment.stop):  # which rings once
        raw = real.wait(waiting(kind))
    assert (raw.over, raw.stage) == (STOPPED, 0)


@each_kind
def test_a_wait_after_the_stop_does_not_begin(real, kind):
    real.segment.stop()
    assert real.wait(waiting(kind)).over == STOPPED


@each_kind
def test_what_is_published_counts_more_than_the_stop(real, kind):
    real.segment.stop()
    real.post()
    assert real.wait(waiting(kind), seen=0).over == SEEN


@each_kind
def test_a_plan_whose_last_stage_is_bounded_ends_there(real, kind):
    plan = WaitPlan(until(SPIN, MS), until(NAP, 2 * MS), until(YIELD, 3 * MS), until(kind, 9 * MS))
    raw = real.wait(plan)
    assert (raw.over, raw.stage) == (ENDED, 3)
    assert raw.seen_ns - raw.started_ns >= 9 * MS


def test_a_plan_of_no_length_ends_at_once_and_says_when(real):
    raw = real.wait(WaitPlan(*[Stage(SPIN, 0, 0)] * 4))
    assert raw.over == ENDED
    assert raw.seen_ns >= raw.started_ns


@each_kind
def test_whoever_has_waited_is_armed_no_longer(real, kind):
    real.meet(waiting(kind), 20 * MS)
    assert real.segment.load(real.armed_at) == 0
    real.wait(WaitPlan(*[until(kind, MS)] * 4))
    assert real.segment.load(real.armed_at) == 0


def test_a_park_that_rechecks_sees_what_nobody_rang_for(real):
    def publish_silently() -> None:
        real.segment.store(real.ring.head_at, 1)

    with later(20 * MS, publish_silently):
        raw = real.wait(WaitPlan(Stage(PARK, FOREVER_NS, 50 * MS), ASLEEP, ASLEEP, ASLEEP), 0)
    assert (raw.over, raw.belled, raw.rescued) == (SEEN, 0, 1)
    assert raw.seen_ns - raw.started_ns >= 50 * MS


def test_a_recheck_that_finds_what_somebody_is_about_to_ring_for_is_no_rescue(real):
    def publish_and_dawdle() -> None:
        real.publish(None)

    with later(20 * MS, publish_and_dawdle):
        raw = real.wait(WaitPlan(Stage(PARK, FOREVER_NS, 50 * MS), ASLEEP, ASLEEP, ASLEEP), 0)
    assert (raw.over, raw.belled, raw.rescued) == (SEEN, 0, 0)


def test_a_wake_without_a_message_ends_no_park(real):
    with later(20 * MS, real.wake), later(60 * MS, real.post):
        raw = real.wait(only(PARK), 0)
    assert raw.over == SEEN
    assert raw.spurious == 1
    assert raw.seen_ns >= real.segment.load(real.ring.slot_at(1) + PUBLISHED_NS)


def test_a_sequence_is_compared_with_all_of_its_bits(real):
    real.segment.store(real.ring.head_at, 1 << 32)
    for kind in KINDS:
        assert real.wait(waiting(kind), 0).over == SEEN


def test_cpu_is_booked_to_the_stage_that_used_it(real):
    with later(20 * MS, real.post):
        raw = real.wait(WaitPlan(until(NAP, 2 * MS), until(SPIN, 10 * S), ASLEEP, ASLEEP), 0)
    assert raw.stage == 1
    assert raw.cpu1_ns > raw.cpu0_ns > 0, "18 ms of spinning take more than a nap"
    assert (raw.cpu2_ns, raw.cpu3_ns) == (0, 0)


@pytest.mark.parametrize("wait_ns", [200 * US, 100 * MS])
def test_a_yielder_tells_its_cpu_time_though_others_share_its_core(real, wait_ns):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # and the neighbour, who inherits it
    try:
        with subprocess.Popen([sys.executable, "-c", YIELDS_TOO]) as neighbour:
            try:
                used_ns = booked_ns = 0
                while used_ns < 100 * MS:
                    before_ns = time.thread_time_ns()
                    raw = real.wait(WaitPlan(Stage(YIELD, wait_ns, 0), *[Stage(SPIN, 0, 0)] * 3))
                    used_ns += time.thread_time_ns() - before_ns
                    booked_ns += raw.cpu0_ns + raw.cpu1_ns + raw.cpu2_ns + raw.cpu3_ns
            finally:
                neighbour.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert 0.7 < booked_ns / used_ns < 1.5


@pytest.mark.parametrize("kind", [NAP, DOZE, PARK], ids=["nap", "doze", "park"])
def test_a_sleep_uses_far_less_cpu_than_it_lasts(real, kind):
    raw = real.wait(WaitPlan(*[until(kind, 200 * MS)] * 4))
    assert raw.cpu0_ns < (raw.seen_ns - raw.started_ns) / 2


def test_a_message_carries_the_instant_of_its_publication(real):
    before_ns = time.monotonic_ns()
    published_ns, _ = real.post()
    assert before_ns <= published_ns <= time.monotonic_ns()
    assert real.segment.load(real.ring.slot_at(1) + PUBLISHED_NS) == published_ns


@pytest.mark.parametrize("who", [(), (0,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("call", ["publish", "announce"])
@pytest.mark.parametrize("bells", [None, b""])
def test_the_flags_of_the_readers_that_are_armed_are_taken(real, call, bells, who):
    with Segment.create(SegmentLayout(3)) as segment:
        ring, memory = segment.layout.request, segment.memory
        for reader in who:
            segment.store(ring.reader_at(reader) + ARMED, 1)

        def taken() -> int:
            if call == "announce":
                return real.carrier.announce(memory, ring.geometry, bells)
            return real.carrier.publish(memory, ring.geometry, bells, 0, 0, [])[1]

        assert taken() == sum(1 << reader for reader in who)
        has_rung = segment.load(ring.reader_words(0).bell) != 0
        assert has_rung == (bells is not None and who != ())
        assert taken() == 0, "one arming is rung for once"


def test_who_was_announced_a_message_meets_it_without_another_ring(real):
    # However slow this box is, now and then the message follows within the time it looks on.
    for _ in range(300):

        def announce_and_publish() -> None:
            real.wake()
            real.publish(None)  # which rings for nobody

        with later(2 * MS, announce_and_publish):
            raw = real.wait(WaitPlan(Stage(PARK, FOREVER_NS, 50 * MS), ASLEEP, ASLEEP, ASLEEP))
        assert raw.over == SEEN
        if raw.belled:
            assert raw.spurious == 0
            return
    pytest.fail("nobody looked on")


class SignalledHere(Exception):  # noqa: N818 - no error
    """What a signal handler of somebody's raises."""


@pytest.mark.parametrize("after_us", [0, 20, 60, 200, 1000])
def test_a_signal_that_meets_somebody_rung_for_nothing_is_handled(real, after_us):
    def handler(*_: object) -> None:
        raise SignalledHere

    main = threading.main_thread().ident
    before = signal.signal(signal.SIGUSR1, handler)

    def wake_and_signal() -> None:
        real.wake()
        end_ns = time.monotonic_ns() + after_us * US
        while time.monotonic_ns() < end_ns:
            pass
        signal.pthread_kill(main, signal.SIGUSR1)

    try:
        for _ in range(10):
            rescue = threading.Timer(3.0, real.post)  # else a lost signal would hang this test
            rescue.start()
            with later(2 * MS, wake_and_signal), pytest.raises(SignalledHere):
                real.wait(only(PARK))
            rescue.cancel()
            rescue.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_waking_nobody_wakes_nobody(real):
    assert real.wake() == 0


# Refusals.

BAD_STAGES = {
    "kind below the first": (-1, FOREVER_NS, 0),
    "kind above the last": (7, FOREVER_NS, 0),
    "poll without a period": (POLL, FOREVER_NS, 0),
    "negative period": (PARK, FOREVER_NS, -1),
}


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("stage", BAD_STAGES.values(), ids=BAD_STAGES)
def test_a_plan_that_cannot_be_carried_out_is_refused_wherever_the_fault_is(real, stage, place):
    stages = [ASLEEP] * 4
    stages[place] = Stage(*stage)
    real.post()
    with pytest.raises(ValueError, match="check_plan says why"):
        real.wait(WaitPlan(*stages), seen=0)


@pytest.mark.parametrize("where", [-8, 4, 1 << 40])
def test_an_offset_that_is_no_word_of_the_segment_is_refused(real, where):
    memory, plan = real.segment.memory, flat(only(SPIN))
    calls = [
        (real.carrier.wait, (memory, (where, 0, 0, 0), 0, plan)),
        (real.carrier.wait, (memory, (0, where, 0, 0), 0, plan)),
        (real.carrier.wait, (memory, (0, 0, where, 0), 0, plan)),
        (real.carrier.wait, (memory, (0, 0, 0, where), 0, plan)),
        (real.carrier.wake, (memory, where)),
    ]
    for call, arguments in calls:
        with pytest.raises(ValueError, match="not that of an aligned 8-byte word"):
            call(*arguments)


# Ctrl-C.


@pytest.mark.parametrize("name", CARRIERS)
def test_ctrl_c_ends_a_wait_of_every_kind(name):
    carrier_named(name)  # skips
    script = Path(__file__).with_name("waits_until_interrupted.py")
    with subprocess.Popen(
        [sys.executable, script, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for kind in KIND_NAMES[:REHEARSE]:
                assert process.stdout.readline() == f"{kind} begins\n"
                time.sleep(0.1)  # so that the signal meets the wait itself
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == f"{kind} interrupted\n"
            assert process.wait() == 0
        finally:
            process.kill()


SPINS_THEN_PARKS = """
import importlib, sys
from realrun.layout import SegmentLayout
from realrun.segment import Segment
wait = importlib.import_module(f"realrun._{sys.argv[1]}").wait
with Segment.create(SegmentLayout(1)) as segment:
    print("begins", flush=True)
    try:
        plan = (0, 40_000_000, 0, 5, 1 << 62, 0) + (5, 1 << 62, 0) * 2
        wait(segment.memory, segment.layout.request.reader_words(0), 0, plan)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("name", CARRIERS)
def test_ctrl_c_in_a_short_spin_ends_the_park_behind_it(name):
    carrier_named(name)  # skips
    with subprocess.Popen(
        [sys.executable, "-c", SPINS_THEN_PARKS, name], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "begins\n"
            time.sleep(0.01)  # so that the signal meets the spin
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
        finally:
            process.kill()
