"""Run every preset in both worlds in several cells, and store how far apart they are.

Usage: python experiments/10_model_against_machine/run.py [--quick] [--cells NAME ...]
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from realrun.calibrate import calibrate
from realrun.host import machine_facts
from realrun.tables import TPOT_MARGIN, is_hit, validation_table
from realrun.validate import validate
from shmsim.claims import Claim, write_claims
from shmsim.config import DeviceConfig, EngineConfig, NamedPolicy, RunConfig, WorkloadConfig
from shmsim.console import console, diagnostics
from shmsim.metrics import wait_delay_ns
from shmsim.policies import PRESETS, BusySpin, Park, WakeAhead
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.units import MS, US
from shmsim.wait import SCHEDULER_RECV

RESULTS = Path(__file__).parent / "results"
RUNS = Path("runs/10_model_against_machine")


def presets_cell(workers: int, step_ms: int, repeats: int, requests: int) -> RunConfig:
    """All presets at one number of workers and one step time."""
    output_tokens = 120 if step_ms < 5 else 60
    service_s = output_tokens * step_ms / 1000
    workload = WorkloadConfig(
        kind="open",
        requests=requests,
        rate_per_s=0.4 / service_s,
        prompt_p50=400,
        prompt_p95=400,
        output_p50=output_tokens,
        output_p95=output_tokens,
    )
    return RunConfig(
        EngineConfig(workers=workers),
        workload,
        DeviceConfig(step_ns=step_ms * MS, jitter=0.01),
        tuple(NamedPolicy(name, policy) for name, policy in PRESETS.items()),
        repeats=repeats,
    )


def jitter_cell(jitter: float, repeats: int, requests: int) -> RunConfig:
    """WakeAhead against spin and park, in steady decode of one sequence."""
    policies = (
        NamedPolicy("spin", BusySpin()),
        NamedPolicy("park", Park()),
        NamedPolicy("ahead-100us", WakeAhead(100 * US)),
        NamedPolicy("ahead-200us", WakeAhead(200 * US)),
        NamedPolicy("ahead-400us", WakeAhead(400 * US)),
        NamedPolicy("rehearse-200us", WakeAhead(200 * US, rehearse=True)),
    )
    workload = WorkloadConfig(
        kind="closed",
        requests=requests,
        concurrency=1,
        prompt_p50=10,
        prompt_p95=10,
        output_p50=400,
        output_p95=400,
    )
    return RunConfig(
        EngineConfig(workers=1),
        workload,
        DeviceConfig(step_ns=2 * MS, per_prefill_token_ns=0, jitter=jitter),
        policies,
        repeats=repeats,
    )


def cells(*, quick: bool) -> dict[str, RunConfig]:
    """Every cell by name."""
    repeats, requests = (1, 3) if quick else (3, 6)
    named = {
        f"tp{workers}_{step_ms}ms": presets_cell(workers, step_ms, repeats, requests)
        for workers in (1, 2)
        for step_ms in (2, 10)
    }
    for percent in (2, 10):
        named[f"jitter_{percent}pct"] = jitter_cell(percent / 100, repeats, 1 if quick else 4)
    return named


def delays_us(folder: Path, policy: str, world: str, repeats: int) -> dict[str, float]:
    """Publication to seen at the scheduler's second wait, pooled over repeats."""
    delays = np.concatenate(
        [
            wait_delay_ns(
                RunRecords.read(folder / "records" / f"{policy}-{i}-{world}"),
                SCHEDULER_RECV,
                call=1,
            )
            for i in range(repeats)
        ]
    )
    p50, p90, p99 = np.percentile(delays, [50, 90, 99]) / US
    return {"p50_us": float(p50), "p90_us": float(p90), "p99_us": float(p99), "n": len(delays)}


def stored_claims(folder: Path) -> list[Claim]:
    """TPOT errors of the stored cells in which every process has a core."""
    claims = []
    for path in sorted(folder.glob("tp1_*/validation.json")):
        stored = json.loads(path.read_text())
        for name, figures in stored["table"].items():
            tpot = figures["tpot_p50_ns"]
            noise = tpot["spread"] / tpot["measured"]
            error = abs(tpot["simulated"] / tpot["measured"] - 1)
            claims.append(
                Claim(
                    f"model/{path.parent.name}/{name}/tpot_p50_error",
                    error,
                    max(0.0, error - noise),
                    error + noise,
                    "ratio",
                    TPOT_MARGIN,
                    "<=",
                    stored["config"]["repeats"],
                    stored["config"]["seed"],
                )
            )
    return claims


def main() -> None:
    """Run the cells asked for and store what is small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat of three requests")
    parser.add_argument("--cells", nargs="*", choices=list(cells(quick=True)), help="only these")
    parser.add_argument("--profile", type=Path, help="calibrated before; without it, calibrates")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are stored")
    arguments = parser.parse_args()
    profile = MachineProfile.read(arguments.profile) if arguments.profile else calibrate()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, config in cells(quick=arguments.quick).items():
        if arguments.cells and name not in arguments.cells:
            continue
        diagnostics.print(
            f"cell {name}: {len(config.policies)} policies x {config.repeats} repeats"
        )
        folder = RUNS / name
        validation = validate(replace(config), profile, folder)
        console.print(validation_table(validation))
        stored = arguments.out / name
        stored.mkdir(exist_ok=True)
        for file in ("outcomes.parquet", "validation.json"):
            shutil.copy(folder / file, stored / file)
        if name.startswith("jitter"):
            delays = {
                policy: {
                    world: delays_us(folder, policy, world, config.repeats)
                    for world in ("model", "machine")
                }
                for policy in validation.policy_names
            }
            (stored / "delays.json").write_text(json.dumps(delays, indent=1) + "\n")
            console.print(json.dumps(delays, indent=1))
        hits = sum(is_hit(validation, policy) for policy in validation.policy_names)
        console.print(f"{name}: {hits} of {len(validation.policy_names)} within 5 % and 5 points")
    write_claims(arguments.out / "claims.json", machine_facts(), stored_claims(arguments.out))
    profile.write(arguments.out / "profile.json")


if __name__ == "__main__":
    main()
