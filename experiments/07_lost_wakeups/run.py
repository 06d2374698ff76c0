"""Counts the messages that only a recheck found: by window, gap and bell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lossy
import numpy as np
import soak
from rich.table import Table

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.claims import Claim
from shmsim.console import console
from shmsim.units import US, parse_duration_ns

#: libzmq looks for room that often at most: 3,000,000 ticks; at 2 GHz and more that is less.
_DEAF_NS: Final = 1_300_000
#: In between nothing is predicted: the counter of a box decides.
_SURELY_DEAF_NS: Final = 1_000_000


def quick(plan: Plan) -> Plan:
    """The same in little: four windows and gaps, once."""
    return plan | {
        "windows": ["0us", "2ms"],
        "gaps": ["300us", "3ms"],
        "repeats": 1,
        "lossy": plan["lossy"] | {"messages": 20, "recheck": "30ms"},
        "ours": plan["ours"] | {"messages": 50},
        "queue": plan["queue"] | {"hwm": [1000]},
    }


def cells(plan: Plan) -> Iterator[Cell]:
    """Every window and gap with every bell; then the queue alone."""
    for repeat in range(plan["repeats"]):
        for window in plan["windows"]:
            for gap in plan["gaps"]:
                for bell in ("lossy", *plan["ours"]["doorbells"]):
                    settings = {"bell": bell, "window": window, "gap": gap, "repeat": repeat}
                    name = f"{bell}, window {window}, gap {gap}, {repeat}"
                    yield Cell(name, "machine", settings)
        queue = plan["queue"]
        for hwm in queue["hwm"]:
            settings = {"bell": "lossy", "window": queue["window"], "gap": queue["gap"]}
            yield Cell(f"queue of {hwm}, {repeat}", "machine", {**settings, "hwm": hwm})


def run(cell: Cell, context: Context) -> Content:
    """Send the messages of one cell, one at a time."""
    plan, settings = context.plan, cell.settings
    window_ns, gap_ns = (parse_duration_ns(settings[name]) for name in ("window", "gap"))
    if settings["bell"] == "lossy":
        table = plan["lossy"]
        recheck_ns = parse_duration_ns(table["recheck"])
        n = table["messages"]
        found = lossy.run(lossy.Lossy(window_ns, gap_ns, n, recheck_ns, settings.get("hwm", 1)))
        delays_ns = found.pop("delays_ns")
        return {**found, "messages": n, "worst_us": max(delays_ns) // US}
    n = plan["ours"]["messages"]
    stream = soak.Cell(settings["bell"], window_ns, 1, n, (gap_ns, gap_ns), 1, 1.0)
    row = soak.run_cell(stream, plan["seed"] + settings["repeat"])
    if not row["finished"]:
        raise RuntimeError(f"{cell.name} did not come to its end; its processes say why above")
    return {
        "stalls": row["lost"] + row["rescued"],
        "slept": row["belled"],
        "messages": n,
        "worst_us": row["worst_us"],
    }


def report(results: Results, _out: Path) -> Findings:
    """Tell the share of stalls of every cell."""
    plan = results.plan
    shares: dict[str, dict[str, list[float]]] = {}
    slept: dict[str, int] = {}
    for name, row in results.content.items():
        bell, _, cell = name.rpartition(", ")[0].partition(", ")
        shares.setdefault(bell, {}).setdefault(cell, []).append(row["stalls"] / row["messages"])
        slept[bell] = slept.get(bell, 0) + row["slept"]
    for bell in ("lossy", *plan["ours"]["doorbells"]):
        table = Table("window", *plan["gaps"], title=f"{bell}: share of messages that stalled")
        for window in plan["windows"]:
            means = [np.mean(shares[bell][f"window {window}, gap {gap}"]) for gap in plan["gaps"]]
            table.add_row(window, *(f"{100 * mean:.0f} %" for mean in means))
        console.print(table)
    queues = {hwm: shares[f"queue of {hwm}"][""] for hwm in plan["queue"]["hwm"]}
    for hwm, found in queues.items():
        console.print(f"queue of {hwm}: {100 * np.mean(found):.0f} % stalled")
    summary = {
        "stall_share": {
            bell: {cell: float(np.mean(found)) for cell, found in by_cell.items()}
            for bell, by_cell in shares.items()
        },
        "slept": slept,
        "queue": {str(hwm): float(np.mean(found)) for hwm, found in queues.items()},
    }
    return Findings(claims(plan, results.content), summary)


def claims(plan: Plan, content: dict[str, Content]) -> list[Claim]:
    """Stalls where they were foretold, none where not, none of ours."""
    holes, safe, ours, queue = [], [], [], []
    for name, row in content.items():
        share = row["stalls"] / row["messages"]
        if name.startswith("queue of "):
            if int(name.split()[2].rstrip(",")) >= 10:
                queue.append(share)
        elif not name.startswith("lossy"):
            ours.append(float(row["stalls"]))
        elif (where := _place(name)) is not None:
            (holes if where else safe).append(share)

    def claim(
        name: str, values: list[float], pick: Any, unit: str, bound: float, way: str
    ) -> Claim:
        value, low, high = float(pick(values)), min(values), max(values)
        name = f"lost_wakeups/{name}"
        return Claim(name, value, low, high, unit, bound, way, len(values), plan["seed"])

    found = []
    if holes:
        found.append(claim("lossy_where_foretold", holes, min, "share", 0.3, ">="))
        found.append(claim("lossy_where_foretold_most", holes, max, "share", 0.7, "<="))
    found.append(claim("lossy_elsewhere", safe, max, "share", 0.03, "<="))
    found.append(claim("ours", ours, sum, "messages", 0, "<="))
    if queue:
        found.append(claim("lossy_long_queue", queue, max, "share", 0.0, "<="))
    return found


def _place(name: str) -> bool | None:
    """Whether a cell is in the hole: asleep at the ping, soon after the last; None at its edge."""
    words = name.replace(",", "").split()
    window_ns, gap_ns = (parse_duration_ns(words[words.index(w) + 1]) for w in ("window", "gap"))
    if gap_ns <= window_ns or gap_ns >= _DEAF_NS:
        return False
    return True if gap_ns < _SURELY_DEAF_NS else None


EXPERIMENT: Final = Experiment(cells, run, report, quick)
