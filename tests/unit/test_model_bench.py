"""What experiments/bench/model.py times and measures."""

import json
import subprocess
import sys

import pytest

from tests.scripts import BENCH, imported
from tests.toy import toy_profile


@pytest.fixture(scope="module")
def simulated():
    with imported([BENCH], "simulated") as modules:
        yield modules["simulated"]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_its_power(simulated, power):
    sizes = [10.0, 100.0, 1000.0]
    assert simulated.exponent(sizes, [3.0 * n**power for n in sizes]) == pytest.approx(power)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_a_run_has_as_many_steps_and_workers_as_asked_for(simulated, n_workers):
    config = simulated.with_workers(n_workers, 200)
    assert config.engine.workers == n_workers
    assert config.cores.n == 1 + n_workers
    run = simulated.timed(config, toy_profile())
    # A request waits for a step of prefill before it decodes.
    assert 200 <= run.n_steps <= 240
    assert run.cpu_s > 0


def test_a_run_has_as_many_requests_as_asked_for(simulated):
    assert simulated.timed(simulated.with_requests(600), toy_profile()).n_requests == 600


def test_the_claimed_run_is_two_calls_and_two_workers_on_two_cores(simulated):
    shape = simulated.shape()
    assert (shape.engine.calls_per_step, shape.engine.workers, shape.cores.n) == (2, 2, 2)


@pytest.mark.slow
def test_dropping_the_rows_changes_the_memory_and_not_the_run(tmp_path):
    toy_profile().write(tmp_path / "profile.json")
    found = {}
    for rows in ("keep", "drop"):
        command = [sys.executable, str(BENCH / "simulated.py"), str(tmp_path / "profile.json")]
        done = subprocess.run([*command, "2000", rows], check=True, capture_output=True, text=True)
        found[rows] = json.loads(done.stdout)
    assert found["keep"]["n_steps"] == found["drop"]["n_steps"] >= 2000
    assert found["keep"]["peak_bytes"] > found["drop"]["peak_bytes"]
