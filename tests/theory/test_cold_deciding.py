"""Laws of the time that deciding takes: whom it delays, and how cold it is."""

from dataclasses import replace

import pytest

from shmsim.policies import BusySpin, Park
from shmsim.profile import Curve
from shmsim.sim.deciding import Cold
from shmsim.sim.waiter import DOZED, PARKED, REHEARSED, SPUN
from shmsim.units import MS, US
from shmsim.wait import WORKER_RECV
from tests.theory.runs import one_request, run, token_times
from tests.toy import constant, toy_profile

SHAPES = [{"calls": calls, "workers": workers} for calls in (1, 2) for workers in (1, 2)]


def cold_profile(what, ns, hot_ns=0):
    """The toy profile, but some of deciding takes so long after a sleep of 1 ms or more."""
    profile = toy_profile(**{what: hot_ns})
    curve = Curve("asleep_ns", (0.0, 1.0 * MS), (constant(hot_ns), constant(ns)))
    costs = {name: {**both, what: curve} for name, both in profile.policy_costs.items()}
    return replace(profile, policy_costs=costs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("policy", [BusySpin(), Park()], ids=str)
def test_learning_delays_nobody_while_the_device_is_at_work(policy, shape):
    free = run(policy, one_request(60), **shape)
    slow = run(policy, one_request(60), profile=toy_profile(after=800 * US), **shape)
    assert token_times(slow) == token_times(free)


@pytest.mark.parametrize("shape", [{"calls": 1}, {"calls": 2}], ids=str)
def test_a_cold_plan_delays_the_step_by_what_the_peer_does_not_hide(shape):
    free = run(BusySpin(), one_request(60), **shape)
    first_calls = [row for row in free.waits if row.site == WORKER_RECV and row.call == 0]
    slack_ns = {row.published_ns - row.started_ns for row in first_calls[5:-1]}  # then it leaves
    assert len(slack_ns) == 1
    (hidden_ns,) = slack_ns

    def step_ns(profile):
        (times,) = token_times(run(BusySpin(), one_request(60), profile=profile, **shape))
        return times[-1] - times[-2]

    hot_ns = step_ns(toy_profile())
    assert step_ns(cold_profile("plan", hidden_ns)) == hot_ns
    # Of both sides the worker alone sleeps, in its device's time; the scheduler spins and is hot.
    assert step_ns(cold_profile("plan", hidden_ns + 70 * US)) == hot_ns + 70 * US


def test_who_has_not_slept_decides_hot():
    records = [
        run(BusySpin(), one_request(30), profile=cold_profile("plan", ns), device_policy=BusySpin())
        for ns in (0, 500 * US)
    ]
    assert records[0] == records[1]


def test_what_did_not_run_since_the_longest_sleep_is_as_cold_as_that():
    cold = Cold()
    for mode, rested_ns in ((PARKED, 3 * MS), (DOZED, 5 * MS), (PARKED, 1 * MS), (SPUN, 9 * MS)):
        cold.rest(mode, rested_ns)
    assert (cold.plan_ns, cold.after_ns) == (5 * MS, 5 * MS)
    cold.rest(REHEARSED, 20 * MS)
    assert (cold.plan_ns, cold.after_ns) == (0, 0)
