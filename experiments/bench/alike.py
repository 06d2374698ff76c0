"""Random configs that two engines must agree on to the last bit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

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
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
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


def cases(seed: int, n: int) -> Iterator[Case]:
    """Draw cases, mechanisms of every kind on or off."""
    rng = np.random.default_rng(seed)
    profiles = [MachineProfile.shipped(name) for name in ("vm-2cpu", "h200", "h100-tp2")]

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


def compare(seed: int, n: int) -> dict[str, Compared]:
    """Run cases on every engine that can, beside the definition; cases it refuses do not count."""
    found = {name: Compared(0, "") for name in ENGINES if name != "simpy"}
    for number, case in enumerate(cases(seed, n)):
        try:
            expected = simulate_with(*case, engine="simpy")
        except ValueError:
            continue  # this profile lacks a cost that this config needs
        for name, before in found.items():
            try:
                choose(case.config, case.profile, name)
            except ValueError:
                continue
            records = simulate_with(*case, engine=name)
            difference = before.difference or _difference(number, expected, records)
            found[name] = Compared(before.n + 1, difference)
    return found


def _difference(number: int, expected: RunRecords, found: RunRecords) -> str:
    for table in ("steps", "waits", "requests", "processes", "cores"):
        pairs = zip(getattr(expected, table), getattr(found, table), strict=False)
        for index, (row, other) in enumerate(pairs):
            if row != other:
                return f"case {number}, {table}[{index}]: {row} and {other}"
        if len(getattr(expected, table)) != len(getattr(found, table)):
            return f"case {number}: {table} of other lengths"
    return ""
