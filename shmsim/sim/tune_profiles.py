"""Other profiles that the same calibration might have given."""

from dataclasses import replace
from typing import Final

import numpy as np

from shmsim.distribution import Curve, Distribution
from shmsim.profile import MachineProfile

#: Costs of waiting, which a choice of policy may hang on; the others are the same for all.
WAITING: Final = (
    "wake_latency", "park_cpu", "timer_overshoot", "doze_cpu", "spin_detection", "yield_detection",
    "notify_armed", "notify_unarmed", "rehearsal", "slow_after_spin", "slow_after_park",
    "slow_after_doze", "worker_slow_after_spin", "worker_slow_after_park", "worker_slow_after_doze",
)  # fmt: skip


def redrawn(profile: MachineProfile, rng: np.random.Generator) -> MachineProfile:
    """A bootstrap of the calibration: every cost as one of its replicates had it.

    A replicate is a calibration minutes from the others, so costs of one replicate stray together
    along their curve, and costs of different curves apart. Where there is but one, the median is
    drawn from its 95 % interval, uniformly; without an interval the cost stays.
    """
    costs = {name: _redrawn(curve, float(rng.random())) for name, curve in costs_of(profile)}
    return replace(profile, costs=costs)


def at_ends(profile: MachineProfile, name: str) -> list[MachineProfile]:
    """The profile with one cost at the lower, and at the upper end of what was measured.

    The ends are those of the replicates' medians, or of the median's interval, whichever is wider;
    none if nothing was left open.
    """
    curve = profile.costs[name]
    found = []
    for pick in (min, max):
        points = tuple(
            _scaled(point, pick(point.low, point.high, *point.replicates)) for point in curve.points
        )
        if points != curve.points:
            costs = {**profile.costs, name: curve._replace(points=points)}
            found.append(replace(profile, costs=costs))
    return found


def costs_of(profile: MachineProfile) -> list[tuple[str, Curve]]:
    """All costs by name, in one order whatever the order of the file."""
    return sorted(profile.costs.items())


def n_exact(profile: MachineProfile) -> int:
    """How many costs have neither interval nor replicates, so that they are taken as exact."""
    return sum(not at_ends(profile, name) for name in profile.costs)


def _redrawn(curve: Curve, u: float) -> Curve:
    points = []
    for point in curve.points:
        medians = point.replicates
        if len(medians) > 1:
            points.append(_scaled(point, medians[int(u * len(medians))]))
        else:
            points.append(_scaled(point, point.low + u * (point.high - point.low)))
    return curve._replace(points=tuple(points))


def _scaled(point: Distribution, median: float) -> Distribution:
    """A distribution with another median, all of it by the same factor."""
    if point.median <= 0 or median <= 0 or median == point.median:
        return point  # what may be 0 or negative has no scale
    factor = median / point.median
    return point._replace(
        median=median,
        low=factor * point.low,
        high=factor * point.high,
        quantiles=tuple(factor * q for q in point.quantiles),
        replicates=tuple(factor * r for r in point.replicates),
    )
