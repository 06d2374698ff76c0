"""Holds the effects of ways to wait in a live vLLM against what the model foretold of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from live_order import Arm, Effect, claims, effect, orders, read_arms
from rich.table import Table

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.console import console

_STORED: Final = Path(__file__).parents[1] / "bench" / "results"


def quick(plan: Plan) -> Plan:
    """The same: it takes no time."""
    return plan


def cells(plan: Plan) -> Iterator[Cell]:
    """One for each comparison."""
    for table, name in plan["tables"].items():
        yield Cell(table, "model", {"name": name})


def run(cell: Cell, context: Context) -> Content:
    """Read what was measured and foretold."""
    arms = read_arms(_STORED / cell.settings["name"])
    reference = context.plan["reference"]
    if reference not in arms:
        raise ValueError(
            f"{cell.settings['name']} has no arm {reference!r} to count from; it has "
            f"{', '.join(arms)}"
        )
    return {name: arm._asdict() for name, arm in arms.items()}


def report(results: Results, _out: Path) -> Findings:
    """Tell every effect beside its prediction, and which pairs stand in another order."""
    plan = results.plan
    effects: dict[tuple[str, str], Effect] = {}
    found = []
    for table in plan["tables"]:
        arms = {name: Arm(**row) for name, row in results.content[table].items()}
        reference = arms[plan["reference"]]
        of_table = {
            name: effect(arm, reference) for name, arm in arms.items() if arm is not reference
        }
        console.print(_table(table, plan["reference"], arms, of_table))
        effects |= {(table, name): one for name, one in of_table.items()}
        found += orders(table, arms, plan["slack"])
    for o in found:
        wrong = "; ".join(f"{less} below {more}" for less, more in o.wrong) or "none"
        console.print(
            f"{o.table}, {o.quantity}: {o.n_right} of {o.n_pairs} pairs right, "
            f"tau {o.tau:+.2f}; wrong: {wrong}",
            markup=False,
        )
    summary = {
        "arms": results.content,
        "effects": {
            table: {
                name: {key: value._asdict() for key, value in one._asdict().items()}
                for (where, name), one in effects.items()
                if where == table
            }
            for table in plan["tables"]
        },
        "orders": [o._asdict() for o in found],
    }
    return Findings(claims(effects, found, plan["seed"]), summary)


def _table(title: str, reference: str, arms: dict[str, Arm], effects: dict[str, Effect]) -> Table:
    names = ("arm", "ms per token", "effect", "foretold", "error", "EngineCore", "foretold")
    table = Table(*names, title=title)
    for name, arm in arms.items():
        row: tuple[Any, ...] = ("", "", "")
        if name != reference:
            one = effects[name]
            row = (
                f"{_percent(one.measured.value - 1)} [{_percent(one.measured.low - 1)}, "
                f"{_percent(one.measured.high - 1)}]",
                _percent(one.predicted.value - 1),
                f"{_percent(one.error.value)} [{_percent(one.error.low)}, "
                f"{_percent(one.error.high)}]",
            )
        cores, foretold = (sum(x) / len(x) for x in (arm.engine_cores, arm.predicted_cores))
        ms = f"{sum(arm.ms) / len(arm.ms):.2f} ({min(arm.ms):.2f} to {max(arm.ms):.2f})"
        table.add_row(name, ms, *row, f"{cores:.2f}", f"{foretold:.2f}")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}%"


EXPERIMENT: Final = Experiment(cells, run, report, quick)
