import json

import pytest

from shmsim.inputs.rows import InputError
from shmsim.inputs.traces import FORMATS, read_workload, recognise
from shmsim.inputs.vllm import read_bench, read_request_log
from shmsim.units import MS, US, S
from shmsim.workload import Request
from tests.data import DATA, needs_data

MOONCAKE = [
    {"timestamp": 0, "input_length": 1025, "output_length": 6, "hash_ids": [0, 1, 2]},
    {"timestamp": 40, "input_length": 512, "output_length": 4, "hash_ids": [3]},
    {"timestamp": 40, "input_length": 1, "output_length": 1, "hash_ids": [0]},
    {"timestamp": 3000, "input_length": 513, "output_length": 2, "hash_ids": [0, 4]},
]
LOG = [
    {
        "request_id": f"bench-{i}",
        "input_toks": 100 + i,
        "output_toks": 11,
        "arrival_time": 1777142838.5 + i,
        "queued_ts": 479748.25 + i,
        "scheduled_ts": 479748.375 + i,
        "first_token_ts": 479748.5 + i,
        "last_token_ts": 479749.5 + i,
    }
    for i in range(3)
]
BENCH = {
    "model_id": "some/model",
    "duration": 3.5,
    "completed": 2,
    "request_rate": 2.0,
    "max_concurrency": None,
    "median_ttft_ms": 12.5,
    "p99_itl_ms": 2.0,
    "input_lens": [100, 300, 200],
    "output_lens": [2, 0, 3],
    "ttfts": [0.01, 0.0, 0.02],
    "itls": [[0.002], [], [0.002, 0.003]],
    "start_times": [50.5, 50.75, 50.0],
    "errors": ["", "timed out", ""],
}


@pytest.fixture
def stored(tmp_path):
    def store(content, name="trace.jsonl"):
        path = tmp_path / name
        lines = content if isinstance(content, list) else [content]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return store


def changed(rows, index, **values):
    return [row | (values if i == index else {}) for i, row in enumerate(rows)]


# Mooncake.


def test_a_mooncake_trace_is_a_workload_and_says_what_it_does_not_use(stored):
    loaded = read_workload(stored(MOONCAKE))
    assert loaded.value.requests == (
        Request(0, 1025, 6), Request(40 * MS, 512, 4), Request(40 * MS, 1, 1),
        Request(3 * S, 513, 2),
    )  # fmt: skip
    assert loaded.value.concurrency == 0
    assert loaded.account() == (
        "4 of 4 rows used; hash_ids are not used: the model has no prefix cache"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"timestamp": -1}, r"line 2: timestamp must be a time of at least 0, got -1"),
        ({"timestamp": None}, "line 2: timestamp must be a time"),
        ({"input_length": 0}, "line 2: input_length must be a whole number of at least 1, got 0"),
        ({"output_length": 2.5}, r"line 2: output_length must be a whole number.*got 2\.5"),
        ({"hash_ids": [3, 4]}, "line 2: hash_ids must hold 1 ids, .* holds 2"),
        ({"hash_ids": [-3]}, "line 2: hash_ids must be a list of whole numbers"),
        ({"hash_ids": 3}, "line 2: hash_ids must be a list"),
    ],
)
def test_a_mooncake_row_that_is_nonsense_is_named(stored, values, message):
    with pytest.raises(InputError, match=message):
        read_workload(stored(changed(MOONCAKE, 1, **values)))


def test_arrivals_out_of_order_are_refused(stored):
    with pytest.raises(InputError, match="line 4: timestamp must not be earlier than that of the"):
        read_workload(stored(changed(MOONCAKE, 3, timestamp=39)))
    with pytest.raises(InputError, match="line 3: arrival_time must not be earlier"):
        read_workload(stored(changed(LOG, 2, arrival_time=1777142838.0)))


# Windows.


def test_a_window_is_cut_before_its_speed_changes(stored):
    path = stored(MOONCAKE)
    loaded = read_workload(path, start_ns=20 * MS, duration_ns=2 * S, speed=2.0)
    assert [r.arrival_ns for r in loaded.value.requests] == [10 * MS, 10 * MS]
    assert len(read_workload(path, max_requests=3).value.requests) == 3
    with pytest.raises(InputError, match="no request in the window that starts 9 s after"):
        read_workload(path, start_ns=9 * S)


# Request logs.


def test_a_request_log_keeps_every_instant_and_the_clocks_apart(stored):
    first, second, _ = read_request_log(stored(LOG)).value
    assert first == (0, 100, 11, 0, S // 8, S // 4, S + S // 4)
    assert second.arrival_ns == second.queued_ns == S
    assert [r.prompt_tokens for r in read_workload(stored(LOG)).value.requests] == [100, 101, 102]


@pytest.mark.parametrize("stage", ["scheduled_ts", "first_token_ts", "last_token_ts"])
def test_instants_of_a_request_out_of_order_are_refused(stored, stage):
    with pytest.raises(InputError, match=f"line 1: {stage} must not be earlier than"):
        read_request_log(stored(changed(LOG, 0, **{stage: 479748.0})))


def test_a_log_without_a_field_names_the_nearest(stored):
    rows = [{**row, "output_tokens": row["output_toks"]} for row in LOG]
    for row in rows:
        del row["output_toks"]
    message = r"line 1: column output_toks is missing; did you mean output_tokens\?"
    with pytest.raises(InputError, match=message):
        read_request_log(stored(rows))


@needs_data
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-32B"])
def test_real_logs_agree_with_the_summary_published_beside_them(model):
    from shmsim.inputs.llmservingsim import read_summary

    folder = DATA / "llmservingsim"
    log = read_request_log(folder / f"RTXPRO6000_{model}_requests.jsonl").value
    summary = read_summary(folder / f"RTXPRO6000_{model}_summary.txt").value
    assert len(log) == 300
    tpots_ns = [(r.last_token_ns - r.first_token_ns) / (r.output_tokens - 1) for r in log]
    assert sum(tpots_ns) / 300 == pytest.approx(summary["TPOT Mean"].vllm_ns, abs=0.05 * MS)
    latency_ns = [r.last_token_ns - r.queued_ns for r in log]
    assert sum(latency_ns) / 300 == pytest.approx(summary["Latency Mean"].vllm_ns, rel=0.01)


# Benchmarks.


def test_a_benchmark_is_read_in_order_of_start_and_failures_are_counted(stored):
    loaded = read_bench(stored(BENCH, "bench.json"))
    bench = loaded.value
    assert (bench.model, bench.duration_ns, bench.completed) == ("some/model", 3500 * MS, 2)
    assert bench.summary_ns == {"median_ttft": 12.5 * MS, "p99_itl": 2.0 * MS}
    assert [(r.started_ns, r.prompt_tokens, r.output_tokens) for r in bench.requests] == [
        (0, 200, 3),
        (S // 2, 100, 2),
    ]
    assert bench.requests[0].token_ns == (20 * MS, 22 * MS, 25 * MS)
    assert (loaded.n_rows, loaded.skipped) == (3, {"the request failed": 1})
    assert bench.workload().requests == (Request(0, 200, 3), Request(S // 2, 100, 2))


def test_a_benchmark_that_sent_all_at_once_is_a_closed_loop(stored):
    bench = BENCH | {"request_rate": "inf", "max_concurrency": 2}
    loaded = read_workload(stored(bench, "bench.json"), max_requests=1)
    assert loaded.value.concurrency == 2
    assert loaded.value.requests == (Request(0, 200, 3),)
    with pytest.raises(
        InputError, match=r"closed loop of 2 requests at once, .*leave start and spe"
    ):
        read_workload(stored(bench, "bench.json"), speed=2.0)


def test_a_benchmark_without_details_still_has_its_summary(stored):
    details = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    path = stored({k: v for k, v in BENCH.items() if k not in details}, "bench.json")
    loaded = read_bench(path)
    assert loaded.value.summary_ns["median_ttft"] == 12.5 * MS
    assert loaded.notes == ("no single requests: the benchmark ran without --save-detailed",)
    with pytest.raises(InputError, match="run vllm bench serve with --save-detailed"):
        read_workload(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_lens": [1, 2]}, "output_lens must hold 2 values as input_lens does, got 3"),
        ({"errors": ["", ""]}, "errors must hold 3 values"),
        ({"itls": None}, "column itls is missing"),
        ({"itls": [[0.002], [], 7]}, "request 2: itls must be a list of times in s, got 7"),
        ({"itls": [[-0.002], [], []]}, "request 0: itls must be a time of at least 0, got -0.002"),
        ({"ttfts": "no"}, "ttfts must be a list, got 'no'"),
        ({"completed": 3}, "completed must be 2, the requests without an error, got 3"),
        ({"input_lens": [100, 300, 0]}, "request 2: input_lens must be a whole number of at least"),
        ({"duration": -1}, "duration must be a time of at least 0, got -1"),
        ({"median_ttft_ms": "soon"}, "median_ttft_ms must be a number of at least 0, got 'soon'"),
        ({"request_rate": 0}, "request_rate must be a number of at least 1e-09, got 0"),
        ({"max_concurrency": 0.5}, r"max_concurrency must be a whole number.*got 0\.5"),
    ],
)
def test_a_benchmark_that_does_not_fit_together_is_refused(stored, change, message):
    with pytest.raises(InputError, match=message):
        read_bench(stored(BENCH | change, "bench.json"))


def test_arrivals_that_a_benchmark_does_not_tell_are_not_made_up(stored):
    path = stored({k: v for k, v in BENCH.items() if k != "start_times"}, "bench.json")
    with pytest.raises(InputError, match="kept no start_times and was no closed loop"):
        read_workload(path)


# Formats.


def test_every_format_is_recognised_by_what_stands_in_the_file(stored, tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    indented = tmp_path / "indented.json"
    indented.write_text(json.dumps(BENCH, indent=2))
    files = {
        azure: "azure",
        stored(MOONCAKE, "m.jsonl"): "mooncake",
        stored(LOG, "l.jsonl"): "vllm-requests",
        stored(BENCH, "b.json"): "vllm-bench",
        indented: "vllm-bench",
    }
    assert {path: recognise(path) for path in files} == files
    assert set(files.values()) == set(FORMATS)
    for path, name in files.items():
        assert read_workload(path) == read_workload(path, name)


def test_a_log_of_ones_own_needs_no_hash_ids(stored):
    own = [{"timestamp": 400 * i, "input_length": 90, "output_length": 4} for i in range(2)]
    loaded = read_workload(stored(own))
    assert loaded.value.requests == (Request(0, 90, 4), Request(400 * MS, 90, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "what is empty, or its first line is"),
        ("\na,b\n", "what is empty, or its first line is"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "a header and no row below it"),
    ],
)
def test_a_trace_without_a_request_is_told_to_have_none(tmp_path, text, message):
    path = tmp_path / "what"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_workload(path)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}\n', "[1]\n", "{\n"])
def test_a_file_of_no_known_format_is_refused_with_those_that_are(tmp_path, text):
    path = tmp_path / "what"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"in no trace format that is known: azure \(.*mooncake \("
    ):
        read_workload(path)


def test_a_format_that_is_not_known_or_not_that_of_the_file_is_refused(stored):
    with pytest.raises(InputError, match="unknown trace format 'burst'; known are azure, mooncake"):
        read_workload(stored(MOONCAKE), "burst")
    with pytest.raises(InputError, match="line 1: column arrival_time is missing"):
        read_workload(stored(MOONCAKE), "vllm-requests")


@needs_data
def test_published_traces_are_read_whole():
    loaded = read_workload(DATA / "mooncake/synthetic_trace.jsonl")
    assert len(loaded.value.requests) == loaded.n_rows == 3993
    tokens = sorted(r.prompt_tokens for r in loaded.value.requests)
    # Counted without this reader.
    assert tokens[len(tokens) // 2] == pytest.approx(11_587, abs=1)
    code = read_workload(DATA / "azure/AzureLLMInferenceTrace_code.csv").value
    assert len(code.requests) == 8819
    assert code.requests[1].arrival_ns > 10 * US
