"""Fits the default arm of a live vLLM, and lets the model put the other arms in order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from live_order import TABLES, Figures, Fit, Live, claims, orders
from rich.table import Table

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.console import console


def quick(plan: Plan) -> Plan:
    """The same in little: one short generation for each arm."""
    return plan | {"output": 60, "replications": 1}


def cells(plan: Plan) -> Iterator[Cell]:
    """The fit to the default arms, then every arm of every table."""
    yield Cell("fit", "model")
    for table in TABLES:
        for arm in plan[table]["arms"]:
            yield Cell(f"{table}, {arm}", "model", {"table": table, "arm": arm})


def run(cell: Cell, context: Context) -> Content:
    """Fit, or predict one arm."""
    live = Live(context.plan)
    if cell.name == "fit":
        return live.fit(context.progress).stored()
    fit = Fit.read(context.found["fit"])
    workers = context.plan[cell.settings["table"]]["workers"]
    return live.run(fit.engine_ms, fit.step_ms[workers], workers, cell.settings["arm"])._asdict()


def report(results: Results, _out: Path) -> Findings:
    """Tell every arm beside what was measured, and which pairs stand in another order."""
    plan = results.plan
    fit = Fit.read(results.content["fit"])
    predicted = {
        table: {arm: Figures(**results.content[f"{table}, {arm}"]) for arm in plan[table]["arms"]}
        for table in TABLES
    }
    steps = ", ".join(f"TP{n} {ms:.2f} ms" for n, ms in fit.step_ms.items())
    console.print(f"EngineCore works {fit.engine_ms:.2f} ms a step, workers {steps}")
    for name in TABLES:
        console.print(_table(name, plan[name], predicted[name]))
    found = orders(plan, predicted)
    for o in found:
        wrong = "; ".join(f"{less} below {more}" for less, more in o.wrong) or "none"
        console.print(
            f"{o.table}, {o.quantity}: {o.n_right} of {o.n_pairs} pairs right, "
            f"tau {o.tau:+.2f}; wrong: {wrong}",
            markup=False,
        )
    summary = {
        "fit": fit.stored(),
        "predicted": {
            table: {arm: figures._asdict() for arm, figures in arms.items()}
            for table, arms in predicted.items()
        },
        "orders": [o._asdict() for o in found],
    }
    return Findings(claims(found, plan["seed"]), summary)


def _table(name: str, plan: Plan, predicted: dict[str, Figures]) -> Table:
    table = Table(
        "arm", "ms per token", "measured", "EngineCore", "measured", "worker", "measured",
        title=name,
    )  # fmt: skip
    for arm, row in plan["arms"].items():
        found = predicted[arm]
        table.add_row(
            arm + (" (fitted)" if arm == plan["fitted"] else ""),
            f"{found.ms:.2f}",
            f"{min(row['ms']):.2f} to {max(row['ms']):.2f}",
            f"{found.engine_cores:.2f}",
            f"{row['engine_cores']:.2f}",
            f"{found.worker_cores:.2f}",
            f"{row['worker_cores']:.2f}",
        )
    return table


EXPERIMENT: Final = Experiment(cells, run, report, quick)
