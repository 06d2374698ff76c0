"""The cells of a GPU check run on whatever computes, and stop when the time is over."""

import sys
import time
from dataclasses import replace

import pytest

from realrun.gpu_check.asked import Cell, Figures, cells
from realrun.gpu_check.flow import run_cells, run_tests
from shmsim.config import DeviceConfig
from shmsim.profile import Curve
from shmsim.units import MS, US, S
from tests.toy import constant, toy_profile

pytest.importorskip("torch", reason="a device that computes needs torch")
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(60)]

CPU = DeviceConfig(kind="cpu", max_len=512, sleep_ns=1 * MS)
WANTED = [Cell(2, "sync", "write", "park"), Cell(2, "async", "write", "wake-ahead")]


def run(wanted, device, tmp_path, limit_s=60.0, profile=None, progress=lambda _: None):
    known = profile or toy_profile()
    if profile is None:
        known.costs["device_prefill"] = Curve("tokens", (64.0,), (constant(640 * US),))
    path = tmp_path / "profile.json"
    known.write(path)
    deadline_s = time.monotonic() + limit_s
    return run_cells(wanted, device, known, path, deadline_s, progress, tmp_path / "logs")


def test_cells_give_rows_beside_what_the_model_expected(tmp_path):
    said = []
    again, first = WANTED[0]._replace(repeat=1), WANTED[1]
    ran = run([first, again], CPU, tmp_path, progress=said.append)
    assert [row.cell for row in ran.rows] == [first, again]
    assert (ran.not_run, ran.failures, ran.left_out) == ([], [], [])
    assert said == [
        "1/2 batch 2, async, write, wake-ahead",
        "2/2 batch 2, sync, write, park, run 2",
    ]
    for row in ran.rows:
        assert row.tpot_p50_ns > row.step_p50_ns > 0.9 * MS
        assert row.cores > 0
    assert set(ran.predicted) == {first}, "a cell is predicted once, and this was its first run"
    figures = ran.predicted[first]
    assert isinstance(figures, Figures)
    assert figures.step_p50_ns == 1 * MS
    assert figures.tpot_p50_ns > 0.9 * MS


def test_the_policy_that_is_judged_runs_and_is_predicted(tmp_path):
    judged = [Cell(2, how, "write", "step-ahead-rehearsed") for how in ("sync", "async")]
    assert set(judged) < set(cells(2))
    ran = run(judged, CPU, tmp_path)
    assert [row.cell for row in ran.rows] == judged
    assert ran.failures == []
    assert set(ran.predicted) == set(judged)


def test_what_there_is_no_time_for_is_said(tmp_path):
    ran = run(WANTED, CPU, tmp_path, limit_s=-1.0)
    assert ran.rows == []
    assert ran.not_run == WANTED
    assert ran.left_out == ["2 cells, which there was no time for"]


def test_a_cell_that_hangs_takes_no_more_than_what_is_left(tmp_path):
    # A step of an hour: to the run it is no stall.
    hanging = replace(CPU, sleep_ns=3600 * S)
    begun_s = time.monotonic()
    ran = run(WANTED, hanging, tmp_path, limit_s=8.0)
    assert time.monotonic() - begun_s < 20.0, "time to predict, to stop and for a crowded box"
    assert (ran.rows, ran.failures, ran.not_run) == ([], [], WANTED)
    first, second = ran.left_out
    assert first.startswith("batch 2, sync, write, park: stopped after ")
    assert ", when the time was over, " in first
    assert second == "1 cells, which there was no time for"


def test_what_the_model_cannot_say_is_a_failure_and_the_cell_runs(tmp_path):
    ran = run(WANTED[:1], CPU, tmp_path, profile=toy_profile())
    assert [row.cell for row in ran.rows] == WANTED[:1]
    assert ran.predicted == {}
    (failure,) = ran.failures
    assert failure.startswith("model, batch 2, sync, write, park: the profile says nothing about")


def test_a_cell_that_fails_is_said_and_the_others_run(tmp_path):
    broken = replace(CPU, model="none.toml")
    with pytest.raises(ValueError, match=r"cannot read the model none\.toml"):
        run(WANTED[:1], broken, tmp_path)
    gpu = DeviceConfig(kind="cuda", model="tiny", max_len=512)
    ran = run(WANTED[:1], gpu, tmp_path)
    assert len(ran.rows) + len(ran.failures) >= 1


def test_readers_beside_the_one_with_a_device_only_receive_and_are_labelled(tmp_path):
    one, several = WANTED[0], WANTED[0]._replace(readers=3)
    ran = run([one, several], CPU, tmp_path)
    assert [(row.cell.readers, row.emulated) for row in ran.rows] == [(1, False), (3, True)]
    assert ran.rows[0].tokens_crc32 == ran.rows[1].tokens_crc32
    assert set(ran.predicted) == {one, several}


def command(code):
    return [sys.executable, "-c", code]


def test_of_tests_that_fail_the_last_line_is_told_and_all_is_kept(tmp_path):
    log = tmp_path / "tests.log"
    code = "import sys; print('FAILED a'); print('1 failed', file=sys.stderr); sys.exit(1)"
    assert run_tests(command(code), 60, log) == (1, f"1 failed; all of it is in {log}")
    assert "FAILED a" in log.read_text()


def test_tests_that_do_not_end_in_time_are_not_finished_and_what_they_said_is_kept(tmp_path):
    log = tmp_path / "tests.log"
    code = "import time; print('FAILED a', flush=True); time.sleep(1000)"
    exit_code, said = run_tests(command(code), 3.0, log)
    assert exit_code == -1
    assert said == f"not finished in 3 s; what they said until then is in {log}"
    assert log.read_text() == "FAILED a\n"
