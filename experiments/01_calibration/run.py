"""Calibrates in fresh processes, says how stable each cost is, and asks the caches."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from cache_probe import LONG_NS, ns_per_line

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.claims import Claim
from shmsim.console import console
from shmsim.profile import MachineProfile
from shmsim.units import MS, parse_duration_ns
from shmsim.whole import write_whole

TYPICAL_NS: Final = 2 * MS
LONG_REST_NS: Final = 100 * MS
_AFRESH: Final = (
    "import sys; from realrun.calibrate import calibrate; from pathlib import Path;"
    "calibrate(n_replicates=int(sys.argv[2])).write(Path(sys.argv[1]))"
)


def quick(plan: Plan) -> Plan:
    """The same in little: two calibrations of one replicate."""
    caches = plan["caches"] | {"kib": [16], "rests": ["0ns", "2ms"], "n": 10}
    return plan | {"times": 2, "replicates": 1, "caches": caches}


def cells(plan: Plan) -> Iterator[Cell]:
    """Calibrations, which of them is the middle one, and the caches."""
    for i in range(plan["times"]):
        yield Cell(f"calibration {i}", "machine", {"index": i})
    yield Cell("middle", "machine")
    for kib in plan["caches"]["kib"]:
        for rest in ("spinning", "sleeping"):
            yield Cell(f"{kib} KiB, {rest}", "machine", {"kib": kib, "rest": rest})


def run(cell: Cell, context: Context) -> Content:
    """Calibrate, choose, or probe."""
    if "index" in cell.settings:
        path = context.folder / f"{cell.settings['index']}.json"
        _calibrate_afresh(path, context.plan["replicates"])
        return {"medians_ns": medians_ns(MachineProfile.read(path))}
    if cell.name == "middle":
        medians = [_at(row, "wake_latency", TYPICAL_NS) for row in _calibrations(context.found)]
        index = int(np.argsort(medians)[len(medians) // 2])
        shutil.copy(context.folder / f"{index}.json", context.files / "profile.json")
        return {"index": index}
    return {"ns_per_line": _probe(cell, context)}


def _calibrate_afresh(path: Path, replicates: int) -> None:
    """Calibrate in a process of its own, as a user would."""
    command = [sys.executable, "-c", _AFRESH, str(path), str(replicates)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"a calibration failed: {said[-1]}")


def _probe(cell: Cell, context: Context) -> dict[str, float]:
    caches, found = context.plan["caches"], {}
    rests_ns = [parse_duration_ns(text) for text in caches["rests"]]
    for i, rest_ns in enumerate(rests_ns):
        context.progress("", i / len(rests_ns))
        n = caches["n_long" if rest_ns > LONG_NS else "n"]
        spin = cell.settings["rest"] == "spinning"
        found[str(rest_ns)] = ns_per_line(cell.settings["kib"] << 10, rest_ns, spin=spin, n=n)
    return found


def medians_ns(profile: MachineProfile) -> dict[str, float]:
    """Median of every cost at every point where it was measured, as ``"cost@point"``."""
    return {
        f"{name}@{x:g}": curve.at(0.5, x) for name, curve in profile.costs.items() for x in curve.xs
    }


def _at(row: Content, cost: str, x: float) -> float:
    found: float | None = row["medians_ns"].get(f"{cost}@{x:g}")
    if found is None:
        raise RuntimeError(
            f"this box is too busy to calibrate: no undisturbed sample of {cost} after "
            f"{x / 1e6:g} ms; stop what runs beside and try again"
        )
    return found


def _calibrations(content: dict[str, Content]) -> list[Content]:
    return [row for name, row in content.items() if name.startswith("calibration ")]


def stability(rows: list[Content]) -> dict[str, dict[str, float]]:
    """Median of every cost over the restarts, and how far they lie apart."""
    found = {}
    for key in rows[0]["medians_ns"]:
        medians = np.array([row["medians_ns"][key] for row in rows])
        middle = float(np.median(medians))
        found[key] = {
            "median_ns": middle,
            "lowest_ns": float(medians.min()),
            "highest_ns": float(medians.max()),
            "range_over_median": float(np.ptp(medians)) / max(middle, 1.0),
        }
    return found


def claims(rows: list[Content], seed: int) -> list[Claim]:
    """The predictions that numbers decide."""

    def claim(key: str, values: list[float], unit: str, bound: float, direction: str) -> Claim:
        middle, low, high = float(np.median(values)), min(values), max(values)
        name = f"calibration/{key}"
        return Claim(name, middle, low, high, unit, bound, direction, len(rows), seed)

    def each(cost: str, x: float) -> list[float]:
        return [_at(row, cost, x) for row in rows]

    def ratios(over: list[float], under: list[float]) -> list[float]:
        return [a / b for a, b in zip(over, under, strict=True)]

    wake, long_wake = each("wake_latency", TYPICAL_NS), each("wake_latency", LONG_REST_NS)
    slow_park, slow_spin = each("slow_after_park", TYPICAL_NS), each("slow_after_spin", TYPICAL_NS)
    late = each("timer_overshoot", TYPICAL_NS)
    drift = stability(rows)[f"wake_latency@{TYPICAL_NS:g}"]["range_over_median"]
    return [
        claim("wake_latency_2ms_p50_ns", wake, "ns", 60_000, "<="),
        claim("wake_latency_100ms_over_2ms", ratios(long_wake, wake), "ratio", 1.5, ">="),
        claim("spin_detection_p50_ns", each("spin_detection", 0), "ns", 300, "<="),
        claim("timer_overshoot_2ms_p50_ns", late, "ns", 60_000, "<="),
        claim("slow_after_park_2ms_p50_ns", slow_park, "ns", 60_000, "<="),
        claim("slow_after_spin_over_park_2ms", ratios(slow_spin, slow_park), "ratio", 0.33, "<="),
        claim("wake_latency_2ms_range_over_median", [drift], "ratio", 0.30, "<="),
    ]


def report(results: Results, out: Path) -> Findings:
    """Store stability and caches where the notebook looks; tell the caches."""
    rows = _calibrations(results.content)
    caches = {
        name: row["ns_per_line"] for name, row in results.content.items() if "ns_per_line" in row
    }
    for name, by_rest in caches.items():
        told = "  ".join(f"{value:6.1f}" for value in by_rest.values())
        console.print(f"{name:20s} {told} ns per line")
    _store(out / "stability.json", stability(rows))
    _store(out / "cache_probe.json", {"unit": "ns per line", "by_rest_ns": caches})
    return Findings(claims(rows, results.plan["seed"]), {"caches": caches})


def _store(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=1) + "\n")


EXPERIMENT: Final = Experiment(cells, run, report, quick)
