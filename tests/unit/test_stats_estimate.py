"""Estimates: how they are written, and what one number does not tell."""

import math

import numpy as np
import pytest

from shmsim.stats import (
    Estimate,
    batch_means,
    cycles,
    mean_of_replications,
    quantile_of_independent,
    quantile_of_sections,
    ratio_of_cycles,
)
from shmsim.stats.batches import batched, von_neumann


def estimate(value, low, high):
    return Estimate(value, low, high, 0.95, 10, "test")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (estimate(2.13444, 2.12221, 2.14667), "2.134 ± 0.012"),
        (estimate(1234.5, 1200.5, 1268.5), "1234 ± 34"),
        (estimate(3.0, 3.0, 3.0), "3 ± 0"),
        (estimate(3.0, math.nan, math.nan), "3"),
        (estimate(10.0, 9.0, 14.0), "10.0 (9.0 to 14.0)"),
        (estimate(1.0, 1 - 1e-9, 1 + 1e-9), "1.0000 ± 0.0000"),
        (estimate(-0.5, -0.6, -0.4), "-0.50 ± 0.10"),
    ],
)
def test_an_estimate_has_the_digits_that_its_half_width_bears(found, text):
    assert found.text() == text


def test_the_mean_of_replications_is_students():
    found = mean_of_replications([1.0, 2.0, 3.0, math.nan, 4.0], seed=7)
    # By hand: standard deviation sqrt(5/3), error half of that, t(0.975, 3) = 3.18245.
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2
    assert found.value == 2.5
    assert found.half_width == pytest.approx(half)
    assert (found.n, found.seed, found.method) == (4, 7, "replications")
    assert found.relative == pytest.approx(half / 2.5)


@pytest.mark.parametrize("values", [[], [3.0], [3.0, math.nan]])
def test_fewer_than_two_replications_have_no_interval(values):
    found = mean_of_replications(values)
    assert math.isnan(found.half_width)
    assert (
        found.caveat
        == f"{'one run' if values else 'no run'} says nothing about a spread; run at least 2"
    )


def test_equal_replications_have_an_interval_of_no_length():
    found = mean_of_replications([0.1] * 7)
    assert (found.value, found.low, found.high) == (0.1, 0.1, 0.1)


def test_what_does_not_fill_the_batches_is_left_out_at_the_front():
    assert batched(np.arange(10.0), 3).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_independent_values_are_taken_in_the_most_batches():
    rng = np.random.default_rng(1)
    counts = [batch_means(rng.standard_normal(3_200)).n for _ in range(400)]
    # The lag test refuses a tenth of what is independent.
    share = np.mean(np.array(counts) == 32)
    assert abs(share - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 400)


def test_correlated_batches_are_said_to_be():
    walk = np.cumsum(np.random.default_rng(2).standard_normal(4_000))
    found = batch_means(walk)
    assert found.n == 8
    assert "too narrow" in found.caveat


def test_too_few_values_for_batches_are_refused():
    with pytest.raises(ValueError, match=r"at least 32 values .*got 31; run longer"):
        batch_means(np.ones(31))
    assert batch_means(np.ones(32)).half_width == 0


def test_von_neumanns_correlation_is_that_of_neighbours():
    alternating = np.tile([1.0, -1.0], 50)
    correlation, p_value = von_neumann(alternating)
    assert correlation == pytest.approx(-1, abs=0.03)
    assert p_value > 0.999
    assert von_neumann(np.ones(5)) == (0.0, 1.0)


def test_cycles_are_whole():
    begins = np.array([False, True, False, True, True, False, False])
    sums, lengths = cycles([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], begins)
    assert (sums.tolist(), lengths.tolist()) == ([3.0, 3.0], [2.0, 1.0])
    for few in (begins & False, begins & (np.arange(7) == 1)):
        assert len(cycles(np.ones(7), few)[0]) == 0


def test_too_few_cycles_are_refused_and_few_are_marked():
    with pytest.raises(ValueError, match="idle at least 3 times"):
        ratio_of_cycles([1.0], [1.0])
    found = ratio_of_cycles([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.value, found.half_width) == (2.0, 0.0)
    assert "3 cycles are few" in found.caveat


# Quantiles.


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (5, 0.5), (100, 0.99), (367, 0.99), (2, 0.01)])
def test_too_few_values_do_not_bound_a_quantile(n, p):
    found = quantile_of_independent(np.arange(float(n)), p)
    assert math.isinf(found.half_width)
    assert "do not bound" in found.caveat


@pytest.mark.parametrize(("n", "p"), [(6, 0.5), (368, 0.99), (368, 0.01)])
def test_the_number_that_it_takes_is_enough(n, p):
    found = quantile_of_independent(np.arange(float(n)), p)
    assert math.isfinite(found.half_width)
    assert found.caveat == ""


def test_the_ranks_are_those_of_the_exact_binomial():
    # Of 20 values the 6th and the 15th enclose the median with 95.9 %, as in textbooks.
    found = quantile_of_independent(np.arange(1.0, 21.0), 0.5)
    assert (found.low, found.high) == (6.0, 15.0)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1])
def test_a_p_that_is_no_quantile_is_refused(p):
    with pytest.raises(ValueError, match="within"):
        quantile_of_independent([1.0], p)


def test_the_quantile_of_sections_is_that_of_all_values():
    rng = np.random.default_rng(3)
    sections = [rng.exponential(1.0, n) for n in (500, 900, 700)]
    found = quantile_of_sections([*sections, np.array([math.nan])], 0.9)
    assert found.value == np.quantile(np.concatenate(sections), 0.9)
    assert (found.n, found.caveat) == (3, "")


def test_short_sections_are_marked_and_one_has_no_interval():
    assert (
        "0.99 needs 500 values in each section"
        in quantile_of_sections([np.arange(400.0), np.arange(900.0)], 0.99).caveat
    )
    one = quantile_of_sections([np.arange(400.0)], 0.5)
    assert (one.value, math.isnan(one.low)) == (199.5, True)
