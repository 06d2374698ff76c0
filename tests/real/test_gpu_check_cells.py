"""The cells of a GPU check run on whatever computes, and stop when the time is over."""

import time
from dataclasses import replace

import pytest

from realrun.gpu_check import Cell, Figures, run_cells
from shmsim.config import DeviceConfig
from shmsim.profile import Curve
from shmsim.units import MS, US
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
    return run_cells(wanted, device, known, path, time.monotonic() + limit_s, progress)


def test_cells_give_rows_beside_what_the_model_expected(tmp_path):
    said = []
    again, first = WANTED[0]._replace(repeat=1), WANTED[1]
    ran = run([first, again], CPU, tmp_path, progress=said.append)
    assert [row.cell for row in ran.rows] == [first, again]
    assert (ran.not_run, ran.failures) == ([], [])
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


def test_what_there_is_no_time_for_is_said(tmp_path):
    ran = run(WANTED, CPU, tmp_path, limit_s=0.0)
    assert len(ran.rows) <= 1
    assert ran.not_run == WANTED[len(ran.rows) :]


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
