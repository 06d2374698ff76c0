import numpy as np
import pytest
from scipy import stats

from shmsim.stats.selection import Sample, select


def normal(rng, means, sd=1.0, common=0.0, excess=()):
    """Systems with normal figures whose means are known; ``common`` is a luck that all share."""
    k, n_limits = len(means), len(excess[0]) if excess else 0
    limits = np.array(excess, dtype=float).reshape(k, n_limits)

    def run(alive, first, last):
        n = last - first
        shared = common * rng.standard_normal((n, 1))
        objective = np.array(means)[alive] + sd * rng.standard_normal((n, len(alive))) + shared
        above = limits[alive] + sd * rng.standard_normal((n, len(alive), n_limits))
        return Sample(objective, above)

    return run


def repeated(make, is_right, n_runs=400):
    """How often a selection is right: the most it may truly be, the share, and how many ended."""
    n_right = n_sure = 0
    for seed in range(n_runs):
        run, how = make(np.random.default_rng([17, seed]))
        choice = select(run, **how)
        n_right += is_right(choice)
        n_sure += choice.is_sure
    return stats.binomtest(n_right, n_runs).proportion_ci(0.999).high, n_right / n_runs, n_sure


@pytest.mark.parametrize(
    ("k", "sd", "common", "least", "promised"),
    [
        (2, 3.0, 0.0, 10, 0.95),
        (8, 2.0, 0.0, 10, 0.9),
        (8, 2.0, 5.0, 6, 0.9),
        (5, 4.0, 1.0, 10, 0.8),
    ],
)
def test_it_is_right_as_often_as_it_says_where_that_is_hardest(k, sd, common, least, promised):
    """All others are worse by exactly the zone, which is the least favourable case."""
    means = [0.0] + [1.0] * (k - 1)

    def make(rng):
        how = {"k": k, "zone": 1.0, "probability": promised, "least": least, "most": 100_000}
        return normal(rng, means, sd, common), how

    high, share, n_sure = repeated(make, lambda choice: choice.best == 0)
    assert n_sure == 400
    assert high >= promised, share


def test_with_limits_it_finds_the_best_of_those_that_keep_to_them():
    """The cheapest break one limit by its tolerance; of the others the best leads by the zone."""
    means = [-3.0, -1.0, 0.0, 1.0, 1.0]
    excess = [(0.5, -2.0), (-2.0, 0.5), (-0.5, -0.5), (-0.5, -2.0), (-3.0, -0.5)]

    def make(rng):
        how = {"k": 5, "zone": 1.0, "tolerances": (0.5, 0.5), "probability": 0.9, "most": 100_000}
        return normal(rng, means, 1.5, 0.0, excess), how

    high, share, n_sure = repeated(make, lambda choice: choice.best == 2, 200)
    assert n_sure == 200
    assert high >= 0.9, share


def test_where_all_break_a_limit_there_is_no_best():
    run = normal(np.random.default_rng(1), [0.0, 1.0], 1.0, 0.0, [(2.0,), (3.0,)])
    choice = select(run, 2, zone=1.0, tolerances=(0.5,))
    assert (choice.best, choice.is_sure, choice.broke) == (None, True, (0, 1))


def test_one_that_is_far_behind_is_dropped_early_and_runs_no_more():
    run = normal(np.random.default_rng(1), [0.0, 0.2, 50.0])
    choice = select(run, 3, zone=0.1, least=10, most=5_000)
    assert choice.best == 0
    assert choice.n_tapes[2] == 10 < choice.n_tapes[1] == choice.n_tapes[0]


def test_of_two_that_are_the_same_one_is_chosen():
    def run(alive, first, last):
        values = np.repeat(np.arange(first, last, dtype=float)[:, None], len(alive), axis=1)
        return Sample(values, np.empty((last - first, len(alive), 0)))

    choice = select(run, 2, zone=0.1, least=5, most=20)
    assert choice.is_sure
    assert len(choice.rivals) == 1


def test_out_of_tapes_it_names_the_best_so_far_and_that_it_is_not_sure():
    run = normal(np.random.default_rng(3), [0.0, 0.001], 1.0)
    choice = select(run, 2, zone=0.001, least=10, most=20)
    assert not choice.is_sure
    assert choice.rivals == (0, 1)
    assert choice.n_tapes == (20, 20)


def test_a_single_system_is_chosen_if_it_keeps_to_the_limits():
    run = normal(np.random.default_rng(3), [0.0], 1.0, 0.0, [(-5.0,)])
    choice = select(run, 1, zone=1.0, tolerances=(0.1,))
    assert (choice.best, choice.is_sure) == (0, True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"k": 0}, "at least one system to choose from, got 0"),
        ({"zone": 0.0}, "zone and tolerances must be above 0"),
        ({"tolerances": (0.0,)}, "zone and tolerances must be above 0"),
        ({"probability": 0.3}, r"above 0\.333, which a guess among 3 has"),
        ({"probability": 1.0}, "below 1; got 1"),
        ({"least": 2}, "from 3 to most = 1000 tapes, got 2"),
        ({"most": 5}, "from 3 to most = 5 tapes, got 10"),
    ],
)
def test_what_cannot_be_promised_is_refused(wrong, said):
    run = normal(np.random.default_rng(1), [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=said):
        select(run, **({"k": 3, "zone": 1.0} | wrong))
