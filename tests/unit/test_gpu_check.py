"""What a check of a GPU asks for, and how it judges what came out."""

import json
import re
import sys

import pytest

from realrun.gpu_check.asked import (
    PAIR,
    Cell,
    Figures,
    Row,
    cells,
    config_of,
    hop_ns_of,
    name_of,
)
from realrun.gpu_check.carry_out import told
from realrun.gpu_check.flow import Clock, Found, Spent, watts_of, write_found
from realrun.gpu_check.judge import claims_of
from realrun.gpu_check.predictions import draw_predictions
from realrun.gpu_check.tables import cells_table, spent_sentence
from realrun.run import make_spec
from shmsim.config import DeviceConfig
from shmsim.inputs.catalog import load_gpu, load_model
from shmsim.policies import PRESETS
from shmsim.records import RunRecords, StepRow, WaitRow
from shmsim.roofline import RooflineStepTime
from shmsim.units import MS, US
from shmsim.wait import DEVICE_DONE
from tests.toy import toy_profile

H200 = {"kind": "cuda", "name": "NVIDIA H200", "observe": "write"}
SPIN = Cell(2, "sync", "write", "spin")
AHEAD = SPIN._replace(policy="step-ahead-rehearsed")


def row(cell, tpot_ns, cores=2.0, crc=7, step_ns=1 * MS):
    return Row(cell, tpot_ns, step_ns, cores, crc, H200)


def found(rows=(), tests=0, copies=None, predicted=None):
    return Found(tests, {"copies": copies or {}}, list(rows), predicted or {}, [], [], [])


def with_gpu(**parts):
    return Found(0, parts, [], {}, [], [], [])


def judged(of):
    return {claim.id.removeprefix("gpu/"): claim for claim in claims_of(of)}


def test_every_cell_is_asked_for_once_and_can_be_run():
    wanted = cells(16)
    assert len(set(wanted)) == len(wanted)
    assert {cell.batch for cell in wanted} == {1, 2, 8, 32}
    assert {cell.observe for cell in wanted} == {"write", "copy", "query", "blocking", "sync"}
    for cell in wanted:
        assert cell.policy in PRESETS
        config = config_of(cell, DeviceConfig(kind="cuda"))
        assert config.device.observe == cell.observe
        assert config.engine.max_sequences == config.workload.concurrency == cell.batch
        make_spec(config, PRESETS[cell.policy], toy_profile(), 0)


def test_what_is_claimed_comes_first_and_beside_what_it_is_held_against():
    first = cells(16)[:11]
    assert first[:2] == [SPIN, AHEAD]
    assert first[2] == SPIN._replace(repeat=1), "then the noise"
    assert first[3:5] == [SPIN._replace(readers=8), AHEAD._replace(readers=8)]
    assert {(c.scheduling, c.observe) for c in first} == {
        *(("sync", "write"), ("async", "write"), ("sync", "blocking"), ("sync", "query")),
    }


def test_both_schedulings_and_every_way_are_asked_with_both_policies_of_the_pair():
    wanted = set(cells(4))
    for way in ("blocking", "query"):
        assert {Cell(2, "async", way, policy) for policy in PAIR} <= wanted
    for way in ("blocking", "query", "copy", "sync"):
        assert {Cell(2, "sync", way, policy) for policy in PAIR} <= wanted


def test_eight_readers_are_asked_for_where_each_has_a_core():
    assert {cell.readers for cell in cells(8)} == {1}
    fan_out = [cell for cell in cells(9) if cell.readers > 1]
    assert {cell.policy for cell in fan_out} == {*PAIR, "vllm-1s", "park"}
    engine = config_of(fan_out[0], DeviceConfig(kind="cuda")).engine
    assert (engine.workers, engine.n_devices) == (8, 1)


def test_eight_readers_may_take_nine_tenths_of_a_core_and_their_rows_are_emulated():
    spin, ahead = SPIN._replace(readers=8), AHEAD._replace(readers=8)
    rows = [row(SPIN, 2.0 * MS), row(spin, 2.0 * MS, 9.0), row(ahead, 2.0 * MS, 0.85)]
    rows[1:] = [each._replace(emulated=True) for each in rows[1:]]
    of = found(rows, predicted={spin: expected(2.0 * MS, 9.0)})
    claims = judged(of)
    assert claims["batch2_sync_write_8_readers_step_ahead_cores"].holds
    assert claims["batch2_sync_write_8_readers_step_ahead_tpot_ratio"].value == 1.0
    assert claims["predicted_sync_write_8_readers_cores_error"].holds
    assert "batch2_sync_write_step_ahead_cores" not in claims
    more = judged(found([rows[1], rows[2]._replace(cores=0.95)]))
    assert not more["batch2_sync_write_8_readers_step_ahead_cores"].holds
    assert "step-ahead-rehearsed, 8 readers, emulated" in cells_table(of)[-1]


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


def test_compiled_kernels_have_a_claim_and_tokens_of_their_own():
    floor_ns = RooflineStepTime(load_model("llama-3.2-1b"), load_gpu("h200")).mean_ns(2, 0, 428)
    fused = SPIN._replace(kernels="compiled")
    assert fused in cells(4)
    assert config_of(fused, DeviceConfig(kind="cuda")).device.kernels == "compiled"
    rows = [row(SPIN, MS, step_ns=3.8 * floor_ns), row(fused, MS, crc=8, step_ns=1.2 * floor_ns)]
    claims = judged(found(rows))
    assert not claims["step_over_floor"].holds
    assert claims["step_over_floor_compiled"].holds
    assert claims["batch2_sync_token_streams"].value == 1
    assert name_of(fused).endswith("spin, compiled")


def test_bulk_from_each_memory_is_asked_for_and_the_arena_is_held_against_pageable_memory():
    asked = [cell for cell in cells(4) if cell.bulk]
    assert [cell.bulk for cell in asked] == ["registered", "pinned", "pageable"]
    for cell in asked:
        config = config_of(cell, DeviceConfig(kind="cuda"))
        assert config.payload.carries_bulk
        assert make_spec(config, PRESETS["spin"], toy_profile(), 0).layout.arena.classes
    registered, _, pageable = asked
    rows = [row(registered, 2.4 * MS), row(pageable, 3.0 * MS)]
    assert judged(found(rows))["bulk_registered_to_pageable_tpot"].value == pytest.approx(0.8)
    assert not judged(found([row(registered, 3.1 * MS), rows[1]]))[
        "bulk_registered_to_pageable_tpot"
    ].holds
    assert name_of(registered).endswith("16 MiB from registered memory")


def test_ways_and_copies_are_compared():
    asked = SPIN._replace(observe="query")
    copies = {"rows": [("registered", 9, 1, 100.0), ("pinned", 9, 1, 99.0)]}
    claims = judged(found([row(SPIN, MS), row(asked, 1.01 * MS)], copies=copies))
    assert claims["write_to_query_tpot_ratio"].holds
    assert claims["h2d_registered_of_pinned_speed"].holds
    slow = {"rows": [("registered", 9, 1, 300.0), ("pinned", 9, 1, 99.0)]}
    assert not judged(found(copies=slow))["h2d_registered_of_pinned_speed"].holds


def test_what_the_loop_rests_on_is_claimed_of_and_the_rest_is_told():
    answers = {"graph_write": True, "same_pointer": "0x1 on the device", "futex_waitv": "ENOSYS"}
    claims = judged(with_gpu(memory=answers))
    assert claims["memory_graph_write"].holds
    assert not claims["memory_same_pointer"].holds
    assert not [name for name in claims if "futex" in name]


def test_ways_to_wait_for_the_gpu_are_compared():
    def way(name, mode, late_ns, cpu_ns):
        figures = {"rest_ns": 2 * MS, "late_ns": late_ns, "cpu_ns": cpu_ns, "n": 9}
        return {"way": name, "mode": mode, **figures}

    asked, parked = way("query", "spin", 6_200, 2 * MS), way("blocking", "park", 114_000, 80 * US)
    claims = judged(with_gpu(rests={"ways": [way("write", "spin", 0, 2 * MS), asked, parked]}))
    assert claims["write_seen_after_query"].value == -6_200
    assert claims["write_seen_after_query"].holds
    assert claims["blocking_wait_cpu_share"].value == pytest.approx(0.04)
    late = judged(with_gpu(rests={"ways": [way("write", "spin", 9_000, 2 * MS), asked]}))
    assert not late["write_seen_after_query"].holds
    assert "blocking_wait_cpu_share" not in late


def test_the_hop_to_the_scheduler_is_from_sight_to_sight():
    wait = WaitRow("worker0", DEVICE_DONE, 0, 0, True, 0, 0, 30, 0, 0, 0, False, 0, 0)
    other = wait._replace(process="worker1", seen_ns=99)
    step = StepRow(0, 1, 0, 0, 0, 1, 2, 40, 55)
    assert hop_ns_of(RunRecords([step], [wait, other], [], [])) == 25
    assert hop_ns_of(RunRecords([step], [], [], [])) is None


def test_power_is_what_was_taken_over_the_time_and_nothing_where_nobody_says():
    assert watts_of({"a": 5, "b": 0}, {"a": 3_000_005, "b": 1_000_000}, 2.0) == 2.0
    assert watts_of({}, {}, 2.0) is None
    assert watts_of({"a": 5}, {"a": 4}, 2.0) is None, "it began anew"


def test_cpus_are_kept_awake_for_one_cell_that_nobody_predicts():
    (awake,) = [cell for cell in cells(16) if cell.awake]
    assert name_of(awake) == "batch 2, sync, write, park, CPUs kept awake"
    assert awake._replace(awake=False) in cells(16), "beside what it is compared with"


def test_failed_tests_are_a_failure_and_tests_that_are_not_here_are_not():
    assert not judged(found(tests=1))["tests_exit_code"].holds
    assert "tests_exit_code" not in judged(found(tests=-1))


def test_what_was_found_is_stored_with_what_was_left_out(tmp_path):
    told = {SPIN: Figures(0.9 * MS, MS, 2.0)}
    left_out = found([row(SPIN, MS)], predicted=told)
    left_out = left_out._replace(
        not_run=[AHEAD],
        failures=["x: y"],
        left_out=["predictions, since simpy is not installed"],
        spent=(Spent("cells", 200.0, 190.0),),
    )
    write_found(tmp_path / "found.json", left_out)
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["rows"][0]["policy"] == "spin"
    assert content["rows"][0]["tpot_p50_ns"] == MS
    assert content["rows"][0]["predicted"]["tpot_p50_ns"] == 0.9 * MS
    assert content["spent"] == [{"part": "cells", "limit_s": 200.0, "took_s": 190.0}]
    assert content["not_run"] == ["batch 2, sync, write, step-ahead-rehearsed"]
    assert content["left_out"] == ["predictions, since simpy is not installed"]
    assert spent_sentence(left_out) == "time: cells 190 of 200 s"


def test_what_was_not_finished_is_said_and_is_no_failure(tmp_path):
    toy_profile().write(tmp_path / "profile.json")
    of = found([row(SPIN, MS, step_ns=0.6 * MS)], tests=-1)._replace(
        left_out=["quick tests: not finished in 75 s"]
    )
    done = told(tmp_path, of)
    assert done.holds
    assert "left out: quick tests: not finished in 75 s" in done.lines
    assert [line for line in done.lines if line.startswith("pass gpu/batch2_sync_token_streams")]
    assert done.data["left_out"] == of.left_out
    assert (tmp_path / "predicted.png").exists()
    failed = told(tmp_path, of._replace(failures=["x: y"]))
    assert not failed.holds
    assert "failed: x: y" in failed.lines


def test_without_matplotlib_there_is_no_picture_and_the_reason_is_said(tmp_path, monkeypatch):
    toy_profile().write(tmp_path / "profile.json")
    monkeypatch.setitem(sys.modules, "shmsim.plots", None)
    done = told(tmp_path, found([row(SPIN, MS, step_ns=0.6 * MS)]))
    assert done.holds
    assert "left out: predicted.png, since shmsim.plots is not installed" in done.lines


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
    ahead = judged(found([row(both, MS), row(AHEAD._replace(observe="sync"), MS, 1.2)]))
    assert "batch2_sync_sync_step_ahead_tpot_ratio" in ahead
    assert "batch2_sync_sync_step_ahead_cores" not in ahead


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
    titles, *lines = [re.split(r"  +", line) for line in cells_table(of)]
    assert titles[3:5] == ["predicted µs", "off %"]
    assert lines[1][0] == "batch 2, sync, write, spin, run 2"
    assert [line[3] for line in lines] == ["2010", "2010", "-"]
    assert [line[4] for line in lines] == ["+0.5", "-0.5", "-"]
    assert len({len(line) for line in cells_table(of)}) == 1, "columns stand below each other"
    assert cells_table(found()) == []
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
