"""What came out of a grid: a table in which every cell stands by itself, claims, and records."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.markup import escape
from rich.table import Table

from realrun.equivalence import Verdict
from realrun.grid import CPU_MARGIN, DISTURBED, ITL_MARGIN, TPOT_MARGIN, CellResult, Finding
from realrun.host import machine_facts
from realrun.validate import config_to_json
from shmsim.claims import Claim
from shmsim.console import wide
from shmsim.profile import MachineProfile
from shmsim.units import MS
from shmsim.whole import write_whole

QUANTITIES: Final = ("tpot_p50", "itl_p99", "cpu")
#: Not all: a cell whose noise is as large as its margin cannot hold, whatever the model does. That
#: none is far off is the claim about the worst.
SHARE_HOLDING: Final = 0.9
_WIDTH: Final = 150  # a row of figures that is broken in two cannot be read
_COLOURS: Final = {
    Verdict.HOLDS: "green",
    Verdict.MISSES: "red",
    Verdict.CANNOT_TELL: "yellow",
}


def grid_table(results: list[CellResult]) -> Table:
    """Draw every cell: what was measured, how far off the prediction is, and the verdict."""
    n_tapes = len(results[0].tapes)
    table = Table(
        title=f"model against machine: {n_tapes} tapes of random numbers, each run twice for real",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="Error: predicted less measured, and half its 90 % interval; A/A: what two runs of "
        "one tape differ by. It holds if the interval lies within the margin, misses if it lies "
        f"outside, else nobody can tell (?): TPOT {TPOT_MARGIN:.0%} or the A/A spread, ITL "
        f"{ITL_MARGIN:.0%}, CPU {100 * CPU_MARGIN:g} points (of the process that is worst off).",
        caption_justify="left",
        caption_style="",
    )
    table.add_column("cell", no_wrap=True)
    for label in ("TPOT p50\nms", "error\n%", "A/A\n%", "", "ITL p99\nms", "error\n%", ""):
        table.add_column(label, justify="right" if label else "left", no_wrap=True)
    for label in ("CPU\ncores", "error\npoints", ""):
        table.add_column(label, justify="right" if label else "left", no_wrap=True)
    table.add_column("of", no_wrap=True)
    for title, group in _groups(results):
        table.add_section()
        table.add_row(f"[bold]{title}[/]")
        for result in group:
            tpot, itl, cpu = (result.worst(quantity) for quantity in QUANTITIES)
            table.add_row(
                escape(result.cell.name),
                f"{tpot.measured / MS:.3f}",
                _error(tpot),
                f"{100 * tpot.spread:.1f}",
                _word(tpot),
                f"{itl.measured / MS:.3f}",
                _error(itl),
                _word(itl),
                f"{cpu.measured:.3f}",
                _error(cpu),
                _word(cpu),
                cpu.process,
            )
    return table


def print_table(results: list[CellResult]) -> None:
    """Print `grid_table`, however narrow the terminal."""
    wide(_WIDTH).print(grid_table(results))


def _error(finding: Finding) -> str:
    """In percent, or points of a core."""
    value, low, high, _ = finding.error
    return f"{100 * value:+.1f} ±{100 * (high - low) / 2:.1f}"


def _word(finding: Finding) -> str:
    word = "?" if finding.verdict is Verdict.CANNOT_TELL else finding.verdict
    return f"[{_COLOURS[finding.verdict]}]{word}[/]"


def _groups(results: list[CellResult]) -> list[tuple[str, list[CellResult]]]:
    """Cells of one kind together, oversubscribed ones last."""
    kinds: dict[tuple[bool, int, str], list[CellResult]] = {}
    for result in results:
        engine = result.cell.config.engine
        key = result.oversubscribed, engine.workers, engine.scheduling
        kinds.setdefault(key, []).append(result)
    return [
        (f"TP{workers} {scheduling}" + (", oversubscribed" if oversubscribed else ""), kinds[key])
        for key in sorted(kinds)
        for oversubscribed, workers, scheduling in (key,)
    ]


def summary(results: list[CellResult]) -> str:
    """How many cells hold, miss and cannot tell, of each kind by itself."""
    lines = []
    for title, group in _groups(results):
        counts = []
        for quantity in QUANTITIES:
            verdicts = [result.worst(quantity).verdict for result in group]
            told = ", ".join(f"{v} {verdicts.count(v)}" for v in Verdict if v in verdicts)
            counts.append(f"{quantity}: {told}")
        lines.append(f"{title} ({len(group)} cells): " + "; ".join(counts))
    quiet = [run for r in results if r.has_a_core_each for tape in r.tapes for run in tape.machine]
    n_disturbed = sum(run.queue_share > DISTURBED for run in quiet)
    if n_disturbed:
        lines.append(
            f"Disturbed: in {n_disturbed} of {len(quiet)} runs with a core for each thread, one "
            f"waited for its core for more than {DISTURBED:.0%} of the time, so somebody else was "
            "there. These runs count like others; repeat them in another folder on a quiet box."
        )
    return "\n".join(lines)


def claims(results: list[CellResult]) -> list[Claim]:
    """Which share of the cells holds, and the worst error; oversubscribed cells by themselves.

    The share's interval ends where every cell that cannot tell would hold.
    """
    found = []
    for oversubscribed, prefix in ((False, "validation"), (True, "validation/oversubscribed")):
        group = [r for r in results if r.oversubscribed == oversubscribed]
        if not group:
            continue
        seed = group[0].cell.config.seed
        for quantity in QUANTITIES:
            name = f"{prefix}/{quantity}"
            verdicts = [r.worst(quantity).verdict for r in group]
            n = len(group)
            holding = verdicts.count(Verdict.HOLDS) / n
            at_most = holding + verdicts.count(Verdict.CANNOT_TELL) / n
            found.append(
                Claim(
                    f"{name}/share_holding",
                    *(holding, holding, at_most, "ratio", SHARE_HOLDING, ">=", n, seed),
                )
            )
            worst = max(
                (f for r in group for f in r.findings if f.quantity == quantity),
                key=lambda f: abs(f.error.value) / f.margin,
            )
            found.append(_worst_claim(f"{name}/worst", worst, seed))
    return found


def _worst_claim(name: str, finding: Finding, seed: int) -> Claim:
    value, low, high, n = finding.error
    ends = sorted((abs(low), abs(high)))
    return Claim(
        name,
        abs(value),
        0.0 if low < 0 < high else ends[0],
        ends[1],
        "cores" if finding.quantity == "cpu" else "ratio",
        finding.margin,
        "<=",
        n,
        seed,
    )


def record(results: list[CellResult], profiles: list[MachineProfile]) -> dict[str, Any]:
    """Every cell with its runs and findings, as data; which profiles there were, in their order."""
    return {
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "profiles": [
            {"measured_at": p.measured_at, "replicates": p.machine.get("replicates")}
            for p in profiles
        ],
        "cells": [
            {
                "name": result.cell.name,
                "oversubscribed": result.oversubscribed,
                "config": config_to_json(result.cell.config),
                "findings": [
                    {**finding._asdict(), "error": finding.error._asdict()}
                    for finding in result.findings
                ],
                "tapes": [
                    {
                        "model": [run._asdict() for run in tape.model],
                        "machine": [run._asdict() for run in tape.machine],
                    }
                    for tape in result.tapes
                ],
            }
            for result in results
        ],
    }


def write_record(path: Path, results: list[CellResult], profiles: list[MachineProfile]) -> None:
    """Store `record` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record(results, profiles), indent=1) + "\n")
