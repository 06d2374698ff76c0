"""The cells of a GPU check run on whatever computes, and stop when the time is over."""

import time

import pytest

from realrun.gpu_check import Cell, run_cells
from shmsim.config import DeviceConfig
from shmsim.units import MS
from tests.toy import toy_profile

pytest.importorskip("torch", reason="a device that computes needs torch")
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(60)]

CPU = DeviceConfig(kind="cpu", max_len=512, sleep_ns=1 * MS)
WANTED = [Cell(2, "sync", "write", "park"), Cell(2, "async", "write", "wake-ahead")]


def test_cells_give_rows():
    said = []
    rows, not_run, failures = run_cells(
        WANTED, CPU, toy_profile(), time.monotonic() + 60, said.append
    )
    assert [row.cell for row in rows] == WANTED
    assert (not_run, failures) == ([], [])
    assert said[0] == "1/2 batch 2, sync, write, park"
    for row in rows:
        assert row.tpot_p50_ns > row.step_p50_ns > 0.9 * MS
        assert row.cores > 0


def test_what_there_is_no_time_for_is_said():
    rows, not_run, _ = run_cells(WANTED, CPU, toy_profile(), time.monotonic(), lambda _: None)
    assert len(rows) <= 1
    assert not_run == WANTED[len(rows) :]


def test_a_cell_that_fails_is_said_and_the_others_run():
    broken = DeviceConfig(kind="cpu", max_len=512, model="none.toml")
    with pytest.raises(ValueError, match=r"cannot read the model none\.toml"):
        run_cells(WANTED[:1], broken, toy_profile(), time.monotonic() + 60, lambda _: None)
    gpu = DeviceConfig(kind="cuda", model="tiny", max_len=512)
    rows, _, failures = run_cells(
        WANTED[:1], gpu, toy_profile(), time.monotonic() + 60, lambda _: None
    )
    assert len(rows) + len(failures) == 1
