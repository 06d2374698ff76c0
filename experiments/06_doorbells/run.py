"""What a doorbell costs: its parts one by one, and round trips to several parked readers."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from candidates import Candidate
from handoff import Bench
from rich.table import Table

from realrun.calibrate import calibrate
from runner import Cell, Content, Context, Experiment, Findings, Plan, Results, Skipped
from shmsim.claims import Claim
from shmsim.console import console
from shmsim.units import MS, US, parse_duration_ns

_BY_REST: Final = ("wake_latency", "notify_armed", "park_cpu", "io_thread_cpu")
_TYPICAL_NS: Final = 2 * MS
_LONG_NS: Final = 100 * MS


def quick(plan: Plan) -> Plan:
    """The same in little: two doorbells, one replicate, one reader."""
    return plan | {
        "doorbells": ["futex", "zmq"],
        "costs": plan["costs"] | {"replicates": 1},
        "calls": {"readers": [1], "rounds": 3},
    }


def cells(plan: Plan) -> Iterator[Cell]:
    """Costs of each doorbell in turns; then the calls, by readers."""
    for replicate in range(plan["costs"]["replicates"]):
        for doorbell in plan["doorbells"]:
            settings = {"doorbell": doorbell, "replicate": replicate}
            yield Cell(f"costs of {doorbell}, {replicate}", "machine", settings)
    for readers in plan["calls"]["readers"]:
        yield Cell(f"calls to {readers}", "machine", {"readers": readers})


def run(cell: Cell, context: Context) -> Content:
    """Calibrate with one doorbell, or let all take turns."""
    if "doorbell" in cell.settings:
        return _costs(cell.settings["doorbell"], context)
    return _calls(cell.settings["readers"], context.plan)


def _costs(doorbell: str, context: Context) -> Content:
    profile = calibrate(context.progress, doorbell, 1)
    rests_ns = [parse_duration_ns(text) for text in context.plan["costs"]["asleep"]]
    costs = profile.costs
    return {
        "notify_unarmed_ns": costs["notify_unarmed"].at(0.5),
        **{
            name: {str(ns): [costs[name].at(q, ns) for q in (0.5, 0.9)] for ns in rests_ns}
            for name in _BY_REST
            if name in costs
        },
    }


def candidates(doorbells: list[str], n_readers: int) -> list[Candidate]:
    """Parked, all of them; with one reader also spinning, where no bell is rung."""
    found = []
    for bell in doorbells:
        options = {"doorbell": bell, "policy": "park"}
        found.append(Candidate(f"{bell}, parked", "ours", "Ours", options, scenarios=("parked",)))
        if n_readers == 1:
            spins = {"doorbell": bell, "policy": "spin"}
            found.append(
                Candidate(f"{bell}, spinning", "ours", "Ours", spins, scenarios=("back_to_back",))
            )
    return found


def _calls(n_readers: int, plan: Plan) -> Content:
    interpreters = {"python": Path(sys.executable)}
    with tempfile.TemporaryDirectory() as folder:
        chosen = candidates(plan["doorbells"], n_readers)
        bench = Bench(chosen, interpreters, True, Path(folder))
        bench.small_calls(n_readers, plan["calls"]["rounds"], 0)
    if bench.missing:
        raise Skipped("; ".join(f"{name}: {why}" for name, why in bench.missing.items()))
    return {key.system: cell.row() for key, cell in bench.cells.items()}


def report(results: Results, _out: Path) -> Findings:
    """Tell costs by time asleep, and round trips by readers."""
    plan = results.plan
    costs = {bell: _costs_of(results, bell) for bell in plan["doorbells"]}
    rests = plan["costs"]["asleep"]
    for name in _BY_REST:
        table = Table("doorbell", *rests, title=f"{name}, us: p50 / p90")
        for bell, found in costs.items():
            if name in found:
                pairs = (found[name][str(parse_duration_ns(rest))] for rest in rests)
                table.add_row(bell, *(f"{p50 / US:.0f} / {p90 / US:.0f}" for p50, p90 in pairs))
        if table.row_count:
            console.print(table)
    calls = {
        str(n): results.content[f"calls to {n}"]
        for n in plan["calls"]["readers"]
        if f"calls to {n}" in results.content
    }
    table = Table("readers", "system", "round trip us", "p90", "writer cores", "rings")
    for n, systems in calls.items():
        for name, row in systems.items():
            cores = "-" if row["writer_cores"] is None else f"{row['writer_cores']:.2f}"
            rings = row["per_call"].get("notified", 0) + row["per_call"].get("announced", 0)
            median, p90 = row["median_ns"] / US, row["p90_ns"] / US
            table.add_row(n, name, f"{median:.0f}", f"{p90:.0f}", cores, f"{rings:.2f}")
    console.print(table)
    return Findings(claims(plan, results.content, calls), {"costs": costs, "calls": calls})


def _rows(content: dict[str, Content], bell: str) -> list[Content]:
    return [row for name, row in content.items() if name.startswith(f"costs of {bell},")]


def _costs_of(results: Results, bell: str) -> Content:
    """Means over the replicates."""
    rows = _rows(results.content, bell)
    found: Content = {"notify_unarmed_ns": float(np.mean([r["notify_unarmed_ns"] for r in rows]))}
    for name in _BY_REST:
        if name in rows[0]:
            found[name] = {
                rest: np.mean([row[name][rest] for row in rows], axis=0).tolist()
                for rest in rows[0][name]
            }
    return found


def claims(plan: Plan, content: dict[str, Content], calls: dict[str, Content]) -> list[Claim]:
    """The predictions that numbers decide, as ratios to the futex."""

    def of(bell: str, name: str, rest_ns: int) -> list[float]:
        return [row[name][str(rest_ns)][0] for row in _rows(content, bell)]

    def ratio(name: str, over: list[float], under: list[float], bound: float, way: str) -> Claim:
        ratios = [a / b for a, b in zip(over, under, strict=True)]
        low, high = np.quantile(ratios, [0.1, 0.9])
        middle, n = float(np.median(ratios)), len(ratios)
        name = f"doorbells/{name}"
        return Claim(name, middle, float(low), float(high), "ratio", bound, way, n, plan["seed"])

    def cpu(bell: str) -> list[float]:
        rows = _rows(content, bell)
        return [_cpu_ns(row) for row in rows]

    found = []
    if "eventfd" in plan["doorbells"]:
        for name, bound in (("wake_latency", 1.3), ("notify_armed", 1.5)):
            both = of("eventfd", name, _TYPICAL_NS), of("futex", name, _TYPICAL_NS)
            found.append(ratio(f"eventfd_{name}_2ms_over_futex", *both, bound, "<="))
    for name, bound in (("wake_latency", 1.8), ("notify_armed", 2.0)):
        both = of("zmq", name, _TYPICAL_NS), of("futex", name, _TYPICAL_NS)
        found.append(ratio(f"zmq_{name}_2ms_over_futex", *both, bound, ">="))
    both = of("zmq", "wake_latency", _LONG_NS), of("futex", "wake_latency", _LONG_NS)
    found.append(ratio("zmq_wake_latency_100ms_over_futex", *both, 1.8, "<="))
    found.append(ratio("zmq_park_cpu_over_futex", cpu("zmq"), cpu("futex"), 3.0, ">="))

    def rounds(n: str, system: str) -> list[float]:
        medians: list[float] = calls[n][system]["round_medians_ns"]
        return medians

    most = str(max(map(int, calls), default=0))
    if int(most) > 1:
        both = rounds(most, "zmq, parked"), rounds(most, "futex, parked")
        found.append(ratio(f"zmq_call_to_{most}_over_futex", *both, 1.5, ">="))
    if "1" in calls:
        for bell in plan["doorbells"][1:]:
            both = rounds("1", f"{bell}, spinning"), rounds("1", "futex, spinning")
            found.append(ratio(f"{bell}_spinning_over_futex", *both, 1.15, "<="))
    return found


def _cpu_ns(row: Content) -> float:
    """CPU of one park of 2 ms, its I/O thread counted."""
    key = str(_TYPICAL_NS)
    total: float = row["park_cpu"][key][0] + row.get("io_thread_cpu", {key: [0.0]})[key][0]
    return total


EXPERIMENT: Final = Experiment(cells, run, report, quick)
