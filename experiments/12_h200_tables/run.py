"""Calibrate on batch 2 of an H200 and predict its other rows, batch 64 and eight readers.

Usage: python experiments/12_h200_tables/run.py [--quick] [--config FILE] [--out FOLDER]
           [--json FILE]
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from h200_rows import H200, TABLES, Row, claims
from rich.table import Table

from realrun.host import machine_facts
from shmsim.claims import write_claims
from shmsim.console import Bar, console
from shmsim.units import US

HERE: Final = Path(__file__).parent


def quick(plan: dict[str, Any]) -> dict[str, Any]:
    """The same in little: one short replication."""
    return {**plan, "steps": 80, "settle": 20, "replications": 1}


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


def main() -> None:
    """Fit, predict, store, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short replication")
    parser.add_argument("--config", type=Path, default=HERE / "config.toml")
    parser.add_argument("--out", type=Path, help="default: results/, of --quick runs/")
    parser.add_argument("--json", type=Path, help="where the claims go; default: into --out")
    arguments = parser.parse_args()
    out = arguments.out or (Path("runs") / HERE.name if arguments.quick else HERE / "results")
    plan = tomllib.loads(arguments.config.read_text())
    if arguments.quick:
        plan = quick(plan)
    machine = H200(plan)
    with Bar() as bar:
        bar.show("fit to batch 2", 0.0)
        fit = machine.fit()
        rows = list(machine.rows(fit, bar.show))
    console.print(f"host x {fit.host_scale:.2f}, slower after a sleep x {fit.slow_scale:.2f}")
    for name in TABLES:
        tell(name, [row for row in rows if row.table == name])
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine_facts(),
        "plan": plan,
        "fit": fit._asdict(),
        "rows": [stored(row) for row in rows],
    }
    (out / "h200_tables.json").write_text(json.dumps(content, indent=1) + "\n")
    made = claims(rows, plan)
    write_claims(arguments.json or out / "claims.json", machine_facts(), made)
    for claim in made:
        console.print(f"{claim.id}: {claim.value:.3g} {claim.unit}", markup=False)


def stored(row: Row) -> dict[str, Any]:
    """A row as JSON has it: a role that nobody has is left out."""
    predicted = {name: x for name, x in row.predicted._asdict().items() if x == x}
    return {**row._asdict(), "predicted": predicted}


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
