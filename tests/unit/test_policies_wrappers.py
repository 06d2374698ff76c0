"""Wrappers: they limit what the policy in them answers, and let it learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.policies import (
    BusySpin,
    Clamped,
    GraceThenPark,
    GrowShrink,
    IfPreempted,
    Ladder,
    Park,
    SpinBudget,
    SpinThenPark,
    StepAhead,
    WakeAhead,
)
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import (
    PARK,
    SPIN,
    YIELD,
    StageCpu,
    WaitOutcome,
    block_penalty_ns,
    check_plan,
    only,
    then_park,
)
from tests.every_policy import EVERY_POLICY
from tests.unit.waits import COSTS, after_waits, context, outcome

B = block_penalty_ns(COSTS)


def spun_ns(plan):
    total, begin = 0, 0
    for stage in plan:
        if stage.kind in (SPIN, YIELD):
            total += stage.until_ns - begin
        if stage.until_ns >= FOREVER_NS:
            break
        begin = stage.until_ns
    return total


# Clamped.


@pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)
@given(clamp=st.floats(0.05, 1.0), waits=st.lists(st.integers(0, 30 * MS), max_size=12))
def test_a_clamped_policy_spins_no_longer_than_the_clamp_allows(policy, clamp, waits):
    clamped = Clamped(policy, clamp)
    for wait_ns in waits:
        clamped = clamped.after(context(), outcome(wait_ns))
    plan = clamped.plan(context())
    check_plan(plan)
    assert spun_ns(plan) <= B / clamp


def test_what_spins_little_is_left_as_it_is():
    for policy in (Park(), SpinThenPark(50 * US), WakeAhead(mean_wait_ns=2e6)):
        assert Clamped(policy).plan(context()) == policy.plan(context())


def test_busy_spin_clamped_at_the_penalty_is_ski_rental():
    assert Clamped(BusySpin(), 1.0).plan(context()) == then_park(SPIN, B, 0)


def test_all_that_a_ladder_spins_counts():
    plan = Clamped(Ladder(3 * B, 6 * B, 30 * US, 7 * B, 0)).plan(context())
    assert plan.first.until_ns == 3 * B
    assert plan.second.until_ns == 4 * B


@given(st.lists(st.integers(0, S), max_size=20))
def test_the_policy_in_a_wrapper_learns_what_it_would_alone(waits):
    alone, *wrapped = (
        GrowShrink(),
        Clamped(GrowShrink()),
        SpinBudget(GrowShrink()),
        IfPreempted(GrowShrink()),
    )
    for wait_ns in waits:
        alone = alone.after(context(), outcome(wait_ns))
        wrapped = [w.after(context(), outcome(wait_ns)) for w in wrapped]
    assert [w.inner for w in wrapped] == [alone] * 3


# SpinBudget.


def spinning(policy, wait_ns, n):
    """Waits of one length, spun or slept through as the policy plans; returns the time spun."""
    total = 0
    for _ in range(n):
        is_spun = policy.plan(context()).first.kind == SPIN
        cpu = StageCpu(wait_ns if is_spun else 0, 0, 0, 0)
        total += cpu.first
        policy = policy.after(context(), WaitOutcome(wait_ns, wait_ns, 0, cpu, 0, False, 0))
    return total


@given(st.floats(0.02, 1.0), st.integers(US, 100 * MS))
def test_a_budget_keeps_the_time_spun_to_a_share_whatever_waits_are_like(share, wait_ns):
    n = 400
    spun = spinning(SpinBudget(share=share, burst_ns=MS), wait_ns, n)
    # At most the share, what the bucket held, and the last wait that overdrew it. What was
    # overdrawn beyond a bucket is forgiven, which matters for waits longer than one.
    if wait_ns < MS:
        assert spun <= share * n * wait_ns + MS + wait_ns
    assert spun >= share * n * wait_ns * 0.5 - 2 * wait_ns


# IfPreempted.

TAKEN = outcome(MS, MS + B + 1, preempted=1)


def test_a_taken_core_parks_for_some_waits_and_for_twice_as_many_the_next_time():
    policy = IfPreempted(BusySpin(), 2, 8)

    def parked(policy):
        n = 0
        while policy.plan(context()) == only(PARK):
            policy = policy.after(context(), outcome(MS))
            n += 1
        return n, policy

    held = []
    for _ in range(5):
        policy = policy.after(context(), TAKEN)
        n, policy = parked(policy)
        held.append(n)
    assert held == [2, 4, 8, 8, 8]
    for _ in range(20):
        policy = policy.after(context(), outcome(MS))
    assert policy == IfPreempted(BusySpin(), 2, 8)


@pytest.mark.parametrize("late_ns", [0, 80 * US, B])
def test_a_core_taken_for_no_longer_than_parking_costs_is_nothing_to_park_for(late_ns):
    policy = IfPreempted(BusySpin())
    for _ in range(20):
        policy = policy.after(context(), outcome(MS, MS + late_ns, preempted=1))
    assert policy == IfPreempted(BusySpin())


@pytest.mark.parametrize("late_ns", [0, 80 * US, B, B + 1, 3 * MS])
@pytest.mark.parametrize("preempted", [0, 1])
def test_it_parks_for_what_step_ahead_parks_for(late_ns, preempted):
    taken = outcome(MS, MS + late_ns, preempted=preempted)
    wrapped = IfPreempted(BusySpin()).after(context(), taken)
    own = after_waits(StepAhead(), *[MS] * 10).after(context(), taken)
    assert (wrapped.learnt_left > 0) == (own.learnt_held > 0)


def test_wrappers_wrap_wrappers():
    policy = IfPreempted(Clamped(GraceThenPark(S)))
    assert spun_ns(policy.plan(context())) == 4 * B
    policy = policy.after(context(), TAKEN)
    assert policy.plan(context()) == only(PARK)
