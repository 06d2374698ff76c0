import math

import numpy as np
import pytest

from realrun.equivalence import Estimate, Verdict, aa_spread

N_TRIALS = 4_000
SIGMA = 0.01


def estimates(mean: float, n: int, seed: int) -> list[Estimate]:
    """Estimates from normal samples, one for each trial."""
    values = np.random.default_rng(seed).normal(mean, SIGMA, (N_TRIALS, n))
    return [Estimate.of(list(row)) for row in values]


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


def most_by_chance(p: float) -> float:
    """What a share of probability ``p`` exceeds once in 15,000 seeds."""
    return p + 4 * math.sqrt(p * (1 - p) / N_TRIALS)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_the_interval_covers_the_mean_in_nine_of_ten_cases(n):
    covered = share([e.low <= 1.0 <= e.high for e in estimates(1.0, n, n)])
    assert 1 - most_by_chance(0.1) < covered < most_by_chance(0.9)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_prediction_that_is_a_margin_off_holds_in_at_most_one_of_twenty_cases(n):
    holding = share([e.verdict(0.02) is Verdict.HOLDS for e in estimates(0.02, n, 10 + n)])
    assert holding < most_by_chance(0.05)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_prediction_within_the_margin_misses_in_at_most_one_of_twenty_cases(n):
    missing = share([e.verdict(0.02) is Verdict.MISSES for e in estimates(-0.02, n, 20 + n)])
    assert missing < most_by_chance(0.05)


def test_with_runs_enough_a_right_prediction_holds_and_a_wrong_one_misses():
    assert all(e.verdict(0.03) is Verdict.HOLDS for e in estimates(0.0, 30, 31))
    assert all(e.verdict(0.03) is Verdict.MISSES for e in estimates(-0.06, 30, 32))


def test_noise_beyond_the_margin_cannot_tell_what_too_few_runs_would_call_equal():
    noisy = Estimate.of([-0.20, 0.21, 0.01])
    assert noisy.value == pytest.approx(0.0067, abs=1e-3)
    assert noisy.verdict(0.03) is Verdict.CANNOT_TELL


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.03, 0.03, Verdict.HOLDS),
        (-0.0301, 0.0, Verdict.CANNOT_TELL),
        (0.0, 0.0301, Verdict.CANNOT_TELL),
        (0.0299, 0.5, Verdict.CANNOT_TELL),
        (0.0301, 0.5, Verdict.MISSES),
        (-0.5, -0.0301, Verdict.MISSES),
        (-0.5, 0.5, Verdict.CANNOT_TELL),
    ],
)
def test_the_verdict_is_about_the_whole_interval(low, high, verdict):
    assert Estimate((low + high) / 2, low, high, 5).verdict(0.03) is verdict


def test_one_run_has_no_interval():
    with pytest.raises(ValueError, match="at least 2 values, got 1"):
        Estimate.of([0.0])


def test_the_spread_of_two_runs_is_a_share_of_their_mean_whatever_the_scale():
    assert aa_spread([(90.0, 110.0)]) == pytest.approx(0.2)
    assert aa_spread([(90.0, 110.0), (1.1, 0.9)]) == pytest.approx(0.2)
    assert aa_spread([(7.0, 7.0), (90.0, 110.0)]) == pytest.approx(0.2 / math.sqrt(2))
