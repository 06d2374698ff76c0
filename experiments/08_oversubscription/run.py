"""More runnable threads than cores: what really happens, and the facts a model of cores needs.

Usage: python experiments/08_oversubscription/run.py [--quick] [--profile FILE] [--out FOLDER]
           [--parts {ring,engine,quota,facts,model} ...]

Repeats are interleaved: each goes once through all cells of a part.
"""

import argparse
import json
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from contention import CannotMeasureError, Contention, compiled, describe, kernel_facts
from facts import at_once_share
from findings import claims
from pair import figures
from quota import PERIOD_NS, child_group

from realrun.calibrate import calibrate
from realrun.host import machine_facts
from realrun.validate import predict
from shmsim.claims import write_claims
from shmsim.config import parse_config, parse_policy
from shmsim.profile import MachineProfile
from shmsim.units import S, parse_duration_ns

HERE: Final = Path(__file__).parent
PARTS: Final = ("ring", "engine", "quota", "facts", "model")
N_TOKENS_IN_FLIGHT: Final = 2  # requests at once in a run of the engine
N_REQUESTS: Final = 20
_RUN_LIMIT_S: Final = 300.0


def seconds(text: str) -> float:
    """A duration of the config, in seconds."""
    return parse_duration_ns(text) / S


def measure_ring(plan: dict[str, Any], repeats: int, tools: Contention) -> dict[str, Any]:
    """Round trips of a turn among threads that wait in each way."""
    work_ns = parse_duration_ns(plan["work"])
    rows = []
    for repeat in range(repeats):
        for wait, n in product(plan["waits"], plan["threads"]):
            found = describe(tools.ring(wait, n, work_ns, seconds(plan["run"])))
            rows.append({"wait": wait, "threads": n, "repeat": repeat, **found})
            print(f"  ring of {n}, {wait}: mean {found['mean_ns'] / 1e3:.1f} us")
    return {"rows": rows}


def engine_config(step: str, run: str, workers: int, scheduling: str) -> dict[str, Any]:
    """A closed loop that decodes for about the given time."""
    n_steps = seconds(run) / seconds(step)
    tokens = max(2, round(n_steps * N_TOKENS_IN_FLIGHT / N_REQUESTS))
    return {
        "engine": {"workers": workers, "scheduling": scheduling},
        "device": {"step": step, "per_prefill_token": "0us", "jitter": 0.01},
        "workload": {
            "kind": "closed",
            "requests": N_REQUESTS,
            "concurrency": N_TOKENS_IN_FLIGHT,
            "prompt_p50": 16,
            "prompt_p95": 16,
            "output_p50": tokens,
            "output_p95": tokens,
        },
    }


def run_pair(
    config: dict[str, Any], policy: str, profile: Path, folder: Path, group: Path | None = None
) -> dict[str, Any]:
    """Run the engine once in a process of its own, which may move into a cgroup."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, str(HERE / "pair.py"), str(path), str(profile), policy]
    # A session of its own: at Ctrl-C we stop it, and no traceback of its own is printed.
    with subprocess.Popen(
        [*command, *([str(group)] if group else [])],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=_RUN_LIMIT_S)
        except BaseException:
            process.send_signal(signal.SIGINT)  # it stops its children and frees their memory
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"a run of the engine ended with exit code {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found


def measure_engine(
    plan: dict[str, Any], repeats: int, profile: Path, folder: Path
) -> dict[str, Any]:
    """One and two workers on the cores of this box."""
    rows = []
    for repeat in range(repeats):
        for policy, workers in product(plan["policies"], plan["workers"]):
            config = engine_config(plan["step"], plan["run"], workers, "sync")
            found = run_pair(config, policy, profile, folder)
            cell = {"policy": policy, "workers": workers}
            rows.append({**cell, "repeat": repeat, "config": config, **found})
            print(
                f"  engine, {workers} worker(s), {policy}: TPOT {found['tpot_p50_ns'] / 1e6:.3f} ms"
            )
    return {"rows": rows}


def measure_quota(
    plan: dict[str, Any], repeats: int, profile: Path, folder: Path
) -> dict[str, Any]:
    """Scheduler and worker under every quota."""
    rows = []
    cells = list(product(plan["scheduling"], plan["policies"], plan["percent"]))
    with child_group() as group:
        for repeat in range(repeats):
            for scheduling, policy, percent in cells:
                group.limit(percent / 100 if percent else None)
                config = engine_config(plan["step"], plan["run"], 1, scheduling)
                found = run_pair(config, policy, profile, folder, group.folder)
                rows.append(
                    {
                        "scheduling": scheduling,
                        "policy": policy,
                        "percent": percent or None,
                        "period_ns": PERIOD_NS,
                        "repeat": repeat,
                        "config": config,
                        **found,
                    }
                )
                stopped_s = found["throttling"]["throttled_ns"] / S
                print(
                    f"  quota {percent or 'none'} %, {scheduling}, {policy}: TPOT "
                    f"{found['tpot_mean_ns'] / 1e6:.2f} ms, throttled {stopped_s:.2f} s of "
                    f"{found['duration_s']:.2f} s"
                )
    return {"rows": rows}


def measure_facts(plan: dict[str, Any], repeats: int, tools: Contention) -> dict[str, Any]:
    """Stays on a shared core, and wake-ups onto one that somebody holds."""
    stays, wakes = [], []
    for repeat in range(repeats):
        for other in ("spin", "yield"):
            run_s = seconds(plan["stays"])
            on_ns, off_ns = tools.stays(other, run_s)
            stays.append(
                {
                    "other": other,
                    "repeat": repeat,
                    "on": describe(on_ns),
                    "off": describe(off_ns),
                    "share": 1.0 - float(off_ns.sum()) / S / run_s,
                }
            )
        for other, load, (gap, n) in product(
            ("none", "spin", "yield"),
            ("light", "heavy"),
            zip(plan["gaps"], plan["wakes"], strict=True),
        ):
            found = tools.wakes(other, parse_duration_ns(gap), parse_duration_ns(plan[load]), n)
            row = {"other": other, "load": load, "gap_ns": parse_duration_ns(gap), "repeat": repeat}
            wakes.append({**row, "at_once": at_once_share(found), **describe(found)})
            print(
                f"  wake onto a core with {other}, {load}, every {gap}: p50 "
                f"{wakes[-1]['p50_ns'] / 1e3:.1f} us, p90 {wakes[-1]['p90_ns'] / 1e3:.1f} us"
            )
    return {"stays": stays, "wakes": wakes}


def predict_rows(measured: list[dict[str, Any]], profile: MachineProfile) -> dict[str, Any]:
    """What the model says of every run that was measured, on as many cores as there are here."""
    rows = []
    for row in measured:
        if row["repeat"]:
            continue
        config = parse_config(row["config"])
        if row.get("percent"):
            quota = row["percent"] / 100
            cores = replace(config.cores, quota=quota, period_ns=row["period_ns"])
            config = replace(config, cores=cores)
        policy = parse_policy(row["policy"]).policy
        found = figures(predict(config, policy, profile, 0))
        names = ("policy", "workers", "scheduling", "percent")
        cell = {name: row[name] for name in names if name in row}
        rows.append({**cell, **found})
        runs = [r["tpot_mean_ns"] / 1e6 for r in measured if cell.items() <= r.items()]
        print(
            f"  {', '.join(map(str, cell.values()))}: TPOT {found['tpot_mean_ns'] / 1e6:.2f} ms, "
            f"measured {min(runs):.2f} to {max(runs):.2f}"
        )
    return {"rows": rows}


def quick(plan: dict[str, Any]) -> dict[str, Any]:
    """The same in little: one repeat of short runs, fewer cells."""
    shorter = {"run": "300ms", "stays": "500ms", "wakes": [40, 20, 5]}
    return {
        name: {**part, **{key: shorter[key] for key in shorter if key in part}}
        for name, part in plan.items()
        if isinstance(part, dict)
    } | {
        "repeats": 1,
        "quota": {**plan["quota"], "run": "800ms", "percent": [0, 50]},
    }


def predict_stored(out: Path, profile: MachineProfile) -> None:
    """Let the model answer for whatever runs of the engine are stored."""
    for part in ("engine", "quota"):
        path = out / f"{part}.json"
        if path.exists():
            measured = json.loads(path.read_text())["rows"]
            store(out / f"{part}_model.json", predict_rows(measured, profile))


def store(path: Path, content: dict[str, Any]) -> None:
    """Write the record of a part with the machine it is from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine_facts(), "kernel": kernel_facts(), **content}
    path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Measure the parts asked for, store each, and tell what is claimed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short repeat: a minute")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--profile", type=Path, help="calibrated before; without it, calibrates")
    parser.add_argument("--out", type=Path, help="default: results/, of --quick runs/")
    arguments = parser.parse_args()
    if arguments.out is None:
        arguments.out = Path("runs") / HERE.name if arguments.quick else HERE / "results"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: nothing stays behind
    plan = tomllib.loads((HERE / "config.toml").read_text())
    if arguments.quick:
        plan = quick(plan)
    repeats = plan["repeats"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        profile = arguments.out / "profile.json"
        if arguments.profile:
            MachineProfile.read(arguments.profile).write(profile)
        elif {"engine", "quota"} & set(arguments.parts):
            print("calibrating (give --profile to save the time)")
            calibrate().write(profile)
        for part in arguments.parts:
            print(part)
            try:
                if part == "model":
                    predict_stored(arguments.out, MachineProfile.read(profile))
                    continue
                if part in ("ring", "facts"):
                    with compiled() as tools:
                        measure = measure_ring if part == "ring" else measure_facts
                        content = measure(plan[part], repeats, tools)
                else:
                    measure_run = measure_engine if part == "engine" else measure_quota
                    content = measure_run(plan[part], repeats, profile, folder)
            except CannotMeasureError as error:
                print(f"  skipped: {error}")
                continue
            store(arguments.out / f"{part}.json", content)
    found = claims(arguments.out)
    write_claims(arguments.out / "claims.json", machine_facts(), found)
    for claim in found:
        print(f"{claim.id}: {claim.value:.3g} {claim.unit} ({claim.low:.3g} to {claim.high:.3g})")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
