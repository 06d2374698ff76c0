"""The sweep of an experiment with ``--cluster`` gives what it gives without."""

import importlib.util
import subprocess
import sys

import pytest

from tests.real.clusters import REPOSITORY, Machines

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None, reason="needs the extra 'cluster'"
    ),
]
SCRIPT = REPOSITORY / "tests" / "real" / "sweeps_in_an_experiment.py"


def sweep(folder, *address):
    command = [sys.executable, str(SCRIPT), str(folder), *address]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_sweep_of_an_experiment_gives_the_same_on_a_cluster(tmp_path):
    for name in ("machines", "here", "there"):
        (tmp_path / name).mkdir()
    machines = Machines(tmp_path / "machines")
    try:
        machines.work()
        assert sweep(tmp_path / "there", machines.address) == sweep(tmp_path / "here")
    finally:
        machines.end()
