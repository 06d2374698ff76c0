"""A sweep in processes: whatever ends it, nothing is broken, and it goes on where it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Each starts several interpreters, which a busy machine takes its time for.
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(240)]

SWEEP = """
profiles = ["vm-2cpu"]
replications = 10
[grid]
workload.requests = [8, 12]
[[case]]
name = "short"
workload.output_p50 = 60
workload.output_p95 = 60
[[policy]]
preset = ["spin", "park"]
"""
N_POINTS = 40
TABLES = ("points.parquet", "estimates.parquet", "comparisons.parquet")


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "sweep.toml"
    path.write_text(SWEEP)
    return path


@pytest.fixture(scope="module")
def undisturbed(sweep_file):
    out = sweep_file.parent / "undisturbed"
    finish(sweep_file, out)
    return out


def start(path, out):
    command = [sys.executable, "-m", "shmsim.cli", "sweep", str(path), "-o", str(out), "-j", "2"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def point_files(out):
    return sorted((out / "points").glob("*/*.json"))


def once_some_are_stored(process, out):
    """Wait until a few points are there and the sweep is still at it."""
    while len(point_files(out)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    assert process.poll() is None


def descendants(pid):
    """Processes that a process has started, themselves included in what they started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def finish(path, out):
    process = start(path, out)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_was_ended_midway_goes_on_where_it_was(sweep_file, undisturbed, tmp_path, how):
    out = tmp_path / "out"
    process = start(sweep_file, out)
    once_some_are_stored(process, out)
    helpers = descendants(process.pid)
    assert helpers
    if how == signal.SIGINT:  # a terminal interrupts the whole group
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -how), output
    if how == signal.SIGINT:
        assert "interrupted" in output
        assert "Traceback" not in output
    # Whoever it had started ends with it.
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in helpers):
        time.sleep(0.01)
    kept = {path: path.stat().st_mtime_ns for path in point_files(out)}
    assert 3 <= len(kept) < N_POINTS

    finish(sweep_file, out)
    assert len(point_files(out)) == N_POINTS
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert not list(out.rglob("*.unfinished"))

    for name in TABLES:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()


def is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_process_that_dies_ends_the_sweep_and_says_what_to_do(sweep_file, tmp_path):
    out = tmp_path / "out"
    process = start(sweep_file, out)
    once_some_are_stored(process, out)
    os.kill(descendants(process.pid)[-1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "run the sweep again" in output.replace("\n", " ")
    finish(sweep_file, out)
    assert len(point_files(out)) == N_POINTS
