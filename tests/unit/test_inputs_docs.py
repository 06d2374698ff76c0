import re
import tomllib
from pathlib import Path

import pytest

from shmsim.config import parse_config
from shmsim.inputs.catalog import gpu_names, model_names
from shmsim.inputs.shipped import shipped_names
from shmsim.inputs.step_table import read_step_table
from shmsim.inputs.traces import FORMATS
from tests.data import DATA, needs_data

PAGE = (Path(__file__).parents[2] / "docs/inputs.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@needs_data
def test_the_examples_of_the_page_run_and_say_what_it_says(tmp_path, monkeypatch, capsys):
    code = "\n".join(blocks("python")).replace('Path("../shared/data")', f"Path({str(DATA)!r})")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/inputs.md", "exec"), {})
    said = capsys.readouterr().out
    assert "23 of 138 rows used; 115 skipped: another num_gpus or backend" in said
    assert "without attention.csv attention costs nothing" in said
    assert "measured h200/wake.txt, arm cext_futex" in said
    assert read_step_table(tmp_path / "steps.csv").value.n_decode[-1] == 128


@pytest.mark.parametrize("text", blocks("toml"))
def test_the_configs_of_the_page_are_read(text):
    assert parse_config(tomllib.loads(text)).device.step_time.tensor_parallel == 2


@pytest.mark.parametrize("text", blocks("csv"))
def test_the_tables_of_the_page_are_read(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    assert read_step_table(tmp_path / "t.csv").n_rows == 4


def test_the_page_names_what_there_is():
    for name in [*shipped_names(), *FORMATS, "llama-3.2-1b", "h100-sxm"]:
        assert f"`{name}`" in PAGE or f'"{name}"' in PAGE
    assert "llama-3.2-1b" in model_names()
    assert "h100-sxm" in gpu_names()
