"""Fit the default arm of a live vLLM, and let the model put the other arms in order.

Usage: python experiments/11_live_vllm_order/run.py [--quick] [--config FILE] [--out FOLDER]
           [--json FILE]
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Final

from live_order import TABLES, Live, claims, orders
from rich.table import Table

from realrun.host import machine_facts
from shmsim.claims import write_claims
from shmsim.console import Bar, console

HERE: Final = Path(__file__).parent


def main() -> None:
    """Fit, predict, compare, store, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short generation for each arm")
    parser.add_argument("--config", type=Path, default=HERE / "config.toml")
    parser.add_argument("--out", type=Path, help="default: results/, of --quick runs/")
    parser.add_argument("--json", type=Path, help="where the claims go; default: into --out")
    arguments = parser.parse_args()
    out = arguments.out or (Path("runs") / HERE.name if arguments.quick else HERE / "results")
    plan = tomllib.loads(arguments.config.read_text())
    if arguments.quick:
        plan |= {"output": 60, "replications": 1}
    live = Live(plan)
    with Bar() as bar:
        fit = live.fit(bar.show)
        predicted = live.predict(fit, bar.show)
    steps = ", ".join(f"TP{n} {ms:.2f} ms" for n, ms in fit.step_ms.items())
    console.print(f"EngineCore works {fit.engine_ms:.2f} ms a step, workers {steps}")
    for name in TABLES:
        table = Table(
            "arm",
            "ms per token",
            "measured",
            "EngineCore",
            "measured",
            "worker",
            "measured",
            title=name,
        )
        for arm, row in plan[name]["arms"].items():
            found = predicted[name][arm]
            fitted = " (fitted)" if arm == plan[name]["fitted"] else ""
            table.add_row(
                arm + fitted,
                f"{found.ms:.2f}",
                f"{min(row['ms']):.2f} to {max(row['ms']):.2f}",
                f"{found.engine_cores:.2f}",
                f"{row['engine_cores']:.2f}",
                f"{found.worker_cores:.2f}",
                f"{row['worker_cores']:.2f}",
            )
        console.print(table)
    found_orders = orders(plan, predicted)
    for o in found_orders:
        wrong = "; ".join(f"{less} below {more}" for less, more in o.wrong) or "none"
        console.print(
            f"{o.table}, {o.quantity}: {o.n_right} of {o.n_pairs} pairs right, "
            f"tau {o.tau:+.2f}; wrong: {wrong}",
            markup=False,
        )
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine_facts(),
        "plan": plan,
        "fit": fit._asdict(),
        "predicted": {
            table: {arm: f._asdict() for arm, f in arms.items()}
            for table, arms in predicted.items()
        },
        "orders": [o._asdict() for o in found_orders],
    }
    (out / "live_vllm_order.json").write_text(json.dumps(content, indent=1) + "\n")
    made = claims(found_orders, plan["seed"])
    write_claims(arguments.json or out / "claims.json", machine_facts(), made)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
