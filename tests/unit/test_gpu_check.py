"""What a check of a GPU asks for, and how it judges what came out."""

import json

import pytest

from realrun.gpu_check import (
    Cell,
    Found,
    Row,
    cells,
    claims_of,
    config_of,
    write_found,
)
from shmsim.config import DeviceConfig
from shmsim.inputs.catalog import load_gpu, load_model
from shmsim.policies import PRESETS
from shmsim.roofline import RooflineStepTime
from shmsim.units import MS, US

H200 = {"kind": "cuda", "name": "NVIDIA H200", "observe": "write"}
SPIN = Cell(2, "sync", "write", "spin")
AHEAD = SPIN._replace(policy="step-ahead-rehearsed")


def row(cell, tpot_ns, cores=2.0, crc=7, step_ns=1 * MS):
    return Row(cell, tpot_ns, step_ns, cores, crc, H200)


def found(rows=(), tests=0, copies=None):
    return Found(tests, copies or {}, list(rows), [], [])


def judged(of):
    return {claim.id.removeprefix("gpu/"): claim for claim in claims_of(of)}


def test_every_cell_is_asked_for_once_and_can_be_run():
    wanted = cells()
    assert len(set(wanted)) == len(wanted)
    assert {cell.batch for cell in wanted} == {1, 2, 8, 32}
    assert {cell.observe for cell in wanted} == {"write", "copy", "query", "blocking", "sync"}
    for cell in wanted:
        assert cell.policy in PRESETS
        config = config_of(cell, DeviceConfig(kind="cuda"))
        assert config.device.observe == cell.observe
        assert config.engine.max_sequences == config.workload.concurrency == cell.batch


def test_a_policy_is_held_against_spinning_in_the_same_cell():
    claims = judged(found([row(SPIN, 2.0 * MS), row(AHEAD, 2.005 * MS, 0.25)]))
    assert claims["batch2_sync_write_step_ahead_tpot_ratio"].value == pytest.approx(1.0025)
    assert claims["batch2_sync_write_step_ahead_tpot_ratio"].holds
    assert claims["batch2_sync_write_step_ahead_cores"].holds
    slower = judged(found([row(SPIN, 2.0 * MS), row(AHEAD, 2.05 * MS, 0.5)]))
    assert not slower["batch2_sync_write_step_ahead_tpot_ratio"].holds
    assert not slower["batch2_sync_write_step_ahead_cores"].holds
    assert "batch2_sync_write_step_ahead_cores" not in judged(found([row(AHEAD, 2.0 * MS)]))


def test_tokens_that_differ_between_policies_are_a_failure():
    assert judged(found([row(SPIN, MS), row(AHEAD, MS)]))["batch2_sync_token_streams"].holds
    differing = found([row(SPIN, MS), row(AHEAD, MS, crc=8)])
    assert not judged(differing)["batch2_sync_token_streams"].holds


def test_the_step_is_held_against_its_roofline():
    law = RooflineStepTime(load_model("llama-3.2-1b"), load_gpu("h200"))
    floor_ns = law.mean_ns(2, 0, 2 * (64 + 150))
    assert 560 * US < floor_ns < 600 * US
    claims = judged(found([row(SPIN, MS, step_ns=1.2 * floor_ns)]))
    assert claims["step_over_floor"].value == pytest.approx(1.2)
    assert claims["step_over_floor"].holds
    assert not judged(found([row(SPIN, MS, step_ns=3.8 * floor_ns)]))["step_over_floor"].holds


def test_ways_and_copies_are_compared():
    asked = SPIN._replace(observe="query")
    copies = {"copies": [("registered", 9, 1, 100.0), ("pinned", 9, 1, 99.0)]}
    claims = judged(found([row(SPIN, MS), row(asked, 1.01 * MS)], copies=copies))
    assert claims["write_to_query_tpot_ratio"].holds
    assert claims["h2d_registered_of_pinned_speed"].holds
    slow = {"copies": [("registered", 9, 1, 300.0), ("pinned", 9, 1, 99.0)]}
    assert not judged(found(copies=slow))["h2d_registered_of_pinned_speed"].holds


def test_failed_tests_are_a_failure_and_tests_that_are_not_here_are_not():
    assert not judged(found(tests=1))["tests_exit_code"].holds
    assert "tests_exit_code" not in judged(found(tests=-1))


def test_what_was_found_is_stored_with_what_was_left_out(tmp_path):
    left_out = found([row(SPIN, MS)])._replace(not_run=[AHEAD], failures=["x: y"])
    write_found(tmp_path / "found.json", left_out)
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["rows"][0]["policy"] == "spin"
    assert content["rows"][0]["tpot_p50_ns"] == MS
    assert content["not_run"] == ["batch 2, sync, write, step-ahead-rehearsed"]
