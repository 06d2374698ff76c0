import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shmsim.tape import Tape

N = 20_000


def numbers(stream, n=N):
    return np.array([stream.at(i) for i in range(n)])


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=20))
def test_a_number_depends_on_its_index_and_not_on_what_was_drawn_before(indices):
    in_order = numbers(Tape(7).uniform("worker0", "policy"), max(indices) + 1)
    stream = Tape(7).uniform("worker0", "policy")
    assert [stream.at(i) for i in indices] == [in_order[i] for i in indices]


def test_the_same_key_gives_the_same_numbers():
    for kind in ("uniform", "normal"):
        first = getattr(Tape(3, 1), kind)("device", "step")
        again = getattr(Tape(3, 1), kind)("device", "step")
        assert (numbers(first, 100) == numbers(again, 100)).all()
    assert (
        Tape(3).generator("workload", "arrivals").random(9)
        == Tape(3).generator("workload", "arrivals").random(9)
    ).all()


def test_streams_that_differ_in_one_word_of_their_key_share_no_number_and_do_not_correlate():
    streams = [
        Tape(7, 0).uniform("worker0", "policy"),
        Tape(8, 0).uniform("worker0", "policy"),
        Tape(7, 1).uniform("worker0", "policy"),
        Tape(7, 0).uniform("worker1", "policy"),
        Tape(7, 0).uniform("worker0", "plan"),
        Tape(0, 7).uniform("worker0", "policy"),
    ]
    drawn = [numbers(stream) for stream in streams]
    assert len(set(np.concatenate(drawn))) == N * len(streams)
    correlations = np.corrcoef(drawn)[np.triu_indices(len(streams), 1)]
    # 15 pairs, each with standard error 1/sqrt(N): beyond 4.5 in one of 10,000 seeds.
    assert np.abs(correlations).max() < 4.5 / math.sqrt(N)


def test_blocks_of_a_stream_neither_overlap_nor_correlate():
    drawn = numbers(Tape(7).uniform("a", "b"))
    assert len(set(drawn)) == N
    for lag in (1, 4096):
        r = np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]
        assert abs(r) < 4.5 / math.sqrt(N - lag)


def test_uniform_numbers_are_uniform():
    drawn = np.sort(numbers(Tape(11).uniform("a", "b")))
    assert drawn[0] >= 0.0
    assert drawn[-1] < 1.0
    steps = np.arange(N + 1) / N
    distance = max((steps[1:] - drawn).max(), (drawn - steps[:-1]).max())
    assert distance < 2.23 / math.sqrt(N)  # Kolmogorov: exceeded in one of 10,000 seeds


def test_normal_numbers_have_mean_zero_variance_one_and_are_finite():
    drawn = numbers(Tape(11).normal("a", "b"))
    assert np.isfinite(drawn).all()
    assert abs(drawn.mean()) < 4 / math.sqrt(N)
    assert abs(drawn.var() - 1.0) < 4 * math.sqrt(2 / N)


def test_a_normal_number_is_the_quantile_of_the_uniform_one():
    uniform, normal = Tape(5).uniform("a", "b"), Tape(5).normal("a", "b")
    for i in range(100):
        phi = 0.5 * math.erfc(-normal.at(i) / math.sqrt(2))
        assert math.isclose(phi, uniform.at(i), rel_tol=1e-12)
