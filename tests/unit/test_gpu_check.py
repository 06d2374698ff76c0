"""What a check of a GPU asks for, and how it judges what came out."""

import json

import pytest

from realrun.gpu_check import (
    Cell,
    Clock,
    Figures,
    Found,
    Row,
    Spent,
    cells,
    cells_table,
    claims_of,
    config_of,
    draw_predictions,
    spent_sentence,
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


def found(rows=(), tests=0, copies=None, predicted=None):
    return Found(tests, {"copies": copies or {}}, list(rows), predicted or {}, [], [])


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
    copies = {"rows": [("registered", 9, 1, 100.0), ("pinned", 9, 1, 99.0)]}
    claims = judged(found([row(SPIN, MS), row(asked, 1.01 * MS)], copies=copies))
    assert claims["write_to_query_tpot_ratio"].holds
    assert claims["h2d_registered_of_pinned_speed"].holds
    slow = {"rows": [("registered", 9, 1, 300.0), ("pinned", 9, 1, 99.0)]}
    assert not judged(found(copies=slow))["h2d_registered_of_pinned_speed"].holds


def test_failed_tests_are_a_failure_and_tests_that_are_not_here_are_not():
    assert not judged(found(tests=1))["tests_exit_code"].holds
    assert "tests_exit_code" not in judged(found(tests=-1))


def test_what_was_found_is_stored_with_what_was_left_out(tmp_path):
    told = {SPIN: Figures(0.9 * MS, MS, 2.0)}
    left_out = found([row(SPIN, MS)], predicted=told)
    left_out = left_out._replace(
        not_run=[AHEAD], failures=["x: y"], spent=(Spent("cells", 200.0, 190.0),)
    )
    write_found(tmp_path / "found.json", left_out)
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["rows"][0]["policy"] == "spin"
    assert content["rows"][0]["tpot_p50_ns"] == MS
    assert content["rows"][0]["predicted"]["tpot_p50_ns"] == 0.9 * MS
    assert content["spent"] == [{"part": "cells", "limit_s": 200.0, "took_s": 190.0}]
    assert content["not_run"] == ["batch 2, sync, write, step-ahead-rehearsed"]
    without = spent_sentence(left_out)
    assert without.startswith(
        "time: cells 190 of 200 s; left out: 1 cells, the tests, which are not"
    )
    tested = left_out._replace(spent=(*left_out.spent, Spent("tests", 180.0, 90.0)))
    assert spent_sentence(tested) == (
        "time: cells 190 of 200 s, tests 90 of 180 s; left out: 1 cells"
    )


def expected(tpot_ns, cores=2.0):
    return Figures(tpot_ns, 1 * MS, cores)


def test_every_kind_of_cell_has_a_claim_about_its_worst_prediction():
    query = SPIN._replace(observe="query")
    rows = [row(SPIN, 2.0 * MS), row(AHEAD, 2.0 * MS, 0.3), row(query, 2.0 * MS)]
    told = {
        SPIN: expected(2.02 * MS),
        AHEAD: expected(1.92 * MS, 0.5),
        query: expected(2.2 * MS),
    }
    claims = judged(found(rows, predicted=told))
    near = claims["predicted_sync_write_tpot_error"]
    assert near.value == pytest.approx(0.04)
    assert (near.low, near.n, near.holds) == (pytest.approx(0.01), 2, True)
    assert not claims["predicted_sync_write_cores_error"].holds
    assert claims["predicted_sync_write_cores_error"].value == pytest.approx(0.2)
    assert not claims["predicted_sync_query_tpot_error"].holds


def test_a_cell_that_nobody_predicted_is_claimed_of_by_nobody():
    assert not [name for name in judged(found([row(SPIN, MS)])) if name.startswith("predicted")]


def test_where_two_threads_of_a_worker_spin_nothing_is_claimed_of_cores():
    both = SPIN._replace(observe="sync")
    claims = judged(found([row(both, MS, 3.0)], predicted={both: expected(MS)}))
    assert "predicted_sync_sync_tpot_error" in claims
    assert "predicted_sync_sync_cores_error" not in claims


def test_copies_that_wait_for_a_busy_stream_are_a_failure():
    returned = {"busy": [("registered", 8, 5, 3, 3), ("pageable", 8, 9, 0, 3)]}
    claim = judged(found(copies=returned))["h2d_registered_returned_while_busy"]
    assert (claim.value, claim.n, claim.holds) == (1.0, 3, True)
    waited = {"busy": [("registered", 8, 5, 3, 3), ("registered", 9, 10**7, 1, 3)]}
    assert not judged(found(copies=waited))["h2d_registered_returned_while_busy"].holds
    assert judged(found(copies={"rows": [("pinned", 9, 1, 99.0)]})).keys() == {"tests_exit_code"}


def test_predictions_are_drawn_and_told_beside_what_was_measured(tmp_path):
    again = SPIN._replace(repeat=1)
    rows = [row(SPIN, 2.0 * MS), row(again, 2.02 * MS), row(AHEAD, 2.1 * MS)]
    of = found(rows, predicted={SPIN: expected(2.01 * MS)})
    draw_predictions(tmp_path / "predicted.png", of.rows, of.predicted)
    assert (tmp_path / "predicted.png").read_bytes().startswith(b"\x89PNG")
    columns = [list(column.cells) for column in cells_table(of).columns]
    assert columns[0][1] == "batch 2, sync, write, spin, run 2"
    assert columns[3] == ["2010", "2010", "-"]
    assert columns[4] == ["+0.5", "-0.5", ""]
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_predictions(tmp_path / "none.png", [], {})


def test_time_is_kept_for_the_last_part_and_noted_for_each():
    now = [50.0]
    clock = Clock(480.0, 180.0, lambda: now[0])
    now[0] += 60.0
    clock.note("calibration", 100.0)
    assert (clock.left_s, clock.before_last_s) == (420.0, 240.0)
    now[0] += 300.0
    clock.note("cells", 240.0)
    assert (clock.left_s, clock.before_last_s) == (120.0, 0.0)
    assert clock.share == 0.75
    assert clock.spent == [Spent("calibration", 100.0, 60.0), Spent("cells", 240.0, 300.0)]
    now[0] += 1000.0
    assert (clock.left_s, clock.share) == (0.0, 1.0)
