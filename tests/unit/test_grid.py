"""What is made of the runs of a grid; tests/real/test_validate_grid.py makes some."""

import json
from pathlib import Path

import pytest

from realrun.cells import Cell, Grid, read_grid
from realrun.equivalence import Verdict
from realrun.grid import CPU_MARGIN, TPOT_MARGIN, Figures, TapeRuns, judge, sweeps
from realrun.grid_report import claims, grid_table, record, summary
from shmsim.claims import read_claims, write_claims
from shmsim.units import MS
from tests.toy import toy_profile

GRID = read_grid(Path(__file__).parents[2] / "experiments" / "bench" / "model_cells.toml")
CELL = GRID.cells[0]


def figures(tpot_ms=2.0, itl_ms=3.0, **cores) -> Figures:
    return Figures(tpot_ms * MS, itl_ms * MS, {"scheduler": 0.5, "worker0": 0.1} | cores, 0.0)


def result(model, runs, *, cell: Cell = CELL, oversubscribed=False):
    """A cell whose tapes all have this model and these two runs, but for a hair of noise."""
    tapes = [
        TapeRuns(
            (model, model), tuple(run._replace(tpot_p50_ns=run.tpot_p50_ns + i) for run in runs)
        )
        for i in range(5)
    ]
    return judge(cell, tapes, oversubscribed=oversubscribed)


EQUAL = result(figures(), (figures(), figures()))


# Which runs, in which order.


def test_every_tape_of_every_cell_is_run_twice_on_the_machine():
    runs = [(cell.name, tape, run) for tape, run, cells in sweeps(GRID) for cell in cells]
    expected = {
        (cell.name, tape, run)
        for cell in GRID.cells
        for tape in range(GRID.repeats)
        for run in range(2)
    }
    assert len(runs) == len(expected)
    assert set(runs) == expected


def test_a_sweep_goes_through_all_cells_before_any_of_them_comes_again():
    orders = [tuple(cell.name for cell in cells) for _, _, cells in sweeps(GRID)]
    assert all(len(set(order)) == len(order) == len(GRID.cells) for order in orders)
    assert len(set(orders)) == len(orders)


def test_the_order_is_the_same_at_every_call_so_that_a_run_can_be_continued():
    assert list(sweeps(GRID)) == list(sweeps(GRID))


# Verdicts.


def test_equal_worlds_hold_in_every_quantity():
    assert {finding.verdict for finding in EQUAL.findings} == {Verdict.HOLDS}
    assert [(f.quantity, f.process) for f in EQUAL.findings] == [
        ("tpot_p50", ""),
        ("itl_p99", ""),
        ("cpu", "scheduler"),
        ("cpu", "worker0"),
    ]


def test_one_process_that_misses_is_not_hidden_by_the_others():
    found = result(figures(), (figures(worker0=0.2), figures(worker0=0.2)))
    worst = found.worst("cpu")
    assert (worst.process, worst.verdict) == ("worker0", Verdict.MISSES)
    assert worst.error.value == pytest.approx(-0.1)
    assert worst.margin == CPU_MARGIN
    assert found.worst("tpot_p50").verdict is Verdict.HOLDS


def test_the_error_is_a_share_of_what_was_measured_tape_by_tape():
    found = result(figures(tpot_ms=2.2, itl_ms=1.5), (figures(), figures()))
    assert found.worst("tpot_p50").error.value == pytest.approx(0.1, abs=1e-5)
    assert found.worst("itl_p99").error.value == pytest.approx(-0.5)
    assert found.worst("itl_p99").verdict is Verdict.MISSES


def test_the_machines_own_noise_widens_the_margin_of_tpot_and_of_nothing_else():
    noisy = result(figures(), (figures(1.9, 2.7), figures(2.1, 3.3)))
    tpot, itl = noisy.worst("tpot_p50"), noisy.worst("itl_p99")
    assert EQUAL.worst("tpot_p50").margin == TPOT_MARGIN
    assert tpot.margin == tpot.spread == pytest.approx(0.1, rel=1e-5)
    assert itl.spread == pytest.approx(0.2)
    assert itl.margin == EQUAL.worst("itl_p99").margin


def test_each_run_has_its_own_prediction_and_a_tape_is_judged_by_the_mean_of_both():
    drifted = judge(
        CELL,
        [TapeRuns((figures(2.0 + i / 1e6), figures(2.2)), (figures(2.0), figures(2.2)))
         for i in range(3)],
        oversubscribed=False,
    )  # fmt: skip
    tpot = drifted.worst("tpot_p50")
    assert tpot.predicted == pytest.approx(2.1 * MS, rel=1e-5)
    assert tpot.error.value == pytest.approx(0.0, abs=1e-5)


# Claims, table and record.


def by_id(results):
    return {claim.id: claim for claim in claims(results)}


def test_oversubscribed_cells_are_claimed_apart():
    bad = result(figures(4.0), (figures(), figures()), oversubscribed=True)
    found = by_id([EQUAL, bad])
    assert found["validation/tpot_p50/share_holding"].value == 1.0
    assert found["validation/oversubscribed/tpot_p50/share_holding"].value == 0.0
    assert found["validation/tpot_p50/worst"].holds
    assert not found["validation/oversubscribed/tpot_p50/worst"].holds


def test_without_oversubscribed_cells_nothing_is_claimed_of_them():
    assert set(by_id([EQUAL])) == {
        f"validation/{quantity}/{what}"
        for quantity in ("tpot_p50", "itl_p99", "cpu")
        for what in ("share_holding", "worst")
    }


def test_one_cell_that_misses_is_the_worst_however_many_hold():
    bad = result(figures(2.2), (figures(), figures()))
    found = by_id([EQUAL] * 19 + [bad])
    assert found["validation/tpot_p50/share_holding"].value == pytest.approx(0.95)
    worst = found["validation/tpot_p50/worst"]
    assert worst.value == pytest.approx(0.1, abs=1e-4)
    assert worst.bound == TPOT_MARGIN
    assert not worst.holds


def test_a_cell_that_cannot_tell_does_not_hold_and_might():
    unsure = judge(
        CELL,
        [TapeRuns((figures(tpot),) * 2, (figures(), figures())) for tpot in (1.8, 2.2, 2.0)],
        oversubscribed=False,
    )
    claim = by_id([EQUAL, unsure])["validation/tpot_p50/share_holding"]
    assert (claim.value, claim.high) == (0.5, 1.0)


def test_the_interval_of_an_error_that_may_be_zero_begins_at_zero():
    worst = by_id([EQUAL])["validation/cpu/worst"]
    assert worst.value == worst.low == worst.high == 0.0
    claim = by_id([result(figures(2.1), (figures(), figures()))])["validation/tpot_p50/worst"]
    assert 0.0 < claim.low <= claim.value <= claim.high


def test_claims_can_be_stored_and_read(tmp_path):
    write_claims(tmp_path / "claims.json", {}, claims([EQUAL]))
    assert read_claims(tmp_path / "claims.json") == claims([EQUAL])


def test_the_table_has_a_row_for_every_cell_and_the_summary_a_line_for_every_kind():
    results = [
        result(
            figures(), (figures(), figures()), cell=cell, oversubscribed=cell.is_oversubscribed(2)
        )
        for cell in GRID.cells
    ]
    assert grid_table(results).row_count == len(GRID.cells) + 4
    lines = summary(results).splitlines()
    assert len(lines) == 4
    assert sum("oversubscribed" in line for line in lines) == 2
    assert all("tpot_p50: holds" in line for line in lines)


def test_runs_during_which_somebody_else_had_the_core_are_told_and_count_all_the_same():
    disturbed = figures()._replace(queue_share=0.1)
    found = result(figures(), (figures(), disturbed))
    assert "Disturbed: in 5 of 10 runs" in summary([found])
    assert found.worst("tpot_p50").verdict is Verdict.HOLDS
    assert "Disturbed" not in summary([EQUAL])
    crowded = result(figures(), (disturbed, disturbed), oversubscribed=True)
    assert "Disturbed" not in summary([crowded])  # they disturb each other


def test_the_record_is_json_and_holds_every_run():
    content = json.loads(json.dumps(record([EQUAL], [toy_profile()])))
    assert len(content["profiles"]) == 1
    (cell,) = content["cells"]
    assert cell["name"] == CELL.name
    assert len(cell["tapes"]) == 5
    assert all(len(tape["machine"]) == 2 for tape in cell["tapes"])
    assert cell["findings"][0]["verdict"] == "holds"


def test_a_grid_of_chosen_cells_keeps_their_repeats():
    assert GRID.only([CELL.name]) == Grid((CELL,), GRID.repeats)
