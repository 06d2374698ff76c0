"""Every picture of the text, from the stored records and the styles of `shmsim.plots`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from paper.records import Records
from realrun.report.replays import typical_plan
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.plots import (
    WIDE,
    Judged,
    LoadPoint,
    agreement,
    collapse,
    frontier,
    frontier_points,
    gap_distribution,
    rest_costs,
    step_timeline,
)
from shmsim.plots.style import styled
from shmsim.policies import PRESETS
from shmsim.records import RunRecords
from shmsim.sim.run import simulate
from shmsim.stats.estimate import Estimate
from shmsim.units import MS
from shmsim.whole import whole

#: Of the text, in inches: main.tex sets the same.
WIDTH_IN: Final = 6.3
_CALIBRATION: Final = "01_calibration"
_PRESETS: Final = "10_model_against_machine"
_PRICE: Final = 10.0
_SHOWN_STEP: Final = 40
#: Without them the same picture gives the same bytes.
_NO_METADATA: Final = dict.fromkeys(("Creator", "Producer", "CreationDate"))


def draw(records: Records, folder: Path) -> list[Path]:
    """Draw every picture whose record is there, as PDF; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (needed, picture) in PICTURES.items():
        if records.has(needed):
            path = folder / f"{name}.pdf"
            _write(picture(records), path)
            drawn.append(path)
    return drawn


@styled
def _write(figure: Figure, path: Path) -> None:
    # Type 42 keeps letters as letters, so that a reader can search and copy them.
    with mpl.rc_context({"pdf.fonttype": 42}), whole(path) as unfinished:
        figure.savefig(unfinished, format="pdf", metadata=_NO_METADATA, facecolor="none")


def _step(records: Records) -> Figure:
    return step_timeline(_simulated(records, "park", 0.01), _SHOWN_STEP, width_in=WIDTH_IN)


def _gaps(records: Records) -> Figure:
    profile = records.profile(_CALIBRATION, "results", "profile.json")
    run = _simulated(records, "spin", 0.05)
    found = typical_plan(run, PRESETS["step-ahead"], profile.wait_costs(_PRICE))
    assert found is not None, "every run of ours holds waits of the scheduler"
    return gap_distribution(*found, width_in=WIDTH_IN)


def _simulated(records: Records, policy: str, jitter: float) -> RunRecords:
    """A closed loop of two sequences and 2 ms steps in the model, on the profile of this box."""
    profile = records.profile(_CALIBRATION, "results", "profile.json")
    workload = WorkloadConfig(
        kind="closed",
        requests=8,
        concurrency=2,
        prompt_p50=16,
        prompt_p95=16,
        output_p50=200,
        output_p95=200,
    )
    device = DeviceConfig(step_ns=2 * MS, per_prefill_token_ns=0, jitter=jitter)
    config = RunConfig(
        EngineConfig(workers=1), workload=workload, device=device, delay_price=_PRICE
    )
    return simulate(config, PRESETS[policy], profile)


def _rests(records: Records) -> Figure:
    profile = records.profile(_CALIBRATION, "results", "profile.json")
    return rest_costs(profile, WIDE)  # its labels need the room


def _frontier(records: Records) -> Figure:
    stored = records.read(_PRESETS, "results", "tp1_2ms", "validation.json")
    return frontier(frontier_points(stored["table"], 1), width_in=WIDTH_IN)


def _cells(records: Records) -> Figure:
    cells = records.read("bench", "results", "model_cells.json")["grid"]["cells"]
    rows = []
    for cell in cells:
        finding = next(f for f in cell["findings"] if f["quantity"] == "tpot_p50")
        error = finding["error"]
        rows.append(
            Judged(
                cell["name"],
                error["value"],
                error["low"],
                error["high"],
                finding["margin"],
                finding["verdict"],
            )
        )
    return agreement(rows, "median time per output token (%)", width_in=WIDTH_IN)


def _crowd(records: Records) -> Figure:
    stored = records.read("08_oversubscription", "results", "engine.json")
    n_cores = stored["machine"]["cores"]
    by_cell: dict[tuple[str, int], list[float]] = {}
    for row in stored["rows"]:
        by_cell.setdefault((row["policy"], row["workers"]), []).append(row["tpot_p50_ns"])
    points = [
        LoadPoint(policy, (1 + workers) / n_cores, _range_of(values))
        for (policy, workers), values in by_cell.items()
    ]
    return collapse(points, width_in=WIDTH_IN)


def _range_of(values: list[Any]) -> Estimate:
    """The median of the repeats, and how far they reach."""
    median = float(np.median(values))
    return Estimate(median, min(values), max(values), float("nan"), len(values), "range of repeats")


#: By name: the record it needs, and how it is drawn.
PICTURES: Final[dict[str, tuple[str, Callable[[Records], Figure]]]] = {
    "step": (_CALIBRATION, _step),
    "gaps": (_CALIBRATION, _gaps),
    "rests": (_CALIBRATION, _rests),
    "frontier": (_PRESETS, _frontier),
    "cells": ("bench/model", _cells),
    "crowd": ("08_oversubscription", _crowd),
}
