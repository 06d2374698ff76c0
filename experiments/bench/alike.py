"""Random configs that two engines must agree on to the last bit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.config import (
    CoresConfig,
    DeviceConfig,
    EngineConfig,
    HandoffConfig,
    PayloadConfig,
    RunConfig,
    WorkloadConfig,
)
from shmsim.difference import first_difference
from shmsim.policies import PRESETS
from shmsim.profile import Curve, Distribution, MachineProfile
from shmsim.routing import MIB, ROUTE_PRESETS, SlotClass
from shmsim.sim.engine import ENGINES, choose, simulate_with
from shmsim.units import MS, US
from shmsim.wait import WaitPolicy


class Case(NamedTuple):
    """One run to compare."""

    config: RunConfig
    policy: WaitPolicy
    profile: MachineProfile


class Compared(NamedTuple):
    """How many cases an engine ran, and where it first differed, if it did."""

    n: int
    difference: str


class Drawn(NamedTuple):
    """What the cases were.

    Parameters
    ----------
    n
        How many were drawn.
    compared
        Of how many the definition made records.
    bulk, arena
        How many of these carried more than headers, and how many had an arena.
    refused
        Why the first of the others was refused; empty if none was.
    """

    n: int = 0
    compared: int = 0
    bulk: int = 0
    arena: int = 0
    refused: str = ""


#: What payloads cost on a profile that does not say: fixed, and for each MiB.
_BULK_COSTS_NS: Final = {
    "pickle": (3 * US, 400 * US),
    "unpickle": (2 * US, 50 * US),
    "memcpy": (0, 100 * US),
    "socket_send": (30 * US, 90 * US),
    "socket_receive": (25 * US, 110 * US),
    "h2d_call_registered": (5 * US, 0),
    "h2d_registered": (15 * US, 20 * US),
    "h2d_call_pageable": (6 * US, 80 * US),
    "h2d_pageable": (16 * US, 80 * US),
    "d2h": (11 * US, 0),
}
_LARGEST_MIB: Final = 64


def with_bulk(profile: MachineProfile) -> MachineProfile:
    """The profile with every cost that payloads have, round numbers where nobody measured them."""
    costs = {
        name: Curve(
            "bytes",
            (0.0, float(_LARGEST_MIB * MIB)),
            tuple(
                Distribution.of([[ns, 2 * ns + 1]])
                for ns in (fixed_ns, fixed_ns + _LARGEST_MIB * per_mib_ns)
            ),
        )
        for name, (fixed_ns, per_mib_ns) in _BULK_COSTS_NS.items()
    }
    return replace(profile, costs=costs | profile.costs)


def cases(seed: int, n: int) -> Iterator[Case]:
    """Draw cases, mechanisms of every kind on or off."""
    rng = np.random.default_rng(seed)
    profiles = [with_bulk(MachineProfile.shipped(name)) for name in ("vm-2cpu", "h200", "h100-tp2")]

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    for _ in range(n):
        workers = one_of(1, 2, 3)
        shared = CoresConfig(
            n=one_of(1, 2, 4),
            engines=one_of(1, 1, 2),
            quota=one_of(0.0, 0.0, 0.9),
            steal_every_ns=one_of(0, 0, 5 * MS),
            steal_ns=1 * MS,
            guarded=one_of(True, False),
        )
        bulk = PayloadConfig(
            bytes_per_step=one_of(900, 1 * MIB, 20 * MIB),
            routes=one_of(*ROUTE_PRESETS),
            divert_bytes=1 * MIB,
            arena=one_of((), (SlotClass(32 * MIB, 2),)),
            memory="none",
        )
        config = RunConfig(
            EngineConfig(
                workers=workers,
                calls_per_step=one_of(1, 2),
                scheduling=one_of("sync", "async"),
                max_sequences=one_of(1, 3, 8),
                device_wait=one_of("", "", "park"),
            ),
            HandoffConfig(slots=one_of(2, 8), replies=one_of("rank0", "all")),
            WorkloadConfig(
                one_of("closed", "open"),
                requests=one_of(3, 6),
                rate_per_s=one_of(5.0, 300.0),
                concurrency=one_of(1, 3),
                prompt_p50=20,
                prompt_p95=60,
                output_p50=8,
                output_p95=20,
            ),
            DeviceConfig(step_ns=one_of(80 * US, 2 * MS), jitter=one_of(0.0, 0.1)),
            cores=one_of(CoresConfig(), shared),
            payload=one_of(PayloadConfig(), PayloadConfig(), bulk),
            seed=int(rng.integers(1 << 30)),
            pin=one_of(True, False),
        )
        if config.payload.arena:
            config = replace(config, payload=replace(config.payload, memory="registered"))
        yield Case(config, one_of(*PRESETS.values()), one_of(*profiles))


def compare(seed: int, n: int) -> tuple[Drawn, dict[str, Compared]]:
    """Run cases on every engine that can, beside the definition.

    Returns
    -------
    tuple
        What the cases were, and what each engine did.
    """
    found = {name: Compared(0, "") for name in ENGINES if name != "simpy"}
    drawn = Drawn()
    for number, case in enumerate(cases(seed, n)):
        drawn = drawn._replace(n=drawn.n + 1)
        try:
            expected = simulate_with(*case, engine="simpy")
        except ValueError as error:
            drawn = drawn._replace(refused=drawn.refused or f"case {number}: {error}")
            continue
        payload = case.config.payload
        drawn = drawn._replace(
            compared=drawn.compared + 1,
            bulk=drawn.bulk + bool(payload.bytes_per_step),
            arena=drawn.arena + bool(payload.arena),
        )
        for name, before in found.items():
            try:
                choose(case.config, case.profile, name)
            except ValueError:
                continue
            records = simulate_with(*case, engine=name)
            first = first_difference(expected, records)
            told = first and f"case {number}, {first.place}: {first.expected} and {first.found}"
            found[name] = Compared(before.n + 1, before.difference or told or "")
    return drawn, found
