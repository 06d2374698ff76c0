"""What one machine's waiting costs: measured distributions, and where and when they were measured.

A profile is written by ``realrun calibrate`` and read by the model. Each cost is a `Curve`: one
distribution, or several along one quantity (bytes, sequences, time asleep), between which the model
interpolates quantile by quantile.
"""

import json
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shmsim.wait import WaitCosts

FORMAT: Final = "shmsim-profile"
VERSION: Final = 2
DEAREST_POLICY: Final = "WakeAhead"
#: Every percent, and every tenth of the last: between the 99th percentile and the greatest of some
#: hundred values a straight line would promise ten times too many outliers.
QUANTILE_GRID: Final = (*(i / 100 for i in range(100)), *(0.99 + i / 1000 for i in range(1, 11)))

#: Costs every profile has: name, what it runs along, and between which two points it is measured.
COSTS: Final[dict[str, tuple[str, str]]] = {
    "clock_read": ("", "one read of the monotonic clock from Python"),
    "pickle": ("bytes", "pickling one NumPy array of that many bytes, protocol 5, in band"),
    "unpickle": ("bytes", "unpickling the same"),
    "memcpy": ("bytes", "copying that many bytes into shared memory from Python"),
    "ring_publish": ("bytes", "call of publish to the slot's publish stamp"),
    "ring_read": ("bytes", "call of read to its return, the payload copied out"),
    "encode_request": ("sequences", "batch to pickled message"),
    "decode_request": ("sequences", "pickled message to objects, in a worker"),
    "encode_reply": ("sequences", "tokens to pickled reply, in a worker"),
    "decode_reply": ("sequences", "pickled reply to tokens"),
    "schedule": ("sequences", "forming one decode batch"),
    "complete": ("sequences", "noting the tokens of one batch"),
    "launch": ("", "launching a step on the echo device"),
    "device_return": ("", "device done to the return of its wait, slept and spun as in a run"),
    "wait_enter": ("", "call of wait, outcome aside, to the start of the wait itself"),
    "wait_exit": ("", "seen to the return of wait with its CPU accounting"),
    "plan": ("policy", "context and plan of one wait"),
    "after": ("policy", "outcome, record and successor of one wait"),
    "spin_detection": ("", "publish stamp to seen, by a spinner on another core"),
    "yield_detection": ("", "publish stamp to seen, by a yielder on another core"),
    "yield_look": ("", "one look and sched_yield with nobody else on the core"),
    "notify_unarmed": ("", "publish stamp to the return of notify when nobody is armed"),
    "notify_armed": ("asleep_ns", "publish stamp to the return of notify that wakes one reader"),
    "wake_latency": ("asleep_ns", "publish stamp to seen, by a reader that parked for that long"),
    "park_cpu": ("asleep_ns", "CPU time of one park and its wake-up"),
    "timer_overshoot": ("asleep_ns", "deadline of a doze to its first instruction afterwards"),
    "doze_cpu": ("asleep_ns", "CPU time of one doze that its timer ended"),
    "slow_after_spin": ("asleep_ns", "extra time of scheduler work after spinning that long"),
    "slow_after_park": ("asleep_ns", "extra time of scheduler work after a park of that long"),
    "slow_after_rehearsal": ("asleep_ns", "the same after doze, rehearsal and a short spin"),
    "rehearsal": ("asleep_ns", "one rehearsal of scheduler work after a doze of that long"),
    "slow_after_doze": ("asleep_ns", "extra time of scheduler work after doze, then a short spin"),
    "worker_slow_after_spin": ("asleep_ns", "the same for worker work"),
    "worker_slow_after_park": ("asleep_ns", "the same for worker work"),
    "worker_slow_after_rehearsal": ("asleep_ns", "the same for worker work"),
    "worker_rehearsal": ("asleep_ns", "the same for worker work"),
    "worker_slow_after_doze": ("asleep_ns", "the same for worker work"),
}


class Distribution(NamedTuple):
    """A measured distribution, nanoseconds.

    Parameters
    ----------
    n
        How many values.
    median, low, high
        Median and its 95 % interval by order statistics (of the replicates pooled).
    quantiles
        At `QUANTILE_GRID`, shape ``(110,)``.
    replicates
        Median of each replicate: their spread is what one number cannot show.
    """

    n: int
    median: float
    low: float
    high: float
    quantiles: tuple[float, ...]
    replicates: tuple[float, ...]

    @classmethod
    def of(cls, replicates: list[ArrayLike]) -> "Distribution":
        """Summarise replicated measurements, each an array of nanoseconds.

        Raises
        ------
        ValueError
            If there is no value.
        """
        arrays = [np.asarray(r, dtype=np.float64) for r in replicates if np.size(r)]
        if not arrays:
            raise ValueError("a distribution needs at least one value")
        values = np.sort(np.concatenate(arrays))
        n = len(values)
        # Ranks that enclose the median with 95 %, by the normal approximation to the binomial.
        half = 0.98 * math.sqrt(n)
        low = values[max(0, math.floor(n / 2 - half))]
        high = values[min(n - 1, math.ceil(n / 2 + half))]
        grid = np.quantile(values, np.minimum(QUANTILE_GRID, 1.0))
        return cls(
            n,
            float(np.median(values)),
            float(low),
            float(high),
            tuple(round(float(q), 1) for q in grid),
            tuple(float(np.median(a)) for a in arrays),
        )

    def at(self, u: float) -> float:
        """The quantile of ``u`` in [0, 1]."""
        q = self.quantiles
        position = 100.0 * u if u < 0.99 else 99.0 + 1000.0 * (u - 0.99)
        i = min(int(position), len(q) - 2)
        return q[i] + (position - i) * (q[i + 1] - q[i])


class Curve(NamedTuple):
    """A cost along one quantity.

    Parameters
    ----------
    by
        Name of the quantity; empty for a cost that depends on nothing.
    xs
        Where it was measured, ascending.
    points
        The distribution at each.
    """

    by: str
    xs: tuple[float, ...]
    points: tuple[Distribution, ...]

    def at(self, u: float, x: float = 0.0) -> float:
        """The quantile of ``u`` at ``x``, interpolated linearly; outside, the nearest point's."""
        xs = self.xs
        i = bisect_right(xs, x)
        if i == 0:
            return self.points[0].at(u)
        if i == len(xs):
            return self.points[-1].at(u)
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        left = self.points[i - 1].at(u)
        return left + share * (self.points[i].at(u) - left)


@dataclass(frozen=True)
class MachineProfile:
    """The calibrated costs of one machine.

    Parameters
    ----------
    costs
        By name, see `COSTS`.
    policy_costs
        ``"plan"`` and ``"after"`` of each policy class, by its name.
    machine
        Facts about the box, see `realrun.host`.
    measured_at
        Date and time, ISO 8601.
    """

    costs: dict[str, Curve]
    policy_costs: dict[str, dict[str, Distribution]]
    machine: dict[str, Any] = field(default_factory=dict)
    measured_at: str = ""

    def check_doorbell(self, doorbell: str) -> None:
        """Refuse to stand for a doorbell whose costs were not measured.

        Raises
        ------
        ValueError
            If the profile was calibrated with another one.
        """
        measured = self.machine.get("doorbell", "futex")
        if measured != doorbell:
            raise ValueError(
                f"the profile holds the costs of the {measured} doorbell, and the config has "
                f'handoff.doorbell = "{doorbell}"; calibrate with realrun calibrate --doorbell '
                f"{doorbell}, or change the config"
            )

    def wait_costs(self, delay_price: float) -> WaitCosts:
        """The few numbers a policy is told."""
        typical_ns = 2e6
        return WaitCosts(
            int(self.costs["wake_latency"].at(0.5, typical_ns)),
            int(self.costs["park_cpu"].at(0.5, typical_ns)),
            int(self.costs["timer_overshoot"].at(0.99, typical_ns)),
            int(self.costs["rehearsal"].at(0.9, typical_ns)),
            delay_price,
        )

    def costs_of_policy(self, name: str) -> dict[str, Distribution]:
        """``"plan"`` and ``"after"`` of a policy class; of one not measured, the dearest's."""
        return self.policy_costs.get(name) or self.policy_costs[DEAREST_POLICY]

    def write(self, path: Path) -> None:
        """Store as JSON."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "measured_at": self.measured_at,
            "machine": self.machine,
            "unit": "ns",
            "costs": {
                name: {
                    "by": curve.by,
                    "between": COSTS[name][1],
                    "points": [
                        {"x": x, **point._asdict()}
                        for x, point in zip(curve.xs, curve.points, strict=True)
                    ],
                }
                for name, curve in self.costs.items()
            },
            "policy_costs": {
                name: {what: d._asdict() for what, d in both.items()}
                for name, both in self.policy_costs.items()
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, path: Path) -> "MachineProfile":
        """Read a profile.

        Raises
        ------
        ValueError
            If the file is missing, no profile, of another version, or lacks a cost.
        """
        try:
            content = json.loads(path.read_text())
        except OSError as error:
            raise ValueError(
                f"cannot read profile {path}: {error.strerror}; make one with "
                f"'realrun calibrate -o {path}'"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'{path} is not a profile: it lacks "format": "{FORMAT}"')
        if content.get("version") != VERSION:
            raise ValueError(
                f"{path} is a profile of version {content.get('version')}, this program reads "
                f"version {VERSION}; calibrate again"
            )
        try:
            costs = {name: _curve(name, curve) for name, curve in content["costs"].items()}
            policy_costs = {
                name: {what: _distribution(both[what]) for what in ("plan", "after")}
                for name, both in content["policy_costs"].items()
            }
            machine, measured_at = dict(content["machine"]), str(content["measured_at"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error!r}; calibrate again") from None
        missing = [n for n, (by, _) in COSTS.items() if by != "policy" and not costs.get(n)]
        # A policy that is not in the library costs what the dearest one in it does.
        missing += [f"the costs of policy {p}" for p in (DEAREST_POLICY,) if p not in policy_costs]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}; calibrate again")
        return cls(costs, policy_costs, machine, measured_at)


def _curve(name: str, content: dict[str, Any]) -> Curve:
    xs = tuple(float(point["x"]) for point in content["points"])
    if not xs or not all(a < b for a, b in pairwise(xs)):
        raise ValueError(f"{name} needs points along ascending x, got {list(xs)}")
    return Curve(content["by"], xs, tuple(_distribution(p) for p in content["points"]))


def _distribution(content: dict[str, Any]) -> Distribution:
    quantiles = tuple(float(q) for q in content["quantiles"])
    if len(quantiles) != len(QUANTILE_GRID):
        raise ValueError(f"{len(quantiles)} quantiles instead of {len(QUANTILE_GRID)}")
    if not all(a <= b < math.inf for a, b in pairwise(quantiles)):
        raise ValueError("quantiles are not ascending numbers")
    return Distribution(
        int(content["n"]),
        float(content["median"]),
        float(content["low"]),
        float(content["high"]),
        quantiles,
        tuple(float(r) for r in content["replicates"]),
    )
