"""How far every way to wait is from the bound, on gaps that real runs left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from distances import distances
from recording import recorded
from rich.table import Table

from realrun.calibrate import calibrate
from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.claims import Claim
from shmsim.console import console
from shmsim.profile import MachineProfile
from shmsim.units import US

OURS: Final = "step-ahead"
GAP_CLOSED: Final = 0.9
WORSE_THAN_PARK: Final = 0.03
SHOWN_LEAST: Final = -0.99  # what closes less of the gap is not spelled out


def quick(plan: Plan) -> Plan:
    """Short recordings and one price."""
    record = {}
    for name, recording in plan["record"].items():
        workload = dict(recording["workload"])
        if "trace" in workload:
            workload |= {"requests": 4, "max_output_tokens": 40}
        else:
            workload |= {"output_p50": 80, "output_p95": 80}
        record[name] = {**recording, "workload": workload}
    return {**plan, "record": record, "replicates": 1, "prices": [10.0]}


def cells(plan: Plan) -> Iterator[Cell]:
    """The calibration, and each recording."""
    yield Cell("costs", "machine", {"replicates": plan["replicates"]})
    for name in plan["record"]:
        yield Cell(name, "machine", plan["record"][name])


def run(cell: Cell, context: Context) -> Content:
    """Calibrate; or record, and replay every policy on what was recorded."""
    path = context.folder / "profile.json"
    if cell.name == "costs":
        profile = calibrate(context.progress, n_replicates=cell.settings["replicates"])
        profile.write(path)
        return {f"{p:g}": profile.wait_costs(p)._asdict() for p in context.plan["prices"]}
    profile = MachineProfile.read(path)
    plan = context.plan
    context.progress("the real loop", 0.0)
    traces = recorded(plan, cell.name, profile)
    found = {}
    for index, (name, trace) in enumerate(traces.items()):

        def told(label: str, share: float, done: int = index, name: str = name) -> None:
            context.progress(f"{name}: {label}", (done + share) / len(traces))

        found[name] = distances(trace, profile, plan["prices"], plan["seed"], told)
    return found


def report(results: Results, out: Path) -> Findings:
    """Print a table of each trace; claim what StepAhead must reach."""
    traces: dict[str, Any] = {
        name: trace
        for cell, content in results.content.items()
        if cell != "costs"
        for name, trace in content.items()
    }
    claims = []
    summary: dict[str, Any] = {}
    worst = -1.0
    for name, trace in traces.items():
        console.print(_table(name, trace))
        ours = trace["policies"][OURS]
        n = trace["waits"]["n"]
        for price, bounds in trace["bounds"].items():
            worst = max(worst, ours[price]["cost_ns"][0] / bounds["park_ns"] - 1.0)
            closed = ours[price]["gap_closed"]
            rival = min(
                (p for p in trace["policies"] if not p.startswith(OURS)),
                key=lambda p: trace["policies"][p][price]["cost_ns"][0],
            )
            summary.setdefault(name, {})[price] = {
                "gap_closed": closed,
                "cost_ns": ours[price]["cost_ns"],
                "best_other": rival,
                "best_other_cost_ns": trace["policies"][rival][price]["cost_ns"],
                "park_ns": bounds["park_ns"],
                "L2_ns": bounds["L2_ns"],
            }
            if price != "1" and None not in closed:
                claims.append(
                    Claim(
                        f"distance/gap_closed/{name}/r{price}",
                        *closed,
                        *("share", GAP_CLOSED, ">=", n, results.plan["seed"]),
                    )
                )
    if traces:
        claims.append(
            Claim(
                "distance/worst_vs_park",
                *(worst, worst, worst, "share", WORSE_THAN_PARK, "<="),
                *(len(traces) * len(results.plan["prices"]), results.plan["seed"]),
            )
        )
    return Findings(claims, summary)


def _table(name: str, trace: dict[str, Any]) -> Table:
    waits = trace["waits"]
    prices = list(trace["bounds"])
    table = Table(
        "policy",
        *(f"r = {price}" for price in prices),
        "area",
        title=f"{name}: {waits['n']} waits, median {waits['p50_ns'] / US:,.0f} us, residual "
        f"{100 * waits['residual_share']:.1f} %; delay us / CPU % / J us / gap closed %",
    )
    for policy, row in trace["policies"].items():
        table.add_row(policy, *(_cell(row[price]) for price in prices), f"{row['area']:.2f}")
    for bound in ("L2", "L3", "L4", "L5", "L1", "L0"):
        costs = (f"{trace['bounds'][price][f'{bound}_ns'] / US:,.0f}" for price in prices)
        table.add_row(bound, *costs, "", style="dim")
    return table


def _cell(row: dict[str, Any]) -> str:
    closed, low, high = row["gap_closed"]
    if closed is None:
        share = "no gap"
    elif closed < SHOWN_LEAST:
        share = "< -99"
    else:
        share = f"{100 * closed:.0f}"
        if low is not None:
            share += f" ({100 * max(low, SHOWN_LEAST):.0f} to {100 * high:.0f})"
    return (
        f"{row['delay_ns'] / US:.1f} / {100 * row['cpu_share']:.1f} / "
        f"{row['cost_ns'][0] / US:,.0f} / {share}"
    )


EXPERIMENT: Final = Experiment(cells, run, report, quick)
