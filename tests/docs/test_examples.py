"""Every example of the documentation is tried: run where a test can, read by its parser else."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from realrun.cli import app as realrun_app
from realrun.vllm.control import Control
from shmsim.claims import Claim, write_claims
from shmsim.cli import app as shmsim_app
from shmsim.config import NamedPolicy, parse_config
from shmsim.policies import PRESETS
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from shmsim.sweep.spec import load_sweep
from tests.docs.pages import NAMES, PROGRAMS, ROOT, blocks, commands, lines_of, spans
from tests.vllm.comparisons import write_stored

#: Its examples need data that does not come along, and have a test of their own.
ELSEWHERE = {"docs/inputs.md"}
RUN = [n for n in NAMES if n not in ELSEWHERE and blocks(n, "python", "console", "sh")]
_GPU, _VLLM, _NETWORK = "needs a GPU", "needs a vLLM", "fetches packages from a registry"
#: What no test runs, by how the line begins, and why. Scripts for several machines are ``bash``,
#: not ``sh``; clusters have tests of their own.
NOT_RUN = {
    "docs/tutorial.md": {"make setup": "makes the environment that the tests run in"},
    "docs/gpu-node.md": {
        "python -m realrun.gpu_check": _GPU,
        "pip download": _NETWORK,
        "pip install": _NETWORK,
        "realrun calibrate --gpu": _GPU,
        "realrun validate config.toml": _GPU,  # its config says kind = "cuda"
    },
    "docs/vllm.md": {
        "/path/to/vllm/bin/python -m pip install": _VLLM,
        "python3 -m venv tools": _NETWORK,  # the programs are put there instead
        "vllm serve": _VLLM,
        "tools/bin/realrun vllm-ab": _VLLM,
        "tools/bin/realrun vllm-soak": _VLLM,
        "docker run": "needs an image and a GPU",
    },
}
#: What is left out or added to take less time: a part of a line, and what stands for it.
SHORTER = {" --thorough": "", "shmsim tune ": "shmsim tune --quick -j 1 "}
#: Refused for this on a busy box, a calibration has left the profile that was there before.
BUSY = "this box is too busy to calibrate"
#: A run as short as the tutorial's, for pages whose reader brings a config.
CONFIG = """
[workload]
requests = 4
prompt_p50 = 200
prompt_p95 = 800
output_p50 = 40
output_p95 = 80
"""
APPS = {"shmsim": shmsim_app, "realrun": realrun_app}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader might be who has done what the page says before."""
    MachineProfile.shipped("vm-2cpu").write(tmp_path / "profile.json")
    write_policy(tmp_path / "policy.json", NamedPolicy("tuned", PRESETS["step-ahead"]), {})
    (tmp_path / "base.toml").write_text("")
    (tmp_path / "steps.csv").write_text("n_decode,step_ns\n" + "8,2000000\n" * 20)
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    for config in "config.toml", "CONFIG.toml":
        (tmp_path / config).write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def served(folder):
    """The same, of one whose vLLM has served and whose checks on a GPU node are done."""
    shutil.copytree(ROOT / "notebooks/data/vllm_trace", folder / "trace")
    Control.open(folder / "control", 0)
    write_stored(folder / "runs/ab")
    (folder / "tools").mkdir()
    (folder / "tools/bin").symlink_to(Path(sys.executable).parent)
    claim = Claim("gpu/tpot_error", 0.01, 0.0, 0.02, "ratio", 0.05, "<=", 3, 0)
    write_claims(folder / "runs/gpu-check/claims.json", {}, [claim])
    return folder


def test_what_is_said_not_to_run_is_shown():
    for name, reasons in NOT_RUN.items():
        lines = [line for block in blocks(name, "sh") for line in lines_of(block)]
        for begins in reasons:
            assert any(line.startswith(begins) for line in lines), f"{name}: {begins}"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RUN)
def test_what_a_page_runs_runs(name, served):
    folder = served
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
        elif block.language in ("console", "sh"):
            for line in lines_of(block):
                if not line.startswith(tuple(NOT_RUN.get(name, ()))):
                    # The last line keeps bash there: who asks which shell it is in looks for it.
                    call(["bash", "-c", f"{shortened(line, folder)}\nexit $?"])


def shortened(line, folder):
    """The same in a test's folder, and as short as it may be."""
    for part, instead in {**SHORTER, "/tmp/": f"{folder}/"}.items():
        line = line.replace(part, instead)
    return line


def call(words):
    # Not `python -m`: what a reader types is what is tried.
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ["PATH"]])
    kept = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "HOME": str(Path.cwd()),  # where --install-completion writes
        "XDG_CACHE_HOME": str(kept),
    }
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0 or BUSY in done.stderr, f"{words}\n{done.stdout}\n{done.stderr}"


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
