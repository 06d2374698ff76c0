"""What every command of both programs has: options, one answer, exit codes."""

import dataclasses
import enum
import errno
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from realrun.cli import app as realrun_app
from realrun.vllm.control import Control
from shmsim.cli import app as shmsim_app
from shmsim.cli import profile_table
from shmsim.config import ConfigError, NamedPolicy
from shmsim.console import console, details, diagnostics, load_policies
from shmsim.policies import Park
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from shmsim.program import EXIT_CODES, Output, Program, Written, plain
from tests.report_folders import records_of, write_validation
from tests.vllm.comparisons import write_stored
from tests.vllm.traces import write_engine

APPS = {"shmsim": shmsim_app, "realrun": realrun_app}
COMMANDS = {
    f"{program} {name}": command
    for program, app in APPS.items()
    for name, command in typer.main.get_command(app).commands.items()
}
SHORT = """
[workload]
requests = 2
prompt_p50 = 10
prompt_p95 = 10
output_p50 = 5
output_p95 = 5
"""
SWEEP = 'profiles = ["vm-2cpu"]\nconfigs = ["short.toml"]\nreplications = 2\n'
CLAIM = {
    "id": "a/b", "value": 1.0, "low": 1.0, "high": 1.0, "unit": "ratio", "bound": 2.0,
    "direction": "<=", "n": 1, "seed": 0, "holds": True,
}  # fmt: skip

#: How each is called where it takes a second or so; in a folder with what `given` writes.
QUICK = {
    "shmsim policies": "",
    "shmsim profile": "vm-2cpu",
    "shmsim simulate": "short.toml -p vm-2cpu -r 2 --policy spin",
    "shmsim tune": "short.toml -p vm-2cpu --quick -j 1 -o policy.json",
    "shmsim sweep": "sweep.toml -o sweep -j 1",
    "shmsim claims": "claims.json",
    "shmsim timeline": "run",
    "shmsim arena": "-w one-image --count 1000 --probability 0.05",
    "shmsim export": "park -e libgomp -p vm-2cpu",
    "realrun doctor": "",
    "realrun report": "validation",
    "realrun contribute": "run --yes",
    "realrun vllm-import": "traces",
    "realrun vllm-switch": "control",
    "realrun vllm-predict": "comparison",
}
#: Why the others are not called here. They return what the type checker makes them return.
NOT_CALLED = {
    "realrun calibrate": "measures for 50 s",
    "realrun run": "starts processes and needs the costs of this box",
    "realrun validate": "the same; tests/real/test_validate_grid.py",
    "realrun demo": "takes minutes",
    "realrun gpu-check": "needs a GPU",
    "realrun vllm-ab": "needs a vLLM",
    "realrun vllm-soak": "the same",
}


@pytest.fixture(scope="module")
def given_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    (folder / "short.toml").write_text(SHORT)
    (folder / "sweep.toml").write_text(SWEEP)
    (folder / "claims.json").write_text(json.dumps({"claims": [CLAIM]}))
    records_of().write(folder / "run")
    write_validation(folder / "validation")
    (folder / "traces").mkdir()
    write_engine(folder / "traces", 60)
    Control.open(folder / "control", 0)
    write_stored(folder / "comparison")
    return folder


@pytest.fixture
def here(given_files, monkeypatch):
    monkeypatch.chdir(given_files)


def invoke(name, *options):
    program, command = name.split()
    return CliRunner().invoke(APPS[program], [command, *QUICK[name].split(), *options])


# Laws about all of them.


def test_every_command_is_called_here_or_it_is_said_why_not():
    assert {*QUICK, *NOT_CALLED} == set(COMMANDS)
    assert not set(QUICK) & set(NOT_CALLED)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options_a_help_and_the_exit_codes(name):
    command = COMMANDS[name]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--quiet", "-q", "--verbose", "-v"} <= options
    assert command.help
    assert command.epilog == EXIT_CODES
    program, word = name.split()
    for flag in ("-h", "--help"):
        assert CliRunner().invoke(APPS[program], [word, flag]).exit_code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_means_two_things(name):
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts]
    assert len(set(options)) == len(options)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_not_there_is_misuse(name):
    program, word = name.split()
    done = CliRunner().invoke(APPS[program], [word, "--no-such-option"])
    assert done.exit_code == 2
    assert not done.stdout
    assert "no-such-option" in done.stderr.replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_data_are_one_json_document_and_nothing_else_is_on_stdout(name, here):
    done = invoke(name, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout, parse_constant=pytest.fail)
    assert "\x1b" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quiet_says_nothing(name, here):
    done = invoke(name, "-q")
    assert done.exit_code == 0, done.stderr
    assert done.output == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_what_is_said_can_be_piped(name, here):
    """Neither colours nor progress, for no terminal is there."""
    done = invoke(name)
    assert done.exit_code == 0, done.stderr
    assert done.stdout
    assert "\x1b" not in done.output
    assert "%" not in done.stderr


# The piece that does it, on commands of its own.


class Sort(enum.Enum):
    ONE = "one"


class Pair(NamedTuple):
    left: int
    right: float


def toy(function):
    """A program whose second command is a function."""
    app = Program("For a test.")
    app.subcommand("other")(lambda: Output({}))
    app.subcommand("toy", "A toy.")(function)
    return app


def run_toy(function, *options):
    return CliRunner().invoke(toy(function), ["toy", *options])


def saying(data=None, *, holds=True):
    def command() -> Output:
        console.print("for people")
        diagnostics.print("a note")
        details.print("a detail")
        return Output(data, holds)

    return command


@pytest.mark.parametrize(
    ("options", "stdout", "stderr"),
    [
        ((), "for people\n", "a note\n"),
        (("-q",), "", ""),
        (("--json",), "[\n 1\n]\n", "a note\n"),
        (("--json", "-q"), "[\n 1\n]\n", ""),
    ],
)
def test_each_option_lets_through_what_it_says(options, stdout, stderr):
    done = run_toy(saying([1]), *options)
    assert (done.stdout, done.stderr) == (stdout, stderr)


def test_verbose_adds_details_and_what_it_took():
    done = run_toy(saying(), "-v")
    assert done.stdout == "for people\n"
    assert "a detail" in done.stderr
    assert re.search(r"took [\d.]+ s, [\d.]+ s of CPU", done.stderr)


def test_what_one_command_mutes_the_next_one_says_again():
    run_toy(saying(), "-q")
    assert run_toy(saying()).stdout == "for people\n"


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ValueError("7 is too many"), 2, "error: 7 is too many"),
        (RuntimeError("a worker died"), 1, "failed: a worker died"),
        (FileNotFoundError(2, "No such file", "x.toml"), 1, "failed: x.toml: No such file"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_a_line_on_stderr_and_a_code_however_quiet(error, code, word):
    def command() -> Output:
        raise error

    for options in ((), ("-q",), ("--json",)):
        done = run_toy(command, *options)
        assert done.exit_code == code
        assert not done.stdout
        assert done.stderr.startswith(word)
        assert done.stderr.count("\n") == 1
    if code != 130:
        assert "Traceback" in run_toy(command, "-v").stderr


def test_what_does_not_hold_is_said_and_is_a_failure():
    done = run_toy(saying({"x": 1}, holds=False), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"x": 1}


def test_a_claim_that_does_not_hold_is_a_failure(tmp_path):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"claims": [{**CLAIM, "value": 3.0, "holds": False}]}))
    done = CliRunner().invoke(shmsim_app, ["claims", str(path), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["claims"][0]["holds"] is False


def test_named_things_keep_their_names_and_what_is_no_number_becomes_null():
    data = {
        Path("a"): Pair(1, float("nan")),
        "array": np.array([1.5, np.inf]),
        "sort": Sort.ONE,
        "count": np.int64(3),
    }
    assert plain(data) == {
        "a": {"left": 1, "right": None},
        "array": [1.5, None],
        "sort": "one",
        "count": 3,
    }
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        plain({"x": object()})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    )
)
def test_whatever_it_makes_json_can_hold(data):
    json.dumps(plain(data), allow_nan=False)


# As a shell sees them.


def test_both_say_which_version_they_are():
    for app in APPS.values():
        done = CliRunner().invoke(app, ["--version"])
        assert done.exit_code == 0
        assert re.fullmatch(r"shmsim \d\S*\n", done.stdout)


def on_a_terminal(words, **environment):
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    given = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", *words],
        stdout=theirs,
        stderr=theirs,
        env={**given, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert process.wait(timeout=30) == 0
    return said.decode()


WARNS = "from shmsim.console import console; console.print('[red]word[/]')"
WORKS = (
    "from shmsim.console import Bar\n"
    "with Bar() as bar: [bar.show('work', i / 9) for i in range(10)]"
)


def test_colours_follow_the_terminal_and_no_color():
    assert "\x1b[31m" in on_a_terminal([WARNS])
    assert "\x1b[3" not in on_a_terminal([WARNS], NO_COLOR="1")


def test_progress_is_drawn_on_a_terminal_only():
    assert "work" in on_a_terminal([WORKS])
    done = subprocess.run([sys.executable, "-c", WORKS], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("shmsim ti", "timeline"),
        ("shmsim simulate --pol", "--policy"),
        ("shmsim simulate --policy wake", "wake-ahead"),
        ("shmsim simulate --policy WakeA", "WakeAhead:"),
        ("shmsim simulate -p vm", "vm-2cpu"),
        ("shmsim export spin -e vl", "vllm"),
        ("shmsim export spin -f kub", "kubernetes"),
        ("shmsim arena -w one", "one-image"),
        ("shmsim arena --hold fin", "finished"),
        ("realrun calibrate --doorbell e", "eventfd"),
        ("realrun vllm-", "vllm-switch"),
    ],
)
def test_a_shell_is_offered_commands_options_and_values(words, offered):
    program, *_ = parts = words.split()
    environment = {
        f"_{program.upper()}_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
    }
    done = CliRunner().invoke(APPS[program], [], env=environment, prog_name=program)
    assert offered in done.stdout.split()


def test_two_policies_of_one_name_are_told_apart_by_a_name(tmp_path):
    for file in ("first.json", "second.json"):
        write_policy(tmp_path / file, NamedPolicy("tuned", Park()), {})
    files = [str(tmp_path / file) for file in ("first.json", "second.json")]
    with pytest.raises(ConfigError, match=r'among tuned, tuned; give one another, .*"name" in its'):
        load_policies(files)
    text = Path(files[1]).read_text()
    Path(files[1]).write_text(text.replace('"tuned"', '"other"'))
    assert [named.name for named in load_policies([*files, "Park:name=third"])] == [
        "tuned",
        "other",
        "third",
    ]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_profile_is_printed_without_a_cut_name_however_narrow_the_terminal(columns):
    profile = MachineProfile.shipped("h200")
    done = subprocess.run(
        [sys.executable, "-m", "shmsim.cli", "profile", "h200"],
        env={**os.environ, "COLUMNS": str(columns)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert set(profile.costs) <= first
    assert "\u2026" not in done.stdout
    assert "e+0" not in done.stdout  # sizes are numbers of bytes


def test_a_profile_that_keeps_no_replicates_has_no_column_of_them():
    measured = MachineProfile.shipped("vm-2cpu")
    labels = [column.header for column in profile_table(measured).columns]
    assert labels == ["cost", "at", "n", "median", "95 % interval", "p90", "p99"]
    name, curve = next(iter(measured.costs.items()))
    points = tuple(point._replace(replicates=(1.0, 2.0)) for point in curve.points)
    costs = {**measured.costs, name: curve._replace(points=points)}
    whole = profile_table(dataclasses.replace(measured, costs=costs))
    assert whole.columns[-1].header == "replicates' medians"


def test_kinds_of_policies_are_not_cut_in_a_narrow_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "shmsim.cli", "policies"],
        env={**os.environ, "COLUMNS": "60"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "\u2026" not in done.stdout


SIX = """
from rich.table import Table
from shmsim.console import print_uncut
table = Table("policy", *(f"figure {i} in ms" for i in range(6)))
table.add_row("step-ahead-rehearsed", *(f"1234.{i} ± 0.5" for i in range(6)))
print_uncut(table)
"""


@pytest.mark.parametrize("columns", [20, 45, 60, 80, 200])
def test_a_table_is_printed_in_parts_before_a_name_or_number_is_cut(columns):
    done = subprocess.run(
        [sys.executable, "-c", SIX],
        env={**os.environ, "COLUMNS": str(columns)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [i for i in range(6) if f"1234.{i} ± 0.5" in done.stdout] == list(range(6))
    parts = done.stdout.count("step-ahead-rehearsed")
    assert parts == {20: 6, 45: 6, 60: 3, 80: 2, 200: 1}[columns]
    assert columns < 45 or max(map(len, lines)) <= columns


def test_into_a_pipe_a_table_goes_in_one_piece():
    without = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-c", SIX.replace("range(6)", "range(16)")],
        env=without, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("step-ahead-rehearsed") == 1


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "+-0.5 us"), ("latin-1", "±0.5 µs")])
def test_what_an_encoding_lacks_is_spelt_with_what_it_has(encoding, shown):
    done = subprocess.run(
        [sys.executable, "-c", "from shmsim.console import console; console.print('→ ±0.5 µs')"],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.decode(encoding) == f"-> {shown}\n"


WRITING = {"out", "claims", "claims_path", "runs", "steps"}


def test_every_option_that_names_what_is_written_says_so():
    """So that it is tried before minutes of work, and not after."""
    for name, command in COMMANDS.items():
        marked = command.callback.__signature__.parameters.values()
        of_paths = [p for p in marked if p.name in WRITING and "Path" in str(p.annotation)]
        for parameter in of_paths:
            assert "Written" in str(parameter.annotation), f"{name}: {parameter.name}"


def writing(kind):
    def command(out: Annotated[Path, typer.Option(), kind]) -> Output:
        console.print("worked for minutes")
        return Output(out)

    return command


@pytest.mark.parametrize(
    ("kind", "place", "message"),
    [
        (Written.FILE, "folder", "folder: is a folder; name a file in it"),
        (Written.FOLDER, "file", "file: is a file; name a folder"),
        (Written.FOLDER, "file/below/it", "file: is a file; name another folder"),
        (Written.FILE, "/proc/none/x.json", "/proc/none: "),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, kind, place, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    done = run_toy(writing(kind), "--out", str(tmp_path / place))
    assert done.exit_code == 1
    assert message in done.stderr
    assert "worked" not in done.stdout


@pytest.mark.parametrize("kind", list(Written))
def test_a_place_that_is_closed_to_us_is_refused_before_the_work(tmp_path, kind, monkeypatch):
    # The superuser may write everywhere but where a file system is read-only, which is asked here.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    done = run_toy(writing(kind), "--out", str(tmp_path / "x"))
    assert done.exit_code == 1
    assert "cannot be written to; name another place" in done.stderr
    assert "worked" not in done.stdout


def test_a_file_is_written_into_a_folder_that_was_not_there(tmp_path):
    assert run_toy(writing(Written.FILE), "--out", str(tmp_path / "new" / "x")).exit_code == 0
    assert (tmp_path / "new").is_dir()


def test_of_a_full_disk_it_is_said_where_it_was_written_to(tmp_path):
    def full(out: Annotated[Path, typer.Option(), Written.FILE]) -> Output:
        raise OSError(errno.ENOSPC, "No space left on device")

    done = run_toy(full, "--out", str(tmp_path / "x"))
    assert f"No space left on device; it writes to {tmp_path / 'x'}" in done.stderr.replace(
        "\n", ""
    )


def test_torch_that_is_not_there_is_told_how_to_come_by():
    def computes() -> Output:
        raise RuntimeError("the GPU cannot be used: ModuleNotFoundError: No module named 'torch'")

    assert "install -c constraints.txt -e '.[torch]'" in run_toy(computes).stderr


def test_policies_are_described_without_marks_of_a_docstring():
    done = CliRunner().invoke(shmsim_app, ["policies"])
    assert not re.search(r"[`*]", done.stdout.replace("--policy", ""))
