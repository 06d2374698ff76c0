import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.policies import SpinThenPark, WakeAhead
from shmsim.tuner import Tuner
from shmsim.units import MS, US


def tune(cost):
    """Ask and tell until the tuner is done."""
    tuner = Tuner()
    while (policy := tuner.ask()) is not None:
        tuner = tuner.tell(policy, cost(policy))
        assert len(tuner.trials) <= 100, "the tuner does not end"
    return tuner


@given(st.floats(math.log(30 * US), math.log(700 * US)))
def test_it_finds_the_neighbourhood_of_the_best_guard(log_best):
    """A bowl in log(guard): costs rise both ways, as with a guard too tight or too wide."""

    def cost(policy):
        if isinstance(policy, SpinThenPark):
            return 100.0
        return abs(math.log(policy.guard_ns) - log_best)

    best = tune(cost).best()
    assert isinstance(best.policy, WakeAhead)
    # Round the best of the coarse grid the widest gap is the one from 0.7 to 1; the bowl's bottom
    # is at most half of it away, and past 0.7 and 1.4 only up to the square root of 2.
    assert best.cost <= 0.5 * math.log(1 / 0.7) + 1e-6


@given(st.sampled_from([0, 100 * US, 500 * US, 2 * MS, 8 * MS, 32 * MS]))
def test_it_finds_a_window_when_that_is_cheaper(window_ns):
    def cost(policy):
        return 0.0 if policy == SpinThenPark(window_ns) else 1.0

    assert tune(cost).best().policy == SpinThenPark(window_ns)


def test_it_tries_as_many_policies_as_it_plans_and_none_twice():
    tuner = tune(lambda policy: 1.0)
    policies = [trial.policy for trial in tuner.trials]
    assert len(policies) == tuner.n_planned
    assert len(set(policies)) == len(policies)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=14))
def test_the_best_is_the_cheapest_of_what_was_tried(costs):
    tuner = Tuner()
    for cost in costs:
        tuner = tuner.tell(tuner.ask(), cost)
    assert tuner.best().cost == min(costs)


def test_telling_makes_a_new_tuner_and_leaves_the_old_one():
    tuner = Tuner()
    tuner.tell(tuner.ask(), 1.0)
    assert tuner == Tuner()


def test_before_any_trial_there_is_no_best():
    with pytest.raises(ValueError, match=r"nothing was tried yet: ask\(\) and tell\(\) first"):
        Tuner().best()
