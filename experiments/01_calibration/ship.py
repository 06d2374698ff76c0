"""Writes the profile that ships, vm-2cpu, from the one that this experiment stored.

Usage: python experiments/01_calibration/ship.py

A calibration is 150 KB of quantiles; what comes with the package keeps eight of each point, to four
digits, and none of the single replicates.
"""

import json
from pathlib import Path
from typing import Any, Final

from shmsim.distribution import Curve, Distribution
from shmsim.profile import MachineProfile
from shmsim.whole import write_whole

MEASURED: Final = Path(__file__).with_name("results") / "profile.json"
SHIPPED: Final = Path(__file__).parents[2] / "shmsim" / "data" / "profiles" / "vm-2cpu.toml"
_DIGITS: Final = 4
_LEVELS: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
#: Facts of the machine that whoever reads a profile asks for.
_FACTS: Final = (
    "cpu", "cores", "kernel", "virtual", "clocksource", "timer_slack_ns", "idle_driver", "python",
    "numpy", "doorbell", "replicates", "round_ns",
)  # fmt: skip
_SOURCE: Final = (
    "experiments/01_calibration/results/profile.json (realrun calibrate), thinned to eight "
    "quantiles"
)


def shipped(profile: MachineProfile) -> str:
    """The profile as a TOML file, thinned."""
    lines = [
        "# A virtual machine with two cores. Every number was measured there by realrun calibrate;",
        "# python experiments/01_calibration/ship.py made this file.",
        "",
        f"measured_at = {_text(profile.measured_at)}",
        "",
        "[machine]",
        *(f"{name} = {_text(profile.machine[name])}" for name in _FACTS if name in profile.machine),
    ]
    for name, curve in profile.costs.items():
        lines += ["", f"[costs.{name}]", *_MARK, *_curve(curve)]
    lines += ["", "[policy_costs]", *_MARK]
    for policy, both in profile.policy_costs.items():
        for what in ("plan", "after"):
            lines += ["", f"[policy_costs.of.{policy}.{what}]", *_curve(both[what])]
    return "\n".join(lines) + "\n"


_MARK: Final = ('mark = "measured"', f'source = "{_SOURCE}"')


def _curve(curve: Curve) -> list[str]:
    along = [f"by = {_text(curve.by)}"] if curve.by else []
    points = [
        f"    {_point(point, x if curve.by else None)},"
        for x, point in zip(curve.xs, curve.points, strict=True)
    ]
    return [*along, "points = [", *points, "]"]


def _point(point: Distribution, x: float | None) -> str:
    """One distribution as an inline table."""
    given: dict[str, float] = {} if x is None else {"x": x}
    given["n"] = point.n
    for level in _LEVELS:
        value = point.median if level == 0.5 else point.at(level)
        given[f"p{100 * level:g}"] = _rounded(value)
    given |= {"low": _rounded(point.low), "high": _rounded(point.high)}
    return "{ " + ", ".join(f"{key} = {value:.15g}" for key, value in given.items()) + " }"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _text(value: Any) -> str:
    return json.dumps(value)  # of strings, numbers and truth values this is TOML too


if __name__ == "__main__":
    write_whole(SHIPPED, shipped(MachineProfile.read(MEASURED)))
    print(f"stored in {SHIPPED}")
