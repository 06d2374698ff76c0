"""The config that the demo leaves is one to edit: it is read, and says where it is not as vLLM."""

import tomllib

import pytest

from realrun.demo import demo_config
from shmsim.config import load_config, parse_config


def test_the_config_is_read_and_has_the_price_that_tune_and_verdict_take(tmp_path):
    (tmp_path / "config.toml").write_text(demo_config(None))
    config = load_config(tmp_path / "config.toml")
    assert config.engine.scheduling == "sync"
    assert (config.workload.kind, config.delay_price, config.repeats) == ("open", 10.0, 2)


@pytest.mark.parametrize("name", ["trace.csv", 'a "trace" \\ of mine.csv'])
def test_a_trace_is_named_whatever_it_is_called(tmp_path, name):
    content = tomllib.loads(demo_config(tmp_path / name))
    assert content["workload"]["trace"] == str(tmp_path / name)


def test_it_says_that_vllm_schedules_otherwise_and_what_to_write_for_it():
    text = demo_config(None)
    (at,) = [i for i, line in enumerate(text.splitlines()) if line.startswith("scheduling")]
    comment = " ".join(line.strip("# ") for line in text.splitlines()[at - 3 : at])
    assert 'vLLM schedules "async"' in comment
    assert 'Write "async"' in comment
    switched = text.replace('scheduling = "sync"', 'scheduling = "async"')
    assert parse_config(tomllib.loads(switched)).engine.scheduling == "async"
