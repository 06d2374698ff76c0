"""How much of the distance to the bound a policy closes, with intervals."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from shmsim.bounds.law import Float64Array
from shmsim.bounds.limits import Limits, limits_of
from shmsim.bounds.replay import Replayed, replay
from shmsim.bounds.trace import WaitTrace
from shmsim.distribution import Curve
from shmsim.policies import BusySpin, Park
from shmsim.profile import MachineProfile
from shmsim.tape import Tape
from shmsim.wait import WaitPolicy

_BLOCKS: Final = 40  # so many blocks a trace is cut into for the bootstrap
_RESAMPLES: Final = 1000


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


class Ground(NamedTuple):
    """One trace at one price, with everything that policies are held against.

    Parameters
    ----------
    trace, profile, tape, delay_price
        As of `shmsim.bounds.replay.replay`.
    spin, park
        Replays of the two ends.
    limits
        The bounds.
    penalty_ns, timer_ns
        B and c of each wait: means of the profile for a rest as long as the gap.
    awake_ns
        What an event met awake costs: the price of its detection.
    """

    trace: WaitTrace
    profile: MachineProfile
    tape: Tape
    delay_price: float
    spin: Replayed
    park: Replayed
    limits: Limits
    penalty_ns: Float64Array
    timer_ns: Float64Array
    awake_ns: float

    @property
    def reference(self) -> Replayed:
        """Spinning or parking, whichever was cheaper."""
        return min(self.spin, self.park, key=lambda replayed: float(replayed.cost_ns.sum()))


class Report(NamedTuple):
    """One policy on one ground; times are means per wait, nanoseconds.

    Parameters
    ----------
    delay_ns, cpu_ns, cost_ns
        As of `Replayed`.
    cpu_share
        CPU time over the time waited.
    gap_closed
        ``(J_ref - J) / (J_ref - L2)``: 0 is the better of spin and park, 1 the bound.
    learning_ns
        What its plans, carried out without mechanism, cost more than L2.
    mechanism_ns
        What mechanism adds: late timers, their CPU, the spread of wake-ups, its own CPU.
    """

    delay_ns: float
    cpu_ns: float
    cost_ns: Estimate
    cpu_share: float
    gap_closed: Estimate
    learning_ns: float
    mechanism_ns: float


def ground(trace: WaitTrace, profile: MachineProfile, tape: Tape, delay_price: float) -> Ground:
    """Replay spin and park, and find the bounds of a trace at a price."""
    spin = replay(BusySpin(), trace, profile, tape, delay_price)
    park = replay(Park(), trace, profile, tape, delay_price)
    wake_ns, park_ns, timer_ns = (
        means_at(profile.costs[name], trace) for name in ("wake_latency", "park_cpu", "doze_cpu")
    )
    penalty_ns = np.maximum(delay_price * wake_ns + park_ns, 1.0)
    awake_ns = delay_price * float(means_at(profile.costs["spin_detection"], trace)[0])
    limits = limits_of(trace, penalty_ns, timer_ns, awake_ns)
    return Ground(
        trace, profile, tape, delay_price, spin, park, limits, penalty_ns, timer_ns, awake_ns
    )


def means_at(cost: Curve, trace: WaitTrace) -> Float64Array:
    """Mean of a cost after a rest as long as each gap."""
    return np.interp(trace.gap_ns, cost.xs, _means_of(cost))


@lru_cache(maxsize=256)  # some profiles' costs
def _means_of(cost: Curve) -> tuple[float, ...]:
    levels = (np.arange(2000) + 0.5) / 2000
    return tuple(float(point.all_at(levels).mean()) for point in cost.points)


def report(policy: WaitPolicy, on: Ground) -> Report:
    """Replay a policy and hold it against the bounds."""
    replayed = replay(
        policy,
        on.trace,
        on.profile,
        on.tape,
        on.delay_price,
        penalty_ns=on.penalty_ns,
        awake_ns=on.awake_ns,
    )
    cost = replayed.cost_ns
    alert = replayed.alert_ns
    bound = on.limits.with_features
    return Report(
        float(replayed.delay_ns.mean()),
        float(replayed.cpu_ns.mean()),
        mean_of(cost),
        float(replayed.cpu_ns.sum() / np.maximum(on.trace.gap_ns, 0).sum()),
        gap_closed(cost, on.reference.cost_ns, bound),
        float((alert - bound).mean()),
        float((cost - alert).mean()),
    )


def gap_closed(cost: Float64Array, reference: Float64Array, bound: Float64Array) -> Estimate:
    """Share of the distance from reference to bound that is closed; arrays by wait, as costs.

    NaN where the bound is less than one percent better than the reference: there is no gap.
    """

    def share(sums: Float64Array) -> Float64Array:
        gap = sums[1] - sums[2]
        closed = np.full(gap.shape, np.nan)
        np.divide(sums[1] - sums[0], gap, out=closed, where=gap > 0.01 * sums[1])
        return closed

    return _bootstrapped(np.stack([cost, reference, bound]), share)


def mean_of(values: Float64Array) -> Estimate:
    """Mean over waits, with an interval that allows for dependence between neighbours."""
    n = len(values)
    return _bootstrapped(np.stack([values, np.full(n, 1.0)]), lambda sums: sums[0] / sums[1])


def ratio_of(cost: Float64Array, other: Float64Array) -> Estimate:
    """What one way through a trace costs over what another costs, on the same luck."""
    return _bootstrapped(np.stack([cost, other]), lambda sums: sums[0] / sums[1])


def value_of_features(limits: Limits) -> Estimate:
    """``L3 - L2``: what knowing the batch is worth, nanoseconds per wait."""
    return mean_of(limits.without_features - limits.with_features)


def _bootstrapped(
    columns: Float64Array, statistic: Callable[[Float64Array], Float64Array]
) -> Estimate:
    """Resample blocks of neighbouring waits; ``columns`` has the shape ``(k, n_waits)``."""
    n = columns.shape[1]
    edges = np.linspace(0, n, min(_BLOCKS, n) + 1).astype(np.int64)
    sums = np.add.reduceat(columns, edges[:-1], axis=1)
    rng = Tape(0).generator("bounds", "bootstrap")
    picked = rng.integers(0, sums.shape[1], (_RESAMPLES, sums.shape[1]))
    drawn = sums[:, picked].sum(axis=2)
    value = float(statistic(sums.sum(axis=1, keepdims=True))[0])
    found = statistic(drawn)
    found = found[np.isfinite(found)]
    if not len(found):
        return Estimate(value, np.nan, np.nan)
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def dominated_area(
    points: list[tuple[float, float]], worst_cpu: float, worst_delay: float
) -> float:
    """Share of the rectangle of CPU and delay that a set of points leaves behind.

    Parameters
    ----------
    points
        CPU and delay of one policy, at several prices.
    worst_cpu, worst_delay
        Corner of the rectangle: the CPU of spinning and the delay of parking.

    Returns
    -------
    float
        0 for nothing better than the corner, 1 for neither CPU nor delay.
    """
    inside = sorted((c, d) for c, d in points if c < worst_cpu and d < worst_delay)
    area, lowest = 0.0, worst_delay
    for cpu, delay in inside:
        if delay < lowest:
            area += (worst_cpu - cpu) * (lowest - delay)
            lowest = delay
    return area / (worst_cpu * worst_delay)
