"""A grid on this machine: stored run by run, continued, interrupted, judged anew."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import realrun.grid
from realrun.calibrate import N_THOROUGH
from realrun.cells import read_grid
from realrun.cli import app
from realrun.equivalence import Verdict
from realrun.grid import run_grid
from realrun.run import RunFailed
from shmsim.claims import read_claims
from shmsim.records import RunRecords
from tests.real.conftest import eventually, left_behind
from tests.real.runs import ROOT
from tests.toy import toy_profile

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

CELLS = """
[grid]
run = "20ms"
cells = [
    { policy = "park", step = "1ms", jitter = 0.05, workers = 1, scheduling = "sync" },
    { policy = "yield", step = "1ms", jitter = 0.05, workers = 1, scheduling = "sync" },
]
[device]
per_prefill_token = "0us"
[workload]
requests = 4
concurrency = 2
prompt_p50 = 8
prompt_p95 = 8
[run]
repeats = 2
"""
N_RUNS = 8


def always(profile):
    """The same profile before each sweep."""
    return lambda _sweep: profile


def run_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "cells.toml"
    path.write_text(CELLS)
    return read_grid(path)


@pytest.fixture(scope="module")
def done(grid, tmp_path_factory):
    """A folder with all runs, and what came out."""
    folder = tmp_path_factory.mktemp("runs")
    return folder, run_grid(grid, always(toy_profile()), folder)


def test_every_run_is_stored_by_cell_and_tape(done, grid):
    folder, _ = done
    assert run_names(folder) == sorted(
        f"{cell.name}/{tape}-{run}" for cell in grid.cells for tape in (0, 1) for run in "ab"
    )
    for name in run_names(folder):
        assert RunRecords.read(folder / name).meta["world"] == "machine"


def test_every_cell_is_judged_by_both_worlds_on_the_same_tapes(done, grid):
    _, results = done
    assert [result.cell for result in results] == list(grid.cells)
    for result in results:
        assert len(result.tapes) == 2
        for tape in result.tapes:
            figures = (*tape.model, *tape.machine)
            assert all(set(f.cores) == {"scheduler", "worker0"} for f in figures)
            # The step takes a millisecond in either world.
            assert all(f.tpot_p50_ns > 900_000 for f in figures)
        assert {finding.verdict for finding in result.findings} <= set(Verdict)


def test_a_second_call_runs_nothing_on_the_machine_and_the_model_anew(done, grid, monkeypatch):
    folder, results = done

    def nothing_is_missing(_spec, logs):
        raise AssertionError("this run was stored")

    monkeypatch.setattr(realrun.grid, "run_once", nothing_is_missing)
    assert run_grid(grid, always(toy_profile()), folder) == results


def test_what_is_missing_is_run_and_nothing_else(done, grid, monkeypatch):
    folder, results = done
    name = run_names(folder)[2]
    (folder / name).rename(folder.parent / "put aside")
    run_once, ran = realrun.grid.run_once, []

    def noted(spec, logs):
        ran.append(spec)
        return run_once(spec, logs=logs)

    monkeypatch.setattr(realrun.grid, "run_once", noted)
    again = run_grid(grid, always(toy_profile()), folder)
    assert len(ran) == 1
    assert len(run_names(folder)) == N_RUNS
    assert [r.cell for r in again] == [r.cell for r in results]


def test_runs_of_another_profile_are_not_taken_for_these(done, grid):
    folder, _ = done
    with pytest.raises(ValueError, match="holds another run than the one asked for"):
        run_grid(grid, always(toy_profile(wake_latency=1_000_000)), folder)


def test_each_sweep_is_predicted_on_the_profile_before_it(grid, tmp_path):
    asked = []

    def slower_and_slower(sweep):
        asked.append((sweep, len(run_names(tmp_path))))
        return toy_profile(wake_latency=(1 + sweep) * 200_000)

    results = run_grid(grid, slower_and_slower, tmp_path)
    n_cells = len(grid.cells)
    assert asked == [(sweep, sweep * n_cells) for sweep in range(4)]
    park = next(result for result in results if "park" in result.cell.name)
    for tape in park.tapes:  # sweeps 0 and 2, or 1 and 3: wake-ups take 400 us more
        assert tape.model[1].tpot_p50_ns > tape.model[0].tpot_p50_ns + 300_000


def test_an_interruption_keeps_what_was_finished_and_leaves_no_half_a_run(
    grid, tmp_path, monkeypatch
):
    run_once, ran = realrun.grid.run_once, []

    def interrupted(spec, logs):
        ran.append(spec)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return run_once(spec, logs=logs)

    monkeypatch.setattr(realrun.grid, "run_once", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, always(toy_profile()), tmp_path)
    assert len(run_names(tmp_path)) == 2


def test_an_interruption_while_a_run_is_stored_leaves_no_half_a_run(grid, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(realrun.grid.RunSpec, "write", interrupted)
    monkeypatch.setattr(realrun.grid, "run_once", lambda _spec, logs: RunRecords())
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, always(toy_profile()), tmp_path)
    assert run_names(tmp_path) == []


def test_of_a_run_that_fails_all_is_kept_that_its_processes_said(grid, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import realrun.worker\n\ndef fail(self):\n    raise RuntimeError('no such device')\n\n"
        "realrun.worker.Worker.run = fail\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    folder = tmp_path / "out"
    with pytest.raises(RunFailed, match=re.escape(f"said is in {folder / 'logs'}")):
        run_grid(grid, always(toy_profile()), folder)
    assert "no such device" in (folder / "logs" / "worker0.log").read_text()


# The command.


@pytest.fixture
def files(tmp_path):
    """Cells and a thorough profile, as arguments."""
    (tmp_path / "cells.toml").write_text(CELLS)
    profile = toy_profile()
    profile.machine["replicates"] = N_THOROUGH
    profile.write(tmp_path / "profile.json")
    arguments = ["validate", "--grid", str(tmp_path / "cells.toml")]
    return [*arguments, "-p", str(tmp_path / "profile.json"), "-o", str(tmp_path / "out")]


def invoke(arguments):
    return CliRunner().invoke(app, arguments)


def test_the_command_writes_claims_and_a_record_and_says_every_verdict(files, tmp_path):
    out = invoke(
        [*files, "--claims", str(tmp_path / "claims.json"), "--cell", "tp1-sync-1ms-5pct-park"]
    )
    assert out.exit_code == 0, out.output
    assert "tp1-sync-1ms-5pct-park" in out.stdout
    assert "TP1 sync (1 cells): tpot_p50:" in out.stdout
    ids = [claim.id for claim in read_claims(tmp_path / "claims.json")]
    assert "validation/cpu/share_holding" in ids
    (cell,) = json.loads((tmp_path / "out" / "grid.json").read_text())["cells"]
    assert cell["name"] == "tp1-sync-1ms-5pct-park"


def test_a_profile_that_is_not_thorough_is_refused(files, tmp_path):
    toy_profile().write(tmp_path / "profile.json")
    out = invoke(files)
    assert out.exit_code == 2
    assert "realrun calibrate --thorough" in out.stderr


def test_what_does_not_go_together_is_refused(files, tmp_path):
    assert invoke([*files, "--policy", "spin"]).exit_code == 2
    assert invoke([*files, str(tmp_path / "cells.toml")]).exit_code == 2
    assert invoke(["validate", "--cell", "x"]).exit_code == 2
    assert invoke(["validate", "--claims", "x.json"]).exit_code == 2
    assert invoke([*files, "--cell", "no-such-cell"]).exit_code == 2


def test_ctrl_c_leaves_nothing_behind(files, tmp_path):
    path = tmp_path / "cells.toml"
    path.write_text(CELLS.replace('"20ms"', '"60s"'))
    command = [sys.executable, "-c", "from realrun.cli import app; app()", *files]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        prefix = f"shmsim-{process.pid}-"
        segments = Path("/dev/shm")
        # Under way: somebody has made the segment and, once all have it, taken its name away.
        eventually(lambda: list(segments.glob(f"{prefix}*")), 30.0)
        eventually(lambda: not list(segments.glob(f"{prefix}*")), 30.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in said
    assert run_names(tmp_path / "out") == []
    assert not list(segments.glob(f"{prefix}*"))
    assert left_behind() == set()
