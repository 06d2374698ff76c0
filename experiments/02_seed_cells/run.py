"""Fits two scales to the seed's sync cells, predicts its async ones, and asks what follows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from seed_cells import Draw, Fit, Seed, claims, describe, intervals
from seed_follow_ups import PARTS

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.console import console
from shmsim.units import MS


def quick(plan: Plan) -> Plan:
    """The same in little: six draws of short runs."""
    short = {"requests": 2, "output": 80}
    follow_ups = {name: {**table, "output": 20} for name, table in plan["follow"].items()}
    follow_ups["cliff"] |= {"requests": 10, "output": 4}
    return {
        **plan,
        "prior": {**plan["prior"], "draws": 6},
        "length": {"fit": short, "predict": short},
        "ttft": {**plan["ttft"], "pairs": 4},
        "follow": follow_ups,
    }


def cells(plan: Plan) -> Iterator[Cell]:
    """The fit at the prior's mean, every draw, and what follows from the fit."""
    yield Cell("fit", "model")
    for number, overlap in enumerate(Seed(plan).overlaps()):
        yield Cell(f"draw {number}", "model", {"number": number, "overlap": overlap})
    for part in PARTS:
        yield Cell(part, "model", {"part": part})


def run(cell: Cell, context: Context) -> Content:
    """Run one of them."""
    seed = Seed(context.plan)
    if cell.name == "fit":
        return _fit(seed)
    if "number" in cell.settings:
        draw = seed.draw(cell.settings["number"], cell.settings["overlap"])
        return {**draw._asdict(), "fit": draw.fit._asdict()}
    part = cell.settings["part"]
    fit = Fit(**context.found["fit"]["fit"])
    return {"rows": list(PARTS[part](seed, fit, context.plan["follow"][part]))}


def _fit(seed: Seed) -> Content:
    prior = seed.plan["prior"]
    fit = seed.fit(prior["alpha"] / (prior["alpha"] + prior["beta"]), 0)
    hidden_ns = seed.tpot_ns(seed.fit(1.0, 0), "async_spin", "predict", 1)
    kernels_ns = seed.config.device.step_time.mean_ns(seed.config.workload.concurrency, 0, 0)
    control = {"hidden_ns": hidden_ns, "kernels_ns": kernels_ns}
    return {"fit": fit._asdict(), "control": control}


def report(results: Results, _out: Path) -> Findings:
    """Tell every interval beside what was measured, and what follows."""
    plan, content = results.plan, results.content
    draws = [
        Draw(Fit(**row["fit"]), *(row[name] for name in Draw._fields[1:]))
        for name, row in content.items()
        if name.startswith("draw ")
    ]
    found = intervals(draws, plan)
    for name, interval in found.items():
        fitted = " (fitted)" if name.startswith("tpot/sync") else ""
        console.print(f"{name}{fitted}: {describe(interval)}", markup=False)
    fit, control = content["fit"]["fit"], content["fit"]["control"]
    console.print(
        f"at the prior's mean, {fit['overlap']:.2f}: host x {fit['host_scale']:.2f}, "
        f"sleep x {fit['wake_scale']:.2f}"
    )
    console.print(
        "control, all of the host's work overlapped: async / spin "
        f"{control['hidden_ns'] / MS:.3f} ms, kernels alone {control['kernels_ns'] / MS:.3f} ms"
    )
    follow_ups = {part: content[part]["rows"] for part in PARTS}
    for name, rows in follow_ups.items():
        tell(name, rows)
    summary = {
        "fit": fit,
        "control": control,
        "intervals": {
            name: {**i._asdict(), "error": i.error, "covers": i.covers} for name, i in found.items()
        },
        "follow": follow_ups,
    }
    return Findings(claims(found, len(draws), plan["seed"]), summary)


def tell(name: str, rows: list[dict[str, Any]]) -> None:
    """Print what follows as a table."""
    cell = [key for key in rows[0] if not key.endswith(("_ns", "cores"))]
    table = Table(*cell, "TPOT ms", "TTFT after idle ms, p50", "p99", "cores", title=name)
    for row in rows:
        times = [
            row[f"{key}_ns"] for key in ("tpot_mean", "ttft_after_idle_p50", "ttft_after_idle_p99")
        ]
        shown = ["-" if ns is None else f"{ns / MS:.3f}" for ns in times]
        table.add_row(*(str(row[key]) for key in cell), *shown, f"{row['cores']:.2f}")
    console.print(table)


EXPERIMENT: Final = Experiment(cells, run, report, quick)
