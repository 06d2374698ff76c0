"""A soak: what counts, when it ends, and how it goes on; an engine that follows a script."""

import json
from types import SimpleNamespace

import pytest

from realrun.vllm.control import Counters
from realrun.vllm.engine import Usage
from realrun.vllm.soak import (
    OURS,
    STORE,
    VLLMS,
    Soaked,
    SoakPlan,
    read_soak,
    run_window,
    soak,
    write_soak,
)
from realrun.vllm.soak_report import soak_claims, soak_table
from shmsim.claims import read_claims, write_claims
from shmsim.config import ConfigError

PLAN = SoakPlan(1, True, "vllm 0", {}, 1000, 60.0)
ROW = Soaked(500_000, OURS, 1000, 0, 0.02, 5.0, 900, 0, 0, 0.0)


class Scripted:
    """An engine whose generations take no time, and stall as often as it is told."""

    def __init__(self, by_policy=True, stalls=0, most_tokens=400):
        self.by_policy = by_policy
        self.stalls = stalls
        self.most_tokens = most_tokens
        self.asked = []
        self.sent = 0

    def generate(self, n_streams, n_tokens, within_s=None):
        self.asked.append((n_tokens, within_s))
        n_tokens = min(n_tokens, self.most_tokens)
        self.sent += 2 * n_tokens + 2
        return {"tokens": [[7] * n_tokens], "stalls": self.stalls, "longest_gap_s": 0.01}

    def counters(self):
        ours = {"waits": self.sent, "rung": self.sent}
        theirs = {"vllm_waits": self.sent, "pinged": self.sent}
        counted = {"sent": self.sent, **(ours if self.by_policy else theirs)}
        return {
            "scheduler": Counters(1, 0, 0, **counted),
            "worker0": Counters(2, 1, 0, rescued=self.sent // 1000, **counted),
        }

    def usage(self):
        return Usage({"scheduler": {"main": 5, "others": 5}}, 10, 0)


def silent(_share, _text):
    pass


def test_it_makes_as_many_steps_as_were_asked_for_and_counts_what_stalled():
    engine = Scripted(stalls=2)
    row = run_window(engine, PLAN, 0, OURS, silent)
    assert [n for n, _ in engine.asked] == [400, 400, 200]
    assert all(limit is None for _, limit in engine.asked)
    assert (row.n_steps, row.stalls) == (1000, 6)
    assert row.rung == 2006
    assert row.rescued == 2


def test_the_control_ends_when_its_time_is_over():
    engine = Scripted(by_policy=False, most_tokens=0)
    row = run_window(engine, PLAN._replace(control_s=0.05), 0, VLLMS, silent)
    assert row.n_steps == 0
    assert all(0 < limit <= 0.05 for _, limit in engine.asked)
    assert row.wall_s >= 0.05


def test_a_bell_that_was_not_in_force_stops_it():
    with pytest.raises(RuntimeError, match="not in force"):
        run_window(Scripted(by_policy=False), PLAN, 0, OURS, silent)


def test_what_is_stored_is_not_done_again(tmp_path):
    rows = [ROW, ROW._replace(bell=VLLMS, stalls=3)]
    write_soak(tmp_path / STORE, PLAN, asynchronous=False, rows=rows)
    no_engine = SimpleNamespace()  # it would fail if one were to be started
    plan, found = soak(PLAN, [500_000], no_engine, tmp_path, silent)
    assert found == rows
    assert plan.cell == "tp1-sync-1"  # as the engine had it


def test_another_plan_is_not_mixed_with_what_is_stored(tmp_path):
    write_soak(tmp_path / STORE, PLAN, asynchronous=False, rows=[ROW])
    with pytest.raises(ConfigError, match="n_steps 1000, here 2000"):
        read_soak(tmp_path / STORE, PLAN._replace(n_steps=2000))


def test_a_damaged_store_is_named(tmp_path):
    (tmp_path / STORE).write_text(json.dumps({"plan": {}}))
    with pytest.raises(ConfigError, match=STORE):
        read_soak(tmp_path / STORE, PLAN)


@pytest.mark.parametrize(("stalls", "holds"), [(0, True), (1, False)])
def test_claims_are_about_our_bell_only(stalls, holds, tmp_path):
    rows = [ROW._replace(stalls=stalls), ROW._replace(bell=VLLMS, stalls=12)]
    write_claims(tmp_path / "c.json", {}, soak_claims(PLAN, rows))
    (claim,) = read_claims(tmp_path / "c.json")
    assert claim.id == "vllm/stalls/tp1-async-1-window_500000ns"
    assert claim.holds is holds
    assert claim.n == 1000
    assert soak_table(PLAN, rows).row_count == 2
