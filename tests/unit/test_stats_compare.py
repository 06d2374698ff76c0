"""Paired comparisons, several at once, and how long to go on."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from shmsim.stats import (
    Precision,
    against_reference,
    holm,
    mean_of_replications,
    paired_difference,
    paired_ratio,
    run_until,
)

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=2, max_size=20))
def test_the_same_thing_on_the_same_tapes_differs_by_exactly_nothing(values):
    found = paired_difference(values, values)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_pair_without_one_of_its_values_is_left_out():
    found = paired_difference([1.0, math.nan, 5.0], [0.0, 1.0, 2.0])
    assert (found.value, found.n) == (2.0, 2)
    with pytest.raises(ValueError, match="2 and 3 values are no pairs"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])


def test_pairs_know_a_difference_that_two_samples_do_not():
    rng = np.random.default_rng(4)
    luck = rng.normal(0, 100, 10)
    tried, reference = luck + 1 + rng.normal(0, 0.1, 10), luck
    paired = paired_difference(tried, reference)
    assert paired.low > 0
    assert paired.half_width < mean_of_replications(tried).half_width / 100


def test_a_ratio_is_scale_free_and_turns_round():
    rng = np.random.default_rng(5)
    reference = rng.normal(100, 10, 30)
    tried = 1.1 * reference + rng.normal(0, 1, 30)
    found = paired_ratio(tried, reference)
    assert found.low < 1.1 < found.high
    scaled = paired_ratio(1e6 * tried, 1e6 * reference)
    assert scaled[:3] == pytest.approx(found[:3])
    turned = paired_ratio(reference, tried)
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((found.low, found.high))


def test_a_ratio_to_something_about_nothing_has_no_bounds():
    found = paired_ratio([1.0, 1.1, 0.9], [-1.0, 1.0, 0.1])
    assert math.isnan(found.low)
    assert "cannot be told from 0" in found.caveat


# Several at once.


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_never_below_the_p_value_and_never_above_bonferroni(p_values):
    adjusted = holm(p_values)
    assert (adjusted >= np.array(p_values)).all()
    assert (adjusted <= np.minimum(1, len(p_values) * np.array(p_values)) + 1e-12).all()
    assert (np.argsort(adjusted[np.argsort(p_values, kind="stable")], kind="stable")
            == np.arange(len(p_values))).all()  # fmt: skip


def family(n, k, rng, effects=0.0):
    """Differences of k policies to one reference, whose luck they share."""
    reference = rng.standard_normal((n, 1))
    return rng.standard_normal((n, k)) - reference + effects


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(10, 1), (10, 8), (24, 8), (12, 4)])
def test_of_families_in_which_nothing_differs_at_most_a_twentieth_says_otherwise(n, k):
    """Both methods: Bonferroni with few replications, the law of the maximum with many."""
    rng = np.random.default_rng(6)
    n_families = 200
    wrong = sum(
        any(c.is_significant for c in against_reference(family(n, k, rng), seed=i))
        for i in range(n_families)
    )
    assert wrong <= 0.05 * n_families + 3 * math.sqrt(0.05 * 0.95 * n_families)


def test_the_law_of_the_maximum_is_narrower_than_bonferroni_and_wider_than_one_alone():
    differences = family(60, 8, np.random.default_rng(7))
    joint = against_reference(differences)[0].difference
    assert "max-t" in joint.method
    alone = mean_of_replications(differences[:, 0])
    bonferroni = mean_of_replications(differences[:, 0], confidence=1 - 0.05 / 8)
    assert alone.half_width < joint.half_width < 0.99 * bonferroni.half_width


def test_a_joint_interval_and_its_p_value_say_the_same():
    rng = np.random.default_rng(8)
    for n in (10, 60):
        effects = np.linspace(0, 2, 9)
        for comparison in against_reference(family(n, 9, rng, effects)):
            assert comparison.is_significant == (comparison.p_value < 0.05)


def test_a_difference_that_is_beyond_doubt_survives_holm_over_thousands_of_comparisons():
    """The law of the maximum is drawn 20,000 times, and so knows no chance below one in that."""
    rng = np.random.default_rng(11)
    clear, *others = against_reference(family(60, 8, rng, [9.0] + [0.0] * 7))
    assert "max-t" in clear.difference.method
    adjusted = holm([clear.p_value] + [c.p_value for c in others] * 1_000)
    assert adjusted[0] < 0.001
    # What draws can tell is theirs still, and less than Bonferroni would say.
    differences = family(60, 8, np.random.default_rng(7), 0.35)
    close = against_reference(differences)[0]
    alone = scipy.stats.ttest_1samp(differences[:, 0], 0).pvalue
    assert 0.001 < close.p_value < 0.95 * 8 * alone


def test_what_is_identical_is_not_significant_and_what_always_differs_is():
    differences = np.zeros((10, 3))
    differences[:, 1] = 7.0
    differences[:, 2] = np.random.default_rng(9).standard_normal(10)
    same, constant, noise = against_reference(differences)
    assert (same.difference.low, same.difference.high, same.p_value) == (0.0, 0.0, 1.0)
    assert (constant.p_value, constant.is_significant) == (0.0, True)
    assert not noise.is_significant
    with pytest.raises(ValueError, match="at least 2 replications"):
        against_reference(differences[:1])


# Until when.


def test_a_run_stops_when_it_knows_enough_and_says_so_when_it_does_not():
    rng = np.random.default_rng(10)
    values = rng.normal(100, 10, 2_000)
    known, used = run_until(Precision(relative=0.01, most=2_000), values.__getitem__)
    assert known.half_width <= 0.01 * known.value
    assert known.caveat == ""
    # (1.96 * 10 / 1) ^ 2 = 384 replications suffice.
    assert 200 < len(used) < 800
    unknown, used = run_until(Precision(absolute=0.01, most=50), values.__getitem__)
    assert len(used) == 50
    assert "asked for a half-width of 0.01, found" in unknown.caveat
    assert "would be needed" in unknown.caveat


def test_a_run_does_not_stop_before_its_least_however_lucky():
    _, used = run_until(Precision(relative=0.5, least=17), lambda _: 3.0)
    assert len(used) == 17


@pytest.mark.parametrize(
    ("precision", "match"),
    [
        (Precision(), "positive half-width"),
        (Precision(relative=-1.0), "positive half-width"),
        (Precision(relative=0.1, least=1), "from 2 to most = 1000"),
        (Precision(relative=0.1, least=9, most=8), "from 2 to most = 8"),
    ],
)
def test_a_precision_that_cannot_be_followed_is_refused(precision, match):
    with pytest.raises(ValueError, match=match):
        precision.check()
