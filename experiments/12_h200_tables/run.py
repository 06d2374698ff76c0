"""Calibrates on batch 2 of an H200; predicts its other rows, batch 64 and eight readers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from h200_rows import H200, TABLES, Fit, Row, Step, claims, rows_of
from rich.table import Table

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.console import console
from shmsim.units import US


def quick(plan: Plan) -> Plan:
    """The same in little: one short replication."""
    return {**plan, "steps": 80, "settle": 20, "replications": 1}


def cells(plan: Plan) -> Iterator[Cell]:
    """The fit to batch 2, then every row of every table."""
    yield Cell("fit", "model")
    for table, arm in _arms(plan):
        yield Cell(f"{table}, {arm}", "model", {"table": table, "arm": arm})


def _arms(plan: Plan) -> list[tuple[str, str]]:
    return [(table, arm) for table in TABLES for arm in plan[table]["rows"]]


def run(cell: Cell, context: Context) -> Content:
    """Fit, or predict one row."""
    machine = H200(context.plan)
    if cell.name == "fit":
        return machine.fit()._asdict()
    step = machine.predict(Fit(**context.found["fit"]), **cell.settings)
    # A role that nobody has is left out: it is no number.
    return {name: x for name, x in step._asdict().items() if x == x}


def report(results: Results, _out: Path) -> Findings:
    """Tell every row beside what was measured."""
    plan, content = results.plan, results.content
    fit = Fit(**content["fit"])
    nobody = dict.fromkeys(Step._fields, float("nan"))
    predicted = {(t, a): Step(**nobody | content[f"{t}, {a}"]) for t, a in _arms(plan)}
    rows = rows_of(plan, predicted)
    console.print(f"host x {fit.host_scale:.2f}, slower after a sleep x {fit.slow_scale:.2f}")
    for name in TABLES:
        tell(name, [row for row in rows if row.table == name])
    summary = {"fit": fit._asdict(), "rows": [_stored(row) for row in rows]}
    return Findings(claims(rows, plan), summary)


def _stored(row: Row) -> dict[str, Any]:
    predicted = {name: x for name, x in row.predicted._asdict().items() if x == x}
    return {**row._asdict(), "predicted": predicted}


def tell(name: str, rows: list[Row]) -> None:
    """Print one table."""
    table = Table(
        "wait on words / on GPU", "step us", "measured", "error", "against spin",
        "scheduler / worker / receiver", "measured", title=name,
    )  # fmt: skip
    for row in rows:
        step, *cores = row.predicted
        seen = row.measured
        roles = [role for role in ("scheduler", "worker", "receiver", "total") if role in seen]
        table.add_row(
            row.arm + (" (fitted)" if row.is_fitted else ""),
            f"{step / US:.0f}",
            f"{seen['step_us']:.0f} ({seen['low']:.0f} to {seen['high']:.0f})",
            f"{100 * row.error:+.1f} %",
            f"{100 * row.against_spin_error:+.1f} %",
            " / ".join(f"{share:.2f}" for share in cores if share == share),
            " / ".join(f"{seen[role]:.2f}" for role in roles),
        )
    console.print(table)


EXPERIMENT: Final = Experiment(cells, run, report, quick)
