"""What happens first of what happens at the same instant."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.sim.clock import Timer, VirtualClock


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_processes_come_in_the_order_in_which_they_were_started_not_in_that_of_their_calls(order):
    env, seen = VirtualClock(), []

    def process(number):
        yield env.timeout(1 + order[number])  # who calls when
        yield env.timeout(10 - order[number])
        seen.append(number)

    for number in range(3):
        env.process(process(number))
    env.run()
    assert env.now_ns == 11
    assert seen == [0, 1, 2]


def test_a_timer_comes_after_everything_else_of_its_instant():
    env, seen = VirtualClock(), []
    env.after(5, lambda: seen.append("timer"), is_timer=True)
    env.after(5, lambda: seen.append("work"))
    env.run()
    assert seen == ["work", "timer"]


def test_who_is_alone_until_then_goes_on_without_an_event_and_who_is_not_does_not():
    env, went = VirtualClock(), []

    def process():
        yield env.timeout(1)
        went.append(env.goes_on_at(9))  # before the call at 10
        went.append(env.now_ns)
        went.append(env.goes_on_at(10))  # at the same instant somebody may come first
        went.append(env.goes_on_at(8))  # the past
        went.append(env.now_ns)

    env.after(10, lambda: went.append("call"))
    env.process(process())
    env.run()
    assert went == [True, 9, False, False, 9, "call"]


def test_nobody_goes_on_while_others_wait_for_the_same_event():
    env, seen = VirtualClock(), []
    event = env.event()

    def process(name):
        yield event
        if not env.goes_on_at(env.now_ns + 5):
            yield env.timeout(5)
        seen.append((name, env.now_ns))

    for name in "ab":
        env.process(process(name))
    env.after(1, event.succeed)
    env.run()
    assert seen == [("a", 6), ("b", 6)]


def test_who_goes_on_without_an_event_keeps_its_place_among_processes():
    env, seen = VirtualClock(), []
    call = env.event()

    def goes_on():
        assert env.goes_on_at(3)
        yield call
        yield env.timeout(5)
        seen.append("first")

    def comes_later():
        yield env.timeout(6)
        seen.append("second")

    env.process(goes_on())
    env.after(4, lambda: env.process(comes_later()))
    env.after(5, call.succeed)
    env.run()
    assert env.now_ns == 10
    assert seen == ["first", "second"]


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.one_of(st.none(), st.integers(0, 20))),
        min_size=1,
        max_size=12,
    )
)
def test_of_a_timer_only_what_was_set_last_counts(sets):
    env, rang = VirtualClock(), []
    timer = Timer(env, lambda: rang.append(env.now_ns))
    expected, due_ns, now_ns = [], None, 0
    for gap_ns, delay_ns in sets:
        now_ns += gap_ns
        if due_ns is not None and due_ns < now_ns:
            expected.append(due_ns)
            due_ns = None

        def change(delay_ns=delay_ns):
            if delay_ns is None:
                timer.stop()
            else:
                timer.set(env.now_ns + delay_ns, env.order(is_timer=True))

        env.after(now_ns, change)
        due_ns = None if delay_ns is None else now_ns + delay_ns
    env.run()
    assert rang == expected + ([due_ns] if due_ns is not None else [])


def test_a_timer_that_is_put_off_again_and_again_has_one_place_in_the_queue():
    env = VirtualClock()
    timer = Timer(env, lambda: None)
    for instant_ns in range(10, 1000):
        timer.set(instant_ns, env.order())
    assert len(env._queue) == 1
    env.run()
    assert env.now_ns == 999
