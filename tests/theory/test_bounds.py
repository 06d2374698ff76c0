"""The bounds: against brute force, closed forms, each other, and laws that are known."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter1d
from scipy.stats import norm

from shmsim.bounds.compare import (
    dominated_area,
    gap_closed,
    ground,
    mean_of,
    ratio_of,
    report,
    value_of_features,
)
from shmsim.bounds.courses import best_courses, cost_of_courses, expected_cost
from shmsim.bounds.law import Law, _smoothed, fit_law, fit_predictor
from shmsim.bounds.limits import best_fixed, fixed_costs, limits_of
from shmsim.bounds.synthetic import (
    PREDICTABLE,
    UNPREDICTABLE,
    assumed_profile,
    memoryless,
    mixed_prefill,
    steady_decode,
)
from shmsim.bounds.trace import trace_of
from shmsim.policies import PRESETS, BusySpin, Park, StepAhead
from shmsim.tape import Tape
from shmsim.units import MS, US

B, C = 450_000.0, 10_000.0


def law_of(mass, low=-0.5, high=0.5):
    mass = np.asarray(mass, dtype=np.float64)
    return Law(np.linspace(low, high, len(mass)), mass / mass.sum())


def normal_law(cv, n=4001):
    grid = np.linspace(-8 * cv, 8 * cv, n)
    density = norm.pdf((np.exp(grid) - 1) / cv) * np.exp(grid)
    return Law(grid, density / density.sum())


# The best course for a known law.


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.floats(0.05, 3.0),
    st.floats(0.0, 0.2),
)
def test_no_course_at_all_is_cheaper_than_the_one_found(mass, penalty, timer):
    """Brute force: every way to be awake or asleep, cell by cell."""
    law = law_of(mass)
    n = len(mass)
    cell = law.grid[1] - law.grid[0]
    edges = np.exp(law.grid + cell / 2)
    starts = np.concatenate([[0.0], edges[:-1]])

    def cost(awake):
        total = 0.0
        for i in range(n):  # the event in cell i, in its middle
            spun = sum((edges - starts)[j] for j in range(i) if awake[j])
            rung = sum(awake[j] and j > 0 and not awake[j - 1] for j in range(i + 1))
            here = (edges[i] - starts[i]) / 2 if awake[i] else penalty
            total += law.mass[i] * (spun + rung * timer + here)
        return total

    ways = [[bool(w >> i & 1) for i in range(n)] for w in range(2**n)]
    best = min(map(cost, ways))
    found = best_courses(law, np.array([penalty]), np.array([timer]))
    chosen = [bool(a) for a in found.awake[0]]
    # Without a timer's price a cell is chosen by its hazard alone, as if the event came at its
    # end: finer grids make the difference as small as one likes.
    slack = 0.0 if timer else float((law.mass * (edges - starts)).sum()) / 2
    assert cost(chosen) <= best + slack + 1e-9


@pytest.mark.parametrize("cv", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("penalty", [0.05, 0.3, 3.0])
def test_the_expected_cost_is_the_integral_of_the_lesser(cv, penalty):
    z = np.linspace(-8, 8, 20_001)
    exact = np.trapezoid(np.minimum(norm.sf(z) * cv, penalty * norm.pdf(z)), z)
    # The wait cannot begin before it does: the first 1 - 8 cv are slept.
    assert expected_cost(normal_law(cv), penalty) == pytest.approx(exact, rel=0.01, abs=2e-5)


def test_figures_of_the_note_are_found_again():
    # waits.md, section 5, trace A at r = 10 and r = 1: 97 and 47 us.
    for r, expected_us in ((10, 97), (1, 47)):
        penalty_ns = r * 40e3 * math.exp(0.35**2 / 2) + 12e3
        cost_ns = 1.5 * MS * expected_cost(normal_law(0.03), penalty_ns / (1.5 * MS))
        assert cost_ns / US == pytest.approx(expected_us, rel=0.06)


@pytest.mark.parametrize("cv", [0.01, 0.05])
def test_waits_drawn_from_a_law_cost_what_it_expects(cv):
    law, penalty = normal_law(cv), 0.2
    courses = best_courses(law, np.array([penalty]), np.array([0.0]))
    ratio = 1 + cv * np.random.default_rng(1).standard_normal(40_000)
    zero = np.zeros(len(ratio))
    cost = cost_of_courses(courses, zero, ratio, zero + penalty, zero)
    assert cost.mean() == pytest.approx(expected_cost(law, penalty), rel=0.02)


def test_a_timer_that_costs_as_much_as_it_saves_is_not_used():
    law = normal_law(0.03)
    free = best_courses(law, np.array([0.3]), np.array([1e-9]))
    dear = best_courses(law, np.array([0.3]), np.array([0.3]))
    assert free.timers.max() == 1
    assert dear.timers.max() == 0


# Estimated laws.


def test_the_line_is_found_and_strays_do_not_bend_it():
    rng = np.random.default_rng(1)
    features = rng.uniform(0, 1000, (500, 2))
    mean = 2e6 + features @ np.array([3e3, 7e3])
    gaps = mean * (1 + 0.01 * rng.standard_normal(500))
    gaps[::50] *= 30
    found = fit_predictor(gaps, features)
    assert found.expected_ns(features) == pytest.approx(mean, rel=0.01)


def test_the_kernel_is_narrow_where_the_law_has_narrow_parts():
    rng = np.random.default_rng(1)
    values = np.concatenate(
        [0.01 * rng.standard_normal(2000), 3 + 0.01 * rng.standard_normal(1900)]
    )
    law = fit_law(values)
    assert law.mass.sum() == pytest.approx(1)
    within = (np.abs(law.grid) < 0.05) | (np.abs(law.grid - 3) < 0.05)
    assert law.mass[within].sum() > 0.98


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=60), st.floats(1e-3, 1.0))
def test_smoothing_is_what_numpy_and_scipy_take_longer_for(values, width):
    law = _smoothed(np.array(values), width)
    n, cell = len(law.grid), law.grid[1] - law.grid[0]
    ends = (law.grid[0] - cell / 2, law.grid[-1] + cell / 2)
    places = (np.array(values) - ends[0]) / cell
    assume((np.abs(places - places.round()) > 1e-9).all())  # on an edge rounding decides
    counts = np.histogram(values, n, ends)[0].astype(float)
    expected = gaussian_filter1d(counts, width / cell, mode="constant", truncate=6)
    assert law.mass == pytest.approx(expected / expected.sum(), abs=1e-12)


# The bounds of a trace.

BOUND_NAMES = (
    "timer_oracle", "clairvoyant", "with_features", "without_features", "fixed", "with_timers"
)  # fmt: skip


def means(limits):
    return {name: getattr(limits, name).mean() for name in BOUND_NAMES}


@pytest.mark.parametrize("make", [*PREDICTABLE.values(), *UNPREDICTABLE.values()])
def test_who_knows_more_pays_less(make):
    limits = limits_of(make(Tape(1)), B, C)
    found = means(limits)
    assert (limits.timer_oracle <= limits.clairvoyant).all()
    assert found["timer_oracle"] <= found["with_features"]
    assert found["with_features"] <= found["without_features"]
    assert found["with_features"] <= found["with_timers"] * 1.02
    # Estimated from other waits they may lose a little; nobody loses to parking by much.
    for name in BOUND_NAMES:
        assert found[name] <= 1.02 * B


def test_what_detection_costs_is_paid_by_all_and_makes_sleeping_that_much_cheaper():
    trace = steady_decode(Tape(1), 1000)
    seen = limits_of(trace, B, C, 50_000.0)
    without = limits_of(trace, B - 50_000.0, C)
    for name in BOUND_NAMES:
        assert getattr(seen, name) == pytest.approx(getattr(without, name) + 50_000.0)


@pytest.mark.parametrize(("cv", "price"), [(0.02, 10), (0.02, 100), (0.1, 100)])
def test_the_estimated_bound_is_that_of_the_generator(cv, price):
    trace = mixed_prefill(Tape(1), cv=cv)
    penalty_ns = price * 42.5e3 + 12e3
    mean_ns = (
        1.2 * MS
        + 12 * US * trace.n_decode
        + 39 * US * trace.n_prefill_tokens
        + 0.02 * US * trace.n_kv_tokens
    )
    z = np.linspace(-8, 8, 2001)
    sd = cv * mean_ns[:, None]
    exact = np.trapezoid(np.minimum(norm.sf(z) * sd, penalty_ns * norm.pdf(z)), z, axis=1).mean()
    found = limits_of(trace, penalty_ns, C).with_features.mean()
    # What four fifths of the waits teach is a little less than the truth.
    assert exact * 0.97 < found < exact * 1.08


@pytest.mark.parametrize("ratio", [0.3, 3.0])
def test_memoryless_waits_cost_the_mean_or_the_penalty(ratio):
    trace = memoryless(Tape(1), 20_000, ratio * B)
    limits = limits_of(trace, B, C)
    exact = min(trace.gap_ns.mean(), B)
    assert limits.without_features.mean() == pytest.approx(exact, rel=0.02)
    assert limits.fixed.mean() == pytest.approx(exact, rel=0.02)
    # E[min(x, B)] of an exponential.
    assert limits.clairvoyant.mean() == pytest.approx(
        ratio * B * (1 - math.exp(-1 / ratio)), rel=0.02
    )


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=12))
def test_the_best_spin_window_in_hindsight_is_found(gaps):
    x = np.array(gaps, dtype=np.float64)
    doze_ns, end_ns = best_fixed(x, np.full(len(x), B), np.full(len(x), 1e12))
    assert doze_ns == 0.0
    found = fixed_costs(x, 0.0, end_ns, B, 0.0).sum()
    ends = [0.0, *x, *(x / 2), *(x + 1)]
    assert found == pytest.approx(min(fixed_costs(x, 0.0, e, B, 0.0).sum() for e in ends))


@given(st.lists(st.integers(1, 3_000_000), min_size=2, max_size=10), st.floats(0, 2e5))
def test_the_best_doze_in_hindsight_is_no_worse_than_any_that_is_tried(gaps, timer_ns):
    x = np.array(gaps, dtype=np.float64)
    found = fixed_costs(
        x, *best_fixed(x, np.full(len(x), B), np.full(len(x), timer_ns)), B, timer_ns
    ).sum()
    for doze_ns in x * (1 - 1e-9):
        for end_ns in x:
            if end_ns >= doze_ns:
                assert found <= fixed_costs(x, doze_ns, end_ns, B, timer_ns).sum() * 1.0001 + 1


def test_too_few_waits_have_no_bounds():
    with pytest.raises(ValueError, match="at least 10 waits, got 9"):
        limits_of(trace_of([MS] * 9), B, C)
    with pytest.raises(ValueError, match="block penalty must be positive, got 0"):
        limits_of(trace_of([MS] * 10), 0, C)


# Gap closed.


def test_reference_bound_and_between_close_none_all_and_half():
    rng = np.random.default_rng(1)
    reference, bound = 10 + rng.random(400), 2 + rng.random(400)
    assert gap_closed(reference, reference, bound).value == 0
    assert gap_closed(bound, reference, bound).value == 1
    half = gap_closed((reference + bound) / 2, reference, bound)
    assert half == pytest.approx((0.5, 0.5, 0.5))
    assert math.isnan(gap_closed(reference, reference, reference - 0.01).value)


def test_intervals_cover_the_mean_of_dependent_waits():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        noise = rng.standard_normal(2000)
        smooth = np.convolve(noise, np.ones(5) / 5, mode="same")  # neighbours alike
        found = mean_of(smooth)
        covered += found.low <= 0.0 <= found.high
    assert covered >= 180  # 190 expected, standard deviation 3


def test_the_dominated_area_is_that_of_the_union_of_rectangles():
    assert dominated_area([], 1.0, 1.0) == 0
    assert dominated_area([(0.0, 0.0)], 2.0, 3.0) == 1
    assert dominated_area([(0.5, 0.5)], 1.0, 1.0) == 0.25
    assert dominated_area([(0.5, 0.2), (0.2, 0.5), (0.6, 0.6)], 1.0, 1.0) == pytest.approx(
        0.5 * 0.8 + 0.8 * 0.5 - 0.5 * 0.5
    )


# The policy that is meant to get there.


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("name", "price"), [(n, r) for n in ("A decode", "B mixed", "C idle") for r in (10.0, 100.0)]
)
def test_step_ahead_closes_nine_tenths_of_the_gap_where_prediction_is_possible(name, price, seed):
    on = ground(PREDICTABLE[name](Tape(seed)), assumed_profile(), Tape(seed + 10), price)
    found = report(StepAhead(), on)
    assert found.gap_closed.value > 0.9
    assert found.gap_closed.low <= found.gap_closed.value <= found.gap_closed.high
    whole = found.learning_ns + found.mechanism_ns + on.limits.with_features.mean()
    assert found.cost_ns.value == pytest.approx(whole)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("price", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("name", [*UNPREDICTABLE, *PREDICTABLE])
def test_step_ahead_is_nowhere_much_worse_than_parking(name, price, seed):
    trace = {**UNPREDICTABLE, **PREDICTABLE}[name](Tape(seed))
    on = ground(trace, assumed_profile(), Tape(seed + 10), price)
    assert report(StepAhead(), on).cost_ns.value < 1.03 * on.park.cost_ns.mean()


def test_knowing_the_batch_is_worth_something_on_mixed_steps_only():
    penalty_ns = 4.3e6
    mixed = value_of_features(limits_of(mixed_prefill(Tape(1)), penalty_ns, C))
    steady = value_of_features(limits_of(steady_decode(Tape(1)), penalty_ns, C))
    assert mixed.low > 2e6
    assert steady.value == pytest.approx(0.0, abs=5e3)


def test_spin_and_park_close_nothing_of_their_own_gap():
    on = ground(steady_decode(Tape(1), 1000), assumed_profile(), Tape(2), 10.0)
    assert report(Park(), on).gap_closed.value == pytest.approx(0.0)
    assert report(BusySpin(), on).gap_closed.value < 0
    assert report(PRESETS["quantile-doze"], on).gap_closed.value > 0.7


def test_the_ratio_of_two_costs_is_that_of_their_sums_and_certain_where_they_move_together():
    rng = np.random.default_rng(1)
    cost = rng.exponential(1e5, 2000)
    found = ratio_of(2.0 * cost, cost)
    assert found == pytest.approx((2.0, 2.0, 2.0))
    other = ratio_of(rng.exponential(1e5, 2000), cost)
    assert other.low < 1.0 < other.high
