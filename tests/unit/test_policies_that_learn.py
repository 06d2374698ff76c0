"""What each policy learns from waits, against the rule it is named for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.policies import (
    AdaptiveTick,
    AsyncGated,
    CompetitiveSpin,
    EmaGrace,
    GrowShrink,
    HazardBayes,
    HybridFraction,
    IntervalDetector,
    KarlinRandom,
    Ladder,
    Pas,
    PlanHedge,
    Poll,
    QuantileDoze,
)
from shmsim.policies.hedge import Hedge
from shmsim.policies.intervals import regular_interval
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import (
    DOZE,
    NAP,
    PARK,
    POLL,
    SPIN,
    YIELD,
    block_penalty_ns,
    only,
    then_park,
)
from tests.unit.waits import COSTS, after_waits, context, outcome

B = block_penalty_ns(COSTS)


def kinds(plan):
    return [stage.kind for stage in plan]


# Without memory.


def test_a_poll_looks_at_its_period_for_ever():
    assert Poll(70 * US).plan(context()).first == (POLL, FOREVER_NS, 70 * US)


@given(st.floats(0.0, 100.0))
def test_the_competitive_window_is_a_share_of_the_penalty(share):
    assert CompetitiveSpin(share).plan(context()) == then_park(SPIN, int(share * B), 0)


def test_the_random_window_has_the_density_of_karlin():
    n = 20_000
    windows = [
        KarlinRandom().plan(context(uniform=(i + 0.5) / n)).first.until_ns / B for i in range(n)
    ]
    assert 0 <= min(windows) < 0.001
    assert 0.999 < max(windows) <= 1
    for t in (0.2, 0.5, 0.8):
        below = sum(w <= t for w in windows) / n
        assert below == pytest.approx((math.exp(t) - 1) / (math.e - 1), abs=1e-3)


@pytest.mark.parametrize("gap", [0.1, 0.5, 1.0, 3.0])
def test_the_random_window_is_competitive_on_average(gap):
    n = 20_000
    x = gap * B
    cost = 0.0
    for i in range(n):
        window = KarlinRandom().plan(context(uniform=(i + 0.5) / n)).first.until_ns
        cost += (x if x <= window else window + B) / n
    assert cost / min(x, B) == pytest.approx(math.e / (math.e - 1), rel=1e-3)


def test_the_adaptive_tick_yields_while_busy_and_ticks_up_to_a_tenth_of_a_second_when_idle():
    tick = AdaptiveTick()
    assert tick.plan(context()).first == (YIELD, 10 * MS, 0)
    idle = tick.plan(context(since_seen_ns=5 * S))
    assert idle.third == (POLL, FOREVER_NS, 100 * MS)
    assert idle.first.until_ns == idle.second.until_ns == 0


def test_the_gate_parks_with_asynchronous_scheduling_only():
    assert AsyncGated().plan(context()) == only(PARK)
    assert AsyncGated(asynchronous=False).plan(context()).first == (YIELD, S, 0)


def test_a_ladder_goes_down_in_order_and_may_end_on_the_doorbell():
    plan = Ladder(1, 2, 3, 4, 5).plan(context())
    assert kinds(plan) == [SPIN, YIELD, POLL, POLL]
    assert [stage.until_ns for stage in plan] == [1, 2, 4, FOREVER_NS]
    assert Ladder(1, 2, 3, 4, 0).plan(context()).fourth.kind == PARK


# Windows that grow.


def test_the_window_grows_from_its_start_by_doubling_and_shrinks_by_halves():
    policy = GrowShrink(10 * US, 200 * US, 2, 2)
    windows = []
    for _ in range(7):
        policy = policy.after(context(), outcome(190 * US))
        windows.append(policy.learnt_window_ns // US)
    # As in the kernel: 10, 20, ... until the wait is covered, at most the most.
    assert windows == [10, 20, 40, 80, 160, 200, 200]
    for _ in range(6):
        policy = policy.after(context(), outcome(MS))
        windows.append(policy.learnt_window_ns // US)
    assert windows[7:] == [100, 50, 25, 12, 0, 0]


def test_a_shrink_of_none_resets():
    policy = GrowShrink(10 * US, 200 * US, 2, 0, 160 * US)
    assert policy.after(context(), outcome(MS)).learnt_window_ns == 0


@given(st.lists(st.integers(-MS, S), max_size=50))
def test_the_window_stays_between_nothing_and_the_most(waits_ns):
    policy = after_waits(GrowShrink(), *waits_ns)
    assert policy.learnt_window_ns == 0 or 50 * US <= policy.learnt_window_ns <= B


@pytest.mark.parametrize(
    ("mean_ns", "window_ns"), [(1 * US, 2 * MS), (B, B), (2 * B, B // 2), (100 * S, 50 * US)]
)
def test_the_grace_is_the_penalty_squared_over_the_mean_clamped(mean_ns, window_ns):
    policy = after_waits(EmaGrace(), *[mean_ns] * 3)
    assert policy.plan(context()).first.until_ns == pytest.approx(window_ns, abs=2)


# Naps by the mean.


def test_half_the_mean_of_the_last_epoch_is_napped():
    policy = after_waits(HybridFraction(epoch=10), 1 * MS, *[2 * MS] * 9)
    assert policy.plan(context()).first == (NAP, MS // 2, 0)  # the first wait is an epoch
    policy = after_waits(policy, 2 * MS)
    assert policy.plan(context()).first == (NAP, MS, 0)


def test_gaps_that_the_waiter_measures_itself_keep_the_nap_up():
    """Latency shelving: the gap gets short, the nap does not, for it is what is measured."""

    def nap_after_a_drop(policy):
        policy = after_waits(policy, *[4 * MS] * 10)
        for _ in range(100):
            nap_ns = policy.plan(context()).first.until_ns
            policy = policy.after(context(), outcome(100 * US, max(nap_ns, 100 * US)))
        return policy.plan(context()).first.until_ns

    stamped = nap_after_a_drop(HybridFraction(0.9, 10))
    shelved = nap_after_a_drop(HybridFraction(0.9, 10, self_measured=True))
    assert stamped == 90 * US
    assert shelved > 5 * stamped


# PAS.


def test_pas_oversleeps_a_share_of_steady_waits_that_its_rates_set():
    policy, wait_ns = Pas(0.01, 0.1), 3 * MS
    over = []
    for _ in range(4000):
        nap_ns = policy.plan(context()).first.until_ns
        over.append(nap_ns >= wait_ns)
        result = outcome(wait_ns, max(nap_ns, wait_ns), stage=0 if over[-1] else 1)
        policy = policy.after(context(), result)
    # Not 0.01 / 0.11 = 0.09, for the acceleration overshoots.
    assert sum(over[1000:]) / 3000 == pytest.approx(0.2, abs=0.03)


def test_pas_keeps_classes_apart():
    policy = Pas()
    for _ in range(50):
        policy = policy.after(context(n_prefill_tokens=2000), outcome(10 * MS, stage=1))
    assert policy.plan(context(n_prefill_tokens=2000)).first.until_ns > 55 * US
    assert policy.plan(context()).first.until_ns == 50 * US
    assert Pas(doze=True).plan(context()).first.kind == DOZE


# Intervals.


def test_seven_equal_waits_and_a_stray_are_an_interval():
    found = regular_interval((2e6, 2e6, 2e6, 90e6, 2e6, 2e6, 2e6, 2e6))
    assert (found.mean_ns, found.sd_ns) == (pytest.approx(2e6), pytest.approx(0.0, abs=1e-3))


def test_two_lengths_by_turns_are_no_interval_and_neither_are_seven_waits():
    assert regular_interval((1e6, 9e6) * 4).mean_ns < 0
    assert regular_interval((-1.0, *[2e6] * 7)).mean_ns < 0


def test_the_detector_dozes_before_an_interval_and_else_spins_a_penalty():
    waits_ns = [2 * MS + i * 10 * US for i in range(8)]
    plan = after_waits(IntervalDetector(), *waits_ns).plan(context())
    assert kinds(plan)[:3] == [DOZE, SPIN, PARK]
    assert 1.7 * MS < plan.first.until_ns < min(waits_ns)
    assert plan.second.until_ns > max(waits_ns)
    assert IntervalDetector().plan(context()) == then_park(SPIN, B, 0)


# Quantiles.


@pytest.mark.parametrize("price", [1.0, 3.0, 10.0])
def test_the_tracked_quantile_is_the_newsvendors(price):
    ctx = context(costs=COSTS._replace(delay_price=price))
    policy = QuantileDoze(0.01)
    below, n = 0, 20_000
    for i in range(n):
        wait_ns = 2 * MS + (i * 7919) % 1000 * US
        if policy.learnt.log_ns > 0:
            below += wait_ns <= math.exp(policy.learnt.log_ns)
        policy = policy.after(ctx, outcome(wait_ns))
    assert below / n == pytest.approx(1 / (1 + price), abs=0.02)


def test_deaf_or_not_the_quantile_policy_is_awake_at_the_same_time():
    policy = after_waits(QuantileDoze(), *[3 * MS] * 100)
    deaf = QuantileDoze(deaf=True, learnt=policy.learnt)
    ends = [[s.until_ns for s in p.plan(context())] for p in (policy, deaf)]
    assert ends[0] == ends[1]
    assert kinds(policy.plan(context()))[0] == DOZE
    assert kinds(deaf.plan(context()))[0] == NAP


# Hedge.


def hedged(wait_ns, n=600):
    return after_waits(PlanHedge(), *[wait_ns] * n).learnt.weights


def test_the_hedge_learns_to_park_to_spin_or_to_doze_as_waits_ask_for():
    short = hedged(B // 20)
    assert short.park < 0.01
    assert PlanHedge(learnt=Hedge(math.log(B / 20), short)).plan(context()).first.kind == SPIN
    steady = hedged(20 * B)
    assert max(steady) in (steady.doze_2, steady.doze_3, steady.doze_4)
    policy = PlanHedge()
    for i in range(600):  # nothing round the middle repeats
        policy = policy.after(context(), outcome(B * (10 + 400 * ((i * 7919) % 1000) // 1000)))
    assert max(policy.learnt.weights) == policy.learnt.weights.park


@given(st.lists(st.integers(-MS, S), max_size=60))
def test_weights_stay_a_distribution_with_something_for_everyone(waits_ns):
    weights = after_waits(PlanHedge(), *waits_ns).learnt.weights
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= 0.001 / 8 * 0.999


# Hazard without features.


def test_two_kinds_of_steps_have_two_laws_if_asked_for():
    policy = HazardBayes()
    for i in range(400):
        long = i % 2 == 0
        wait_ns = (20 * MS if long else 2 * MS) + (i * 7919) % 100 * US
        ctx = context(n_prefill_tokens=1000 if long else 0)
        policy = policy.after(ctx, outcome(wait_ns))
    plan = policy.plan(context())
    assert plan.first.kind == DOZE
    assert 1.5 * MS < plan.first.until_ns < 2.1 * MS
    assert policy.plan(context(n_prefill_tokens=1000)).first.until_ns > 15 * MS


@pytest.mark.parametrize(
    "policy",
    [HybridFraction(), Pas(), IntervalDetector(), QuantileDoze(), PlanHedge(), HazardBayes()],
    ids=repr,
)
def test_those_that_predict_park_for_an_arrival_and_learn_nothing_from_it(policy):
    policy = after_waits(policy, *[2 * MS] * 20)
    assert policy.plan(context(pending=False)) == only(PARK)
    assert policy.after(context(pending=False), outcome(S)) == policy
