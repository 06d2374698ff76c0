"""What experiments/bench/engines.py compares and measures."""

import subprocess
import sys

import pytest

from shmsim.difference import Difference
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from tests.scripts import BENCH, imported

FAT_MIB = 600


@pytest.fixture(scope="module")
def bench():
    with imported([BENCH], "simulated", "alike", "stats", "loops", "parts", "engines") as modules:
        yield modules


def test_a_child_of_a_fat_parent_tells_its_own_peak():
    child = [sys.executable, str(BENCH / "engines.py"), "--peak-of", "simpy", "1", "keep"]
    parent = (
        f"import subprocess; fat = b'x' * ({FAT_MIB} << 20); subprocess.run({child}, check=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], check=True, capture_output=True, text=True
    )
    assert 10 << 20 < int(done.stdout) < FAT_MIB << 20


def test_no_case_is_refused_and_many_carry_bulk(bench):
    cases = list(bench["alike"].cases(1, 200))
    for case in cases[:40]:
        assert simulate(*case).steps
    with_bulk = [case for case in cases if case.config.payload.bytes_per_step]
    assert len(with_bulk) > 50
    assert sum(bool(case.config.payload.arena) for case in with_bulk) > 20


def test_what_is_measured_of_a_profile_is_not_replaced(bench):
    h200 = MachineProfile.shipped("h200")
    found = bench["alike"].with_bulk(h200)
    assert {name: found.costs[name] for name in h200.costs} == h200.costs
    assert "socket_send" in found.costs


def compared(bench, monkeypatch, n_drawn, n_events, difference="", refused=""):
    alike, engines = bench["alike"], bench["engines"]
    drawn = alike.Drawn(n_drawn, n_events, 0, 0, refused)
    found = {"events": alike.Compared(n_events, difference)}
    monkeypatch.setattr(alike, "compare", lambda *_: (drawn, found))
    ((claim,), record) = engines.measure_alike(engines.FULL)
    assert record["cases"]["refused"] == refused
    return claim


@pytest.mark.parametrize(
    ("n_drawn", "n_events", "difference", "refused", "holds"),
    [
        (300, 300, "", "", True),
        (0, 0, "", "", False),
        (199, 199, "", "", False),
        (300, 299, "", "case 7: no cost", False),
        (300, 300, "case 7, steps[1]", "", False),
    ],
)
def test_the_claim_takes_two_hundred_runs_and_every_one_that_was_drawn(
    bench, monkeypatch, n_drawn, n_events, difference, refused, holds
):
    claim = compared(bench, monkeypatch, n_drawn, n_events, difference, refused)
    assert claim.holds == holds


def test_what_is_refused_is_counted_and_what_differs_is_told(bench, monkeypatch):
    alike = bench["alike"]
    monkeypatch.setattr(alike, "with_bulk", lambda profile: profile)
    monkeypatch.setattr(alike, "choose", lambda config, profile, name: None)
    first = Difference(5, "steps[0]", "this", "that")
    monkeypatch.setattr(alike, "first_difference", lambda expected, found: first)

    def simpy(config, policy, profile, engine):
        return simulate(config, policy, profile)

    monkeypatch.setattr(alike, "simulate_with", simpy)
    drawn, found = alike.compare(20261130, 12)
    assert 0 < drawn.compared < drawn.n == 12
    assert "needs the cost" in drawn.refused
    assert found["events"].n == drawn.compared
    assert found["events"].difference.endswith("steps[0]: this and that")


def test_memory_that_is_kept_is_told_apart_from_growth(bench, monkeypatch):
    engines = bench["engines"]
    monkeypatch.setattr(
        engines,
        "_peak",
        lambda engine, n, numbers: 10**8 + 50 * n + (numbers == "keep") * 5 * 10**8,
    )
    claims, table = engines._memory(1_000, 11_000)
    of = {claim.id: claim for claim in claims}
    assert of["engines/bytes_per_step/recurrence"].value == 50
    assert of["engines/kept_bytes/recurrence"].value == 5 * 10**8
    assert not of["engines/kept_bytes/recurrence"].holds
    assert table["events"] == {1_000: 10**8 + 50_000, 11_000: 10**8 + 550_000}
