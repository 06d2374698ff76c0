"""What an array takes by each route, and how often an arena is full."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from candidates import Candidate
from cells import Cell as Burst
from erlang_cells import HOLDS, fallback_share
from remote import BrokenSystemError, Remote
from rich.table import Table

from runner import Cell, Content, Context, Experiment, Findings, Plan, Results, Skipped
from shmsim.arena_sizing.erlang import erlang_b
from shmsim.claims import Claim
from shmsim.console import console
from shmsim.units import US

#: By route: what of bench carries it, and from which size to which it takes that route, bytes.
_ROUTES: Final = {
    "inline": ({}, 0, 16 << 20),
    "arena": ({"routes": "vllm-arena"}, 1 << 20, 1 << 40),
    "socket": ({"routes": "all-socket"}, 0, 1 << 40),
}
_CALLS: Final = 8
_LIMIT_S: Final = 0.15


def quick(plan: Plan) -> Plan:
    """The same in little: two sizes, three rounds, few payloads."""
    return plan | {
        "routes": {"kib": [1024, 8192], "rounds": 3},
        "erlang": plan["erlang"]
        | {"loads": [1.0], "slots": [1, 4], "payloads": 4000, "replications": 4},
        "bursts": plan["bursts"] | {"slots": [4]},
    }


def cells(plan: Plan) -> Iterator[Cell]:
    """The routes in turns; then the arena, by law and load."""
    yield Cell("routes", "machine")
    for hold in plan["erlang"]["holds"]:
        for load in plan["erlang"]["loads"]:
            yield Cell(f"{hold}, load {load}", "model", {"hold": hold, "load": load, "burst": 1})
    bursts = plan["bursts"]
    settings = {"hold": "exponential", "load": bursts["load"], "burst": bursts["size"]}
    yield Cell("bursts", "model", settings)


def run(cell: Cell, context: Context) -> Content:
    """Measure all routes, or replay one load on every number of slots."""
    if cell.world == "machine":
        return _routes(context)
    table = context.plan["erlang"]
    slots = context.plan["bursts" if cell.name == "bursts" else "erlang"]["slots"]
    settings = cell.settings
    rows = []
    for i, n_slots in enumerate(slots):
        context.progress(f"{n_slots} slots", i / len(slots))
        law = list(HOLDS).index(settings["hold"])
        key = [
            context.plan["seed"],
            law,
            round(1000 * settings["load"]),
            n_slots,
            settings["burst"],
        ]
        seeds = np.random.SeedSequence(key).spawn(table["replications"])
        shares = [
            fallback_share(
                *(seed, settings["hold"], settings["load"], n_slots, table["payloads"]),
                settings["burst"],
            )
            for seed in seeds
        ]
        rows.append({"slots": n_slots, "shares": shares})
    return {"rows": rows}


def _routes(context: Context) -> Content:
    table = context.plan["routes"]
    bursts: dict[tuple[str, int], Burst] = {}
    remotes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for route, (options, _, _) in _ROUTES.items():
                place = Path(tempfile.mkdtemp(dir=folder))
                candidate = Candidate(route, "ours", "Ours", options, carries=True)
                remotes.append(Remote(candidate, 1, Path(sys.executable), False, place))
            for remote in remotes:
                remote.wait_until_ready()
            for i in range(table["rounds"]):
                context.progress(f"round {i + 1} of {table['rounds']}", i / table["rounds"])
                # Forwards, then backwards: a drift of the machine meets all of them.
                for remote in remotes if i % 2 == 0 else remotes[::-1]:
                    _measure(remote, i, table["kib"], bursts)
        except BrokenSystemError as error:
            raise Skipped(str(error)) from None
        finally:
            for remote in remotes:
                remote.dismiss()
                remote.see_off()
    return {f"{route}/{kib}": burst.row() for (route, kib), burst in bursts.items()}


def _measure(
    remote: Remote, i: int, sizes: list[int], bursts: dict[tuple[str, int], Burst]
) -> None:
    route = remote.candidate.name
    _, least, most = _ROUTES[route]
    with remote.awake():
        for kib in sizes:
            if least <= kib << 10 < most:
                answer = remote.measure(
                    "payload", _CALLS, discard=1, limit_s=_LIMIT_S, payload=f"numpy/{kib << 10}"
                )
                bursts.setdefault((route, kib), Burst()).add(i, answer)


def report(results: Results, _out: Path) -> Findings:
    """Tell round trips by size and route, and shares beside Erlang's."""
    plan = results.plan
    routes = results.content.get("routes", {})
    table = Table("KiB", *_ROUTES, title="round trip of an array, us (median)")
    for kib in plan["routes"]["kib"]:
        medians = [routes.get(f"{route}/{kib}") for route in _ROUTES]
        table.add_row(
            str(kib), *("-" if m is None else f"{m['median_ns'] / US:.0f}" for m in medians)
        )
    console.print(table)
    compared = [
        _against_erlang(name, row)
        for name, content in results.of("model").items()
        for row in _with_load(plan, name, content)
    ]
    poisson = [c for c in compared if c["law"] != "bursts"]
    worst = max(poisson, key=lambda c: abs(c["z"]))
    console.print(
        f"fallback against Erlang B: worst of {len(poisson)} cells {worst['law']}, "
        f"{worst['slots']} slots: {worst['share']:.4f}, Erlang {worst['erlang']:.4f}, "
        f"{worst['z']:+.1f} standard errors"
    )
    found = claims(plan, routes, compared)
    return Findings(found, {"routes": routes, "fallback": compared})


def _with_load(plan: Plan, name: str, content: Content) -> Iterator[dict[str, Any]]:
    load = plan["bursts"]["load"] if name == "bursts" else float(name.rpartition(" ")[2])
    for row in content["rows"]:
        yield {**row, "load": load}


def _against_erlang(name: str, row: dict[str, Any]) -> dict[str, Any]:
    shares = np.array(row["shares"])
    expected = erlang_b(row["slots"], row["load"])
    error = float(shares.std(ddof=1)) / np.sqrt(len(shares))
    # Where nothing fell back there is no spread; a share of less than one payload is none.
    z = (float(shares.mean()) - expected) / error if error > 0 else 0.0
    return {
        "law": name.partition(",")[0],
        "load": row["load"],
        "slots": row["slots"],
        "n": len(shares),
        "share": float(shares.mean()),
        "standard_error": float(error),
        "erlang": expected,
        "z": float(z),
    }


def claims(plan: Plan, routes: Content, compared: list[dict[str, Any]]) -> list[Claim]:
    """The predictions that numbers decide; those on sizes that a quick plan lacks are left out."""
    seed = plan["seed"]

    def ratio(name: str, over: str, under: str, bound: float, way: str) -> Iterator[Claim]:
        if over in routes and under in routes:
            medians = (routes[key]["round_medians_ns"] for key in (over, under))
            ratios = [a / b for a, b in zip(*medians, strict=True)]
            low, high = np.quantile(ratios, [0.1, 0.9])
            value, n = float(np.median(ratios)), len(ratios)
            name = f"routes/{name}"
            yield Claim(name, value, float(low), float(high), "ratio", bound, way, n, seed)

    found = [
        *ratio("inline_over_socket_64kib", "inline/64", "socket/64", 0.7, "<="),
        *ratio("inline_over_socket_8mib", "inline/8192", "socket/8192", 0.6, "<="),
        *ratio("arena_over_inline_8mib", "arena/8192", "inline/8192", 0.7, "<="),
        *ratio("arena_over_socket_64mib", "arena/65536", "socket/65536", 0.3, "<="),
        *ratio("arena_64mib_over_8mib", "arena/65536", "arena/8192", 11.0, "<="),
        *ratio("control_arena_arm_over_inline_1mib", "arena/1024", "inline/1024", 1.2, "<="),
    ]
    sizes = [abs(row["z"]) for row in compared if row["law"] != "bursts"]
    n = len(sizes)
    worst, mean = max(sizes), float(np.mean(sizes))
    found += [
        Claim("arena/erlang_worst_z", worst, min(sizes), worst, "se", 4.0, "<=", n, seed),
        Claim("arena/erlang_mean_z", mean, min(sizes), worst, "se", 1.3, "<=", n, seed),
    ]
    for row in compared:
        bound = {4: 2.0, 8: 10.0}.get(row["slots"])
        if row["law"] == "bursts" and bound is not None:
            times = row["share"] / row["erlang"]
            half = 2.0 * row["standard_error"] / row["erlang"]
            name = f"arena/bursts_over_erlang_{row['slots']}_slots"
            ends = times - half, times + half
            found.append(Claim(name, times, *ends, "ratio", bound, ">=", row["n"], seed))
    return found


EXPERIMENT: Final = Experiment(cells, run, report, quick)
