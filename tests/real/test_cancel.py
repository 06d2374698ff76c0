"""Whoever waits leaves when told to from another thread, however it waits."""

import threading
import time
from typing import NamedTuple

import pytest

from realrun.doorbell import KINDS
from realrun.layout import SegmentLayout
from realrun.ring import SlotWatch
from realrun.waiting import Stopped
from shmsim.units import FOREVER_NS, MS
from shmsim.wait import (
    ASLEEP,
    DOZE,
    PARK,
    POLL,
    SPIN,
    YIELD,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
)
from tests.real.conftest import eventually
from tests.real.handoffs import TO_ARENA, handoff, receive

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

WAYS = {"spinning": SPIN, "yielding": YIELD, "dozing": DOZE, "polling": POLL, "parked": PARK}
SLEEPS = (DOZE, PARK)  # with the doorbell armed


class Always(NamedTuple):
    """Wait in one way for ever."""

    kind: int

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """One stage."""
        period_ns = MS if self.kind == POLL else 0
        return WaitPlan(Stage(self.kind, FOREVER_NS, period_ns), ASLEEP, ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Always":
        """Learn nothing."""
        return self


class Waits(threading.Thread):
    """Does something that waits, and keeps how it ended."""

    def __init__(self, wait):
        """Begin at once."""
        super().__init__(daemon=True)  # one that waits for ever must not keep pytest
        self.ended = None
        self._wait = wait
        self.start()

    def run(self):
        try:
            self.ended = self._wait()
        except Stopped:
            self.ended = Stopped

    def ends(self):
        self.join(10)
        assert not self.is_alive(), "it still waits"
        return self.ended


def let_wait(thread, segment, words, kind):
    """Until a thread sleeps or, if it never does, is likely to be at it."""
    if kind in SLEEPS:
        eventually(lambda: segment.load(words.armed))
    time.sleep(5e-3)
    assert thread.is_alive()


@pytest.mark.parametrize("doorbell", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_cancelled_receiver_leaves_for_good_and_the_other_stays(way, doorbell):
    layout = SegmentLayout(2)
    with handoff(layout, doorbell=doorbell, policy=Always(WAYS[way])) as ends:
        threads = [Waits(receiver.receive) for receiver in ends.receivers]
        for reader, thread in enumerate(threads):
            let_wait(thread, ends.segment, layout.request.reader_words(reader), WAYS[way])
        ends.receivers[0].cancel()
        assert threads[0].ends() is Stopped
        assert threads[1].is_alive()
        ends.sender.send("to the other", 3)
        assert threads[1].ends().content == "to the other"
        # It need not wait for what is there already, but for nothing else.
        assert receive(ends.receivers[0]) == "to the other"
        assert Waits(ends.receivers[0].receive).ends() is Stopped
        ends.receivers[1].cancel()
        assert Waits(ends.receivers[1].receive).ends() is Stopped


@pytest.mark.parametrize("doorbell", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_sender_that_waits_for_a_slot_leaves_when_cancelled_and_has_sent_nothing(way, doorbell):
    layout = SegmentLayout(2, n_slots=2)
    with handoff(layout, TO_ARENA, doorbell, policy=Always(WAYS[way])) as ends:
        for call_id in range(2):
            ends.sender.send(call_id, call_id)
        receive(ends.receivers[0])  # the other one holds the slots
        thread = Waits(lambda: ends.sender.send(2, 2))
        let_wait(thread, ends.segment, layout.request.writer_words(1), WAYS[way])
        SlotWatch(ends.sender.writer, ends.segment).cancel()
        assert thread.ends() is Stopped
        assert ends.sender.writer.sequence == 2
        assert [receive(ends.receivers[1]) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("doorbell", KINDS)
@pytest.mark.parametrize("way", ["spinning", "parked"])
def test_a_stop_of_the_run_ends_every_wait_of_both_ends(way, doorbell):
    layout = SegmentLayout(2, n_slots=2)
    with handoff(layout, TO_ARENA, doorbell, policy=Always(WAYS[way])) as ends:
        for call_id in range(2):
            ends.sender.send(call_id, call_id)
            receive(ends.receivers[0])
        threads = [
            Waits(lambda: ends.sender.send(2, 2)),
            Waits(ends.receivers[0].receive),
        ]
        words = layout.request.writer_words(1), layout.request.reader_words(0)
        for thread, its in zip(threads, words, strict=True):
            let_wait(thread, ends.segment, its, WAYS[way])
        ends.attached[1].stop()
        assert [thread.ends() for thread in threads] == [Stopped, Stopped]
