import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.units import MS, US, S


@pytest.mark.parametrize("jitter", [0.005, 0.1, 0.7])
def test_draws_have_the_mean_and_the_coefficient_of_variation_they_promise(jitter):
    n = 40_000
    step_time = StepTime(2 * MS, 10 * US, 5 * US, jitter)
    normal = Tape(1).normal("device", "step")
    drawn = np.array([step_time.draw_ns(8, 100, normal.at(i)) for i in range(n)], dtype=float)
    mean_ns = 2 * MS + 7 * 10 * US + 100 * 5 * US
    assert step_time.mean_ns(8, 100) == mean_ns
    assert abs(drawn.mean() - mean_ns) < 4 * jitter * mean_ns / math.sqrt(n)
    # Standard error of the CV of a log-normal law, by the delta method from its third and fourth
    # standardised moments (Johnson, Kotz & Balakrishnan, chapter 14).
    w = 1 + jitter**2
    skewness = (w + 2) * math.sqrt(w - 1)
    kurtosis = w**4 + 2 * w**3 + 3 * w**2 - 3
    variance = (kurtosis - 1) / 4 - jitter * skewness + jitter**2
    assert abs(drawn.std() / drawn.mean() - jitter) < 4 * jitter * math.sqrt(variance / n)


@given(st.integers(1, S), st.integers(0, MS), st.integers(0, MS), st.integers(1, 64))
def test_without_jitter_every_draw_is_the_mean(base_ns, per_sequence_ns, per_token_ns, n):
    step_time = StepTime(base_ns, per_sequence_ns, per_token_ns)
    for normal in (-3.0, 0.0, 3.0):
        assert step_time.draw_ns(n, 5, normal) == step_time.mean_ns(n, 5)
    assert step_time.mean_ns(n, 5) == base_ns + (n - 1) * per_sequence_ns + 5 * per_token_ns


@given(st.integers(1, S), st.floats(0, 2), st.floats(-9, 9))
def test_a_step_takes_at_least_a_nanosecond(base_ns, jitter, normal):
    assert StepTime(base_ns, jitter=jitter).draw_ns(1, 0, normal) >= 1


def test_a_step_of_prefill_alone_counts_no_negative_sequence():
    assert StepTime(2 * MS, 10 * US, 5 * US).mean_ns(0, 10) == 2 * MS + 50 * US
