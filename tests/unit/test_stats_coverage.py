"""Do nominal 95 % intervals hold the truth in 93 to 97 of 100 cases? Against known answers."""

import numpy as np
import pytest
from scipy import stats as laws

from shmsim.stats import mean_of_replications
from tests.scripts import BENCH, imported

SEED, N_RUNS = 20261130, 1_000


@pytest.fixture(scope="module")
def bench():
    with imported([BENCH], "stats") as modules:
        yield modules["stats"]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(10))
def test_ninety_five_percent_intervals_hold_the_truth_that_often(bench, index):
    assert len(bench.CASES) == 10
    found = bench.coverage(bench.CASES[index], SEED, N_RUNS)
    assert found.n == N_RUNS
    assert 0.93 <= found.share <= 0.97, found


def test_intervals_from_too_little_hold_less_and_the_bench_says_how_much(bench, monkeypatch):
    monkeypatch.setattr(bench, "_QUICK_REPEATS", 400)
    found = {c.name: c.share for c in bench.short_of_it(SEED)}
    assert len(found) == len(bench.SHORT) == 9
    assert all(0.77 < share < 0.955 for share in found.values())
    assert found["regenerative/mm1_wait, 100 cycles"] < 0.88
    assert found["replications/exponential_mean, 5"] < 0.93


@pytest.mark.parametrize("n_left_out", [3, 10])
def test_an_interval_that_takes_neighbours_for_independent_is_caught(bench, n_left_out):
    """The test can fail: an interval that ignores correlation covers far less."""
    rng = np.random.default_rng(1)
    rows = bench.ar1(rng, 400, 1_000, 0.8, np.nan)[:, ::n_left_out]
    naive = [mean_of_replications(row) for row in rows]
    held = np.mean([e.low <= 0 <= e.high for e in naive])
    # The variance of the mean is about (1 + c) / (1 - c) times that of independent values.
    c = 0.8**n_left_out
    expected = 1 - 2 * laws.norm.sf(1.96 * np.sqrt((1 - c) / (1 + c)))
    assert abs(held - expected) < 4 * np.sqrt(expected * (1 - expected) / len(rows)) + 0.01
    if n_left_out == 3:
        assert held < 0.85


def test_the_known_answers_are_known(bench):
    """The processes themselves, by their means: AR(1), and the wait in the M/M/1 queue."""
    rng = np.random.default_rng(2)
    rows = bench.ar1(rng, 2_000, 400, 0.8, np.nan)
    assert abs(rows[:, -1].var() - 1 / (1 - 0.8**2)) < 0.4
    assert abs(rows.mean()) < 4 * 5 / np.sqrt(rows.size)
    means = bench.mm1_waits(rng, 400, 4_000, 0.5)[:, 500:].mean(axis=1)
    assert abs(means.mean() - 1.0) < 4 * means.std() / np.sqrt(len(means))


@pytest.mark.slow
def test_common_tapes_tell_thresholds_apart_that_tapes_of_their_own_do_not(bench):
    ratio, low, high = bench.variance_ratio(1, 6)
    assert low < ratio < high
    assert ratio > 20
