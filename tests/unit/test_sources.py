"""What is named after source files was made by what they held, or it gets no name."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shmsim
from shmsim.sources import Sources, refuse_changed

PACKAGE = Path(shmsim.__file__).parent


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "some_source.py"
    path.write_text("VALUE = 1\n")
    return path


@pytest.fixture
def begun_ns(source):
    """An instant after the file was written, by a clock that ticks every few milliseconds."""
    time.sleep(0.02)
    return time.time_ns()


def change(path):
    time.sleep(0.02)
    path.write_text("VALUE = 2\n")
    os.utime(path, (0, 0))  # as rsync and tar set the date of what they copy


def imported(path, monkeypatch):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)


def test_a_file_that_has_changed_is_refused_whatever_its_date(source, begun_ns):
    refuse_changed([source], begun_ns)
    change(source)
    with pytest.raises(RuntimeError, match=r"some_source\.py has changed .* run the same command"):
        refuse_changed([source], begun_ns)


def test_what_is_not_loaded_or_was_loaded_before_the_change_may_change(
    source, begun_ns, monkeypatch
):
    early, late = (Sources({"some_source": source}, begun_ns) for _ in range(2))
    early.check()
    imported(source, monkeypatch)
    early.check()
    change(source)
    early.check()
    with pytest.raises(RuntimeError, match="has changed"):
        late.check()


def test_what_is_loaded_again_is_looked_at_again(source, begun_ns, monkeypatch):
    sources = Sources({"some_source": source}, begun_ns)
    imported(source, monkeypatch)
    sources.check()
    change(source)
    imported(source, monkeypatch)
    with pytest.raises(RuntimeError, match="has changed"):
        sources.check()


# The model itself, in a copy.

PLAN = """
from pathlib import Path
import shmsim
from shmsim.config import RunConfig, WorkloadConfig, parse_policy
from shmsim.profile import MachineProfile
from shmsim.sim.sweep import sweep
from shmsim.sweep.plan import plan_of

def edit(name):
    with Path(shmsim.__file__).with_name(name).open("a") as file:
        file.write("# another line\\n")

work = WorkloadConfig(requests=3, output_p50=5, output_p95=5)
policies = [parse_policy(name) for name in ("spin", "park")]
profile = MachineProfile.shipped("vm-2cpu")
plan = plan_of(RunConfig(workload=work), policies, profile, replications=2)
"""


def last_line_of(program, folder):
    """What a program says at last that imports a copy of the model, and changes it."""
    if not (folder / "shmsim").exists():
        shutil.copytree(PACKAGE, folder / "shmsim", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "program.py"
    # Processes of a pool import the main module, so what it does stands in a block.
    body = "".join(f"    {line}\n" for line in program)
    path.write_text(f"{PLAN}\nif __name__ == '__main__':\n{body}")
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.slow
def test_a_sweep_keeps_nothing_under_the_key_of_other_source(tmp_path):
    keeps = "print(sweep(plan, Path('kept'), jobs={}).num_rows)"
    assert last_line_of([keeps.format(1)], tmp_path) == "4"
    # A result that is there was stored under the key of the source before.
    assert last_line_of([keeps.format(1)], tmp_path) == "4"
    n_kept = len(list((tmp_path / "kept" / "points").glob("*/*")))
    said = last_line_of(["edit('wait.py')", keeps.format(1)], tmp_path)
    assert said.startswith("RuntimeError: ")
    assert "wait.py has changed since" in said
    assert len(list((tmp_path / "kept" / "points").glob("*/*"))) == n_kept
    # What no key covers may change.
    assert last_line_of(["edit('cli.py')", keeps.format(1)], tmp_path) == "4"


@pytest.mark.slow
def test_processes_that_import_other_source_than_their_parent_give_no_result(tmp_path):
    program = ["edit('wait.py')", "print(sweep(plan, jobs=2).num_rows)"]
    assert "wait.py has changed since" in last_line_of(program, tmp_path)
