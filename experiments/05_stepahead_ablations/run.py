"""What each part of StepAhead is worth: taken out in turn, in replays, in the model, for real."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from arms import ANNOUNCED, WHOLE
from replays import ablation, sweep_of_prices
from rich.table import Table
from turns_of_arms import costs_of, doorbells, machine_turn, model_turns

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results
from shmsim.bounds.synthetic import PREDICTABLE
from shmsim.claims import Claim
from shmsim.console import console
from shmsim.stats import mean_of_replications
from shmsim.units import MS, US

#: J over that of the whole policy: claim, trace, arm, price, bound, direction.
EXPECTED: Final = (
    ("features/B", "B mixed", "no features", "100", 1.5, ">="),
    ("doze/B", "B mixed", "deaf", "100", 1.5, ">="),
    ("pending/C", "C idle", "no pending flag", "100", 1.0, ">="),
    ("eta/D", "D async", ANNOUNCED, "10", 0.9, "<="),
    ("clamp/heavy-tailed", "heavy-tailed", "no clamp", "10", 0.97, ">="),
)
NONE_IS_BETTER: Final = 0.97


def quick(plan: Plan) -> Plan:
    """Short traces and runs, one turn; policies are told costs that came along."""
    runs = {}
    for name, run in plan["runs"].items():
        workload = dict(run["workload"]) | {"output_p50": 30, "output_p95": 30}
        workload["requests"] = min(workload["requests"], 2)
        runs[name] = {**run, "workload": workload, "turns": 1}
    return {**plan, "runs": runs, "waits": 150, "sweep": [10.0], "replicates": 0}


def cells(plan: Plan) -> Iterator[Cell]:
    """Replays, runs of the model, then the machine turn by turn."""
    for name in plan["replay"]:
        yield Cell(f"replay/{name}", "model", {"trace": name})
    for name in PREDICTABLE:
        yield Cell(f"sweep/{name}", "model", {"trace": name})
    for name in plan["runs"]:
        yield Cell(f"model/{name}", "model", {"runs": name})
    for doorbell in doorbells(plan):
        yield Cell(f"costs/{doorbell}", "machine", {"doorbell": doorbell})
    for name, run in plan["runs"].items():
        for turn in range(run["turns"]):
            yield Cell(f"machine/{name}/{turn}", "machine", {"runs": name, "turn": turn})


def run(cell: Cell, context: Context) -> Content:
    """Carry out one cell."""
    kind = cell.name.partition("/")[0]
    settings = cell.settings
    if kind == "replay":
        return ablation(settings["trace"], context.plan, context.progress)
    if kind == "sweep":
        return sweep_of_prices(settings["trace"], context.plan, context.progress)
    if kind == "model":
        return model_turns(settings["runs"], context)
    if kind == "costs":
        return costs_of(settings["doorbell"], context)
    return machine_turn(settings["runs"], settings["turn"], context)


def report(results: Results, out: Path) -> Findings:
    """Print what each part does; claim what it must."""
    seed = results.plan["seed"]
    replays = _named(results, "replay/")
    console.print(_replay_table(replays))
    console.print(_sweep_table(_named(results, "sweep/")))
    claims = []
    for name, trace, arm, price, bound, direction in EXPECTED:
        row = replays.get(trace, {}).get(price, {}).get(arm)
        if row:
            n = results.plan["waits"]
            claims.append(
                Claim(
                    f"ablations/{name}/r{price}", *row["ratio"], "ratio", bound, direction, n, seed
                )
            )
    ratios = [
        row["ratio"][0]
        for by_price in replays.values()
        for rows in by_price.values()
        for arm, row in rows.items()
        if arm != ANNOUNCED
    ]
    if ratios:
        least = min(ratios)
        claims.append(
            Claim(
                "ablations/none_is_better", least, least, least, "ratio", NONE_IS_BETTER, ">=",
                len(ratios), seed,
            )
        )  # fmt: skip
    summary: dict[str, Any] = {"replay": replays, "sweep": _named(results, "sweep/")}
    for name in results.plan["runs"]:
        model = results.content.get(f"model/{name}", {}).get("turns", [])
        machine = list(_named(results, f"machine/{name}/").values())
        compared = {
            world: _compared(turns, results.plan["runs"][name]["arms"])
            for world, turns in (("model", model), ("machine", machine))
        }
        console.print(_runs_table(name, compared))
        summary[name] = compared
        rehearsed = compared["machine"].get("rehearsal")
        if rehearsed:
            value, low, high = rehearsed["tpot_ratio"]
            claims.append(
                Claim(
                    f"ablations/rehearsal/{name}/tpot", value, low, high, "ratio", 1.0, "<=",
                    len(machine), seed,
                )
            )  # fmt: skip
    return Findings(claims, summary)


def _named(results: Results, start: str) -> dict[str, Any]:
    """Contents of the cells whose names begin so, by the rest of the name."""
    return {
        name.removeprefix(start): content
        for name, content in results.content.items()
        if name.startswith(start)
    }


def _compared(turns: list[dict[str, Any]], arms: list[str]) -> dict[str, Any]:
    """Each arm: its means, and turn by turn over or less the whole policy."""
    found = {}
    for arm in arms:
        pairs = [(turn[arm], turn[WHOLE]) for turn in turns if arm in turn]
        if not pairs:
            continue
        found[arm] = {
            **{
                key: sum(one[key] for one, _ in pairs) / len(pairs)
                for key in ("tpot_ns", "itl_p99_ns", "cores", "delay_p50_ns", "delay_p99_ns")
            },
            "tpot_ratio": _ends([one["tpot_ns"] / whole["tpot_ns"] for one, whole in pairs]),
            "cores_more": _ends([one["cores"] - whole["cores"] for one, whole in pairs]),
        }
    return found


def _ends(values: list[float]) -> tuple[float, float, float]:
    """Mean with its interval; of a single turn the mean alone, thrice."""
    found = mean_of_replications(values)
    if len(values) < 2:
        return found.value, found.value, found.value
    return found.value, found.low, found.high


def _replay_table(replays: dict[str, Any]) -> Table:
    prices = next(iter(replays.values()), {}).keys()
    table = Table(
        "trace", "arm", *(f"r = {price}" for price in prices),
        title="J over that of the whole policy (95 %); delay us mean, p99; CPU us a wait",
    )  # fmt: skip
    for trace, by_price in replays.items():
        for arm in next(iter(by_price.values())):
            table.add_row(trace, arm, *(_replayed(rows[arm]) for rows in by_price.values()))
            trace = ""
        table.add_section()
    return table


def _replayed(row: dict[str, Any]) -> str:
    value, low, high = row["ratio"]
    return (
        f"{value:.2f} ({low:.2f} to {high:.2f}); {row['delay_ns'] / US:.1f}, "
        f"{row['delay_p99_ns'] / US:.0f}; {row['cpu_ns'] / US:.0f}"
    )


def _sweep_table(sweeps: dict[str, Any]) -> Table:
    prices = next(iter(sweeps.values()), {}).keys()
    table = Table(
        "trace", *(f"r = {price}" for price in prices),
        title="the whole policy: delay us / CPU % / gap closed %",
    )  # fmt: skip
    for trace, by_price in sweeps.items():
        table.add_row(trace, *map(_swept, by_price.values()))
    return table


def _swept(row: dict[str, Any]) -> str:
    closed = row["gap_closed"][0]
    share = "no gap" if closed is None else f"{100 * closed:.0f}"
    return f"{row['delay_ns'] / US:.1f} / {100 * row['cpu_share']:.1f} / {share}"


def _runs_table(name: str, compared: dict[str, Any]) -> Table:
    table = Table(
        "arm", "TPOT ms", "over step-ahead", "ITL p99 ms", "cores", "more", "delay us p50, p99",
        "model: TPOT over", "model: cores more", title=f"{name}, on the machine",
    )  # fmt: skip
    for arm, row in compared["machine"].items():
        model = compared["model"].get(arm)
        table.add_row(
            arm,
            f"{row['tpot_ns'] / MS:.3f}",
            _percent(row["tpot_ratio"]),
            f"{row['itl_p99_ns'] / MS:.2f}",
            f"{row['cores']:.3f}",
            _spread(row["cores_more"]),
            f"{row['delay_p50_ns'] / US:.1f}, {row['delay_p99_ns'] / US:.0f}",
            _percent(model["tpot_ratio"]) if model else "",
            _spread(model["cores_more"]) if model else "",
        )
    return table


def _percent(ratio: tuple[float, float, float]) -> str:
    value, low, high = (100.0 * (x - 1.0) for x in ratio)
    return f"{value:+.2f} % ({low:+.2f} to {high:+.2f})"


def _spread(ends: tuple[float, float, float]) -> str:
    value, low, high = ends
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


EXPERIMENT: Final = Experiment(cells, run, report, quick)
