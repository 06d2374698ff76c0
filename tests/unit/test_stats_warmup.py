"""MSER-5: what is cut from the front of a run, and when the cut is not to be trusted."""

import numpy as np

from shmsim.stats import mser5, steady_mean


def settling(n, start, decay, seed):
    """White noise about 10 on a transient that dies out geometrically."""
    rng = np.random.default_rng(seed)
    return 10 + start * decay ** np.arange(n) + rng.standard_normal(n)


def test_of_a_settled_run_hardly_anything_is_cut():
    cuts = [mser5(settling(2_000, 0.0, 0.9, seed)).n_cut for seed in range(200)]
    assert np.mean(cuts) < 0.1 * 2_000
    assert np.median(cuts) < 0.05 * 2_000


def test_a_transient_is_cut_and_with_it_the_bias():
    for seed in range(50):
        values = settling(2_000, 30.0, 0.99, seed)
        warm_up = mser5(values)
        # After 300 values 1.5 of 30 are left, and after 1000 nothing.
        assert 200 < warm_up.n_cut < 1_000
        assert not warm_up.caveat
        assert values.mean() > 11
        assert abs(values[warm_up.n_cut :].mean() - 10) < 0.3


def test_a_step_is_cut_where_it_is():
    values = np.concatenate([np.full(100, 50.0), np.tile([1.0, 2.0, 3.0, 4.0, 5.0], 80)])
    assert mser5(values).n_cut == 100


def test_a_run_that_does_not_settle_says_so():
    warm_up = mser5(np.arange(1_000.0))
    assert warm_up.n_cut == 500
    assert "has not settled" in warm_up.caveat
    assert "not trustworthy" in warm_up.text()


def test_too_few_values_say_so_too():
    assert "few" in mser5(np.arange(30.0)).caveat
    assert mser5(np.ones(3)) == (0, 3, "3 values are too few to find a warm-up in")


def test_what_does_not_vary_has_no_warm_up():
    assert mser5(np.full(500, 1e15)) == (0, 500, "")


def test_a_steady_mean_carries_what_is_wrong_with_its_warm_up():
    estimate, warm_up = steady_mean(settling(2_000, 30.0, 0.99, 1), seed=1)
    assert estimate.low < 10 < estimate.high
    assert warm_up.n_cut > 0
    assert (estimate.caveat, estimate.seed) == ("", 1)
    assert estimate.method.endswith(f"batches, {warm_up.n_cut} of 2000 values cut (MSER-5)")
    rising, _ = steady_mean(np.arange(1_000.0))
    assert "has not settled" in rising.caveat
    assert "neighbouring batches are correlated" in rising.caveat
