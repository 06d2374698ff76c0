import pytest

from shmsim.config import parse_policy
from shmsim.policies import PRESETS, AsyncGated, BusySpin, Clamped, Park, WakeAhead, YieldSpin
from shmsim.policies.parameters import check_parameters, parameters_of
from shmsim.tuner import coarse, distinct, neighbours, written
from shmsim.units import US, S


def test_the_whole_library_is_tried_and_nothing_twice():
    policies = coarse()
    tried = {written(policy) for policy in policies}
    assert len(tried) == len(policies)
    # A preset that is another one by its numbers is written as the first of the two.
    assert tried >= {written(preset) for preset in PRESETS.values()}


def test_policies_of_two_types_with_the_same_numbers_are_two():
    assert BusySpin() == YieldSpin() == Park()
    assert len(distinct([BusySpin(), YieldSpin(), Park(), Park()])) == 3


@pytest.mark.parametrize("factor", [1.4, 2.0])
def test_every_neighbour_differs_in_one_parameter_and_makes_sense(factor):
    for policy in coarse():
        given = parameters_of(policy)
        for other in neighbours(policy, factor):
            assert type(other) is type(policy)
            changed = [n for n, value in parameters_of(other).items() if value != given[n]]
            assert len(changed) == 1, written(other)
            check_parameters(other)


def test_neighbours_go_both_ways_and_switch_what_can_be_switched():
    found = {written(policy) for policy in neighbours(WakeAhead(50 * US), 2.0)}
    assert {"WakeAhead:guard=25us", "wake-ahead", "WakeAhead:guard=50us,rehearse=true"} <= found


def test_how_the_engine_schedules_is_no_matter_of_choice():
    gated = AsyncGated(window_ns=S)
    assert all(other.asynchronous == gated.asynchronous for other in neighbours(gated, 2.0))


def test_a_policy_is_written_as_a_command_line_reads_it():
    for policy in [*coarse(), Clamped(Park(), 0.5)]:
        for other in [policy, *neighbours(policy, 1.4)]:
            assert repr(parse_policy(written(other)).policy) == repr(other)


def test_what_a_policy_has_learnt_is_not_handed_on():
    learnt = WakeAhead(50 * US, mean_wait_ns=1e6)
    assert all(other.mean_wait_ns < 0 for other in neighbours(learnt, 2.0))
