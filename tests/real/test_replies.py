"""Replies are matched to calls by number, never by the order in which they happen to be there."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from realrun.calls import Replies
from realrun.doorbell import KINDS
from realrun.layout import SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.run import run_once
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from realrun.waiting import TimedOut
from shmsim.config import HandoffConfig
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.wait import SCHEDULER_RECV
from tests.real import runs
from tests.real.handoffs import COSTS, PARK

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

KNOWN = Known(0, True, 1, 0, 10)


@contextmanager
def replies_of(n_workers):
    """What the scheduler waits with, and the writing end of each worker."""
    with Segment.create(SegmentLayout(n_workers)) as segment:
        rings = segment.layout.replies
        waiters = [
            Waiter(
                *(ring.name, SCHEDULER_RECV, RingReader(segment, ring, 0), PARK, COSTS),
                Tape(1).uniform(ring.name, "policy"),
            )
            for ring in rings
        ]
        yield Replies(waiters), [RingWriter(segment, ring) for ring in rings]


def reply(worker, call_id):
    worker.publish(call_id, 0, [str(call_id).encode()])


def test_the_reply_to_a_call_that_was_given_up_is_dropped_and_counted_once():
    # vLLM: the next call receives the previous call's reply, and all of them from there on.
    with replies_of(1) as (replies, [worker]):
        given_up = 0
        for call_id in range(0, 60, 3):
            for late in (call_id, call_id + 1):
                with pytest.raises(TimedOut):
                    replies.receive(0, late, KNOWN, MS)
            for answered in range(call_id, call_id + 3):
                reply(worker, answered)
            message, _ = replies.receive(0, call_id + 2, KNOWN, MS)
            assert message.payload == str(call_id + 2).encode()
            replies.learn()
            given_up += 2
            assert replies.n_late == given_up


def test_a_late_reply_of_one_worker_leaves_the_others_in_step():
    with replies_of(3) as (replies, workers):
        for call_id in range(0, 40, 2):
            slow = workers[call_id // 2 % 3]
            for worker in workers:
                if worker is not slow:
                    reply(worker, call_id)
            with pytest.raises(TimedOut):
                replies.receive(0, call_id, KNOWN, MS)
            reply(slow, call_id)
            for worker in workers:
                reply(worker, call_id + 1)
            message, _ = replies.receive(0, call_id + 1, KNOWN, MS)
            assert message.payload == str(call_id + 1).encode()
        # Of 20 calls the slow worker's reply was late, and those behind it had not been looked at.
        assert replies.n_late == sum(3 - call_id % 3 for call_id in range(20))


def test_the_reply_of_the_output_rank_counts_and_the_last_one_says_when():
    with replies_of(2) as (replies, workers):
        workers[1].publish(5, 0, [b"other"])
        workers[0].publish(5, 0, [b"output rank"])
        message, seen_ns = replies.receive(0, 5, KNOWN, MS)
        assert message.payload == b"output rank"
        assert seen_ns >= message.published_ns


def test_a_reply_to_a_later_call_is_an_error_that_names_both():
    with replies_of(2) as (replies, workers):
        reply(workers[0], 3)
        reply(workers[1], 4)
        with pytest.raises(RuntimeError, match="reply to call 4, expected call 3"):
            replies.receive(0, 3, KNOWN, MS)


def test_a_call_whose_time_is_over_takes_a_reply_that_is_there():
    with replies_of(2) as (replies, workers):
        for timeout_ns in (0, -MS):
            for worker in workers:
                reply(worker, 7)
            assert replies.receive(0, 7, KNOWN, timeout_ns)[0].call_id == 7


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("doorbell", KINDS)
def test_a_run_whose_workers_all_reply_is_whole_and_no_doorbell_loses_a_ring(doorbell, scheduling):
    spec = runs.spec(runs.config(workers=2, scheduling=scheduling), PARK)
    spec = replace(spec, handoff=HandoffConfig(doorbell=doorbell, replies="all"))
    records = run_once(spec)
    assert [len(r.token_ns) for r in records.requests] == [runs.N_TOKENS] * runs.N_REQUESTS
    assert [row.rescued for row in records.processes] == [0, 0, 0]
    _, *workers = records.processes
    replies = {row.notified + row.elided for row in workers}
    assert replies == {len(records.steps) * (2 if scheduling == "sync" else 1)}
    assert sum(row.notified for row in records.processes) > 0, "nobody slept: nothing was shown"
