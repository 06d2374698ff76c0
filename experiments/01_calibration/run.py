"""Calibrate several times in fresh processes and say how stable each cost is.

Usage: python experiments/01_calibration/run.py [--times N] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from shmsim.claims import Claim, write_claims
from shmsim.profile import MachineProfile

RESULTS = Path(__file__).parent / "results"
TYPICAL_NS = 2e6
#: The predictions of the README that one number decides: cost, quantile, where, bound.
LONG_NS = 100e6


def calibrate_afresh(folder: Path, index: int) -> MachineProfile:
    """Calibrate in a process of its own, as a user would."""
    path = folder / f"{index}.json"
    subprocess.run([sys.executable, "-m", "realrun.cli", "calibrate", "-o", str(path)], check=True)
    return MachineProfile.read(path)


def median_ns(profile: MachineProfile, cost: str, x: float) -> float:
    """Median of a cost at one point."""
    return profile.costs[cost].at(0.5, x)


def stability(profiles: list[MachineProfile]) -> dict[str, dict[str, float]]:
    """Median of every cost over the restarts, and how far they lie apart."""
    rows = {}
    for name, curve in profiles[0].costs.items():
        for x in curve.xs:
            medians = np.array([median_ns(p, name, x) for p in profiles])
            middle = float(np.median(medians))
            rows[f"{name}@{x:g}"] = {
                "median_ns": middle,
                "lowest_ns": float(medians.min()),
                "highest_ns": float(medians.max()),
                "range_over_median": float(np.ptp(medians)) / max(middle, 1.0),
            }
    return rows


def claims(profiles: list[MachineProfile], rows: dict[str, dict[str, float]]) -> list[Claim]:
    """The predictions that numbers decide."""

    def claim(key: str, values: list[float], unit: str, bound: float, direction: str) -> Claim:
        return Claim(
            f"calibration/{key}",
            float(np.median(values)),
            min(values),
            max(values),
            unit,
            bound,
            direction,
            len(profiles),
            0,
        )

    def each(cost: str, x: float) -> list[float]:
        return [median_ns(p, cost, x) for p in profiles]

    wake, long_wake = each("wake_latency", TYPICAL_NS), each("wake_latency", LONG_NS)
    slow_park, slow_spin = each("slow_after_park", TYPICAL_NS), each("slow_after_spin", TYPICAL_NS)
    key = f"wake_latency@{TYPICAL_NS:g}"
    drift = rows[key]["range_over_median"]
    return [
        claim("wake_latency_2ms_p50_ns", wake, "ns", 60_000, "<="),
        claim(
            "wake_latency_100ms_over_2ms",
            [a / b for a, b in zip(long_wake, wake, strict=True)],
            "ratio",
            1.5,
            ">=",
        ),
        claim("spin_detection_p50_ns", each("spin_detection", 0), "ns", 300, "<="),
        claim(
            "timer_overshoot_2ms_p50_ns", each("timer_overshoot", TYPICAL_NS), "ns", 60_000, "<="
        ),
        claim("slow_after_park_2ms_p50_ns", slow_park, "ns", 60_000, "<="),
        claim(
            "slow_after_spin_over_park_2ms",
            [a / b for a, b in zip(slow_spin, slow_park, strict=True)],
            "ratio",
            0.33,
            "<=",
        ),
        Claim(
            "calibration/wake_latency_2ms_range_over_median",
            drift,
            drift,
            drift,
            "ratio",
            0.30,
            "<=",
            len(profiles),
            0,
        ),
    ]


def main() -> None:
    """Calibrate, compare, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often to calibrate (at least 2)")
    parser.add_argument("--json", type=Path, default=RESULTS / "claims.json", help="claims file")
    arguments = parser.parse_args()
    if arguments.times < 2:
        parser.error(
            f"--times must be at least 2 to tell how stable a cost is, got {arguments.times}"
        )
    with tempfile.TemporaryDirectory() as folder:
        profiles = [calibrate_afresh(Path(folder), i) for i in range(arguments.times)]
    by_wake = sorted(profiles, key=lambda p: median_ns(p, "wake_latency", TYPICAL_NS))
    middle = by_wake[len(by_wake) // 2]
    rows = stability(profiles)
    RESULTS.mkdir(exist_ok=True)
    middle.write(RESULTS / "profile.json")
    (RESULTS / "stability.json").write_text(json.dumps(rows, indent=1) + "\n")
    write_claims(arguments.json, middle.machine, claims(profiles, rows))
    print(f"stored in {RESULTS}; 'shmsim claims {arguments.json}' prints the verdicts")


if __name__ == "__main__":
    main()
