"""StepAhead: its law against numerical integration, its line against least squares, its guards."""

import math
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad

from shmsim.policies import PRESETS, StepAhead
from shmsim.policies.hazard import Course, best_course, cost_of_course
from shmsim.policies.line import (
    expected_ns,
    features_of,
    first_line,
    innovation,
    learn_line,
)
from shmsim.policies.spread import Spread, awake_time, awake_window, learn_spread, survival
from shmsim.units import MS, US, S
from shmsim.wait import (
    DOZE,
    PARK,
    REHEARSE,
    SPIN,
    StageCpu,
    WaitOutcome,
    block_penalty_ns,
    is_left_undecided,
    only,
    then_park,
)
from tests.unit.waits import COSTS, after_waits, context, outcome

B = block_penalty_ns(COSTS)
SPREADS = st.builds(
    Spread, st.floats(0.002, 0.3), st.floats(0.002, 0.3), st.floats(0.001, 0.1)
).filter(lambda s: 0.2 < s.left / s.right < 5)


def density(spread, off):
    scale = spread.left if off < 0 else spread.right
    x = math.exp(-abs(off) / scale)
    core = 2 / (spread.left + spread.right) * x / (1 + x) ** 2
    return (1 - spread.strays) * core


# The law.


@given(SPREADS, st.floats(-1, 1))
def test_the_survival_is_what_the_density_leaves(spread, off):
    step = 1e-4 * min(spread.left, spread.right)
    slope = (survival(spread, off - step) - survival(spread, off + step)) / (2 * step)
    assert slope == pytest.approx(density(spread, off), rel=1e-3, abs=1e-6)
    assert survival(spread, -50.0) == pytest.approx(1)
    assert survival(spread, 50.0) == pytest.approx(spread.strays)


@given(SPREADS, st.floats(-1, 1), st.floats(0, 1))
def test_the_time_awake_is_the_integral_of_the_survival(spread, start, length):
    end = start + length
    points = [p for p in (0.0,) if start < p < end]
    found, _ = quad(lambda t: survival(spread, t), start, end, points=points or None, limit=200)
    assert awake_time(spread, start, end) == pytest.approx(found, rel=1e-5, abs=1e-9)


@given(SPREADS, st.floats(0.001, 10.0))
def test_the_window_is_where_hazard_times_penalty_exceeds_one(spread, penalty):
    window = awake_window(spread, penalty)

    def gain(off):
        return penalty * density(spread, off) - survival(spread, off)

    if window.end <= window.start:
        # Nowhere on the late side; on the early side alone it would be a sliver.
        grid = np.linspace(0, 30 * spread.right, 400)
        assert max(map(gain, grid)) <= 1e-6 * penalty / spread.right
        return
    scale = min(spread.left, spread.right)
    assert gain((window.start + window.end) / 2) > 0
    assert gain(window.end + 0.02 * scale) < 0
    if window.start != 0.0:  # at the middle the density may jump from below to above
        assert gain(window.start + 0.02 * scale) > 0
    assert gain(window.start - 0.02 * scale) < 0


@given(SPREADS, st.floats(0.01, 3.0))
def test_no_other_window_is_cheaper(spread, penalty):
    window = awake_window(spread, penalty)
    assume(window.end > window.start)

    def cost(start, end):
        asleep = 1 - survival(spread, start) + survival(spread, end)
        return penalty * asleep + awake_time(spread, start, end)

    best = cost(*window)
    for factor in (0.5, 0.9, 1.1, 1.5):
        if window.start != 0.0 and window.start * factor < window.end:
            assert cost(window.start * factor, window.end) >= best - 1e-9
        assert cost(window.start, window.start + (window.end - window.start) * factor) >= (
            best - 1e-9
        )


def test_the_scales_of_a_law_are_found_again():
    rng = np.random.default_rng(1)
    spread = Spread(0.15, 0.15, 0.02)
    for off in 0.02 * rng.logistic(size=5000):
        spread = learn_spread(spread, float(off), False, 1 / 256)
    assert spread.left == pytest.approx(0.02, rel=0.15)
    assert spread.right == pytest.approx(0.02, rel=0.15)
    assert spread.strays == pytest.approx(0.001, abs=1e-3)


@given(st.floats(20 * US, 100 * MS), SPREADS)
def test_the_course_is_never_dearer_than_parking_or_spinning_by_its_own_law(mean_ns, spread):
    course = best_course(mean_ns, spread, 20_000.0, COSTS, 0.25)
    assert 0 <= course.asleep_ns <= course.end_ns or course.end_ns == 0
    assert course.end_ns - course.asleep_ns <= 4 * B + 20 * US + 1


def test_the_cost_of_a_course_is_what_a_waiter_would_pay():
    course, late = Course(1e6, 2e6), 20_000.0
    timer = COSTS.block_cpu_ns
    assert cost_of_course(course, -5.0, late, COSTS) == 0
    assert cost_of_course(course, 9e5, late, COSTS) == B
    assert cost_of_course(course, 1.005e6, late, COSTS) == timer + 10 * 15_000
    assert cost_of_course(course, 1.5e6, late, COSTS) == timer + 480_000
    assert cost_of_course(course, 3e6, late, COSTS) == timer + 980_000 + B
    assert cost_of_course(Course(0.0, 2e6), 1.5e6, late, COSTS) == 1.5e6
    assert cost_of_course(Course(0.0, 0.0), 1.5e6, late, COSTS) == B


# The line.


def test_the_line_is_that_of_weighted_least_squares():
    rng = np.random.default_rng(3)
    n = 300
    decode, prefill = rng.integers(1, 64, n), rng.integers(0, 3000, n)
    kv = rng.integers(0, 200_000, n)
    mean = 1e6 + 20e3 * decode + 30e3 * prefill + 5.0 * kv
    waits = mean * (1 + 0.02 * rng.standard_normal(n))
    line = first_line(float(waits[0]))
    rows = []
    for i in range(n):
        ctx = context(
            n_decode=int(decode[i]), n_prefill_tokens=int(prefill[i]), n_kv_tokens=int(kv[i])
        )
        x = features_of(ctx)
        rows.append(x)
        scale = float(max(waits[i], expected_ns(line, x)))
        off = (waits[i] - expected_ns(line, x)) / scale
        line = learn_line(line, innovation(line, x, scale), float(off), 4e-4)
    design = np.array(rows) / waits[:, None]
    exact, *_ = np.linalg.lstsq(design, np.ones(n), rcond=None)
    relative = np.array(rows) @ (np.array(line.weights) - exact) / (np.array(rows) @ exact)
    assert np.abs(relative).max() < 0.02


def test_what_is_never_seen_does_not_grow_more_uncertain_without_end():
    line = first_line(2e6)
    for _ in range(50_000):
        found = innovation(line, features_of(context()), 2e6)
        line = learn_line(line, found, 0.0, 1e-4)
    assert all(math.isfinite(v) for v in line.covariance)
    assert line.covariance.cc < 2 * 1600


# The policy.


def learnt(policy=StepAhead(), n=200, cv=0.02, step_ns=2 * MS, seed=1):  # noqa: B008
    rng = np.random.default_rng(seed)
    waits = (step_ns * (1 + cv * rng.standard_normal(n))).astype(int)
    return after_waits(policy, *waits.tolist())


def test_it_dozes_until_just_before_the_expected_end_spins_past_it_and_parks():
    plan = learnt().plan(context())
    assert [s.kind for s in plan] == [DOZE, SPIN, PARK, PARK]
    assert 1.75 * MS < plan.first.until_ns < 1.99 * MS
    assert 2.05 * MS < plan.second.until_ns < 2.5 * MS


def test_the_less_steps_vary_the_shorter_it_is_awake():
    def awake_ns(cv):
        plan = learnt(cv=cv).plan(context())
        return plan.second.until_ns - plan.first.until_ns

    assert awake_ns(0.003) < awake_ns(0.02) < awake_ns(0.06)


def test_a_rehearsal_lies_between_doze_and_spin_and_ends_in_time():
    plain = learnt().plan(context())
    plan = learnt(StepAhead(rehearse=True)).plan(context())
    assert [s.kind for s in plan] == [DOZE, REHEARSE, SPIN, PARK]
    assert plan.first.until_ns == plain.first.until_ns - COSTS.rehearsal_ns


def test_it_tells_a_step_with_a_prompt_from_one_without():
    policy = StepAhead()
    for i in range(200):
        prompt = 2000 if i % 3 == 0 else 0
        wait_ns = 2 * MS + prompt * 20 * US + (i * 7919) % 100 * US
        policy = policy.after(context(n_prefill_tokens=prompt), outcome(wait_ns))
    assert 1.5 * MS < policy.plan(context()).first.until_ns < 2.1 * MS
    # A batch it has not seen lies on the line.
    plan = policy.plan(context(n_prefill_tokens=1000))
    assert plan.first.kind == DOZE
    assert 21 * MS < plan.first.until_ns < 23 * MS
    assert expected_ns(policy.learnt.line, features_of(context(n_prefill_tokens=1000))) == (
        pytest.approx(22.05 * MS, rel=0.005)
    )


def test_the_first_wait_is_spun_for_a_penalty_and_an_arrival_parks_and_teaches_nothing():
    assert StepAhead().plan(context()) == then_park(SPIN, B, 0)
    policy = learnt()
    assert policy.plan(context(pending=False)) == only(PARK)
    assert policy.after(context(pending=False), outcome(S)) == policy


TAKEN = outcome(2 * MS, 4 * MS, preempted=1)


def test_a_taken_core_parks_the_next_waits():
    policy = learnt().after(context(), TAKEN)
    for _ in range(16):
        assert policy.plan(context()) == only(PARK)
        policy = policy.after(context(), outcome(2 * MS))
    assert policy.plan(context()).first.kind == DOZE


def test_a_core_taken_again_and_again_parks_ever_more_waits_and_is_forgotten_slowly():
    def parked(policy):
        n = 0
        while policy.plan(context()) == only(PARK):
            policy = policy.after(context(), outcome(2 * MS))
            n += 1
        return policy, n

    policy, holds = learnt(), []
    for _ in range(6):
        policy, n = parked(policy.after(context(), TAKEN))
        holds.append(n)
    assert holds == pytest.approx([16, 64, 256, 512, 512, 512], rel=0.05)
    for _ in range(1500):
        policy = policy.after(context(), outcome(2 * MS))
    policy, n = parked(policy.after(context(), TAKEN))
    assert n == 16


def test_where_the_engine_has_more_processes_than_cores_it_parks_and_learns_nothing():
    sharing = context(costs=COSTS._replace(shares_cores=True))
    for policy in StepAhead(), after_waits(StepAhead(), *[2 * MS] * 100):
        assert policy.plan(sharing) == only(PARK)
        after = policy.after(sharing, outcome(2 * MS))
        assert after.learnt == policy.learnt
        assert after.plan(sharing) == only(PARK)
        for uniform in 0.0, 0.999:  # at rest for good, whoever takes its core
            again = after.after(sharing._replace(uniform=uniform), outcome(2 * MS, preempted=1))
            assert again == after
        assert is_left_undecided(after.learnt_looks, 0.0)


@pytest.mark.parametrize("late_us", [0, 80, B // US - 1])
def test_a_core_taken_for_less_than_parking_would_cost_is_nothing_to_park_for(late_us):
    policy = learnt()
    for _ in range(20):
        policy = policy.after(context(), outcome(2 * MS, 2 * MS + late_us * US, preempted=1))
        assert policy.plan(context()) != only(PARK)


def spun_in_vain(behind_us, spun_us=400):
    """A wait that was spun through from the start, given up, and over so long after."""
    cpu = StageCpu(spun_us * US, COSTS.block_cpu_ns, 0, 0)
    published_ns = (spun_us + behind_us) * US
    return WaitOutcome(published_ns, published_ns + COSTS.wake_latency_ns, 1, cpu, 0, True, 0)


@pytest.mark.parametrize("spun_us", [50, 400, 2400])
def test_who_finds_that_events_come_once_it_stops_looking_parks_the_next_waits(spun_us):
    # As where its spin holds the core that the publisher needs, which is nowhere counted.
    policy = learnt()
    for _ in range(3):
        assert policy.plan(context()) != only(PARK)
        policy = policy.after(context(), spun_in_vain(80, spun_us))
    for _ in range(16):
        assert policy.plan(context()) == only(PARK)
        policy = policy.after(context(), outcome(2 * MS))
    assert policy.learnt_held == 0


@pytest.mark.parametrize("behind_us", [[10], [300], [80, 80, 10, 300]])
def test_events_that_come_at_any_time_are_held_up_by_nobody(behind_us):
    policy = learnt()
    for i in range(40):
        policy = policy.after(context(), spun_in_vain(behind_us[i % len(behind_us)]))
        assert policy.learnt_held == 0


CHEAP = COSTS._replace(delay_price=1.0)


def steady(jitter, n, mean_ns=2 * MS):
    rng = np.random.default_rng(1)
    return (mean_ns * (1 + jitter * rng.standard_normal(n))).astype(int).tolist()


@pytest.mark.parametrize(("deciding_us", "waits_a_look"), [(1, 16), (40, 107), (400, 256)])
def test_the_dearer_deciding_is_beside_parking_the_seldomer_a_rest_looks(deciding_us, waits_a_look):
    # Looking may cost half a percent of parking: 75 us at this price.
    costs = CHEAP._replace(deciding_ns=deciding_us * US)
    rng = np.random.default_rng(1)
    waits_ns = (75 * US * rng.exponential(10, size=2000)).astype(int).tolist()
    policy = after_waits(StepAhead(), *waits_ns, costs=costs)
    assert policy.plan(context(costs=costs)) == only(PARK)
    assert policy.learnt_looks == pytest.approx(1 / waits_a_look, rel=0.02)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.booleans())
def test_of_what_a_rest_leaves_undecided_nothing_stays(uniform, looks, pending):
    # Engines charge such a wait as one in which nothing was decided.
    policy = learnt()._replace(learnt_looks=looks)
    ctx = context(uniform=uniform, pending=pending)
    is_left = is_left_undecided(looks, uniform) or not pending
    assert (policy.after(ctx, outcome(2 * MS)) is policy) == is_left


def test_where_there_is_less_to_hope_for_than_deciding_costs_it_rests_after_sixteen_waits():
    dear = CHEAP._replace(deciding_ns=40 * US)
    waits_ns = steady(0.01, 16)
    policy = after_waits(StepAhead(), *waits_ns[:15], costs=dear)
    assert policy.learnt_looks == 1.0
    assert after_waits(policy, waits_ns[15], costs=dear).learnt_looks < 1.0
    assert after_waits(policy, waits_ns[15], costs=COSTS).learnt_looks == 1.0


def test_what_it_rests_by_is_made_once():
    rng = np.random.default_rng(1)
    policy = after_waits(StepAhead(), *(60 * US * rng.exponential(size=400)).astype(int).tolist())
    assert policy.plan(context()) is policy.plan(context(uniform=0.7))


def test_where_spinning_is_best_it_spins_undecided():
    rng = np.random.default_rng(1)
    policy = after_waits(StepAhead(), *(60 * US * rng.exponential(size=400)).astype(int).tolist())
    assert policy.learnt_looks < 1.0
    assert policy.plan(context()) == then_park(SPIN, B, 0)


def test_from_short_random_waits_to_long_steady_ones_it_decides_again():
    rng = np.random.default_rng(1)
    policy = after_waits(StepAhead(), *(60 * US * rng.exponential(size=400)).astype(int).tolist())
    waits_ns = 2 * MS * (1 + 0.02 * rng.standard_normal(300))
    policy = after_waits(policy, *waits_ns.astype(int).tolist())
    assert policy.learnt_looks == 1.0
    assert policy.plan(context()).first.kind == DOZE


def test_a_taken_core_ends_its_rest():
    rng = np.random.default_rng(1)
    policy = after_waits(StepAhead(), *(60 * US * rng.exponential(size=400)).astype(int).tolist())
    policy = policy.after(context(), TAKEN)
    for _ in range(16):
        assert policy.plan(context()) == only(PARK)
        policy = policy.after(context(), outcome(60 * US))
    assert policy.plan(context()).first.kind == SPIN


def test_a_core_that_was_taken_for_less_than_a_park_does_not_end_a_rest():
    rng = np.random.default_rng(1)
    policy = after_waits(StepAhead(), *(60 * US * rng.exponential(size=400)).astype(int).tolist())
    assert policy.after(context(), outcome(60 * US, 90 * US, preempted=1)) is policy


@pytest.mark.parametrize("deciding_us", [30, 300])
def test_it_rests_where_it_gains_less_than_deciding_costs_on_this_box(deciding_us):
    costs = COSTS._replace(deciding_ns=deciding_us * US)
    rng = np.random.default_rng(1)
    waits_ns = (2 * MS * (1 + 0.2 * rng.standard_normal(1600))).astype(int).tolist()
    policy = after_waits(StepAhead(), *waits_ns, costs=costs)
    gain_ns = (1.0 - policy.learnt.own) * B
    assert 40 * US < gain_ns < 250 * US
    assert (policy.learnt_looks < 1.0) == (deciding_us * US > gain_ns)


def test_it_rests_where_the_event_is_there_before_the_wait_begins():
    policy = after_waits(StepAhead(), *[-1000] * 500)
    assert policy.learnt_looks < 1.0
    assert policy.plan(context()) == only(PARK)


def test_where_waits_last_again_it_decides_again():
    policy = after_waits(StepAhead(), *[-1000] * 500)
    rng = np.random.default_rng(1)
    policy = after_waits(policy, *(2 * MS * (1 + 0.02 * rng.standard_normal(300))).astype(int))
    assert policy.learnt_looks == 1.0
    assert policy.plan(context()).first.kind == DOZE


def test_a_timer_later_than_a_fifth_of_the_wait_is_not_used():
    costs = COSTS._replace(timer_overshoot_ns=2 * MS)
    policy = learnt()
    assert policy.plan(context()).first.kind == DOZE
    assert policy.plan(context(costs=costs)).first.kind != DOZE


def test_after_a_change_of_level_it_is_back_within_a_few_waits():
    policy = learnt()
    for _ in range(12):
        policy = policy.after(context(), outcome(5 * MS))
    plan = policy.plan(context())
    assert plan.first.kind == DOZE
    assert 3.5 * MS < plan.first.until_ns < 5 * MS


def test_a_single_stray_moves_it_hardly():
    policy = learnt()
    before, after = policy.plan(context()), after_waits(policy, 200 * MS).plan(context())
    assert after.first.until_ns == pytest.approx(before.first.until_ns, rel=0.02)


def test_what_was_slept_through_does_not_count_only_the_stamp():
    stamped = learnt()
    asleep = StepAhead()
    rng = np.random.default_rng(1)
    for wait_ns in (2 * MS * (1 + 0.02 * rng.standard_normal(200))).astype(int).tolist():
        asleep = asleep.after(context(), outcome(wait_ns, wait_ns + 300 * US))
    assert asleep == stamped


def test_it_learns_how_late_timers_are():
    policy = StepAhead()
    for _ in range(300):
        policy = policy.after(context(), outcome(2 * MS, overshoot_ns=7 * US))
    assert policy.learnt.overshoot_ns == pytest.approx(7 * US)


def test_it_dozes_again_after_timers_that_were_late_for_their_own_reasons():
    """Short waits, of which so late a doze is no use: without dozing it sees no timer."""
    waits_ns = (500 * US * (1 + 0.1 * np.random.default_rng(2).standard_normal(4300))).astype(int)
    policy = after_waits(StepAhead(), *waits_ns[:300])
    assert policy.plan(context()).first.kind == DOZE
    one = policy.after(context(), outcome(500 * US, overshoot_ns=20 * MS))
    assert one.plan(context()).first.kind == DOZE
    for _ in range(100):
        policy = policy.after(context(), outcome(500 * US, overshoot_ns=1 * MS))
    assert policy.plan(context()).first.kind != DOZE
    assert after_waits(policy, *waits_ns[300:]).plan(context()).first.kind == DOZE


@given(st.integers(0, 2**31), st.floats(0.05, 1.0))
def test_it_never_spins_for_longer_than_the_clamp_allows(seed, clamp):
    rng = np.random.default_rng(seed)
    policy = StepAhead(clamp=clamp)
    for wait_ns in rng.exponential(rng.uniform(0.1, 20) * B, 30).astype(int).tolist():
        plan = policy.plan(context())
        start_ns = plan.first.until_ns if plan.first.kind == DOZE else 0
        spin_ns = plan.second.until_ns if plan.first.kind == DOZE else plan.first.until_ns
        if SPIN in (plan.first.kind, plan.second.kind):
            assert spin_ns - start_ns <= max(B / clamp, B) + COSTS.timer_overshoot_ns + 2
        policy = policy.after(context(), outcome(wait_ns))


# What it costs to decide. Time is measured in experiments, counted here: a call of a Python
# function takes about 60 ns, so that 60 of them and their sums stay far below 20 us.


def calls_of(what):
    n = 0

    def count(_frame, event, _argument):
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        what()
    finally:
        sys.setprofile(None)
    return n


@pytest.mark.parametrize("name", ["step-ahead", "step-ahead-rehearsed"])
def test_a_plan_and_its_successor_take_a_bounded_number_of_calls(name):
    policy = learnt(PRESETS[name])
    result = WaitOutcome(2 * MS, 2 * MS, 1, StageCpu(0, 0, 0, 0), 20 * US, False, 0)
    ctx = context(n_prefill_tokens=100)
    n = calls_of(lambda: (policy.plan(ctx), policy.after(ctx, result)))
    assert 20 < n < 110


def test_at_rest_it_calls_what_parking_calls():
    parked, ctx = outcome(2 * MS), context()
    calls = [
        calls_of(lambda policy=policy: (policy.plan(ctx), policy.after(ctx, parked)))
        for policy in (PRESETS["park"], StepAhead(learnt_looks=0.0))
    ]
    assert calls[0] == calls[1]


def test_the_state_is_a_few_numbers():
    def numbers(value):
        return sum(map(numbers, value)) if isinstance(value, tuple) else 1

    assert numbers(learnt()) < 48
