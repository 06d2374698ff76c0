import json
import logging
import tomllib

import pytest

from realrun.spec import RunSpec
from shmsim.config import ConfigError, DeviceConfig, load_config, parse_config
from shmsim.inputs.catalog import load_gpu, load_model
from shmsim.policies import PRESETS
from shmsim.roofline import RooflineStepTime
from shmsim.steptime import MeasuredStepTime, StepTime, TableStepTime
from shmsim.tape import Tape
from shmsim.units import MS, US
from shmsim.wait import WaitCosts

DECODE_ONLY = "n_decode,step_ns\n1,2000000\n64,3000000\n"
WITH_PROMPTS = (
    "n_decode,n_prefill_tokens,step_ns\n0,0,1000\n0,2048,9000\n64,0,2000\n64,2048,12000\n"
)
MEASURED = "n_decode,quantile,step_ns\n" + "".join(
    f"{n},{u},{1000 * n * (1 + u)}\n" for n in (8, 64) for u in (0, 0.5, 1)
)
ROOFLINE = '[device]\nkind = "roofline"\nmodel = "llama-3.2-1b"\ngpu = "h100-sxm"\n'


@pytest.fixture
def parsed(tmp_path):
    """Parse a config beside which the files of this module lie."""
    for name, text in (
        ("decode.csv", DECODE_ONLY), ("prompts.csv", WITH_PROMPTS), ("measured.csv", MEASURED),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    return lambda text: parse_config(tomllib.loads(text), tmp_path)


@pytest.mark.parametrize("kind", ["echo", "affine"])
def test_an_affine_device_goes_by_two_names(parsed, kind):
    device = parsed(f'[device]\nkind = "{kind}"\nstep = "3ms"').device
    assert device.step_time == StepTime(3 * MS, 10 * US, 5 * US, 0.01)
    assert device.describe() == "step 3 ms ± 1 %"


def test_a_table_is_found_beside_its_config(parsed):
    text = '[device]\nkind = "table"\nfile = "decode.csv"\nper_prefill_token = "3us"\njitter = 0.02'
    device = parsed(text + "\n[engine]\nmax_sequences = 64").device
    law = device.step_time
    assert isinstance(law, TableStepTime)
    assert law.jitter == 0.02
    assert law.mean_ns(1, 10, 99) == 2 * MS + 30 * US
    assert device.describe() == "steps of decode.csv ± 2 %"
    law = parsed('[device]\nkind = "table"\nfile = "prompts.csv"').device.step_time
    assert law.mean_ns(0, 1024, 0) == 5000.0


def test_measured_steps_are_found_beside_their_config(parsed):
    text = '[device]\nkind = "measured"\nfile = "measured.csv"\nper_prefill_token = "0us"'
    device = parsed(text).device
    assert isinstance(device.step_time, MeasuredStepTime)
    assert device.step_time.draw_ns(8, 0, 0, 0.0) == 12_000
    assert device.describe() == "steps of measured.csv"


def test_a_roofline_is_shared_by_the_workers_unless_it_says_otherwise(parsed):
    keys = 'memory_efficiency = 0.8\noverhead = "300us"\nall_reduce = "4500ns"\njitter = 0\n'
    device = parsed(ROOFLINE + keys + "[engine]\nworkers = 4").device
    assert device.step_time == RooflineStepTime(
        load_model("llama-3.2-1b"), load_gpu("h100-sxm"), 4, 0.8, 0.6, 300 * US, 4500, 0.0
    )
    assert device.describe() == "llama-3.2-1b on 4 x h100-sxm ± 0 %"
    eight = parsed(ROOFLINE + "tensor_parallel = 8\n[engine]\nworkers = 2").device
    assert eight.step_time.tensor_parallel == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "table"', 'device.kind = "table" needs device.file'),
        ('kind = "measured"', 'device.kind = "measured" needs device.file'),
        ('kind = "roofline"\ngpu = "h200"', 'device.kind = "roofline" needs device.model'),
        ('kind = "tabel"', "device.kind must be one of echo, affine, table, roofline, measured"),
        ('kind = "roofline"\nstep = "2ms"', "device.step plays no part when device.kind = "),
        ('file = "decode.csv"', 'device.file plays no part when device.kind = "echo", which takes'),
        ('kind = "measured"\nfile = "measured.csv"\njitter = 0.1', "device.jitter plays no part"),
        ('kind = "table"\nfile = "absent.csv"\n', "device: cannot read"),
        (
            'kind = "table"\nfile = "decode.csv"\nper_prefill_token = "0us"\n[engine]\n'
            "max_sequences = 65",
            "65 sequences in decode lies outside the step-time table, which was measured up to 64",
        ),
        (
            'kind = "table"\nfile = "prompts.csv"\n[engine]\nmax_batched_tokens = 4096',
            "4096 prompt tokens lies outside the step-time table, which was measured up to 2048",
        ),
        (
            'kind = "measured"\nfile = "measured.csv"\nper_prefill_token = "0us"\n[engine]\n'
            "max_sequences = 65",
            "65 sequences in decode is larger than the largest measured bucket, 64",
        ),
        ('kind = "table"\nfile = "decode.csv"', "does not tell what prompt tokens cost; set"),
        ('kind = "measured"\nfile = "measured.csv"', "does not tell what prompt tokens cost; set"),
        (
            'kind = "table"\nfile = "prompts.csv"\nper_prefill_token = "1us"',
            "has prompt tokens, so device.per_prefill_token would count them twice; remove it",
        ),
        (
            'kind = "roofline"\nmodel = "llama"\ngpu = "h200"',
            "device: unknown model 'llama'",
        ),
        (
            'kind = "roofline"\nmodel = "llama-3.2-1b"\ngpu = "h200"\nmemory_efficiency = 1.5',
            "device.memory_efficiency must be from 0.01 to 1.0, got 1.5",
        ),
    ],
)
def test_a_device_that_cannot_be_is_refused(parsed, text, message):
    with pytest.raises(ConfigError) as caught:
        parsed(f"[device]\n{text}")
    assert message in str(caught.value)


def test_an_error_in_a_table_names_config_and_line(tmp_path):
    (tmp_path / "t.csv").write_text("n_decode,step_ns\n1,-5\n")
    (tmp_path / "c.toml").write_text('[device]\nkind = "table"\nfile = "t.csv"')
    with pytest.raises(
        ConfigError, match=r"c\.toml: device: .*t\.csv, line 2: step_ns must be a num"
    ):
        load_config(tmp_path / "c.toml")


def test_any_device_reaches_the_processes_of_a_run(parsed, tmp_path):
    config = parsed(
        '[device]\nkind = "table"\nfile = "prompts.csv"\n[engine]\nworkers = 2\n[workload]\n'
        'kind = "trace"\ntrace = "m.jsonl"\nformat = "mooncake"'
    )
    costs = WaitCosts(1, 1, 1, 1, 1, 1.0)
    spec = RunSpec(config.engine, config.handoff, config.workload, config.device,
                   config.payload, PRESETS["spin"], costs, 1, 0, (), 100)  # fmt: skip
    spec.write(tmp_path / "spec.json")
    again = RunSpec.read(tmp_path / "spec.json")
    assert again.device == config.device
    assert again.device.step_time == config.device.step_time
    assert again.workload == config.workload


# Traces.


def request(i):
    return {"timestamp": 100 * i, "input_length": 10 + i, "output_length": 5, "hash_ids": [i]}


def test_a_trace_of_any_format_is_recognised_or_told(parsed, tmp_path):
    lines = "".join(json.dumps(request(i)) + "\n" for i in range(5))
    (tmp_path / "m.jsonl").write_text(lines)
    text = '[workload]\nkind = "trace"\ntrace = "m.jsonl"\nrequests = 3\nspeed = 2.0\n'
    for named in ("", 'format = "mooncake"\n'):
        workload = parsed(text + named + "max_output_tokens = 2").workload.build(Tape(1))
        assert [r.prompt_tokens for r in workload.requests] == [10, 11, 12]
        assert [r.arrival_ns for r in workload.requests] == [0, 50 * MS, 100 * MS]
        assert {r.output_tokens for r in workload.requests} == {2}
    with pytest.raises(ConfigError, match=r"workload\.format must be one of azure, mooncake, vllm"):
        parsed(text + 'format = "burst"')
    (tmp_path / "m.jsonl").write_text("what?\n")
    with pytest.raises(ValueError, match="in no trace format that is known"):
        parsed(text).workload.build(Tape(1))


def test_what_a_trace_leaves_out_is_said(parsed, tmp_path, caplog):
    bench = {
        "model_id": "m", "duration": 2.0, "completed": 1, "request_rate": "inf",
        "max_concurrency": 4, "input_lens": [10, 20], "output_lens": [5, 0], "ttfts": [0.1, 0.0],
        "itls": [[], []], "errors": ["", "refused"],
    }  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps(bench))
    config = parsed('[workload]\nkind = "trace"\ntrace = "b.json"')
    with caplog.at_level(logging.WARNING):
        workload = config.workload.build(Tape(1))
    assert workload.concurrency == 4
    assert "1 of 2 rows used; 1 skipped: the request failed" in caplog.text


def test_the_default_device_has_no_file_and_no_model():
    assert DeviceConfig() == parse_config({}).device
