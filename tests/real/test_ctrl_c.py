"""Ctrl-C at any instant of a command's start: exit code 130 and no traceback."""

import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
#: Each goes on for seconds once it is loaded, so that no signal comes too late.
COMMANDS = {
    "shmsim.entry": "simulate -p vm-2cpu --policy park -r 100",
    "realrun.entry": "calibrate -o profile.json",
}
#: The signal is sent when this has been imported: parts of the command line, what a command loads
#: for itself.
INSTANTS = {
    "shmsim.entry": ("typer", "rich.table", "shmsim.tuner", "numpy", "scipy", "numba"),
    "realrun.entry": ("typer", "shmsim.console", "realrun.vllm.cli", "numpy", "realrun.calibrate"),
}


@pytest.mark.parametrize(
    ("entry", "imported"), [(entry, each) for entry, these in INSTANTS.items() for each in these]
)
def test_ctrl_c_while_a_command_loads_ends_it_without_a_traceback(tmp_path, entry, imported):
    code = f"from {entry} import main; main()"
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", code, *COMMANDS[entry].split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.rpartition("|")[2].strip() == imported:
                process.send_signal(signal.SIGINT)
                break
        else:
            pytest.fail(f"{imported} was not imported:\n{''.join(said[-20:])}")
        out, err = process.communicate()
    err = "".join(line for line in err.splitlines(True) if not line.startswith("import time:"))
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert list(tmp_path.iterdir()) == []


BUILT = """
import os, signal
import typer.main
from shmsim.cli import app

build = typer.main.get_command


def build_and_press(each):
    os.kill(os.getpid(), signal.SIGINT)
    return build(each)


typer.main.get_command = build_and_press
"""


def test_ctrl_c_while_a_command_is_built_ends_it_too(tmp_path):
    """All is loaded then, and typer has yet to make commands of it: some 50 ms."""
    (tmp_path / "built_here.py").write_text(BUILT)
    command = [*(sys.executable, "-c"), "from shmsim.entry import start; start('built_here')"]
    done = subprocess.run(
        [*command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


APP = """
import os, signal


def app():
    os.kill(os.getpid(), signal.SIGINT)
    print("alive")
"""


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_signal_that_is_ignored_stays_ignored(tmp_path, is_ignored):
    """Nohup, and shells that start a job in the background, ignore it for the job."""
    (tmp_path / "app_here.py").write_text(APP)
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN);" if is_ignored else ""
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import signal; {ignored} from shmsim.entry import start; start('app_here')",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout == "alive\n") == is_ignored, done.stderr


def test_the_commands_begin_there():
    scripts = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]
    assert set(scripts.values()) == {f"{entry}:main" for entry in COMMANDS}
    assert all(callable(import_module(entry).main) for entry in COMMANDS)
