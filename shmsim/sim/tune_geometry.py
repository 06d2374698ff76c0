"""The ways that bulk can take: routes, and an arena as large as the workload needs."""

from dataclasses import replace
from typing import Final

from shmsim.arena_sizing.retention import CopyTime
from shmsim.arena_sizing.search import smallest_arena
from shmsim.arena_sizing.steps import payloads_of_steps
from shmsim.config import PayloadConfig, RunConfig
from shmsim.profile import MachineProfile
from shmsim.routing import ROUTE_PRESETS, SlotClass
from shmsim.sim.run import simulate
from shmsim.sim.tune_runs import shortened

#: Share of payloads that may find no slot; more where a run is too short to tell.
_FALLBACK: Final = 0.01
_NEEDED: Final = 4.0  # payloads for each that may fall back, so that none of them can show it
_SIZES: Final = 2  # of slots, at most


def geometries(config: RunConfig, profile: MachineProfile) -> dict[str, PayloadConfig]:
    """Every way that bulk could take, by what sets it apart, that of the config first.

    Routes are those of `shmsim.routing.ROUTE_PRESETS`; the arena is that of the config, or the
    smallest in which at most one in a hundred payloads of a run finds no slot (docs/arena.md).
    Ways that the profile does not know the costs of are left out.
    """
    payload = config.payload
    found = {payload.routes: payload}
    if not payload.carries_bulk:
        return found
    arenas = {"": payload.arena}
    needed = _needed_arena(config, profile)
    if needed and needed != payload.arena:
        arenas[", arena as needed"] = needed
    for name, arena in arenas.items():
        # A copy from registered memory needs an arena to copy from.
        if payload.memory == "registered" and not arena:
            continue
        for routes in ROUTE_PRESETS:
            way = replace(payload, routes=routes, arena=arena)
            if way != payload and _can_run(replace(config, payload=way), profile):
                found[f"{routes}{name}"] = way
    return found


def _can_run(config: RunConfig, profile: MachineProfile) -> bool:
    try:
        simulate(shortened(config, 1), config.policies[0].policy, profile)
    except ValueError:  # says which cost is missing; the way of the config itself may well have it
        return False
    return True


def _needed_arena(config: RunConfig, profile: MachineProfile) -> tuple[SlotClass, ...]:
    """Slots for the bulk of one run; none if nothing of it is large enough, or it is too little."""
    payload = config.payload
    steps = simulate(config, config.policies[0].policy, profile).steps
    copy = CopyTime.of(profile, payload.memory) if payload.holds_slots else None
    payloads = payloads_of_steps(steps, payload, copy)
    n = payloads.of_at_least(payload.divert_bytes).n
    if n <= _NEEDED:
        return ()
    probability = max(_FALLBACK, _NEEDED / n)
    return smallest_arena(
        payloads, probability, payload.divert_bytes, _SIZES, lambda _plan: None
    ).plan.classes
