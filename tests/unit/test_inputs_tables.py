import csv
import math

import numpy as np
import pytest

from shmsim.inputs.aiconfigurator import read_all_reduce, read_estimates
from shmsim.inputs.catalog import load_model
from shmsim.inputs.layers import DecodeAttention, Layers
from shmsim.inputs.llmservingsim import (
    read_llmservingsim_table,
    read_summary,
    read_timeseries,
)
from shmsim.inputs.measured_steps import read_measured_steps
from shmsim.inputs.rows import InputError
from shmsim.inputs.samples import Samples
from shmsim.inputs.step_table import read_step_table, write_step_table
from shmsim.inputs.vidur import read_vidur_all_reduce, read_vidur_host, read_vidur_table
from shmsim.roofline import ModelGeometry
from shmsim.steptime import TableStepTime
from shmsim.units import MS, US
from tests.data import DATA, needs_data

MODEL = ModelGeometry(3, 64, 8, 4, 8, 256, 1000, tied=True)
PARTS = (
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip


@pytest.fixture
def stored(tmp_path):
    def store(name, rows):
        path = tmp_path / name
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return path

    return store


def spoilt(rows, index, **values):
    return [row | (values if i == index else {}) for i, row in enumerate(rows)]


# Our own tables.

GRID = [
    {"n_decode": n, "n_prefill_tokens": p, "n_kv_tokens": k, "step_ns": 1000 + 7 * n + p + k}
    for k in (0, 100) for n in (4, 1) for p in (0, 16, 64)
]  # fmt: skip


def test_a_table_is_read_in_any_order_and_reads_back_as_written(stored, tmp_path):
    loaded = read_step_table(stored("t.csv", GRID))
    table = loaded.value
    assert (table.n_decode, table.n_prefill_tokens, table.n_kv_tokens) == (
        (1, 4), (0, 16, 64), (0, 100),
    )  # fmt: skip
    assert loaded.n_rows == 12
    for row in GRID:
        batch = (row["n_decode"], row["n_prefill_tokens"], row["n_kv_tokens"])
        assert table.mean_ns(*batch) == row["step_ns"]
    write_step_table(table, tmp_path / "new" / "again.csv")
    assert read_step_table(tmp_path / "new" / "again.csv").value == table


def test_a_table_may_know_nothing_of_prompts_and_context(stored):
    rows = [{"n_decode": n, "step_ns": 1000.5 * n} for n in (1, 2)]
    assert read_step_table(stored("t.csv", rows)).value == TableStepTime(
        (1, 2), (0,), (0,), (1000.5, 2001.0)
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (spoilt(GRID, 0, step_ns=0), "line 2: step_ns must be a number from 1 to 3.6e.12, got '0'"),
        (spoilt(GRID, 0, step_ns="nan"), "line 2: step_ns must be a number"),
        (spoilt(GRID, 0, n_decode=-4), "line 2: n_decode must be a whole number of at least 0"),
        (GRID[1:], "fill a grid of 2 x 3 x 2 points, and 1 are missing; the first is n_decode 4, "),
        ([*GRID, GRID[3]], "line 14: n_decode and the other columns repeat n_decode 1, n_prefill"),
        ([{"n_decode": 1, "step_us": 5}], r"column step_ns is missing; did you mean step_us\?"),
    ],
)
def test_a_table_that_is_no_grid_of_times_is_refused(stored, rows, message):
    with pytest.raises(InputError, match=message):
        read_step_table(stored("t.csv", rows))


def test_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("n_decode,step_ns\n")
    for read in (read_step_table, read_measured_steps):
        with pytest.raises(InputError, match="holds no row"):
            read(tmp_path / "t.csv")


# Measured steps.


def test_single_steps_become_distributions_by_bucket(stored):
    rng = np.random.default_rng(3)
    values = {8: rng.lognormal(14, 0.1, 500), 1: rng.lognormal(13, 0.3, 300)}
    rows = [{"n_decode": b, "step_ns": v} for b, vs in values.items() for v in vs]
    law = read_measured_steps(stored("m.csv", rows)).value
    assert law.buckets == (1, 8)
    for bucket, of_bucket in values.items():
        # A line between grid points stands in for the sample, half a percent of it in each.
        assert law.mean_ns(bucket, 0, 0) == pytest.approx(of_bucket.mean(), rel=0.01)
        assert law.draw_ns(bucket, 0, 0, 0.0) == int(np.median(of_bucket))
        assert law.draw_ns(bucket, 0, 0, 9.0) == pytest.approx(of_bucket.max(), rel=1e-6)


QUANTILES = [
    {"n_decode": b, "quantile": u, "step_ns": b * 1000 * (1 + u)}
    for b in (2, 1) for u in (0, 0.5, 0.99)
]  # fmt: skip


def test_quantiles_are_kept_as_given(stored):
    law = read_measured_steps(stored("q.csv", QUANTILES)).value
    assert (law.buckets, law.levels) == ((1, 2), (0.0, 0.5, 0.99))
    assert law.quantiles_ns == (1000, 1500, 1990, 2000, 3000, 3980)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (spoilt(QUANTILES, 1, quantile=0), "line 3: quantile must ascend for n_decode 2, got '0'"),
        (spoilt(QUANTILES, 1, quantile=2), "line 3: quantile must be a number from 0 to 1"),
        (spoilt(QUANTILES, 1, step_ns=5), "line 3: step_ns must not descend .* n_decode 2"),
        (QUANTILES[:-1], r"n_decode 2 must have the quantiles that 1 has, 0, 0\.5; it has 0, 0\.5"),
        (spoilt(QUANTILES, 0, n_decode=0), "line 2: n_decode must be a whole number of at least 1"),
        ([{"n_decode": 1, "step_ns": 5}] * 19, "n_decode 1 has 19 steps; .* needs at least 20"),
    ],
)
def test_measured_steps_that_make_no_distribution_are_refused(stored, rows, message):
    with pytest.raises(InputError, match=message):
        read_measured_steps(stored("q.csv", rows))


# Layers.


def affine(what, base, slope, sizes=(1, 2, 4, 8, 16, 24, 32, 64)):
    return Samples.of(what, [(size, base + slope * size) for size in sizes])


def test_a_table_of_layers_is_their_sum_at_every_point():
    attention = DecodeAttention([(n, c, 100.0 + 3 * n + 5 * c) for n in (1, 16) for c in (1, 512)])
    table = Layers(
        affine("dense", 1000, 10),
        affine("head", 500, 3),
        attention,
        affine("prefill", 0, 2),
        lambda n, p: 7.0 * (n + p),
    ).table(16)
    assert table.n_decode == (0, 1, 2, 4, 8, 16)
    assert table.n_prefill_tokens == (0, 1, 2, 4, 8, 16, 24, 32, 64)
    assert (table.n_kv_tokens[0], table.n_kv_tokens[-1]) == (0, 16 * 512)
    for n in table.n_decode:
        for p in table.n_prefill_tokens:
            for k in table.n_kv_tokens:
                tokens = n + p
                dense = (1000 + 10 * min(max(tokens, 1), 64)) * max(tokens / 64, 1)
                expected = dense + 500 + 3 * max(n, 1) + 2 * p + 7 * tokens
                if n:
                    context = min(max(k / n, 1), 512)
                    expected += (100 + 3 * n + 5 * context) * max(k / n / 512, 1)
                assert table.mean_ns(n, p, k) == pytest.approx(expected, rel=1e-9)


def test_attention_is_linear_between_shapes_and_grows_with_the_context_beyond_them():
    attention = DecodeAttention([(n, c, 100 + 5.0 * n * c) for n in (1, 4) for c in (16, 64)])
    for n, c in ((1, 16), (4, 64), (1, 64), (4, 16)):
        assert attention.at(n, n * c) == pytest.approx(100 + 5 * n * c)
    assert attention.at(1, 40) == pytest.approx(300)
    assert attention.at(1, 640) == pytest.approx(10 * attention.at(1, 64))
    assert attention.at(0, 10) == 0.0
    # Of two rows of one shape the median counts.
    twice = DecodeAttention([*((n, c, 1.0) for n in (1, 4) for c in (16, 64)), (1, 16, 3.0)])
    assert twice.at(1, 16) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [(1, 16, 5.0)],
        [(1, c, 5.0) for c in (16, 32, 64)],
        [(n, 16 * n, 5.0) for n in (1, 2, 4)],
    ],
)
def test_attention_needs_shapes_that_span_both_quantities(shapes):
    with pytest.raises(InputError, match="at least two batch sizes and two context lengths, got"):
        DecodeAttention(shapes)


@pytest.mark.parametrize("max_sequences", [0, 64, 1000])
def test_a_table_cannot_reach_further_than_the_profile(max_sequences):
    with pytest.raises(InputError, match=r"max_sequences must be from 1 to 63 .* up to 64 tokens"):
        Layers(affine("dense", 1000, 10)).table(max_sequences)


def test_a_table_cannot_decode_more_than_attention_was_measured_for():
    attention = DecodeAttention([(n, c, 5.0) for n in (1, 4) for c in (1, 512)])
    with pytest.raises(
        InputError, match=r"max_sequences is 8, and decode attention .* up to 4 seq"
    ):
        Layers(affine("dense", 1000, 10), decode_attention=attention).table(8)


# Vidur.


def vidur_rows(sizes=(1, 2, 8, 64), workers=(1, 2)):
    return [
        {f"time_stats.{part}.median": 0.001 * (i + 1) * n / w for i, part in enumerate(PARTS)}
        | {
            "time_stats.emb.median": 0.5, "n_head": 8, "n_kv_head": 4, "n_embd": 64,
            "n_expanded_embd": 256, "num_tokens": n, "num_tensor_parallel_workers": w,
        }
        for n in sizes for w in workers
    ]  # fmt: skip


ATTENTION = [
    {
        "batch_size": n, "prefill_chunk_size": 0, "kv_cache_size": c, "is_prefill": False,
        "num_tensor_parallel_workers": 1, "time_stats.attn_decode.median": 0.001 * n * c,
        "time_stats.attn_prefill.median": "", "time_stats.attn_kv_cache_save.median": 0.01,
    }
    for n in (1, 8) for c in (16, 256)
] + [
    {
        "batch_size": 1, "prefill_chunk_size": p, "kv_cache_size": c, "is_prefill": True,
        "num_tensor_parallel_workers": w, "time_stats.attn_decode.median": "",
        "time_stats.attn_prefill.median": 0.002 * p, "time_stats.attn_kv_cache_save.median": "",
    }
    for p in (8, 64) for c in (0, 128) for w in (1, 2)
]  # fmt: skip


def test_a_vidur_profile_is_a_table_of_all_layers(stored):
    loaded = read_vidur_table(stored("mlp.csv", vidur_rows()), MODEL, max_sequences=8)
    for n in (1, 2, 8):
        # Nine parts of 1, 2, ... 9 us per token in each of three layers, and the embedding.
        assert loaded.value.mean_ns(n, 0, 0) == pytest.approx(0.5 * MS + 3 * 45 * US * n)
    assert loaded.value.mean_ns(0, 64, 0) == pytest.approx(0.5 * MS + 3 * 45 * US * 64)
    assert loaded.skipped == {"another num_tensor_parallel_workers": 4}
    assert "without attention.csv attention costs nothing" in loaded.notes


def test_attention_collectives_and_host_work_of_vidur_are_added(stored):
    mlp, attention = stored("mlp.csv", vidur_rows()), stored("attention.csv", ATTENTION)
    bare = read_vidur_table(mlp, MODEL, max_sequences=8).value
    loaded = read_vidur_table(mlp, MODEL, max_sequences=8, attention=attention)
    table = loaded.value
    # One row of context 16: 16 us, and 10 us to save it, in each of three layers.
    assert table.mean_ns(1, 0, 16) - bare.mean_ns(1, 0, 0) == pytest.approx(3 * 26 * US)
    assert table.mean_ns(0, 64, 0) - bare.mean_ns(0, 64, 0) == pytest.approx(3 * 128 * US)
    assert sum(loaded.skipped.values()) == 4 + 4 + 2  # tp 2, tp 2, and prefill with context
    host = Samples.of("host", [(1, 1000.0), (8, 8000.0)])
    with_host = read_vidur_table(mlp, MODEL, max_sequences=8, host=host).value
    assert with_host.mean_ns(8, 0, 0) - bare.mean_ns(8, 0, 0) == pytest.approx(8000.0)
    pair = read_vidur_table(
        mlp, MODEL, tensor_parallel=2, max_sequences=8,
        all_reduce=Samples.of("all-reduce", [(1, 0.0), (10**6, 10**6)]),
    ).value  # fmt: skip
    # Two all-reduces per layer of 8 x 64 values of two bytes, a nanosecond per byte and a bit.
    added = pair.mean_ns(8, 0, 0) - (0.5 * MS + 3 * 45 * US * 4)
    assert added == pytest.approx(6 * 1024, rel=0.01)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_embd": 128}, "line 2: n_embd must be 64, the model's hidden, got '128'"),
        ({"num_tokens": 0}, "line 2: num_tokens must be a whole number of at least 1, got '0'"),
        ({"time_stats.mlp_act.median": "-1"}, r"line 2: time_stats\.mlp_act\.median must be a num"),
        ({"time_stats.mlp_act.median": ""}, r"line 2: time_stats\.mlp_act\.median must be a numbe"),
    ],
)
def test_a_vidur_row_that_is_nonsense_is_named(stored, values, message):
    with pytest.raises(InputError, match=message):
        read_vidur_table(stored("mlp.csv", spoilt(vidur_rows(), 0, **values)), MODEL)


def test_what_a_vidur_profile_does_not_hold_is_refused(stored):
    mlp = stored("mlp.csv", vidur_rows())
    with pytest.raises(InputError, match=r"no row for .*mlp\.csv with 4 tensor-parallel workers"):
        read_vidur_table(mlp, MODEL, tensor_parallel=4, all_reduce=affine("x", 1, 1))
    with pytest.raises(InputError, match="2 tensor-parallel workers need the time of an all-reduc"):
        read_vidur_table(mlp, MODEL, tensor_parallel=2)
    rows = [{k.replace("mlp_act", "mlp_acts"): v for k, v in row.items()} for row in vidur_rows()]
    with pytest.raises(InputError, match=r"did you mean time_stats\.mlp_acts\.median\?"):
        read_vidur_table(stored("other.csv", rows), MODEL)
    flags = stored("attention.csv", spoilt(ATTENTION, 0, is_prefill="maybe"))
    with pytest.raises(InputError, match="is_prefill must be True or False, got 'maybe'"):
        read_vidur_table(mlp, MODEL, attention=flags)


def test_a_vidur_collective_and_host_time_are_found_by_their_keys(stored):
    reduces = [
        {"time_stats.all_reduce.median": 0.001 * r * n, "num_workers": n, "size": 2048,
         "collective": "all_reduce"}
        for n in (2, 4) for r in (1, 3)
    ]  # fmt: skip
    loaded = read_vidur_all_reduce(stored("ar.csv", reduces), 2)
    assert loaded.value.at(2048) == 4 * US
    assert loaded.skipped == {"another num_workers": 2}
    with pytest.raises(InputError, match="no row for all-reduce of 8 GPUs"):
        read_vidur_all_reduce(stored("ar.csv", reduces), 8)
    with pytest.raises(InputError, match="collective must be all_reduce, got 'send_recv'"):
        read_vidur_all_reduce(stored("ar.csv", spoilt(reduces, 1, collective="send_recv")), 2)
    parts = ("schedule_median", "sampler_e2e_median", "prepare_inputs_e2e_median",
             "process_model_outputs_median", "ray_comm_time_mean")  # fmt: skip
    host = [
        dict.fromkeys(parts, 0.1 * b)
        | {"model_name": "m", "batch_size": b, "tensor_parallel_degree": 1}
        for b in (1, 8)
    ]
    assert read_vidur_host(stored("h.csv", host), "m", 1).value.at(8) == pytest.approx(4 * MS)
    with pytest.raises(InputError, match="no row of m on 2 GPUs; there is m on 1"):
        read_vidur_host(stored("h.csv", host), "m", 2)


@needs_data
def test_real_vidur_profiles_give_the_sums_that_their_rows_have():
    model = load_model("llama-2-7b")
    # Sums of the medians of all layers, without the embedding, by tokens; counted independently.
    for n_gpus, sums_ms in ((1, (5.60, 5.50, 5.79, 5.86)), (8, (1.31, 1.57, 1.54, 1.66))):
        all_reduce = Samples.of("free", [(1, 0.0), (10**9, 0.0)])
        table = read_vidur_table(
            DATA / "vidur/mlp_h100_Llama-2-7b-hf.csv",
            model,
            tensor_parallel=n_gpus,
            all_reduce=all_reduce,
        ).value
        for n, expected_ms in zip((1, 8, 32, 64), sums_ms, strict=True):
            assert table.mean_ns(n, 0, 0) / MS == pytest.approx(expected_ms, abs=0.02)
    assert len(read_vidur_all_reduce(DATA / "vidur/all_reduce_h100_dgx.csv", 8).value.sizes) > 300
    name = "meta-llama/Llama-2-7b-hf"
    host = read_vidur_host(DATA / "vidur/cpu_overheads_a100.csv", name, 1).value
    assert [round(host.at(b) / MS, 2) for b in (8, 64, 128)] == [1.39, 4.07, 7.23]


# AIConfigurator.

REDUCES = [
    {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": n, "message_size": size,
     "latency": 0.001 * n + size * 1e-6, "backend": backend}
    for n in (2, 8) for size in (1024, 4096) for backend in ("vllm_graph", "vllm_eager")
]  # fmt: skip
ESTIMATES = [
    {"model": "m", "system": "h100_sxm", "tp": 2, "batch": b, "tpot_ms": 1.0 + 0.01 * b}
    for b in (64, 1, 8)
]


def test_an_all_reduce_is_found_by_bytes(stored):
    loaded = read_all_reduce(stored("ar.csv", REDUCES), 2)
    assert loaded.value.sizes == (2048, 8192)  # two bytes for each value
    assert loaded.value.at(8192) == pytest.approx((2 + 4.096) * US)
    assert loaded.skipped == {"another num_gpus or backend": 6}


def test_estimates_are_a_table_of_decode_steps(stored):
    path = stored("e.csv", ESTIMATES)
    table = read_estimates(path, "m", "h100_sxm", 2, per_prefill_token_ns=7).value
    assert table.mean_ns(8, 10, 999) == pytest.approx(1.08 * MS + 70)
    with pytest.raises(ValueError, match="65 sequences in decode lies outside"):
        table.mean_ns(65, 0, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"op_name": "all_gather"}, "line 2: op_name must be all_reduce, got 'all_gather'"),
        ({"allreduce_dtype": "float32"}, "line 2: allreduce_dtype must be of two bytes"),
        ({"latency": "nan"}, "line 2: latency must be a number of at least 0, got 'nan'"),
        ({"num_gpus": 1}, "line 2: num_gpus must be a whole number of at least 2"),
    ],
)
def test_a_row_of_an_all_reduce_table_that_is_nonsense_is_named(stored, values, message):
    with pytest.raises(InputError, match=message):
        read_all_reduce(stored("ar.csv", spoilt(REDUCES, 0, **values)), 2)


def test_what_a_table_of_aiconfigurator_does_not_hold_is_refused_with_what_it_does(stored):
    with pytest.raises(
        InputError, match="no row of 4 GPUs by vllm_graph; there is 2 GPUs by vllm_"
    ):
        read_all_reduce(stored("ar.csv", REDUCES), 4)
    with pytest.raises(InputError, match="no row of m on 1 x h100_sxm; there is m on 2 x h100_sxm"):
        read_estimates(stored("e.csv", ESTIMATES), "m", "h100_sxm", 1, per_prefill_token_ns=0)


@needs_data
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_real_all_reduces_of_a_small_message_take_a_few_microseconds(gpu):
    path = DATA / f"aiconfigurator/custom_allreduce_{gpu}_sxm_vllm0.24.0.csv"
    graph = [read_all_reduce(path, n).value.at(16_384) for n in (2, 4, 8)]
    eager = [read_all_reduce(path, n, "vllm_eager").value.at(16_384) for n in (2, 4, 8)]
    assert graph == sorted(graph)
    assert 4 * US < graph[0] < graph[2] < 7 * US
    assert all(e > 3 * g for e, g in zip(eager, graph, strict=True))


# LLMServingSim.


def layer_rows(size, layers, sizes=(1, 2, 8, 64)):
    return [
        {"layer": layer, size: n, "time_us": base + n}
        for base, layer in enumerate(layers)
        for n in sizes
    ]


DENSE = layer_rows(
    "tokens",
    [
        "embedding",
        "layernorm",
        "qkv_proj",
        "final_layernorm",
        "o_proj",
        "gate_up_proj",
        "down_proj",
    ],
)
HEAD = layer_rows("sequences", ["lm_head", "sampler"], (1, 2, 8))


def test_a_profile_of_llmservingsim_runs_each_layer_as_often_as_the_model_does(stored):
    dense, head = stored("dense.csv", DENSE), stored("head.csv", HEAD)
    loaded = read_llmservingsim_table(dense, head, MODEL, max_sequences=8)
    for n in (1, 2, 8):
        once = n + (3 + n)  # embedding, final_layernorm
        each = 2 * (1 + n) + (2 + n) + (4 + n) + (5 + n) + (6 + n)  # the norm twice
        assert loaded.value.mean_ns(n, 0, 0) == pytest.approx(
            US * (once + 3 * each + n + (1 + n)), rel=1e-12
        )
    assert loaded.account() == "34 of 34 rows used; without attention.csv attention costs nothing"
    attention = stored(
        "attention.csv",
        [
            {"prefill_chunk": p, "kv_prefill": k, "n_decode": n, "kv_decode": c, "time_us": t}
            for p, k, n, c, t in (
                (0, 0, 1, 16, 1), (0, 0, 1, 64, 4), (0, 0, 8, 16, 8), (0, 0, 8, 64, 32),
                (1, 0, 0, 0, 2), (64, 0, 0, 0, 128), (64, 16, 0, 0, 130), (64, 0, 1, 16, 129),
            )
        ],
    )  # fmt: skip
    full = read_llmservingsim_table(dense, head, MODEL, max_sequences=8, attention=attention)
    bare = loaded.value
    assert full.value.mean_ns(8, 0, 512) - bare.mean_ns(8, 0, 0) == pytest.approx(3 * 32 * US)
    assert full.value.mean_ns(0, 64, 0) - bare.mean_ns(0, 64, 0) == pytest.approx(3 * 128 * US)
    assert list(full.skipped.values()) == [2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (spoilt(DENSE, 0, layer="moe"), "line 2: layer must be one of layernorm, .*, got 'moe'"),
        (
            spoilt(DENSE, 0, time_us="-2"),
            "line 2: time_us must be a number of at least 0, got '-2'",
        ),
        (spoilt(DENSE, 1, tokens=1), "line 3: tokens must not repeat for embedding, got '1'"),
        (DENSE[:-4], "holds no down_proj; a step cannot do without"),
        (DENSE[1:], "embedding lacks tokens 1, at which other layers were"),
    ],
)
def test_a_profile_of_llmservingsim_that_is_nonsense_is_refused(stored, rows, message):
    with pytest.raises(InputError, match=message):
        read_llmservingsim_table(stored("d.csv", rows), stored("h.csv", HEAD), MODEL)


def test_several_gpus_of_llmservingsim_need_a_collective(stored):
    dense, head = stored("d.csv", DENSE), stored("h.csv", HEAD)
    with pytest.raises(InputError, match="2 tensor-parallel workers need the time of an all-reduc"):
        read_llmservingsim_table(dense, head, MODEL, tensor_parallel=2)
    one = read_llmservingsim_table(dense, head, MODEL, max_sequences=8).value
    two = read_llmservingsim_table(
        dense, head, MODEL, max_sequences=8, tensor_parallel=2,
        all_reduce=Samples.of("flat", [(1, 9.0), (10**9, 9.0)]),
    ).value  # fmt: skip
    assert two.mean_ns(2, 0, 0) - one.mean_ns(2, 0, 0) == pytest.approx(6 * 9)


@needs_data
def test_a_real_step_is_longer_than_its_roofline_and_not_by_much():
    from shmsim.inputs.catalog import load_gpu
    from shmsim.roofline import RooflineStepTime

    folder, model = DATA / "llmservingsim", load_model("llama-3.1-8b")
    loaded = read_llmservingsim_table(
        folder / "RTXPRO6000_Llama-3.1-8B_tp1_dense.csv",
        folder / "RTXPRO6000_Llama-3.1-8B_tp1_per_sequence.csv",
        model,
        max_sequences=128,
    )
    floor = RooflineStepTime(
        model, load_gpu("rtx-pro-6000"), memory_efficiency=1.0, compute_efficiency=1.0
    )
    for batch in ((1, 0, 0), (64, 0, 0), (0, 1024, 0), (0, 2048, 0)):
        assert 1.0 < loaded.value.mean_ns(*batch) / floor.mean_ns(*batch) < 2.0


def test_a_time_series_and_a_summary_are_checked(stored, tmp_path):
    rows = [
        {"t": t, "prompt_throughput": 9.5, "gen_throughput": 1, "running": 9, "waiting": 0,
         "kv_cache_pct": 12.5}
        for t in (1.0, 2.0)
    ]  # fmt: skip
    assert read_timeseries(stored("t.csv", rows)).value[1] == (2 * 10**9, 9.5, 1.0, 9, 0, 12.5)
    with pytest.raises(InputError, match="line 3: t must be above that of the row before, 1, got"):
        read_timeseries(stored("t.csv", spoilt(rows, 1, t=1.0)))
    with pytest.raises(InputError, match="kv_cache_pct must be a number from 0 to 100, got '101'"):
        read_timeseries(stored("t.csv", spoilt(rows, 1, kv_cache_pct=101)))
    path = tmp_path / "summary.txt"
    path.write_text("Metric vLLM Sim Diff%\n----\nTPOT Mean 32.5 32.1 -1.0%\n\n")
    assert read_summary(path).value == {"TPOT Mean": (32.5 * MS, 32.1 * MS)}
    for text, message in (
        ("TPOT Mean 32.5\n", "line 1: must be a quantity, a statistic, two times in ms"),
        ("TPOT Mean x 32.1 -1%\n", "line 1: vLLM must be a number of at least 0, got 'x'"),
        ("Metric\n", "holds no line of a summary"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_summary(path)
    with pytest.raises(InputError, match="cannot read"):
        read_summary(tmp_path / "absent")


@needs_data
def test_a_real_time_series_is_read_whole():
    ticks = read_timeseries(DATA / "llmservingsim/RTXPRO6000_Qwen3-32B_timeseries.csv").value
    assert len(ticks) == 160
    assert all(math.isfinite(tick.output_tokens_per_s) for tick in ticks)
