"""The predictions of README.md that numbers decide."""

from itertools import combinations
from typing import Any

import numpy as np
from thresholds import Points, points_of

from runner import Content, Plan
from shmsim.claims import Claim


def claims(plan: Plan, summary: dict[str, Any]) -> list[Claim]:
    """All of them; those on policies or steps that a quick plan lacks are left out."""
    points = points_of(summary["model"])
    known = set(plan["model"]["policies"])
    seed, n = plan["seed"], plan["model"]["replications"]

    def over(
        name: str, values: list[float], unit: str, bound: float, way: str, *, worst: float | None
    ) -> Claim:
        value = worst if worst is not None else float(np.median(values))
        name = f"spin_thresholds/{name}"
        return Claim(name, value, min(values), max(values), unit, bound, way, n, seed)

    def most(name: str, values: list[float], unit: str, bound: float) -> Claim:
        return over(name, values, unit, bound, "<=", worst=max(values))

    def least(name: str, values: list[float], unit: str, bound: float) -> Claim:
        return over(name, values, unit, bound, ">=", worst=min(values))

    found = []
    if "vllm-1s" in known:
        cores = [p.scheduler_cores for (_, name), p in points.items() if name == "vllm-1s"]
        away = _distance(points, "vllm-1s", "spin")
        found += [
            most("vllm-1s_tpot_from_spin", away, "ratio", 0.003),
            least("vllm-1s_scheduler_cores", cores, "cores", 0.95),
        ]
        dearer = [
            prices["vllm-1s"] - prices["wake-ahead"] for prices in summary["price_cores"].values()
        ]
        found.append(least("vllm-1s_price_over_wake-ahead", dearer, "cores", 0.7))
    if "forks-2ms" in known:
        foretold = [s for s in ("2ms", "3ms", "5ms", "10ms") if s in plan["model"]["steps"]]
        share = np.mean([step in summary["paid_twice"]["forks-2ms"] for step in foretold])
        found.append(least("forks-2ms_paid_twice_where_foretold", [float(share)], "share", 1.0))
    if "folly-2us" in known:
        found.append(
            most("folly-2us_tpot_from_park", _distance(points, "folly-2us", "park"), "ratio", 0.005)
        )
    if "ema-grace" in known:
        away = [
            value
            for step, value in zip(
                plan["model"]["steps"], _distance(points, "ema-grace", "park"), strict=True
            )
            if step != "1ms"
        ]
        found.append(most("ema-grace_tpot_from_park", away, "ratio", 0.01))
    if "seastar-200us" in known:
        gained = [
            points[step, "park"].tpot_ns - points[step, "seastar-200us"].tpot_ns
            for step in plan["model"]["steps"]
        ]
        found.append(least("seastar-200us_gain_over_park_ns", gained, "ns", 30_000))
    if "kvm" in known:
        away = _distance(points, "kvm", "seastar-200us")
        found.append(most("kvm_tpot_from_seastar-200us", away, "ratio", 0.01))
    for name in ("wake-ahead", "step-ahead"):
        if name in known:
            away = _distance(points, name, "spin")
            found.append(most(f"{name}_tpot_from_spin", away, "ratio", 0.02))
    ours = [best in ("wake-ahead", "step-ahead") for best in summary["cheapest"].values()]
    found.append(least("ours_cheapest", [float(np.mean(ours))], "share of step times", 1.0))
    return [*found, *_machine(plan, summary["machine"])]


def _distance(points: Points, policy: str, other: str) -> list[float]:
    """Relative distance of two policies' TPOT, at every step time."""
    return [
        abs(point.tpot_ns / points[step, other].tpot_ns - 1.0)
        for (step, name), point in points.items()
        if name == policy
    ]


def _machine(plan: Plan, rows: list[Content]) -> list[Claim]:
    errors = [abs(row["error"]) for row in rows]
    n = plan["machine"]["repeats"]
    right, pairs = 0, 0
    for one, other in combinations(rows, 2):
        less, more = sorted((one, other), key=lambda row: row["tpot_ns"])
        # Ranges that overlap are no order.
        if one["step"] != other["step"] or less["tpot_high_ns"] >= more["tpot_low_ns"]:
            continue
        pairs += 1
        right += less["predicted_tpot_ns"] < more["predicted_tpot_ns"]
    found = [
        Claim(
            "spin_thresholds/machine_tpot_worst_error",
            *(max(errors), min(errors), max(errors), "ratio", 0.05, "<=", n, plan["seed"]),
        )
    ]
    if pairs:
        share = right / pairs
        found.append(
            Claim(
                "spin_thresholds/machine_pairs_in_order",
                *(share, share, share, "share", 1.0, ">=", pairs, plan["seed"]),
            )
        )
    return found
