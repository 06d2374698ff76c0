"""Calls go through a request ring, replies come back through another: when do both sides wait?

==============================================  ===================================================
broken                                          found by
==============================================  ===================================================
replies are left until all calls are sent       `test_a_scheduler_that_leaves_replies_lying_...`
more calls in flight than there is room for     `test_both_are_stuck_once_the_calls_in_flight_...`
==============================================  ===================================================

The waits are single steps; the words are counts of messages sent (head) and taken (cursor).
"""

from itertools import product
from typing import NamedTuple

import pytest

from tests.protocol.explore import Op, stuck_states


class Depth(NamedTuple):
    in_flight: int  #: calls that the scheduler sends before it takes a reply
    n_calls: int
    request_slots: int = 2
    reply_slots: int = 1
    holds_request: bool = False  #: the worker releases a request only once it has replied

    def room(self) -> int:
        """Calls that fit into the rings and the hands of the worker."""
        return self.request_slots + self.reply_slots + (not self.holds_request)


def send(ring: str, n_sent: int, n_slots: int):
    """Wait for a slot, publish; answers how often it was sent now."""
    yield Op("await", f"{ring} cursor", n_sent - n_slots)
    yield Op("store", f"{ring} head", n_sent + 1)
    return n_sent + 1


def take(ring: str, n_taken: int):
    yield Op("await", f"{ring} head", n_taken)
    yield Op("store", f"{ring} cursor", n_taken + 1)
    return n_taken + 1


def scheduler(how: Depth, n_sent: int = 0, n_replies: int = 0):
    if n_sent < min(how.n_calls, n_replies + how.in_flight):
        n_sent = yield from send("request", n_sent, how.request_slots)
    else:
        n_replies = yield from take("reply", n_replies)
    return (scheduler, how, n_sent, n_replies) if n_replies < how.n_calls else None


def worker(how: Depth, n_done: int = 0):
    if how.holds_request:
        yield Op("await", "request head", n_done)
        yield from send("reply", n_done, how.reply_slots)
        yield from take("request", n_done)
    else:
        yield from take("request", n_done)
        yield from send("reply", n_done, how.reply_slots)
    return (worker, how, n_done + 1) if n_done + 1 < how.n_calls else None


def reader(how: Depth, n_read: int = 0):
    """The main thread of a worker with another one that replies."""
    yield from take("request", n_read)
    yield Op("store", "handed over", n_read + 1)
    return (reader, how, n_read + 1) if n_read + 1 < how.n_calls else None


def replier(how: Depth, n_done: int = 0):
    yield Op("await", "handed over", n_done)
    yield from send("reply", n_done, how.reply_slots)
    return (replier, how, n_done + 1) if n_done + 1 < how.n_calls else None


def stuck(how: Depth):
    return any(stuck_states((scheduler, how), (worker, how)))


@pytest.mark.parametrize("reply_slots", [1, 2])
def test_as_many_calls_in_flight_as_reply_slots_never_stop_the_worker(reply_slots):
    # Whatever the worker holds back: it never waits for a slot, so requests always drain.
    def hasty_worker(how, n_done=0):
        yield Op("await", "request head", n_done)
        taken = yield Op("load", "reply cursor")
        assert n_done - taken < how.reply_slots, "no free reply slot"
        return (yield from worker(how, n_done)) and (hasty_worker, how, n_done + 1)

    for in_flight in range(1, reply_slots + 1):
        how = Depth(in_flight, 6, reply_slots=reply_slots)
        assert not any(stuck_states((scheduler, how), (hasty_worker, how)))
    how = Depth(reply_slots + 1, 6, reply_slots=reply_slots)
    with pytest.raises(AssertionError, match="no free reply slot"):
        any(stuck_states((scheduler, how), (hasty_worker, how)))


@pytest.mark.parametrize("holds_request", [False, True])
def test_both_are_stuck_once_the_calls_in_flight_fill_both_rings_and_the_workers_hands(
    holds_request,
):
    for request_slots, reply_slots in product([1, 2, 3], repeat=2):
        how = Depth(0, 10, request_slots, reply_slots, holds_request)
        for in_flight in range(1, 10):
            filled = how._replace(in_flight=in_flight)
            assert stuck(filled) == (in_flight > filled.room()), filled


def test_with_a_thread_that_replies_nobody_is_stuck_however_many_calls_are_in_flight():
    for request_slots, reply_slots in product([1, 2], repeat=2):
        for in_flight in range(1, 7):
            how = Depth(in_flight, 6, request_slots, reply_slots)
            assert not any(stuck_states((scheduler, how), (reader, how), (replier, how))), how


def test_a_scheduler_that_leaves_replies_lying_until_all_calls_are_sent_gets_stuck():
    assert stuck(Depth(in_flight=6, n_calls=6))
