"""Every policy of the library replayed on one trace, and held against its bounds."""

import math
from typing import Any

import numpy as np

from runner import Progress
from shmsim.bounds.compare import Estimate, Report, dominated_area, ground, report
from shmsim.bounds.compare import value_of_features as features_worth
from shmsim.bounds.law import fit_predictor
from shmsim.bounds.trace import WaitTrace
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.tape import Tape


def distances(
    trace: WaitTrace,
    profile: MachineProfile,
    prices: list[float],
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """What each policy costs at each price, nanoseconds a wait, and how far that is from L2.

    Returns
    -------
    dict
        ``waits`` (how they are spread), ``bounds`` (by price), ``policies`` (by name, then price;
        ``area`` beside the prices). A figure that does not exist is None.
    """
    bounds: dict[str, Any] = {}
    reports: dict[str, dict[str, Report]] = {name: {} for name in PRESETS}
    corner: tuple[float, float] = (0.0, 0.0)
    done = 0
    for price in prices:
        on = ground(trace, profile, Tape(seed), price)
        limits = on.limits
        bounds[f"{price:g}"] = {
            "penalty_ns": round(float(on.penalty_ns.mean())),
            "spin_ns": round(float(on.spin.cost_ns.mean())),
            "park_ns": round(float(on.park.cost_ns.mean())),
            "L0_ns": round(float(limits.timer_oracle.mean())),
            "L1_ns": round(float(limits.clairvoyant.mean())),
            "L2_ns": round(float(limits.with_features.mean())),
            "L3_ns": round(float(limits.without_features.mean())),
            "L4_ns": round(float(limits.fixed.mean())),
            "L5_ns": round(float(limits.with_timers.mean())),
            "features_worth_ns": _rounded(features_worth(limits), 0),
        }
        corner = (float(on.spin.cpu_ns.mean()), float(on.park.delay_ns.mean()))
        for name, policy in PRESETS.items():
            reports[name][f"{price:g}"] = report(policy, on)
            done += 1
            progress(f"{name}, r = {price:g}", done / (len(prices) * len(PRESETS)))
    return {
        "waits": _spread(trace),
        "bounds": bounds,
        "policies": {
            name: {
                **{price: _row(found) for price, found in by_price.items()},
                "area": round(
                    dominated_area(
                        [(found.cpu_ns, found.delay_ns) for found in by_price.values()], *corner
                    ),
                    3,
                ),
            }
            for name, by_price in reports.items()
        },
    }


def _spread(trace: WaitTrace) -> dict[str, Any]:
    gap_ns = np.maximum(trace.gap_ns, 1).astype(np.float64)
    line = fit_predictor(gap_ns, trace.features)
    expected_ns = line.expected_ns(trace.features)
    middle, p99 = np.quantile(gap_ns, [0.5, 0.99])
    off = gap_ns / expected_ns - 1.0
    return {
        "n": trace.n_waits,
        "there_already": int((trace.gap_ns <= 0).sum()),
        "mean_ns": round(float(gap_ns.mean())),
        "p50_ns": round(float(middle)),
        "p99_ns": round(float(p99)),
        # 1.48 times the median distance: of a normal law the standard deviation.
        "residual_share": round(1.48 * float(np.median(np.abs(off - np.median(off)))), 4),
    }


def _row(found: Report) -> dict[str, Any]:
    return {
        "delay_ns": round(found.delay_ns),
        "cpu_ns": round(found.cpu_ns),
        "cpu_share": round(found.cpu_share, 4),
        "cost_ns": _rounded(found.cost_ns, 0),
        "gap_closed": _rounded(found.gap_closed, 3),
        "learning_ns": round(found.learning_ns),
        "mechanism_ns": round(found.mechanism_ns),
    }


def _rounded(found: Estimate, digits: int) -> list[float | None]:
    """Value and interval, as JSON can hold them."""
    return [round(x, digits) if math.isfinite(x) else None for x in found]
