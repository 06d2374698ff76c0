"""What one machine's waiting costs: measured distributions, and where and when they were measured.

A profile is written by ``realrun calibrate`` and read by the model. Each cost is a `Curve`: one
distribution, or several along one quantity (bytes, sequences, time asleep), between which the model
interpolates quantile by quantile.
"""

import json
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from shmsim.distribution import QUANTILE_GRID, Curve, Distribution
from shmsim.inputs.shipped import read_shipped, shipped_names
from shmsim.provenance import CALIBRATED, Source
from shmsim.wait import WaitCosts
from shmsim.whole import write_whole

__all__ = [
    "COSTS",
    "OPTIONAL_COSTS",
    "QUANTILE_GRID",
    "VERSION",
    "Curve",
    "Distribution",
    "MachineProfile",
]

FORMAT: Final = "shmsim-profile"
VERSION: Final = 3

#: A cost may differ where workers wait for the device; it is then called ``"device_wake_latency"``,
#: for instance, and a profile need not have it.
AT_DEVICE: Final = "device_"
#: Behind such a name, ``device.observe`` of another way to see ends of steps than the first that
#: the device offers: ``"device_wake_latency@blocking"``.
WAY: Final = "@"
#: What a worker falls back to, in this order, where a machine does not offer a way. The first that
#: it offers has the plain names; ``"observe"`` of the profile's machine says which that is.
FIRST_WAYS: Final = ("write", "copy", "blocking")

#: A class of policies that decides by a law, and one that asks for none: their difference is what
#: deciding costs, and the second what a policy takes for a wait that it leaves undecided
#: (docs/policies.md has both measured).
DECIDED: Final = "StepAhead"
AT_REST: Final = "AtRest"
_AS_AT_REST: Final = "Park"  # in a profile that has no such class

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
    "schedule": ("sequences", "admitting, and forming one decode batch, up to its encoding"),
    "complete": ("sequences", "taking in the tokens of one batch, once they are decoded"),
    "launch": ("", "launching a step on the echo device"),
    "device_return": ("", "device done to the return of its wait, slept and spun as in a run"),
    "wait_enter": ("", "call of wait, outcome aside, to the start of the wait itself"),
    "wait_exit": ("", "seen to the return of wait with its CPU accounting"),
    "plan": ("policy", "context and plan of one wait, by the longest sleep since the last one"),
    "after": ("policy", "outcome, record and successor of one wait, likewise"),
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

#: Costs of large payloads, which a profile need not have: whoever needs one that is not there says
#: so. As `COSTS`. Registered memory is page-locked by ``cudaHostRegister``, pageable is any other.
OPTIONAL_COSTS: Final[dict[str, tuple[str, str]]] = {
    "notify_further": (
        "asleep_ns",
        "what each further reader adds to notify_armed, and how much later it wakes; or as much",
    ),
    "io_thread_cpu": ("asleep_ns", "CPU time of an I/O thread that carries a ring; zmq only"),
    "socket_send": ("bytes", "sending that many bytes to one reader through a socket"),
    "socket_receive": ("bytes", "receiving the same, from readable to the last byte copied"),
    "h2d_call_registered": ("bytes", "call of a copy from registered memory to its return"),
    "h2d_registered": ("bytes", "the same call to the bytes being on a device that was idle"),
    "h2d_call_pageable": ("bytes", "call of a copy from pageable memory to its return"),
    "h2d_pageable": ("bytes", "the same call to the bytes being on a device that was idle"),
    "d2h": ("bytes", "call of a copy from an idle device to the bytes being in memory"),
    "device_step": ("sequences", "a decode step of so many, its launch to its end on the device"),
    "device_prefill": ("tokens", "a prompt chunk of so many, call of its launch to its end there"),
}


@dataclass(frozen=True)
class MachineProfile:
    """The calibrated costs of one machine.

    Parameters
    ----------
    costs
        By name, see `COSTS`; any of `OPTIONAL_COSTS` may be among them.
    policy_costs
        ``"plan"`` and ``"after"`` of each policy class, by its name; along ``"asleep_ns"``, the
        longest sleep since the thread last did the same: what did not run since is cold.
    machine
        Facts about the box, see `realrun.host`.
    measured_at
        Date and time, ISO 8601.
    sources
        Where the costs come from, by a name of `COSTS`. What is absent was measured by
        ``realrun calibrate`` on that machine.
    """

    costs: dict[str, Curve]
    policy_costs: dict[str, dict[str, Curve]]
    machine: dict[str, Any] = field(default_factory=dict)
    measured_at: str = ""
    sources: dict[str, Source] = field(default_factory=dict)

    @classmethod
    def shipped(cls, name: str) -> "MachineProfile":
        """A profile that comes with the package; each of its costs has a source.

        Parameters
        ----------
        name
            One of `shmsim.inputs.shipped.shipped_names`.

        Raises
        ------
        ValueError
            If there is none of that name.
        """
        found = read_shipped(name)
        missing = _missing(found.costs, found.policy_costs)
        if missing:
            raise ValueError(f"shipped profile {name} lacks {', '.join(missing)}")
        return cls(found.costs, found.policy_costs, found.machine, found.measured_at, found.sources)

    def source_of(self, name: str) -> Source:
        """Where a cost comes from, by a name of `COSTS`."""
        return self.sources.get(name, CALIBRATED)

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

    def wait_costs(self, delay_price: float, shares_cores: bool = False) -> WaitCosts:
        """The few numbers a policy is told; two of them are no costs, but its run's."""
        typical_ns = 2e6
        decided, at_rest = (
            sum(c.at(0.5, typical_ns) for c in self.costs_of_policy(name).values())
            for name in (DECIDED, AT_REST)
        )
        return WaitCosts(
            int(self.costs["wake_latency"].at(0.5, typical_ns)),
            int(self.costs["park_cpu"].at(0.5, typical_ns)),
            int(self.costs["timer_overshoot"].at(0.99, typical_ns)),
            int(self.costs["rehearsal"].at(0.9, typical_ns)),
            max(0, int(decided - at_rest)),
            delay_price,
            shares_cores,
        )

    @property
    def ways(self) -> tuple[str, ...]:
        """Ways to observe the ends of a GPU's steps that it holds the costs of waiting in."""
        first = self.machine.get("observe", FIRST_WAYS[0])
        waits = (name.partition(WAY) for name in self.costs if _is_at_device(name))
        return tuple(dict.fromkeys(way or first for _, _, way in waits))

    def way_for(self, way: str) -> str:
        """The way whose costs count where a run asks for one.

        Parameters
        ----------
        way
            How the ends of steps are to be observed, as ``device.observe``.

        Returns
        -------
        str
            That one; or the first of `FIRST_WAYS` that the machine offers, if its workers fall back
            to that.

        Raises
        ------
        ValueError
            If neither was measured.
        """
        ways = self.ways
        if way in ways:
            return way
        if not ways:
            why = self._said_of_gpu("left_out", "rests")
            raise ValueError(
                "the profile does not hold what waiting for a GPU costs"
                + (f" ({why})" if why else "")
                + ', as device.kind = "cuda" needs; calibrate where the GPU is: '
                "realrun calibrate --gpu 0"
            )
        offered = [each for each in FIRST_WAYS if each in ways]
        if offered and way in FIRST_WAYS[: FIRST_WAYS.index(offered[0])]:
            return offered[0]
        why = self._said_of_gpu("rests", "not_observed", way)
        raise ValueError(
            f"the profile holds what waiting for a GPU by {', '.join(ways)} costs, and the config "
            f'has device.observe = "{way}"'
            + (f", which cannot be had there ({why})" if why else "")
            + "; name another, or calibrate where it can be had: realrun calibrate --gpu 0"
        )

    def _said_of_gpu(self, *names: str) -> str:
        """Why something was not measured there; empty if nobody says."""
        found: Any = self.machine.get("gpu")
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return str(found or "")

    def at_device(self, way: str) -> "MachineProfile":
        """The costs of a run whose steps are computed by the GPU that was calibrated.

        Launches cost what they cost on that device, and waits for it what they cost in one way to
        observe the ends of its steps; what of that nobody measured stays as it is. Parameters and
        errors are those of `way_for`.
        """
        chosen = self.way_for(way)
        costs = {name: curve for name, curve in self.costs.items() if WAY not in name}
        ending = WAY + chosen
        for name, curve in self.costs.items():
            if name.endswith(ending):
                costs[name.removesuffix(ending)] = curve
        launch = costs.pop(AT_DEVICE + "launch", None)
        if launch is not None:
            costs["launch"] = launch
        return replace(self, costs=costs, machine=self.machine | {"observe": chosen})

    def without_device(self) -> "MachineProfile":
        """The same without what a GPU costs: what is waited for costs what the box does."""
        costs = {n: curve for n, curve in self.costs.items() if not n.startswith(AT_DEVICE)}
        return replace(self, costs=costs | {"device_return": self.costs["device_return"]})

    def costs_of_policy(self, name: str) -> dict[str, Curve]:
        """``"plan"`` and ``"after"`` of a policy class; of one not measured, the dearest's."""
        found = self.policy_costs.get(name)
        if found is None and name == AT_REST:
            found = self.policy_costs.get(_AS_AT_REST)
        if found is None:
            found = max(self.policy_costs.values(), key=_typical_ns)
        return found

    def write(self, path: Path) -> None:
        """Store as JSON."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "measured_at": self.measured_at,
            "machine": self.machine,
            "unit": "ns",
            "costs": {
                name: {"by": curve.by, "between": _between(name), "points": _points(curve)}
                for name, curve in self.costs.items()
            },
            "policy_costs": {
                name: {what: {"by": c.by, "points": _points(c)} for what, c in both.items()}
                for name, both in self.policy_costs.items()
            },
        }
        if self.sources:
            content["sources"] = {name: s._asdict() for name, s in self.sources.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, path: Path) -> "MachineProfile":
        """Read a profile; a path that is no file but the name of a shipped one gives that.

        Raises
        ------
        ValueError
            If the file is missing, no profile, of another version, or lacks a cost.
        """
        if not path.exists() and str(path) in shipped_names():
            return cls.shipped(str(path))
        try:
            content = json.loads(path.read_text())
        except OSError as error:
            raise ValueError(
                f"cannot read profile {path}: {error.strerror}; make one with "
                f"'realrun calibrate -o {path}', or name one that comes with the package: "
                f"{', '.join(shipped_names())}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'{path} is not a profile: it lacks "format": "{FORMAT}"')
        version = content.get("version")
        if version != VERSION:
            is_newer = isinstance(version, int) and version > VERSION
            raise ValueError(
                f"{path} is a profile of version {version}, this program reads version {VERSION}; "
                + ("update this program" if is_newer else "calibrate again")
            )
        try:
            costs = {name: _curve(name, curve) for name, curve in content["costs"].items()}
            policy_costs = {
                name: {what: _curve(f"{what} of {name}", both[what]) for what in ("plan", "after")}
                for name, both in content["policy_costs"].items()
            }
            machine, measured_at = dict(content["machine"]), str(content["measured_at"])
            sources = {
                name: Source.of(str(s["mark"]), str(s["text"]))
                for name, s in content.get("sources", {}).items()
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error!r}; calibrate again") from None
        missing = _missing(costs, policy_costs)
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}; calibrate again")
        return cls(costs, policy_costs, machine, measured_at, sources)


def _between(name: str) -> str:
    """Between which two points a cost is measured, those of `AT_DEVICE` too."""
    if name in OPTIONAL_COSTS:
        return OPTIONAL_COSTS[name][1]
    cost, _, way = name.partition(WAY)
    between = (COSTS.get(cost) or COSTS[cost.removeprefix(AT_DEVICE)])[1]
    if cost in COSTS:
        return between
    return between + ", where the device is waited for" + (f" by {way}" if way else "")


def _is_at_device(name: str) -> bool:
    """Whether it is a cost of waiting for a GPU."""
    cost = name.partition(WAY)[0]
    return cost not in COSTS and cost.removeprefix(AT_DEVICE) in COSTS.keys() - {"launch"}


def _missing(costs: dict[str, Curve], policy_costs: dict[str, dict[str, Curve]]) -> list[str]:
    """What a profile lacks."""
    missing = [n for n, (by, _) in COSTS.items() if by != "policy" and not costs.get(n)]
    return missing + ([] if policy_costs else ["the costs of any policy"])


def _typical_ns(costs: dict[str, Curve]) -> float:
    """What a policy's own CPU typically is, a wait, hot."""
    return costs["plan"].at(0.5) + costs["after"].at(0.5)


def _points(curve: Curve) -> list[dict[str, Any]]:
    return [{"x": x, **point._asdict()} for x, point in zip(curve.xs, curve.points, strict=True)]


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
