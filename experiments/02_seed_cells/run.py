"""Fit two scales to the seed's sync cells, predict its async ones, and ask what follows.

Usage: python experiments/02_seed_cells/run.py [--quick] [--config FILE] [--out FOLDER]
           [--json FILE]
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from seed_cells import Seed, claims, describe, intervals
from seed_follow_ups import follow

from realrun.host import machine_facts
from shmsim.claims import write_claims
from shmsim.console import Bar, console
from shmsim.units import MS

HERE: Final = Path(__file__).parent


def quick(plan: dict[str, Any]) -> dict[str, Any]:
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


def main() -> None:
    """Fit, predict, store, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="six draws of short runs")
    parser.add_argument("--config", type=Path, default=HERE / "config.toml")
    parser.add_argument("--out", type=Path, help="default: results/, of --quick runs/")
    parser.add_argument("--json", type=Path, help="where the claims go; default: into --out")
    arguments = parser.parse_args()
    out = arguments.out or (Path("runs") / HERE.name if arguments.quick else HERE / "results")
    plan = tomllib.loads(arguments.config.read_text())
    if arguments.quick:
        plan = quick(plan)
    seed = Seed(plan)
    with Bar() as bar:
        draws = seed.draws(bar.show)
        prior = plan["prior"]
        mean_overlap = prior["alpha"] / (prior["alpha"] + prior["beta"])
        fit = seed.fit(mean_overlap, 0)
        hidden_ns = seed.tpot_ns(seed.fit(1.0, 0), "async_spin", "predict", 1)
        follow_ups = follow(seed, fit, bar.show)
    found = intervals(draws, plan)
    for name, interval in found.items():
        fitted = " (fitted)" if name.startswith("tpot/sync") else ""
        console.print(f"{name}{fitted}: {describe(interval)}", markup=False)
    console.print(
        f"at the prior's mean, {fit.overlap:.2f}: host x {fit.host_scale:.2f}, "
        f"sleep x {fit.wake_scale:.2f}"
    )
    kernels_ns = seed.config.device.step_time.mean_ns(seed.config.workload.concurrency, 0, 0)
    console.print(
        f"control, all of the host's work overlapped: async / spin {hidden_ns / MS:.3f} ms, "
        f"kernels alone {kernels_ns / MS:.3f} ms"
    )
    for name, rows in follow_ups.items():
        tell(name, rows)
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine_facts(),
        "plan": plan,
        "fit": fit._asdict(),
        "control": {"hidden_ns": hidden_ns, "kernels_ns": kernels_ns},
        "draws": [{**d._asdict(), "fit": d.fit._asdict()} for d in draws],
        "intervals": {
            name: {**i._asdict(), "error": i.error, "covers": i.covers} for name, i in found.items()
        },
        "follow": follow_ups,
    }
    (out / "seed_cells.json").write_text(json.dumps(content, indent=1) + "\n")
    made = claims(found, len(draws), plan["seed"])
    write_claims(arguments.json or out / "claims.json", machine_facts(), made)
    for claim in made:
        console.print(f"{claim.id}: {claim.value:.3g} {claim.unit}", markup=False)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
