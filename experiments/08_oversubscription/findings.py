"""The claims of this experiment, from its stored records; README.md predicts each."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from shmsim.claims import Claim

Row = dict[str, Any]
_SEED: Final = 1  # as in config.toml


def claims(folder: Path) -> list[Claim]:
    """Claims of the parts that are stored in a folder."""
    found = []
    for part, of in (("ring", _ring), ("engine", _engine), ("quota", _quota), ("facts", _facts)):
        path = folder / f"{part}.json"
        if path.exists():
            found += of(json.loads(path.read_text()))
    return found


def _ratio(name: str, over: list[float], under: list[float], bound: float, way: str) -> Claim:
    """Repeat by repeat; the value is the median of the ratios, the interval their range."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    value, low, high = float(np.median(ratios)), min(ratios), max(ratios)
    return Claim(
        f"oversubscription/{name}", value, low, high, "ratio", bound, way, len(ratios), _SEED
    )


def _values(rows: list[Row], quantity: str, **cell: Any) -> list[float]:
    return [row[quantity] for row in rows if all(row[k] == v for k, v in cell.items())]


def _ring(record: Row) -> list[Claim]:
    def collapse(wait: str, bound: float, way: str) -> Claim:
        three, two = (_values(record["rows"], "mean_ns", wait=wait, threads=n) for n in (3, 2))
        return _ratio(f"ring/{wait}_3_over_2", three, two, bound, way)

    return [
        collapse("spin", 50, ">="),
        collapse("yield", 3, "<="),
        collapse("park", 2, "<="),
    ]


def _engine(record: Row) -> list[Claim]:
    def tp2_over_tp1(policy: str, bound: float, way: str) -> Claim:
        two, one = (
            _values(record["rows"], "tpot_p50_ns", policy=policy, workers=n) for n in (2, 1)
        )
        return _ratio(f"engine/{policy}_tp2_over_tp1", two, one, bound, way)

    return [
        tp2_over_tp1("spin", 1.2, ">="),
        tp2_over_tp1("yield", 1.1, "<="),
        tp2_over_tp1("park", 1.1, "<="),
    ]


def _quota(record: Row) -> list[Claim]:
    found = []
    rows = record["rows"]
    for scheduling, policy, percent, bound, way in (
        ("async", "yield", 200, 1.15, "<="),
        ("async", "yield", 50, 2.0, ">="),
        ("sync", "yield", 150, 1.05, "<="),
        ("sync", "yield", 50, 1.5, ">="),
        ("sync", "spin", 50, 1.6, "<="),
        ("async", "spin", 50, 1.6, "<="),
        ("sync", "park", 50, 1.05, "<="),
        ("async", "park", 50, 1.05, "<="),
    ):
        limited, free = (
            _values(rows, "tpot_mean_ns", scheduling=scheduling, policy=policy, percent=p)
            for p in (percent, None)
        )
        if limited:
            name = f"quota/{scheduling}_{policy}_{percent}pct_tpot"
            found.append(_ratio(name, limited, free, bound, way))
    return found


def _facts(record: Row) -> list[Claim]:
    tick_ns = record["kernel"]["tick_ns"]
    found = []
    if tick_ns:
        stays = [s["on"]["p50_ns"] for s in record["stays"] if s["other"] == "spin"]
        found.append(_ratio("facts/stay_over_tick", stays, [tick_ns] * len(stays), 1.05, "<="))
    light, idle = (
        _values(record["wakes"], "p50_ns", other=other, load="light") for other in ("spin", "none")
    )
    found.append(_ratio("facts/wake_beside_spinner_over_idle_p50", light, idle, 2, "<="))
    return found
