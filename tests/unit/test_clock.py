"""What happens first of what happens at the same instant."""

from itertools import permutations

import pytest

from shmsim.sim.clock import VirtualClock


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
