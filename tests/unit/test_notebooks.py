"""Notebooks as they are stored: without output, saying first what they read, show and take."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

from realrun.cli import calibrate_command
from shmsim.config import parse_policy
from shmsim.policy_file import read_policy

FOLDER = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def cells_of(path, kind):
    content = json.loads(path.read_text())
    return [cell for cell in content["cells"] if cell["cell_type"] == kind]


def text_of(cell):
    return "".join(cell["source"])


def code_of(path):
    return ast.parse("\n".join(text_of(cell) for cell in cells_of(path, "code")))


def test_they_are_numbered_from_1_without_a_gap():
    assert [int(path.stem.partition("_")[0]) for path in PATHS] == list(range(1, 8))


@every_notebook
def test_nothing_that_running_leaves_is_stored(path):
    for cell in cells_of(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert cell["metadata"] == {}


@every_notebook
def test_the_first_cell_says_what_is_read_what_is_shown_and_how_long_it_takes(path):
    first, *_ = json.loads(path.read_text())["cells"]
    assert first["cell_type"] == "markdown"
    text = text_of(first)
    assert text.startswith(f"# {int(path.stem.partition('_')[0])}. ")
    for word in ("**Reads**", "**Shows**"):
        assert word in text
    assert int(re.search(r"\*\*Takes\*\* about (\d+) s", text)[1]) < 60


@every_notebook
def test_links_lead_somewhere(path):
    for cell in cells_of(path, "markdown"):
        for target in re.findall(r"\]\(([^)]+)\)", text_of(cell)):
            if not target.startswith("http"):
                assert (FOLDER / target).exists(), target


@every_notebook
def test_pictures_come_from_the_one_style(path):
    imported = set()
    for node in ast.walk(code_of(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert not [name for name in imported if name.startswith("matplotlib")]


@every_notebook
def test_what_is_worth_a_test_lives_elsewhere(path):
    defined = [
        node.name
        for node in ast.walk(code_of(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    # A policy is what notebook 3 is about, and a slider calls something.
    allowed = ["Mine", "Remembers", "after", "draw", "plan"]
    assert set(defined) <= set(allowed if path.stem.startswith("03") else [])


@every_notebook
def test_the_readme_names_it(path):
    readme = (FOLDER.parent / "README.md").read_text()
    assert f"(notebooks/{path.name})" in readme


@every_notebook
def test_what_a_slider_calls_is_called_once_where_an_error_is_raised(path):
    """The widget that shows what a slider changed catches what is raised in it."""
    calls = [node for node in ast.walk(code_of(path)) if isinstance(node, ast.Call)]
    moved = {
        ast.unparse(call.args[0])
        for call in calls
        if ast.unparse(call.func) == "interactive_output"
    }
    direct = {
        ast.unparse(node.value.func)
        for node in code_of(path).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    }
    assert moved <= direct
    assert bool(moved) == path.stem.startswith("03")


def test_the_setting_that_notebook_7_prints_works_where_it_is_pasted(tmp_path, monkeypatch, capsys):
    (path,) = (path for path in PATHS if path.stem.startswith("07"))
    (code,) = (text for text in map(text_of, cells_of(path, "code")) if "write_policy(" in text)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    exec(code, {"Path": Path, "chosen": parse_policy("step-ahead")})
    variables = dict(re.findall(r"(REALRUN_\w+)=(\S+)", capsys.readouterr().out))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_policy(Path(variables["REALRUN_VLLM_POLICY"])) == parse_policy("step-ahead")
    said = " ".join(text_of(cell) for cell in cells_of(path, "markdown"))
    assert (len(variables), "two variables" in said) == (2, True)


def test_how_long_a_calibration_takes_is_said_the_same_everywhere():
    (said,) = re.findall(r"about (\d+) s", inspect.getdoc(calibrate_command))
    readme = (FOLDER.parent / "README.md").read_text()
    tutorial = (FOLDER.parent / "docs/tutorial.md").read_text()
    notebook = text_of(cells_of(PATHS[1], "markdown")[2])
    for text in (readme, tutorial, notebook):
        (line,) = (
            line for line in text.splitlines() if "realrun calibrate -o profile.json" in line
        )
        assert re.findall(r"(\d+) s\b", line) == [said]


def test_the_bench_moves_sliders_that_notebook_3_has(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER.parent / "experiments" / "bench")
    from slider import MOVES, NOTEBOOK, SLIDERS

    assert NOTEBOOK in PATHS
    texts = [text_of(cell) for cell in cells_of(NOTEBOOK, "code")]
    (text,) = (text for text in texts if SLIDERS in text)
    for name in MOVES:
        assert f'"{name}": ' in text
