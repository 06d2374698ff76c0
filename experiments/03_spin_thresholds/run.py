"""What each threshold costs at each step time, in the model; and some of it on the machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table
from spin_claims import claims
from thresholds import (
    cheapest,
    measured,
    modelled,
    paid_twice,
    points_of,
    rows_of,
    sweep_of,
)

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from runner.profiles import profile_of
from shmsim.config import NamedPolicy, parse_policy
from shmsim.console import console
from shmsim.policies import GraceThenPark
from shmsim.sweep.tables import results as estimates
from shmsim.units import MS, parse_duration_ns


def quick(plan: Plan) -> Plan:
    """The same in little: two step times, few policies, two real cells once."""
    short = {"steps": ["2ms", "10ms"], "replications": 2, "tokens": 60}
    policies = ["spin", "park", "vllm-1s", "forks-2ms", "wake-ahead"]
    real = {"step": "3ms", "policies": ["spin", "forks-2ms"]}
    return plan | {
        "model": plan["model"] | short | {"policies": policies},
        "windows": plan["windows"] | short | {"steps": ["2ms"], "windows": ["500us", "5ms"]},
        "machine": plan["machine"] | {"cells": [real], "repeats": 1, "run": "600ms"},
    }


def cells(plan: Plan) -> Iterator[Cell]:
    """Both sweeps of the model, what it says of the real cells, and those in turns."""
    yield Cell("model", "model")
    yield Cell("windows", "model")
    yield Cell("predicted", "model")
    for repeat in range(plan["machine"]["repeats"]):
        for table in plan["machine"]["cells"]:
            settings = {"step": table["step"], "repeat": repeat}
            yield Cell(f"steps of {table['step']}, {repeat}", "machine", settings)


def run(cell: Cell, context: Context) -> Content:
    """Sweep, predict, or run all policies of one step time once."""
    plan, profile = context.plan, profile_of(context)
    if cell.world == "machine":
        return _measure(cell, context)
    if cell.name == "predicted":
        pairs = [(t["step"], name) for t in plan["machine"]["cells"] for name in t["policies"]]
        return {"rows": [modelled(plan, s, parse_policy(name), profile) for s, name in pairs]}
    table = plan[cell.name]
    policies = (
        [parse_policy(name) for name in table["policies"]]
        if cell.name == "model"
        else [
            NamedPolicy(text, GraceThenPark(parse_duration_ns(text))) for text in table["windows"]
        ]
    )
    sweep = sweep_of(plan, table, policies, profile)
    return {"rows": rows_of(estimates(sweep, context.sweep(sweep)))}


def _measure(cell: Cell, context: Context) -> Content:
    plan, profile = context.plan, profile_of(context)
    step, repeat = cell.settings["step"], cell.settings["repeat"]
    names = next(t["policies"] for t in plan["machine"]["cells"] if t["step"] == step)
    # A B C, then C B A: a drift of the machine meets all of them.
    names = names if repeat % 2 == 0 else names[::-1]
    rows = []
    for i, name in enumerate(names):
        context.progress(name, i / len(names))
        rows.append(measured(plan, step, parse_policy(name), profile, repeat))
    return {"rows": rows, "emulated": any(row["emulated"] for row in rows)}


def report(results: Results, _out: Path) -> Findings:
    """Tell the prices, where windows are paid twice, and how the machine compares."""
    plan = results.plan
    points = points_of(results.content["model"]["rows"])
    steps, policies = plan["model"]["steps"], plan["model"]["policies"]
    price = plan["delay_price"]
    table = Table("policy", *steps, title="TPOT over that of spin / cores, in the model")
    for name in policies:
        here = [points[step, name] for step in steps]
        ratios = [p.tpot_ns / points[p.step, "spin"].tpot_ns for p in here]
        table.add_row(
            name, *(f"{r:.3f} / {p.cores:.2f}" for r, p in zip(ratios, here, strict=True))
        )
    console.print(table)
    twice = {name: paid_twice(points, name) for name in policies if name not in ("spin", "park")}
    best = {step: cheapest(points, step, price) for step in steps}
    prices = {
        step: {name: points[step, name].price(points[step, "spin"], price) for name in policies}
        for step in steps
    }
    for name, at in twice.items():
        if at:
            console.print(f"{name} is paid twice at steps of {', '.join(at)}", markup=False)
    console.print(f"cheapest: {', '.join(f'{step} {name}' for step, name in best.items())}")
    against = machine_table(results)
    tell_machine(against)
    summary = {
        "model": results.content["model"]["rows"],
        "windows": results.content["windows"]["rows"],
        "paid_twice": twice,
        "cheapest": best,
        "price_cores": prices,
        "machine": against,
    }
    return Findings(claims(plan, summary), summary)


def machine_table(results: Results) -> list[Content]:
    """Each real cell: mean and range of TPOT over the repeats, beside the prediction."""
    predicted = points_of(results.content["predicted"]["rows"])
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for content in results.of("machine").values():
        for row in content["rows"]:
            runs.setdefault((row["step"], row["policy"]), []).append(row)
    found = []
    for (step, policy), rows in runs.items():
        tpots = [row["tpot_ns"] for row in rows]
        said = predicted[step, policy]
        found.append(
            {
                "step": step,
                "policy": policy,
                "n": len(rows),
                "tpot_ns": float(np.mean(tpots)),
                "tpot_low_ns": min(tpots),
                "tpot_high_ns": max(tpots),
                "cores": float(np.mean([r["scheduler_cores"] + r["worker_cores"] for r in rows])),
                "predicted_tpot_ns": said.tpot_ns,
                "predicted_cores": said.cores,
                "error": said.tpot_ns / float(np.mean(tpots)) - 1.0,
            }
        )
    return found


def tell_machine(rows: list[Content]) -> None:
    """Print the real cells."""
    table = Table(
        "step", "policy", "TPOT ms", "predicted", "error", "cores", "predicted", title="machine"
    )
    for row in rows:
        table.add_row(
            row["step"],
            row["policy"],
            f"{row['tpot_ns'] / MS:.3f} ({row['tpot_low_ns'] / MS:.3f} to "
            f"{row['tpot_high_ns'] / MS:.3f})",
            f"{row['predicted_tpot_ns'] / MS:.3f}",
            f"{100 * row['error']:+.1f} %",
            f"{row['cores']:.2f}",
            f"{row['predicted_cores']:.2f}",
        )
    console.print(table)


EXPERIMENT: Final = Experiment(cells, run, report, quick, sweeps=True)
