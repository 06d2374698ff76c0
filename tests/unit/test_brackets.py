"""A name may hold what the terminal's library takes for markup: it is printed as it is."""

import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import realrun.cli
from realrun.cli import app as realrun_app
from realrun.host import machine_facts
from realrun.tables import validation_table
from realrun.validate import Outcome, Validation
from shmsim.cli import app as shmsim_app
from shmsim.config import DeviceConfig, NamedPolicy, RunConfig
from shmsim.metrics import summarize
from shmsim.policies import PRESETS
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from tests.report_folders import records_of, write_validation

#: The end of a tag that nobody opened, which is an error of the library's; a tag, and a picture.
NAME = r"[/x][red]\[b]:x:"
#: The same for files, in whose names no slash can be.
FILE = r"[red]\[b]:x:"
#: A config refuses brackets in the name of a policy, but not what would be a picture.
POLICY = r":x:\b"
APPS = {"shmsim": shmsim_app, "realrun": realrun_app}

CONFIG = f"""
[workload]
requests = 2
prompt_p50 = 10
prompt_p95 = 10
output_p50 = 5
output_p95 = 5
[[policy]]
preset = "spin"
name = '{POLICY}'
[[policy]]
preset = "park"
"""
SWEEP = f"""
profiles = ["vm-2cpu"]
configs = ['{FILE}.toml']
replications = 2
[[case]]
name = '{NAME}'
workload.requests = 3
"""
CLAIM = {
    "id": NAME, "value": 1.0, "low": 1.0, "high": 1.0, "unit": NAME, "bound": 2.0,
    "direction": "<=", "n": 1, "seed": 0, "holds": True,
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{FILE}.toml").write_text(CONFIG)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "claims.json").write_text(json.dumps({"claims": [CLAIM]}))
    write_policy(tmp_path / f"{FILE}.json", NamedPolicy(POLICY, PRESETS["park"]), {})
    return tmp_path


def said_by(words, *more):
    program, *arguments = words.split()
    done = CliRunner().invoke(APPS[program], [*arguments, *more])
    return done, done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "more", "names"),
    [
        (
            "shmsim simulate -p vm-2cpu -r 2",
            [f"{FILE}.toml", "-o", FILE],
            [POLICY, f"records: {FILE}"],
        ),
        ("shmsim simulate -p vm-2cpu -r 2 --policy", [f"{FILE}.json"], [POLICY]),
        (
            "shmsim sweep sweep.toml -j 1 -o",
            [FILE],
            [f"{FILE} {NAME} on vm-2cpu", f"tables: {FILE}"],
        ),
        ("shmsim tune -p vm-2cpu --quick -j 1", [f"{FILE}.toml", "-o", f"{FILE}.json"], [FILE]),
        ("shmsim claims", ["claims.json"], [NAME]),
        ("shmsim claims", [FILE], [FILE]),
        ("shmsim export -e libgomp -p vm-2cpu", [f"{FILE}.json"], []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.slow
def test_a_name_is_printed_as_it_is(here, words, more, names):
    done, said = said_by(words, *more)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert all(name in said for name in names), said


def test_files_with_such_names_are_named(here):
    records_of().write(here / FILE)
    done, said = said_by("shmsim timeline", FILE, "-o", f"{FILE}.json")
    assert done.exit_code == 0, said
    assert f"events in {FILE}.json" in said
    write_validation(here / "validation")
    done, said = said_by("realrun report", "validation", "-o", f"{FILE}.html")
    assert done.exit_code == 0, said
    assert f"report: {FILE}.html" in said
    done, said = said_by("realrun contribute --yes -o", f"{FILE}.json", FILE)
    assert done.exit_code == 0, said
    assert f"bundle: {FILE}.json" in said


def test_what_the_machine_is_called_is_printed_as_it_is(here, monkeypatch):
    profile = MachineProfile.shipped("vm-2cpu")
    profile = replace(profile, machine={**profile.machine, "cpu": NAME, "kernel": NAME})
    profile.write(here / f"{FILE}.json")
    done, said = said_by("shmsim profile", f"{FILE}.json")
    assert done.exit_code == 0, done.exception
    assert f"{NAME}, 2 cores, kernel {NAME}" in said
    monkeypatch.setattr(realrun.cli, "machine_facts", lambda: machine_facts() | {"cpu": NAME})
    done, said = said_by("realrun doctor")
    assert done.exit_code == 0, done.exception
    assert NAME in said


@pytest.mark.parametrize("words", ["shmsim simulate", "realrun run"])
def test_an_error_names_a_file_as_it_is(here, words):
    done, said = said_by(words, f"not {FILE}.toml")
    assert done.exit_code == 2
    assert f"not {FILE}.toml" in said


def test_a_validation_names_policies_as_they_are_called():
    policies, device = (NamedPolicy(NAME, PRESETS["spin"]),), DeviceConfig("measured", file=FILE)
    config = RunConfig(policies=policies, device=device)
    summary = summarize(records_of())
    outcomes = tuple(Outcome(world, NAME, 0, summary, 1.0, 1.0) for world in ("model", "machine"))
    console = Console(file=io.StringIO(), width=150, emoji=False)
    console.print(validation_table(Validation(config, MachineProfile({}, {}), outcomes)))
    said = console.file.getvalue()
    assert f" {NAME} " in said
    assert f"steps of {FILE};" in said


def test_progress_is_shown_under_the_name_that_it_has():
    program = (
        "from shmsim.console import Bar\n"
        f"with Bar() as bar: [bar.show({NAME!r}, i / 9) for i in range(3)]"
    )
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=given)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(ours)
    assert process.wait(30) == 0
    assert NAME.encode() in said
