"""When a waiter learns, and what a rehearsal of it may not change."""

import threading
import time
from typing import NamedTuple

import pytest

from realrun.layout import SegmentLayout
from realrun.rehearsal import Rehearsal
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.wait import PARK, SCHEDULER_RECV, TYPICAL_COSTS, only

pytestmark = [pytest.mark.real, pytest.mark.timeout(20)]


class Remembers(NamedTuple):
    """Parks, and knows how long each wait was, so far."""

    lengths_ns: tuple[int, ...] = ()

    def plan(self, ctx):
        ASKED.append((ctx.call, self.lengths_ns))
        return only(PARK)

    def after(self, ctx, outcome):
        return Remembers((*self.lengths_ns, outcome.seen_after_ns))


ASKED: list[tuple[int, tuple[int, ...]]] = []


@pytest.fixture
def ring():
    ASKED.clear()
    with Segment.create(SegmentLayout(1)) as segment:
        layout = segment.layout.replies[0]
        yield RingWriter(segment, layout), RingReader(segment, layout, 0)


def make_waiter(reader):
    uniform = Tape(1).uniform("scheduler", "policy")
    return Waiter("scheduler", SCHEDULER_RECV, reader, Remembers(), TYPICAL_COSTS, uniform)


def wait(waiter, writer, call, after_ns):
    def publish():
        time.sleep(after_ns / 1e9)
        writer.publish(1, 0, [b""])

    thread = threading.Thread(target=publish)
    thread.start()
    waiter.wait(call, Known(0, True, 4, 0, 100))
    thread.join()


def test_waits_of_both_calls_may_be_learnt_from_at_once(ring):
    writer, reader = ring
    waiter = make_waiter(reader)
    for call, after_ns in ((0, 2 * MS), (1, 9 * MS)):
        wait(waiter, writer, call, after_ns)
    assert ASKED == [(0, ()), (1, ())]
    assert waiter.rows == []
    waiter.learn()
    assert [row.call for row in waiter.rows] == [0, 1]
    for call in (0, 1):
        waiter.begin(call, Known(1, True, 4, 0, 100))
    (_, of_first), (_, of_second) = ASKED[2:]
    lengths_ns = [row.seen_ns - row.started_ns for row in waiter.rows]
    assert [*of_first, *of_second] == lengths_ns


def test_a_policy_decides_by_all_that_it_has_met_even_if_nobody_let_it_learn(ring):
    writer, reader = ring
    waiter = make_waiter(reader)
    for _ in range(3):
        wait(waiter, writer, 0, 1 * MS)
    assert [len(met) for _, met in ASKED] == [0, 1, 2]


def test_a_rehearsal_decides_by_what_the_waiter_met_and_teaches_it_nothing(ring):
    writer, reader = ring
    waiter = make_waiter(reader)
    wait(waiter, writer, 1, 9 * MS)
    waiter.learn()
    with Segment.private(SegmentLayout(1)) as private:
        rehearsal = Rehearsal(private, Remembers())
        rehearsal.wait_once()
        rehearsal.prepare_scheduler_work()
        ASKED.clear()
        for _ in range(2):
            rehearsal.rehearse_scheduler(waiter)
    (met_ns,) = waiter.policies[1].lengths_ns
    assert waiter.policies[0].lengths_ns == ()
    assert len(waiter.rows) == 1
    # It decides as one who met the same wait once more, and does so each time from the start.
    assert ASKED.count((1, (met_ns, met_ns))) == 2
