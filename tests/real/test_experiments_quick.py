"""Every experiment in little, by its command: it runs to its end and stores what can be read."""

import json
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest

from shmsim.claims import read_claims
from tests.real.conftest import eventually
from tests.real.runs import ROOT

EXPERIMENTS = ROOT / "experiments"
NAMES = sorted(path.parent.name for path in EXPERIMENTS.glob("[0-9][0-9]_*/run.py"))

BUSY = "too busy to calibrate"
LIMIT_S = 380
TRIES = 4

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def read_record():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        yield import_module("runner.record").read_record


def run_to_the_end(command, cwd):
    """Run an experiment, again where others took the cores from its calibration meanwhile.

    It goes on behind what it has finished. On a box that is always busy nobody can calibrate, so
    that the test is skipped.
    """
    until_s = time.monotonic() + LIMIT_S
    busy = ""
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=until_s - time.monotonic(),
                check=False,
                cwd=cwd,
            )
        except subprocess.TimeoutExpired:
            if not busy:
                raise
            break
        if done.returncode != 1 or BUSY not in done.stderr:
            return done
        busy = done.stderr.strip().splitlines()[-1]
        time.sleep(5)
    pytest.skip(busy)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_runs_in_little_and_stores_a_record(name, read_record, tmp_path):
    command = [sys.executable, str(EXPERIMENTS / "run.py"), name, "--quick"]
    command += ["--out", str(tmp_path / "out")]
    done = run_to_the_end(command, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    record = read_record(tmp_path / "out" / "record.json")
    assert (record.experiment, record.effort) == (name, "quick")
    n_ran = sum(row.content is not None for row in record.rows)
    assert n_ran > 0 or name == "13_gpu_nodes", [row.skipped for row in record.rows]
    assert all(claim.n > 0 for claim in read_claims(tmp_path / "out" / "claims.json"))
    if name == "10_model_against_machine":  # the leaderboard's, made while the waits are there
        bundles = [json.loads(p.read_text()) for p in (tmp_path / "out").glob("*/bundle.json")]
        assert len(bundles) == n_ran
        assert all(b["waits"].get("L2_ns", 0) > 0 for b in bundles), bundles[0]["waits"]
    # It came to its end, so that the next one measures anew.
    assert not list((tmp_path / "runs").glob("**/cells"))


def test_the_model_says_the_same_twice(read_record, tmp_path):
    digests = set()
    for out in ("first", "second"):
        command = [sys.executable, str(EXPERIMENTS / "run.py"), "12", "--quick", "--node", "here"]
        command += ["--out", str(tmp_path / out)]
        subprocess.run(command, check=True, capture_output=True, timeout=180, cwd=tmp_path)
        digests.add(read_record(tmp_path / out / "record.json").digest("here"))
    assert len(digests) == 1


def test_ctrl_c_keeps_what_is_done_and_leaves_nothing_else(read_record, tmp_path):
    command = [sys.executable, str(EXPERIMENTS / "run.py"), "07", "--quick"]
    command += ["--out", str(tmp_path / "out")]
    kept = tmp_path / "runs" / "experiments" / "kept"
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: list(kept.glob("*/cells/*.json")), within_s=60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on where it was" in said
    done = {path.name: path.stat().st_mtime_ns for path in kept.glob("*/cells/*.json")}
    assert not (tmp_path / "out").exists()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        n_before = len(done)
        eventually(lambda: len(list(kept.glob("*/cells/*.json"))) > n_before, within_s=60)
        now = {path.name: path.stat().st_mtime_ns for path in kept.glob("*/cells/*.json")}
        assert done.items() <= now.items(), "a finished cell was run again"
        assert process.wait(timeout=300) == 0
    assert read_record(tmp_path / "out" / "record.json").experiment == "07_lost_wakeups"


def test_gpu_nodes_can_be_tried_without_a_gpu_and_are_labelled(read_record, tmp_path):
    plan = (EXPERIMENTS / "13_gpu_nodes" / "config.toml").read_text()
    for old, new in (
        ('kind = "cuda"', 'kind = "echo"'),
        ('profile = ""', 'profile = "vm-2cpu"'),
        ('policies = ["spin", ', 'policies = ["spin"] # '),
    ):
        assert plan.count(old) == 1
        plan = plan.replace(old, new)
    (tmp_path / "config.toml").write_text(plan)
    command = [sys.executable, str(EXPERIMENTS / "run.py"), "13", "--quick"]
    command += ["--config", str(tmp_path / "config.toml"), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True, timeout=300, cwd=tmp_path)
    of_gpus, block = read_record(tmp_path / "out" / "record.json").rows
    assert of_gpus.world == block.world == "emulated"
    assert [row["is_policy"] for row in block.content["rows"]] == [False, True, True, False]
    assert block.content["emulated"]
    assert read_claims(tmp_path / "out" / "claims.json") == []
