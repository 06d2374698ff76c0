"""More runnable threads than cores: what really happens, and the facts a model of cores needs."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from contention import CannotMeasureError, compiled, describe, kernel_facts
from facts import at_once_share
from findings import Row, claims
from pair import figures
from quota import PERIOD_NS, child_group

from realrun.host import machine_facts
from realrun.validate import predict
from runner import Cell, Content, Context, Experiment, Findings, Plan, Results, Skipped
from runner.profiles import profile_of, profile_path
from shmsim.config import parse_config, parse_policy
from shmsim.console import console
from shmsim.profile import MachineProfile
from shmsim.units import S, parse_duration_ns
from shmsim.whole import write_whole

HERE: Final = Path(__file__).parent
PARTS: Final = ("ring", "engine", "quota", "facts")
N_TOKENS_IN_FLIGHT: Final = 2  # requests at once in a run of the engine
N_REQUESTS: Final = 20
_RUN_LIMIT_S: Final = 300.0


def quick(plan: Plan) -> Plan:
    """The same in little: one repeat of short runs, few cells, the profile that comes along."""
    shorter = {"run": "300ms", "stays": "300ms", "gaps": ["2ms"], "wakes": [40]}
    short = {
        part: plan[part] | {key: value for key, value in shorter.items() if key in plan[part]}
        for part in PARTS
    }
    few = {"percent": [0, 50], "scheduling": ["sync"], "policies": ["yield", "park"]}
    quota = plan["quota"] | {"run": "500ms"} | few
    return plan | short | {"repeats": 1, "profile": "vm-2cpu", "quota": quota}


def cells(plan: Plan) -> Iterator[Cell]:
    """Every part once in each repeat; then the model answers for the runs of the engine."""
    yield Cell("profile", "machine")
    for repeat in range(plan["repeats"]):
        for part in PARTS:
            yield Cell(f"{part} {repeat}", "machine", {"part": part, "repeat": repeat})
    for part in ("engine", "quota"):
        yield Cell(f"{part}, model", "model", {"part": part})


def run(cell: Cell, context: Context) -> Content:
    """Run a part once, or let the model answer for it."""
    if cell.name == "profile":
        measured_at = profile_of(context).measured_at
        return {"measured_at": measured_at, "kernel": kernel_facts()}
    part = cell.settings["part"]
    if cell.world == "model":
        measured = rows_of(context.found, part)
        if not measured:
            raise Skipped("it was not measured here, so there is nothing to hold against it")
        return {"rows": predict_rows(measured, profile_of(context))}
    try:
        return _MEASURE[part](context.plan[part], cell.settings["repeat"], context)
    except CannotMeasureError as error:
        raise Skipped(str(error)) from None


def rows_of(content: dict[str, Content], part: str, kind: str = "rows") -> list[Row]:
    """What was measured of a part, in all repeats."""
    found = (row for name, row in content.items() if name.rpartition(" ")[0] == part)
    return [row for each in found for row in each[kind]]


def report(results: Results, out: Path) -> Findings:
    """Store each part as it was always stored; tell how far the model is off."""
    content = results.content
    head = {"machine": machine_facts(), "kernel": content["profile"]["kernel"]}
    for part in PARTS:
        kinds = ("stays", "wakes") if part == "facts" else ("rows",)
        found = {kind: rows_of(content, part, kind) for kind in kinds}
        if any(found.values()):
            _store(out / f"{part}.json", head | found)
    for part in ("engine", "quota"):
        predicted = content.get(f"{part}, model")
        if predicted is not None:
            _store(out / f"{part}_model.json", head | predicted)
            tell(predicted["rows"], rows_of(content, part))
    return Findings(claims(out), {})


def tell(predicted: list[Row], measured: list[Row]) -> None:
    """Print what the model says beside the range of the runs."""
    for row in predicted:
        names = ("policy", "workers", "scheduling", "percent")
        cell = {name: row[name] for name in names if name in row}
        runs = [r["tpot_mean_ns"] / 1e6 for r in measured if cell.items() <= r.items()]
        console.print(
            f"{', '.join(map(str, cell.values()))}: TPOT {row['tpot_mean_ns'] / 1e6:.2f} ms, "
            f"measured {min(runs):.2f} to {max(runs):.2f}",
            markup=False,
        )


def _store(path: Path, content: Content) -> None:
    write_whole(path, json.dumps(content, indent=1) + "\n")


def seconds(text: str) -> float:
    """A duration of the config, in seconds."""
    return parse_duration_ns(text) / S


def measure_ring(plan: Plan, repeat: int, context: Context) -> Content:
    """Round trips of a turn among threads that wait in each way."""
    tools = context.opened("tools", compiled)
    work_ns = parse_duration_ns(plan["work"])
    rows = []
    for (wait, n), share in shares(list(product(plan["waits"], plan["threads"]))):
        context.progress(f"{n} threads, {wait}", share)
        found = describe(tools.ring(wait, n, work_ns, seconds(plan["run"])))
        rows.append({"wait": wait, "threads": n, "repeat": repeat, **found})
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


def measure_engine(plan: Plan, repeat: int, context: Context) -> Content:
    """One and two workers on the cores of this box."""
    rows = []
    for (policy, workers), share in shares(list(product(plan["policies"], plan["workers"]))):
        context.progress(f"{policy}, {workers} worker(s)", share)
        config = engine_config(plan["step"], plan["run"], workers, "sync")
        found = run_pair(config, policy, profile_path(context), context.folder)
        cell = {"policy": policy, "workers": workers}
        rows.append({**cell, "repeat": repeat, "config": config, **found})
    return {"rows": rows}


def measure_quota(plan: Plan, repeat: int, context: Context) -> Content:
    """Scheduler and worker under every quota."""
    rows = []
    cells = list(product(plan["scheduling"], plan["policies"], plan["percent"]))
    with child_group() as group:
        for (scheduling, policy, percent), share in shares(cells):
            context.progress(f"{percent or 'no'} %, {scheduling}, {policy}", share)
            group.limit(percent / 100 if percent else None)
            config = engine_config(plan["step"], plan["run"], 1, scheduling)
            profile = profile_path(context)
            found = run_pair(config, policy, profile, context.folder, group.folder)
            cell = {"scheduling": scheduling, "policy": policy, "percent": percent or None}
            cell |= {"period_ns": PERIOD_NS, "repeat": repeat, "config": config}
            rows.append({**cell, **found})
    return {"rows": rows}


def measure_facts(plan: Plan, repeat: int, context: Context) -> Content:
    """Stays on a shared core, and wake-ups onto one that somebody holds."""
    tools = context.opened("tools", compiled)
    stays, wakes = [], []
    for other in ("spin", "yield"):
        context.progress(f"stays beside {other}", 0.0)
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
    gaps = zip(plan["gaps"], plan["wakes"], strict=True)
    cells = list(product(("none", "spin", "yield"), ("light", "heavy"), gaps))
    for (other, load, (gap, n)), share in shares(cells):
        context.progress(f"{load} wakes beside {other} every {gap}", share)
        found = tools.wakes(other, parse_duration_ns(gap), parse_duration_ns(plan[load]), n)
        row = {"other": other, "load": load, "gap_ns": parse_duration_ns(gap), "repeat": repeat}
        wakes.append({**row, "at_once": at_once_share(found), **describe(found)})
    return {"stays": stays, "wakes": wakes}


def predict_rows(measured: list[Row], profile: MachineProfile) -> list[Row]:
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
        names = ("policy", "workers", "scheduling", "percent")
        cell = {name: row[name] for name in names if name in row}
        rows.append({**cell, **figures(predict(config, policy, profile, 0))})
    return rows


def shares(cells: list[Any]) -> Iterator[tuple[Any, float]]:
    """Each with the share of all that is done before it."""
    for i, cell in enumerate(cells):
        yield cell, i / len(cells)


_MEASURE: Final[dict[str, Callable[[Plan, int, Context], Content]]] = {
    "ring": measure_ring,
    "engine": measure_engine,
    "quota": measure_quota,
    "facts": measure_facts,
}

EXPERIMENT: Final = Experiment(cells, run, report, quick)
