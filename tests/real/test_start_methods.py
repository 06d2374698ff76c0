"""A ticket is all that a worker needs, however multiprocessing starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from realrun.doorbell import KINDS
from tests.real.runs import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

N_MESSAGES = 300


@pytest.mark.parametrize("doorbell", KINDS)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_works_with_the_ticket_it_was_given(method, doorbell):
    script = Path(__file__).with_name("starts_a_worker.py")
    arguments = [method, doorbell, str(N_MESSAGES)]
    done = subprocess.run(
        # A fork beside threads of numpy is deprecated from Python 3.12 on, and what is asked for.
        [sys.executable, "-Werror", "-Wignore::DeprecationWarning", script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    outcome = json.loads(done.stdout)
    assert outcome["is_right"]
    assert outcome["exit_codes"] == [0, 0]
    assert outcome["rescued"] == [0, 0]
    assert outcome["rung"] > 0, "nobody slept: this has shown nothing"
    assert all(outcome["routes"][:2])
    assert outcome["left"] == []
