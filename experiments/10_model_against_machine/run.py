"""Runs every preset in both worlds in several cells, and stores how far apart they are."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from realrun.contribute import bundle_of, text_of
from realrun.tables import TPOT_MARGIN, is_hit, validation_table
from realrun.validate import validate
from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from runner.profiles import profile_of
from shmsim.claims import Claim
from shmsim.config import (
    DeviceConfig,
    EngineConfig,
    NamedPolicy,
    RunConfig,
    WorkloadConfig,
    parse_policy,
)
from shmsim.console import console
from shmsim.metrics import wait_delay_ns
from shmsim.records import RunRecords
from shmsim.units import US, S, parse_duration_ns
from shmsim.wait import SCHEDULER_RECV
from shmsim.whole import write_whole

_STORED: Final = ("outcomes.parquet", "validation.json")
#: For the leaderboard, whose bound needs the waits, which are not stored.
_BUNDLE: Final = "bundle.json"


def quick(plan: Plan) -> Plan:
    """The same in little: one repeat, two cells, three policies, the profile that comes along."""
    presets, jitter = plan["presets"], plan["jitter"]
    return plan | {
        "repeats": 1,
        "profile": "vm-2cpu",
        "presets": presets
        | {
            "policies": ["spin", "park", "wake-ahead"],
            "requests": 2,
            "cells": presets["cells"][:1],
        },
        "jitter": jitter
        | {
            "policies": jitter["policies"][:3],
            "requests": 1,
            "tokens": 200,
            "cells": jitter["cells"][:1],
        },
    }


def cells(plan: Plan) -> Iterator[Cell]:
    """Every cell."""
    for kind in ("presets", "jitter"):
        for table in plan[kind]["cells"]:
            yield Cell(table["name"], "machine", {"kind": kind, **table})


def config_of(plan: Plan, settings: dict[str, Any]) -> RunConfig:
    """What is run in a cell."""
    table = plan[settings["kind"]]
    make = presets_cell if settings["kind"] == "presets" else jitter_cell
    return make(table, settings, plan["repeats"])


def presets_cell(table: dict[str, Any], cell: dict[str, Any], repeats: int) -> RunConfig:
    """All presets at one number of workers and one step time."""
    tokens, step_ns = cell["tokens"], parse_duration_ns(cell["step"])
    workload = WorkloadConfig(
        kind="open",
        requests=table["requests"],
        rate_per_s=table["load"] / (tokens * step_ns / S),
        prompt_p50=400,
        prompt_p95=400,
        output_p50=tokens,
        output_p95=tokens,
    )
    return RunConfig(
        EngineConfig(workers=cell["workers"]),
        workload=workload,
        device=DeviceConfig(step_ns=step_ns, jitter=table["jitter"]),
        policies=tuple(NamedPolicy(name, parse_policy(name).policy) for name in table["policies"]),
        repeats=repeats,
    )


def jitter_cell(table: dict[str, Any], cell: dict[str, Any], repeats: int) -> RunConfig:
    """WakeAhead against spin and park, in steady decode of one sequence."""
    policies = tuple(
        NamedPolicy(policy["name"], parse_policy(policy["is"]).policy)
        for policy in table["policies"]
    )
    workload = WorkloadConfig(
        kind="closed",
        requests=table["requests"],
        concurrency=1,
        prompt_p50=10,
        prompt_p95=10,
        output_p50=table["tokens"],
        output_p95=table["tokens"],
    )
    step_ns = parse_duration_ns(table["step"])
    return RunConfig(
        EngineConfig(workers=1),
        workload=workload,
        device=DeviceConfig(step_ns=step_ns, per_prefill_token_ns=0, jitter=cell["jitter"]),
        policies=policies,
        repeats=repeats,
    )


def run(cell: Cell, context: Context) -> Content:
    """Run one cell in both worlds."""
    profile = profile_of(context)
    config = config_of(context.plan, cell.settings)
    folder = context.folder / cell.name
    validation = validate(
        config, profile, folder, lambda done, n, label: context.progress(label, done / n)
    )
    console.print(validation_table(validation))
    stored = context.files / cell.name
    stored.mkdir(exist_ok=True)
    for file in _STORED:
        shutil.copy(folder / file, stored / file)
    write_whole(stored / _BUNDLE, text_of(bundle_of(folder, progress=context.progress)))
    content: Content = {
        "table": {policy: _known(row) for policy, row in validation.table().items()},
        "hits": [name for name in validation.policy_names if is_hit(validation, name)],
    }
    if cell.settings["kind"] == "jitter":
        content["delays"] = {
            policy: {
                world: delays_us(folder, policy, world, config.repeats)
                for world in ("model", "machine")
            }
            for policy in validation.policy_names
        }
        text = json.dumps(content["delays"], indent=1) + "\n"
        write_whole(stored / "delays.json", text)
    return content


def _known(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Without what nobody has, such as TTFT after idle where nothing idles."""
    return {
        name: found for name, found in figures.items() if found["measured"] == found["measured"]
    }


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


def claims(plan: Plan, content: dict[str, Content]) -> list[Claim]:
    """TPOT errors, cell by cell: with a core for each process, and with three on two."""
    found = []
    for cell in plan["presets"]["cells"]:
        for policy, figures in content[cell["name"]]["table"].items():
            tpot = figures["tpot_p50_ns"]
            noise = tpot["spread"] / tpot["measured"]
            error = abs(tpot["simulated"] / tpot["measured"] - 1)
            found.append(
                Claim(
                    f"model/{cell['name']}/{policy}/tpot_p50_error",
                    *(error, max(0.0, error - noise), error + noise, "ratio", TPOT_MARGIN, "<="),
                    *(plan["repeats"], plan["seed"]),
                )
            )
    return found


def report(results: Results, _out: Path) -> Findings:
    """Tell how many policies of each cell were met."""
    hits = {}
    for name, row in results.content.items():
        if "table" in row:
            hits[name] = {"hits": len(row["hits"]), "policies": len(row["table"])}
            told = hits[name]
            console.print(f"{name}: {told['hits']} of {told['policies']} within 5 % and 5 points")
    return Findings(claims(results.plan, results.content), {"hits": hits})


EXPERIMENT: Final = Experiment(cells, run, report, quick)
