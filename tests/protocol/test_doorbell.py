"""No interleaving loses a wake-up or a stop, and which guards that takes.

==============================================  ===================================================
left out or changed                             found by
==============================================  ===================================================
recheck; arming before it; fence of the reader  `test_every_guard_of_the_sleeper_is_needed`
count read before the recheck                   `test_a_count_read_after_the_recheck_...`
count read before arming                        `test_a_count_read_between_arming_and_recheck_...`
fence of the writer                             `test_without_the_fence_of_the_writer_...`
comparison in the kernel                        `test_without_the_comparison_in_the_kernel_...`
slot before head                                `test_whoever_sees_the_head_finds_the_slot_written`
sleeping on a bell, not on the head             `test_sleeping_on_the_head_itself_loses_a_stop`
a bell that is added to with a lock             `test_two_who_add_to_a_bell_without_a_lock_...`
draining an eventfd before the recheck          `test_draining_after_the_recheck_loses_a_wakeup`
draining an eventfd at all                      `test_nobody_wakes_more_often_than_it_was_rung_for`
ringing once disarmed, whatever happens         `test_a_ring_that_an_exception_prevented_is_...`
==============================================  ===================================================

Nothing is lost if the only ringer stores instead of exchanging, or disarms nobody. The old form,
asleep on the head, needs no guard of the sleeper, and loses stops.
"""

import pytest

from tests.protocol.bell import ALL, Guards, bell_of, stop
from tests.protocol.explore import stuck_states
from tests.protocol.messages import reader, writer

EVENTFD, ON_THE_HEAD = Guards("eventfd"), Guards("word", disarms="never")


def lost_wakeups(how, n_messages=2, n_readers=1):
    readers = tuple(f"reader{i}" for i in range(n_readers))
    return any(
        stuck_states(
            (writer, how, readers, n_messages), *[(reader, how, me, n_messages) for me in readers]
        )
    )


def lost_stops(how, n_messages=1, n_readers=1):
    """Nobody stops the readers but the first, who waits for one message more than there is."""
    me, *others = readers = tuple(f"reader{i}" for i in range(n_readers))
    return any(
        stuck_states(
            *[(writer, how, readers, n_messages)][:n_messages],
            (reader, how, me, n_messages + 1),
            *[(reader, how, other, n_messages) for other in others],
            (stop, me, (bell_of(me, how),), how),
        )
    )


@pytest.mark.parametrize(("n_messages", "n_readers"), [(4, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
def test_no_interleaving_loses_a_wakeup(how, n_messages, n_readers):
    assert not lost_wakeups(how, n_messages, n_readers)


@pytest.mark.parametrize(("n_messages", "n_readers"), [(3, 1), (2, 2)])
@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
def test_a_ring_before_each_message_does_not_stand_in_for_the_one_behind_it(
    how, n_messages, n_readers
):
    announcing = how._replace(announces=True)
    assert not lost_wakeups(announcing, n_messages, n_readers)
    assert lost_wakeups(announcing._replace(writer_fences=False))


@pytest.mark.parametrize(("n_messages", "n_readers"), [(0, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
def test_a_single_stop_is_never_lost(how, n_messages, n_readers):
    assert not lost_stops(how, n_messages, n_readers)


SLEEPER_GUARDS = ["reader_fences", "rechecks", "arms_first"]


@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
@pytest.mark.parametrize("guard", SLEEPER_GUARDS)
def test_every_guard_of_the_sleeper_is_needed(how, guard):
    assert lost_wakeups(how._replace(**{guard: False}))


@pytest.mark.parametrize("disarms", ["exchange", "store", "never"])
def test_a_count_read_after_the_recheck_loses_a_wakeup(disarms):
    assert lost_wakeups(ALL._replace(counts="rechecked", disarms=disarms))


def test_a_count_read_between_arming_and_recheck_needs_a_ringer_that_disarms_nobody():
    # Otherwise: the writer publishes 1; the reader sees it in passing and arms for 2; the writer,
    # still at 1, disarms it and rings; the reader reads the count after that ring, sees no 2 and
    # sleeps disarmed. Nobody rings for 2. A count read before arming is an older one, so the kernel
    # refuses that sleep.
    assert lost_wakeups(ALL._replace(counts="armed"))
    assert lost_wakeups(ALL._replace(counts="armed", disarms="store"))
    assert not lost_wakeups(ALL._replace(counts="armed", disarms="never"), n_messages=4)


@pytest.mark.parametrize("guard", SLEEPER_GUARDS)
def test_asleep_on_the_head_itself_no_guard_of_the_sleeper_is_needed(guard):
    # The kernel compares what the writer changed anyway. That this form was quick to get right is
    # why it came first; a stop changes no head.
    assert not lost_wakeups(ON_THE_HEAD._replace(**{guard: False}))


def test_sleeping_on_the_head_itself_loses_a_stop():
    assert lost_stops(ON_THE_HEAD, n_messages=0)


@pytest.mark.parametrize("how", [ALL, EVENTFD, ON_THE_HEAD], ids=lambda how: how.bell)
def test_without_the_fence_of_the_writer_some_interleaving_loses_a_wakeup(how):
    assert lost_wakeups(how._replace(writer_fences=False))


def test_without_the_comparison_in_the_kernel_some_interleaving_loses_a_wakeup():
    assert lost_wakeups(Guards("blind futex"))


def test_whoever_sees_the_head_finds_the_slot_written():
    with pytest.raises(AssertionError, match="head moved before its slot"):
        list(stuck_states((writer, ALL, ("me",), 1, 1, False), (reader, ALL, "me", 1)))


def test_two_who_add_to_a_bell_without_a_lock_can_undo_each_others_event():
    # The writer and whoever stops a reader add to the same bell.
    unlocked = ALL._replace(adds_locked=False)
    assert not lost_wakeups(unlocked)
    assert lost_stops(unlocked)


def test_draining_after_the_recheck_loses_a_wakeup():
    assert lost_wakeups(EVENTFD._replace(drains="armed"))


def interrupted(process, n_steps, then=None):
    """Do so many steps, then drop the rest of them and go on as another process, or not at all."""
    function, *arguments = process
    steps = function(*arguments)
    op = next(steps)
    for _ in range(n_steps):
        result = yield op
        try:
            op = steps.send(result)
        except StopIteration:
            break
    return then


@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
def test_wherever_a_writer_is_killed_a_stop_still_reaches_its_reader(how):
    # It may have disarmed a reader and died before the ping: so a stop looks at no armed flag.
    for n_steps in range(9):
        killed = (interrupted, (writer, how, ("me",), 1), n_steps)
        stopper = (stop, "me", (bell_of("me", how),), how)
        assert not any(stuck_states(killed, (reader, how, "me", 2), stopper))


@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
@pytest.mark.parametrize("disarms", ["store", "never"])
def test_the_only_ringer_of_a_reader_needs_no_exchange_to_lose_nothing(how, disarms):
    # It saves system calls: a reader which is slow to wake is rung for once, not for every message.
    how = how._replace(disarms=disarms)
    assert not lost_wakeups(how, n_messages=3)
    assert not lost_stops(how, n_messages=2)


@pytest.mark.parametrize("how", [ALL, EVENTFD], ids=lambda how: how.bell)
def test_a_ring_that_an_exception_prevented_is_made_good_by_the_next_only_if_nobody_was_disarmed(
    how,
):
    # So whoever has disarmed a sleeper must ring, whatever happens in between.
    def forgotten_for_ever(how):
        first, second = (writer, how, ("me",), 1), (writer, how, ("me",), 2, 2)
        return any(
            any(stuck_states((interrupted, first, n_steps, second), (reader, how, "me", 2)))
            for n_steps in range(2, 9)
        )

    assert forgotten_for_ever(how)
    assert not forgotten_for_ever(how._replace(disarms="never"))


def test_nobody_wakes_more_often_than_it_was_rung_for():
    def run(how, n_naps, n_messages=3):
        napper = (reader, how, "me", n_messages, 0, n_naps)
        return any(stuck_states((writer, how, ("me",), n_messages), napper))

    assert not run(EVENTFD, n_naps=3)
    # A futex can cut two naps short: adding to the bell ends one, waking the next.
    assert not run(ALL, n_naps=6)
    with pytest.raises(AssertionError, match="more often than it was rung for"):
        run(EVENTFD._replace(drains="never"), n_naps=6)
