"""The explorer allows what x86 does, and no more."""

import pytest

from tests.protocol.explore import Op, in_turn, stuck_states


def run(*ops):
    """Does the steps, then halts, so that a stuck state shows what each of them answered."""
    yield from in_turn(*ops)
    yield Op("await", "nothing")


def last_answers(*threads):
    found = stuck_states(*[(run, *ops) for ops in threads])
    return {tuple(thread.at.results[-1] for thread in state.threads) for state in found}


def set_then_look(mine, other, *between):
    return (Op("store", mine, 1), *between, Op("load", other))


def test_two_that_set_their_word_and_look_at_the_others_can_both_miss():
    # What a doorbell must not do. The stores are still in the buffers.
    both = set_then_look("a", "b"), set_then_look("b", "a")
    assert last_answers(*both) == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("draining", [Op("fence"), Op("fetch_add", "c"), Op("wake", "c")])
def test_with_a_fence_or_what_locks_the_bus_in_between_one_of_them_sees_the_other(draining):
    both = set_then_look("a", "b", draining), set_then_look("b", "a", draining)
    assert (0, 0) not in last_answers(*both)


def test_stores_arrive_in_order_and_loads_are_not_swapped():
    flagged = (Op("store", "data", 1), Op("store", "flag", 1), Op("load", "flag"))
    reader = (Op("await", "flag"), Op("load", "data"))
    assert last_answers(flagged, reader) == {(1, 1)}


def test_of_two_that_exchange_only_one_gets_what_was_there():
    both = [(Op("exchange", "a", 1),)] * 2
    assert last_answers(*both) == {(0, 1), (1, 0)}


def test_who_adds_without_a_lock_can_undo_what_another_added():
    def adds():
        was = yield Op("load", "a")
        yield Op("store", "a", was + 1)

    def expects_two():
        yield Op("await", "a")
        yield Op("await", "a", 1)

    assert list(stuck_states((adds,), (adds,), (expects_two,)))


def test_a_sleeper_is_woken_on_its_own_word_only():
    sleeper, waker = (Op("sleep", "a"),), (Op("fetch_add", "b", 1), Op("wake", "b"))
    (state,) = stuck_states((run, *sleeper), (run, *waker))
    assert [thread.asleep_on for thread in state.threads] == ["a", ""]


def test_helpers_need_not_end():
    assert list(stuck_states((run,)))
    assert not list(stuck_states(helpers=[(run,)]))
