import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.policies import (
    POLICIES,
    PRESETS,
    BusySpin,
    GraceThenPark,
    GraceThenPoll,
    Park,
    SpinThenPark,
    WakeAhead,
    YieldSpin,
)
from shmsim.units import MS, S
from shmsim.wait import (
    DOZE,
    PARK,
    POLL,
    SPIN,
    YIELD,
    WaitCosts,
    block_penalty_ns,
    check_plan,
    only,
    then_park,
)
from tests.every_policy import EVERY_POLICY
from tests.unit.waits import after_waits, context

DURATIONS = st.integers(0, 10**11)


@pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)
@given(since_seen_ns=DURATIONS, pending=st.booleans(), waits=st.lists(DURATIONS, max_size=4))
def test_every_policy_answers_with_a_plan_that_can_be_carried_out(
    policy, since_seen_ns, pending, waits
):
    policy = after_waits(policy, *waits)
    check_plan(policy.plan(context(since_seen_ns=since_seen_ns, pending=pending)))


def test_policies_are_known_by_the_name_of_their_class():
    assert {name: kind.__name__ for name, kind in POLICIES.items()} == {n: n for n in POLICIES}


def test_every_preset_is_one_of_the_policies():
    assert {type(policy) for policy in PRESETS.values()} <= set(POLICIES.values())


@given(DURATIONS, st.booleans())
def test_the_simple_policies_wait_in_one_way_whatever_happens(wait_ns, pending):
    ctx = context(since_seen_ns=wait_ns, pending=pending)
    for policy, kind in ((BusySpin(), SPIN), (YieldSpin(), YIELD), (Park(), PARK)):
        assert type(after_waits(policy, wait_ns)) is type(policy)  # as tuples () == ()
        assert policy.plan(ctx) == only(kind)


@given(DURATIONS, DURATIONS)
def test_the_spin_window_counts_from_the_start_of_the_wait(window_ns, since_seen_ns):
    plan = SpinThenPark(window_ns).plan(context(since_seen_ns=since_seen_ns))
    assert plan == then_park(SPIN, window_ns, 0)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 1000))
def test_a_spin_window_left_open_is_the_block_penalty(wake_ns, cpu_ns, price):
    costs = WaitCosts(wake_ns, cpu_ns, 0, 0, 0, price)
    plan = SpinThenPark().plan(context(costs=costs))
    assert plan == then_park(SPIN, block_penalty_ns(costs), 0)


@given(DURATIONS, DURATIONS)
def test_the_grace_counts_from_the_last_read(window_ns, since_seen_ns):
    ctx = context(since_seen_ns=since_seen_ns)
    left_ns = max(window_ns - since_seen_ns, 0)
    assert GraceThenPark(window_ns, 5 * S).plan(ctx) == then_park(YIELD, left_ns, 5 * S)
    plan = GraceThenPoll(window_ns, 100 * MS).plan(ctx)
    assert plan.first == (YIELD, left_ns, 0)
    assert (plan.second.kind, plan.second.period_ns) == (POLL, 100 * MS)


def test_vllm_spins_for_ever_in_decode_and_the_forks_do_not():
    ctx = context(since_seen_ns=3 * MS)
    assert PRESETS["vllm-1s"].plan(ctx).first.until_ns > 900 * MS
    assert PRESETS["forks-2ms"].plan(ctx).first.until_ns == 0


# WakeAhead.


@given(st.integers(0, 10**6), st.floats(0.001, 1.0), DURATIONS)
def test_the_first_wait_teaches_its_whole_length(guard_ns, smoothing, wait_ns):
    learnt = after_waits(WakeAhead(guard_ns, smoothing), wait_ns)
    assert learnt == WakeAhead(guard_ns, smoothing, mean_wait_ns=float(wait_ns))


@given(st.floats(0.001, 1.0), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_the_mean_stays_between_the_shortest_and_the_longest_wait(smoothing, waits_ns):
    mean_ns = after_waits(WakeAhead(smoothing=smoothing), *waits_ns).mean_wait_ns
    slack = 1e-9 * max(waits_ns)  # rounding of floats
    assert min(waits_ns) - slack <= mean_ns <= max(waits_ns) + slack


def test_old_waits_are_forgotten_geometrically():
    n, smoothing = 10, 0.2
    policy = after_waits(WakeAhead(smoothing=smoothing, mean_wait_ns=0.0), *[1 * MS] * n)
    expected = 1 * MS * (1 - (1 - smoothing) ** n)
    assert policy.mean_wait_ns == pytest.approx(expected, rel=1e-12)


@given(DURATIONS)
def test_waits_for_an_arrival_teach_nothing(wait_ns):
    policy = WakeAhead(mean_wait_ns=2e6)
    assert after_waits(policy, wait_ns, pending=False) == policy


def test_what_was_published_before_the_wait_counts_as_a_wait_of_zero():
    assert after_waits(WakeAhead(), -5 * MS).mean_wait_ns == 0.0


def test_before_it_knows_anything_or_for_an_arrival_it_spins_a_block_penalty():
    competitive = SpinThenPark().plan(context())
    assert WakeAhead().plan(context()) == competitive
    assert WakeAhead(mean_wait_ns=2e6).plan(context(pending=False)) == competitive


@given(st.integers(0, 10**6), st.integers(0, 10**10))
def test_it_dozes_until_a_guard_before_the_expected_end_and_spins_past_it(guard_ns, mean_ns):
    plan = WakeAhead(guard_ns, mean_wait_ns=float(mean_ns)).plan(context())
    if mean_ns > 2 * guard_ns:
        assert plan.first == (DOZE, mean_ns - guard_ns, 0)
        assert plan.second == (SPIN, mean_ns + 2 * guard_ns, 0)
        assert plan.third.kind == PARK
    else:
        # A shorter doze could not end a guard ahead and still be worth it.
        assert plan == then_park(SPIN, mean_ns + 2 * guard_ns, 0)
