"""A ping over a socket: a PUSH that drops nothing, and the PUB of vLLM, which may.

==============================================  ===================================================
left out or changed                             found by
==============================================  ===================================================
draining before the recheck                     `test_draining_after_the_recheck_loses_a_wakeup`
draining also when no ping was waited for       `test_draining_only_when_woken_lets_pings_pile_up`
disarming by the ringer                         `test_without_disarming_a_slow_reader_...`
draining at all                                 `test_a_ping_that_stays_ends_every_later_sleep`
draining to the end, asleep on a descriptor     `test_a_descriptor_tells_of_a_ping_only_who_has_...`
credit that comes back at once                  `test_a_full_pipe_whose_credit_comes_back_late_...`
==============================================  ===================================================

Pings take any time on their way (`network`) unless it says otherwise.
"""

import pytest

from tests.protocol.bell import Guards, bell_of, network, stop
from tests.protocol.explore import Op, stuck_states
from tests.protocol.messages import reader, writer

NEAR, FAR = Guards("socket", drains="unarmed"), Guards("far socket", drains="unarmed")
FAR_WOKEN = FAR._replace(drains="woken")


def run(how, n_messages, n_naps=None, *, stops=False):
    """A reader of a socket; it waits for one message more than there is if it is to be stopped."""
    bell = bell_of("me", how)
    return any(
        stuck_states(
            (writer, how, ("me",), n_messages),
            (reader, how, "me", n_messages + stops, 0, n_naps),
            *[(stop, "me", (bell,), how)][:stops],
            helpers=[(network, bell)],
        )
    )


@pytest.mark.parametrize("drains", ["unarmed", "woken"])
@pytest.mark.parametrize("collects", [False, True])
def test_no_interleaving_loses_a_wakeup_or_a_stop(drains, collects):
    how = FAR._replace(drains=drains, collects=collects)
    assert not run(how, n_messages=4)
    assert not run(how, n_messages=2, stops=True)


def test_a_stale_ping_costs_one_needless_wakeup_and_no_more():
    assert not run(FAR, n_messages=3, n_naps=3)


def test_a_ping_that_stays_ends_every_later_sleep():
    with pytest.raises(AssertionError, match="more often than it was rung for"):
        run(FAR._replace(drains="never"), n_messages=3, n_naps=6)


def test_draining_after_the_recheck_loses_a_wakeup():
    assert run(FAR._replace(drains="armed"), n_messages=1)


def test_draining_before_arming_leaves_at_most_two_pings_in_a_near_socket():
    # One of the arming before, which the writer held in its hand during the drain, and this one's.
    assert not run(NEAR._replace(n_pings=2), n_messages=4)
    with pytest.raises(AssertionError, match="too many pings"):
        run(NEAR._replace(n_pings=1), n_messages=4)


def test_draining_only_when_woken_lets_pings_pile_up():
    # A reader that always finds its message by the recheck is never woken.
    with pytest.raises(AssertionError, match="too many pings"):
        run(NEAR._replace(drains="woken", n_pings=3), n_messages=4)


def test_pings_that_are_still_on_their_way_are_bounded_by_no_drain():
    # One an arming, for as long as the network holds them: a PUSH needs room for them all, since
    # it blocks its writer when it has none.
    with pytest.raises(AssertionError, match="too many pings"):
        run(FAR._replace(n_pings=3), n_messages=4)


@pytest.mark.parametrize("drains", ["unarmed", "woken"])
def test_a_reader_that_collects_the_ping_of_an_arming_it_left_owes_none_to_the_next(drains):
    # It disarms by an exchange too. If the writer did so first, it waits for the ping to come.
    assert not run(FAR._replace(drains=drains, collects=True, n_pings=1), n_messages=4)


def test_without_disarming_a_slow_reader_is_pinged_for_every_message():
    with pytest.raises(AssertionError, match="too many pings"):
        run(NEAR._replace(disarms="never", n_pings=3), n_messages=4)


def test_a_descriptor_tells_of_a_ping_only_who_has_drained_to_the_end():
    listening = Guards("listening socket")
    assert not run(listening, n_messages=4)
    assert not run(listening, n_messages=2, stops=True)
    assert run(listening._replace(drains="once"), n_messages=3)


def lossy_writer(credit, n_messages, sequence=1):
    """vLLM: publish, then one PUB to whoever may sleep; a pipe for one ping drops the second."""
    yield Op("store", "head", sequence)
    yield Op("fence")
    full = yield Op("load", "pipe") if credit == "at once" else Op("exchange", "spent", 1)
    if not full:
        yield Op("fetch_add", "pipe", 1)
    return (lossy_writer, credit, n_messages, sequence + 1) if sequence < n_messages else None


def lossy_reader(n_messages, seen=0):
    """No flag, no recheck: a ping that came since the last look is still in the pipe."""
    if (yield Op("load", "head")) != seen:
        return (lossy_reader, n_messages, seen + 1) if seen + 1 < n_messages else None
    yield Op("await", "pipe")
    yield Op("take", "pipe")
    yield Op("fetch_add", "returned", 1)
    return (lossy_reader, n_messages, seen)


def credit_clerk():
    """The sending end looks at returned credit only now and then."""
    yield Op("await", "returned")
    yield Op("exchange", "returned", 0)
    yield Op("exchange", "spent", 0)
    return (credit_clerk,)


def lost_pings(credit, n_messages=3):
    return any(
        stuck_states(
            (lossy_writer, credit, n_messages),
            (lossy_reader, n_messages),
            helpers=[(credit_clerk,)],
        )
    )


def test_a_full_pipe_whose_credit_comes_back_late_loses_a_wakeup():
    # The pipe is empty, its writer believes that it is full. With a pipe that is full only while a
    # ping lies in it, dropping the next one is harmless: the first wakes the reader.
    assert not lost_pings("at once")
    assert lost_pings("late")
