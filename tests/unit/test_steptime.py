import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shmsim.roofline import GpuSheet, ModelGeometry, RooflineStepTime
from shmsim.steptime import MeasuredStepTime, StepTime, TableStepTime
from shmsim.tape import Tape
from shmsim.units import MS, US, S

NORMALS = [Tape(1).normal("device", "step").at(i) for i in range(20_000)]


def drawn_ns(law, batch):
    return np.array([law.draw_ns(*batch, normal) for normal in NORMALS], dtype=float)


# The affine law.


@pytest.mark.parametrize("jitter", [0.005, 0.1, 0.7])
def test_draws_have_the_mean_and_the_coefficient_of_variation_they_promise(jitter):
    n = len(NORMALS)
    step_time = StepTime(2 * MS, 10 * US, 5 * US, jitter)
    drawn = drawn_ns(step_time, (8, 100, 0))
    mean_ns = 2 * MS + 7 * 10 * US + 100 * 5 * US
    assert step_time.mean_ns(8, 100, 0) == mean_ns
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
        assert step_time.draw_ns(n, 5, 0, normal) == step_time.mean_ns(n, 5, 0)
    assert step_time.mean_ns(n, 5, 0) == base_ns + (n - 1) * per_sequence_ns + 5 * per_token_ns


@given(st.integers(1, S), st.floats(0, 2), st.floats(-9, 9))
def test_a_step_takes_at_least_a_nanosecond(base_ns, jitter, normal):
    assert StepTime(base_ns, jitter=jitter).draw_ns(1, 0, 0, normal) >= 1


def test_a_step_of_prefill_alone_counts_no_negative_sequence():
    assert StepTime(2 * MS, 10 * US, 5 * US).mean_ns(0, 10, 0) == 2 * MS + 50 * US


@given(st.integers(0, 64), st.integers(0, 4096), st.integers(0, 10**6))
def test_context_plays_no_part_in_an_affine_law(n, prompts, context):
    law = StepTime(2 * MS, 10 * US, 5 * US, 0.1)
    assert law.draw_ns(n, prompts, context, 0.3) == law.draw_ns(n, prompts, 0, 0.3)


# A table.

AXES = ((1, 2, 8, 32), (0, 16, 512), (0, 1000, 50_000))


def table_of(function, jitter=0.0):
    steps = tuple(float(function(i, j, k)) for i in AXES[0] for j in AXES[1] for k in AXES[2])
    return TableStepTime(*AXES, steps, jitter=jitter)


BATCHES = st.tuples(st.integers(1, 32), st.integers(0, 512), st.integers(0, 50_000))


@given(BATCHES)
def test_a_table_gives_a_law_that_is_linear_along_each_axis_back(batch):
    def law(n, prompts, context):
        return 10_000 + 3 * n + 5 * prompts + 0.25 * context + 0.01 * n * context + n * prompts

    assert table_of(law).mean_ns(*batch) == pytest.approx(law(*batch), rel=1e-12)


@given(BATCHES, st.lists(st.integers(1, 10**9), min_size=36, max_size=36))
def test_between_points_a_table_stays_within_the_corners_around(batch, steps):
    table = TableStepTime(*AXES, tuple(map(float, steps)))
    corners = []
    for axis, x in zip(AXES, batch, strict=True):
        right = min(i for i, at in enumerate(axis) if at >= x)
        corners.append({right} if axis[right] == x else {right - 1, right})
    around = [
        steps[(i * 3 + j) * 3 + k] for i in corners[0] for j in corners[1] for k in corners[2]
    ]
    assert min(around) * (1 - 1e-12) <= table.mean_ns(*batch) <= max(around) * (1 + 1e-12)
    if len(around) == 1:
        assert table.mean_ns(*batch) == around[0]


def test_below_its_first_point_a_table_is_level_and_an_axis_of_one_point_is_none():
    table = TableStepTime((4, 8), (100,), (50,), (1000.0, 2000.0))
    assert table.mean_ns(0, 0, 0) == table.mean_ns(4, 0, 0) == 1000.0
    assert table.mean_ns(6, 10**6, 10**9) == 1500.0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((33, 0, 0), "33 sequences in decode lies outside the step-time table, .* up to 32"),
        ((1, 513, 0), "513 prompt tokens lies outside .* up to 512"),
        ((1, 0, 50_001), "50001 tokens of context lies outside .* up to 50000.*shorter requests"),
    ],
)
def test_above_its_last_point_a_table_does_not_guess(batch, message):
    law = table_of(lambda n, prompts, context: 1000 + n)
    with pytest.raises(ValueError, match=message):
        law.mean_ns(*batch)
    with pytest.raises(ValueError, match=message):
        law.draw_ns(*batch, 0.0)


def test_draws_of_a_table_have_its_mean_and_prompt_tokens_cost_what_is_added():
    law = table_of(lambda n, prompts, context: 1_000_000 + 1000 * n, jitter=0.2)
    mean_ns = law.mean_ns(5, 0, 0)
    standard_error = 0.2 * mean_ns / math.sqrt(len(NORMALS))
    assert abs(drawn_ns(law, (5, 0, 0)).mean() - mean_ns) < 4 * standard_error
    decode_only = TableStepTime((1, 2), (0,), (0,), (100.0, 200.0), per_prefill_token_ns=7)
    assert decode_only.mean_ns(2, 10, 0) == 270.0


# A measured distribution.

LEVELS = (0.0, 0.25, 0.5, 0.9, 0.99, 1.0)
MEASURED = MeasuredStepTime(
    (1, 8), LEVELS, (1e6, 1.1e6, 1.2e6, 1.5e6, 4e6, 9e6, 2e6, 2.1e6, 2.2e6, 2.5e6, 5e6, 7e6)
)


@pytest.mark.parametrize("n_decode", [1, 8])
def test_the_mean_of_a_measured_distribution_is_the_average_of_its_draws(n_decode):
    drawn = drawn_ns(MEASURED, (n_decode, 0, 0))
    standard_error = drawn.std() / math.sqrt(len(drawn))
    # Draws are cut to whole nanoseconds, half a nanosecond down on average.
    mean_ns = MEASURED.mean_ns(n_decode, 0, 0)
    assert abs(drawn.mean() - mean_ns) < 4 * standard_error + 1


@pytest.mark.parametrize("u", [0.1, 0.25, 0.5, 0.95, 0.995])
def test_draws_of_a_measured_distribution_have_its_quantiles(u):
    drawn = drawn_ns(MEASURED, (1, 0, 0))
    expected = np.interp(u, LEVELS, MEASURED.quantiles_ns[:6])
    share = (drawn <= expected).mean()
    assert abs(share - u) < 4 * math.sqrt(u * (1 - u) / len(drawn)) + 1e-4


@given(st.floats(-9, 9), st.floats(-9, 9), st.integers(0, 8))
def test_a_larger_normal_number_never_gives_a_shorter_step(a, b, n_decode):
    low, high = sorted((a, b))
    batch = (n_decode, 3, 0)
    assert MEASURED.draw_ns(*batch, low) <= MEASURED.draw_ns(*batch, high)
    assert 1e6 <= MEASURED.draw_ns(*batch, low) <= 9e6


def test_a_batch_takes_the_smallest_bucket_that_holds_it():
    for n_decode in range(9):
        expected = 1.2e6 if n_decode <= 1 else 2.2e6
        assert MEASURED.draw_ns(n_decode, 0, 0, 0.0) == expected
    assert MEASURED._replace(per_prefill_token_ns=5).draw_ns(1, 100, 0, 0.0) == 1.2e6 + 500


def test_outside_its_levels_a_measured_distribution_is_level():
    law = MeasuredStepTime((4,), (0.4, 0.6), (100.0, 200.0))
    assert law.draw_ns(1, 0, 0, -9.0) == 100
    assert law.draw_ns(1, 0, 0, 9.0) == 200
    assert law.mean_ns(1, 0, 0) == pytest.approx(150.0, rel=1e-12)


def test_a_batch_above_the_largest_bucket_is_refused():
    for call in (MEASURED.mean_ns, lambda *batch: MEASURED.draw_ns(*batch, 0.0)):
        with pytest.raises(ValueError, match=r"9 sequences in decode is larger than .* bucket, 8"):
            call(9, 0, 0)


# A roofline.

LLAMA_1B = ModelGeometry(16, 2048, 32, 8, 64, 8192, 128_256, tied=True)
H100 = GpuSheet(80_000_000_000, 3.35e12, 989.5e12)
FLOOR = RooflineStepTime(LLAMA_1B, H100, memory_efficiency=1.0, compute_efficiency=1.0)
SOME = st.tuples(st.integers(0, 256), st.integers(0, 8192), st.integers(0, 10**6))


def test_a_small_decode_step_takes_what_reading_the_weights_takes():
    # 16 layers of 60,817,408 weights and an output head of 262,668,288, two bytes each.
    read_ns = 2 * (16 * 60_817_408 + 262_668_288) / 3.35e12 * S
    assert FLOOR.mean_ns(0, 0, 0) == pytest.approx(read_ns, rel=1e-12)
    assert read_ns == pytest.approx(0.738 * MS, rel=1e-3)
    # 32 KiB of keys and values for each token of context, and one written.
    assert LLAMA_1B.kv_bytes_per_token == 32 * 1024
    with_context_ns = read_ns + 32 * 1024 * (5000 + 2) / 3.35e12 * S
    assert FLOOR.mean_ns(2, 0, 5000) == pytest.approx(with_context_ns, rel=1e-12)


def test_a_long_prompt_takes_what_its_arithmetic_takes():
    flops = 2 * 4096 * 16 * 60_817_408 + 2 * 262_668_288 + 4 * 0.5 * 4096**2 * 16 * 2048
    assert FLOOR.mean_ns(0, 4096, 0) == pytest.approx(flops / 989.5e12 * S, rel=1e-12)


@given(SOME, st.tuples(st.integers(0, 99), st.integers(0, 999), st.integers(0, 9999)))
def test_more_work_never_takes_less_time(batch, more):
    larger = tuple(a + b for a, b in zip(batch, more, strict=True))
    assert FLOOR.mean_ns(*batch) <= FLOOR.mean_ns(*larger)


@given(SOME, st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.integers(0, MS))
def test_a_worse_gpu_is_never_faster(batch, memory, compute, overhead_ns):
    worse = FLOOR._replace(
        memory_efficiency=memory, compute_efficiency=compute, overhead_ns=overhead_ns
    )
    assert worse.mean_ns(*batch) >= FLOOR.mean_ns(*batch)
    assert worse.mean_ns(*batch) >= overhead_ns


@given(SOME, st.sampled_from([2, 4, 8]))
def test_more_gpus_share_all_work_until_the_heads_run_out(batch, shared):
    assume(sum(batch))
    together = FLOOR._replace(tensor_parallel=shared)
    assert together.mean_ns(*batch) == pytest.approx(FLOOR.mean_ns(*batch) / shared, rel=1e-12)
    # With more GPUs than heads of keys and values each of them reads one head.
    sixteen = FLOOR._replace(tensor_parallel=16)
    assert sixteen.memory_ns(*batch) >= FLOOR.memory_ns(*batch) / 16


def test_two_all_reduces_per_layer_are_added_with_more_than_one_gpu():
    alone, pair = FLOOR._replace(all_reduce_ns=4500), FLOOR._replace(tensor_parallel=2)
    assert alone.mean_ns(2, 0, 0) == FLOOR.mean_ns(2, 0, 0)
    slower = pair._replace(all_reduce_ns=4500)
    assert slower.mean_ns(2, 0, 0) == pytest.approx(pair.mean_ns(2, 0, 0) + 2 * 16 * 4500)


def test_draws_of_a_roofline_have_its_mean():
    law = FLOOR._replace(jitter=0.3)
    mean_ns = law.mean_ns(4, 0, 4000)
    standard_error = 0.3 * mean_ns / math.sqrt(len(NORMALS))
    assert abs(drawn_ns(law, (4, 0, 4000)).mean() - mean_ns) < 4 * standard_error + 1
