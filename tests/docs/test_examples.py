"""Every example of the documentation is tried: run if it takes seconds, read by its parser else."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from realrun.cli import app as realrun_app
from shmsim.cli import app as shmsim_app
from shmsim.config import NamedPolicy, parse_config
from shmsim.policies import PRESETS
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from shmsim.sweep.spec import load_sweep
from tests.docs.pages import NAMES, PROGRAMS, ROOT, blocks, commands, spans

#: Its examples need data that does not come along, and have a test of their own.
ELSEWHERE = {"docs/inputs.md"}
RUN = [n for n in NAMES if n not in ELSEWHERE and blocks(n, "python", "console")]
APPS = {"shmsim": shmsim_app, "realrun": realrun_app}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader might be who has done what the page says before."""
    MachineProfile.shipped("vm-2cpu").write(tmp_path / "profile.json")
    write_policy(tmp_path / "policy.json", NamedPolicy("tuned", PRESETS["step-ahead"]), {})
    (tmp_path / "base.toml").write_text("")
    (tmp_path / "steps.csv").write_text("n_decode,step_ns\n" + "8,2000000\n" * 20)
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUN)
def test_what_a_page_runs_runs(name, folder):
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(name):
        if block.title:
            (folder / block.title).write_text(block.text)
        if block.language == "python" and '"__main__"' in block.text:
            path = folder / "example.py"
            path.write_text(block.text)
            call([sys.executable, str(path)])
        elif block.language == "python":
            exec(compile(block.text, name, "exec"), names)
        elif block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    call(["bash", "-c", line.removeprefix("$ ")])


def call(words):
    # Not `python -m`: what a reader types is what is tried.
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", [n for n in NAMES if blocks(n, "toml")])
def test_every_config_that_is_shown_is_read(name, folder):
    for index, block in enumerate(blocks(name, "toml")):
        if "profiles" in tomllib.loads(block.text):
            path = folder / f"sweep{index}.toml"
            path.write_text(block.text)
            assert load_sweep(path).cells
        else:
            assert parse_config(tomllib.loads(block.text), folder)


@pytest.mark.parametrize("name", [n for n in NAMES if commands(n)])
def test_every_command_that_is_shown_is_understood(name):
    for program, words in commands(name):
        assert understood(program, words), f"{name}: {program} {' '.join(words)}"


@pytest.mark.parametrize("name", [n for n in NAMES if spans(n)])
def test_every_command_and_option_that_is_mentioned_exists(name):
    for program, words in spans(name):
        group = typer.main.get_command(APPS[program])
        known = options_of(group)
        if words and not words[0].startswith("-") and words[0] in group.commands:
            known |= options_of(group.commands[words[0]])
        elif words and re.fullmatch(r"[a-z-]+", words[0]) and not words[0].startswith("-"):
            pytest.fail(f"{name}: {program} has no command {words[0]}")
        for word in words:
            option = word.partition("=")[0]
            assert not option.startswith("--") or option in known, f"{name}: {program} {words}"


def options_of(command):
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}


def understood(program, words):
    group = typer.main.get_command(APPS[program])
    if not words or words[0].startswith("-"):
        return set(words) <= options_of(group)
    context = typer.Context(group, info_name=program)
    if words[0] not in group.commands:
        return False
    name, command, rest = group.resolve_command(context, list(words))
    command.make_context(name, rest, parent=context)  # raises, and says why not
    return True


def test_both_programs_are_shown_on_a_page():
    assert {program for name in NAMES for program, _ in commands(name)} == set(PROGRAMS)
