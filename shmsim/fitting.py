"""A profile with some of its costs changed, and how far, so that a run takes as long as it did.

For machines of which only whole runs are known. What was measured cost by cost needs none of this.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from shmsim.distribution import Curve, Distribution
from shmsim.profile import MachineProfile
from shmsim.provenance import Source

_Z90: Final = 1.2815515655446004  # standard normal 90th percentile
# Inner levels of a law that is spread over 1001 values: its extreme tails are left out.
_LEVELS: Final = np.linspace(0.0005, 0.9995, 1001)


def scaled(profile: MachineProfile, names: Iterable[str], factor: float) -> MachineProfile:
    """The same machine, but some costs are a factor dearer; no interval of theirs is known.

    Parameters
    ----------
    profile
        Where to start.
    names
        Of costs, see `shmsim.profile.COSTS`.
    factor
        At least 0.

    Raises
    ------
    ValueError
        If the profile lacks a cost, or the factor is negative.
    """
    if not factor >= 0.0:
        raise ValueError(f"a cost can be scaled by 0 or more, got {factor}")
    changed = {}
    for name in names:
        curve = _known(profile, name)
        points = tuple(_scaled(point, factor) for point in curve.points)
        changed[name] = curve._replace(points=points)
    return with_costs(profile, changed, f"scaled by {factor:g}")


def with_costs(profile: MachineProfile, costs: dict[str, Curve], why: str) -> MachineProfile:
    """The same machine with other costs, marked as assumed.

    Parameters
    ----------
    profile
        Where to start.
    costs
        The other ones, by name.
    why
        Where they come from.
    """
    sources = {
        name: Source.of("assumed", f"{why}: {profile.source_of(name).text}") for name in costs
    }
    return replace(
        profile, costs={**profile.costs, **costs}, sources={**profile.sources, **sources}
    )


def level(profile: MachineProfile, names: Iterable[str], x: float) -> MachineProfile:
    """The same machine, but some costs are everywhere what they are at ``x``.

    Raises
    ------
    ValueError
        If the profile lacks a cost.
    """
    changed = {}
    for name in names:
        curve = _known(profile, name)
        values = [curve.at(float(u), x) for u in _LEVELS]
        changed[name] = Curve(curve.by, (x,), (Distribution.of([values]),))
    return with_costs(profile, changed, f"as at {x:g} everywhere")


def log_normal_curve(by: str, points: Iterable[tuple[float, float, float]]) -> Curve:
    """A cost that was published as few quantiles.

    Parameters
    ----------
    by
        What it runs along.
    points
        Where, and median and 90th percentile there, ns; ascending.
    """
    xs, laws = [], []
    for x, p50, p90 in points:
        sigma = np.log(p90 / p50) / _Z90
        xs.append(float(x))
        laws.append(Distribution.of([p50 * np.exp(sigma * ndtri(_LEVELS))]))
    return Curve(by, tuple(xs), tuple(laws))


def solve(
    predict: Callable[[float], float], target: float, low: float, high: float, what: str
) -> float:
    """The parameter with which a prediction that grows with it meets its target.

    Parameters
    ----------
    predict
        Always on the same tape, so that it does not jitter.
    target
        What was seen.
    low, high
        Where to look.
    what
        Name of the parameter, for the error.

    Raises
    ------
    ValueError
        If even the ends do not enclose the target.
    """
    at_low, at_high = predict(low), predict(high)
    if not at_low <= target <= at_high:
        raise ValueError(
            f"no {what} from {low:g} to {high:g} meets {target:g}: the prediction runs from "
            f"{at_low:g} to {at_high:g}; widen the range, or a mechanism is missing"
        )
    # Costs are whole nanoseconds: finer than a ten-thousandth nothing changes.
    return float(brentq(lambda x: predict(x) - target, low, high, xtol=1e-4, rtol=1e-4))


def _known(profile: MachineProfile, name: str) -> Curve:
    if name not in profile.costs:
        raise ValueError(f"the profile has no cost {name}; it has {', '.join(profile.costs)}")
    return profile.costs[name]


def _scaled(law: Distribution, factor: float) -> Distribution:
    return Distribution(
        0,
        factor * law.median,
        factor * law.low,
        factor * law.high,
        tuple(factor * q for q in law.quantiles),
        tuple(factor * r for r in law.replicates),
    )
