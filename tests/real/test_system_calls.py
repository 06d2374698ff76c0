"""While everybody spins, a hand-off never enters the kernel."""

import json
import os
import subprocess
import sys

import pytest

from tests.real.runs import ROOT

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

N_MORE_TRIPS = 2000


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two spinners on one core take turns, by the kernel"
)
def test_while_every_reader_spins_no_message_makes_a_system_call():
    script = ROOT / "experiments" / "bench" / "syscalls.py"
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    if "not_counted" in found:
        pytest.skip(found["not_counted"])
    more = found["calls"]
    assert sum(map(abs, more.values())) < 0.05 * N_MORE_TRIPS, more
    assert not [name for name in found["threads"] if name.startswith("ZMQ")], (
        "the futex doorbell needs no threads"
    )
