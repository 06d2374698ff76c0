"""Passes payloads through an arena, by the model's own arena and rules."""

import heapq
from typing import NamedTuple

import numpy as np

from shmsim.arena_sizing.payloads import Payloads
from shmsim.arena_sizing.rare import rare_share
from shmsim.routing import ArenaPlan, class_for
from shmsim.sim.arena import Hold, VirtualArena
from shmsim.stats.estimate import Estimate


class Usage(NamedTuple):
    """What became of payloads.

    Parameters
    ----------
    n, n_diverted
        How many there were, and how many are large enough for the arena.
    fallback
        Share of the latter that found no slot, or fit into none, with its interval.
    n_fallback, n_too_large
        How many those were, and how many of them fit into no slot even of an empty arena.
    n_most_held
        Slots in use at most.
    arena_bytes
        Passed through the arena.
    fallback_bytes
        Of those that fell back.
    inline_bytes
        Of those too small to be diverted.
    reserved_bytes, touched_bytes
        Memory of all slots, and of their pages that were ever written: what stays resident where
        pages are taken when they are first touched.
    """

    n: int
    n_diverted: int
    fallback: Estimate
    n_fallback: int
    n_too_large: int
    n_most_held: int
    arena_bytes: int
    fallback_bytes: int
    inline_bytes: int
    reserved_bytes: int
    touched_bytes: int


def reserved_bytes(plan: ArenaPlan) -> int:
    """Memory of all slots of an arena."""
    return sum(slot_bytes * n_slots for slot_bytes, n_slots in plan.classes)


def replay(plan: ArenaPlan, payloads: Payloads) -> Usage:
    """Pass payloads through an arena; nobody waits for a slot.

    Which slot a payload gets, and whether there is one, is decided by `shmsim.routing.class_for`
    and `shmsim.sim.arena.VirtualArena`, as in the model. A slot that comes free at the instant a
    payload arrives is free for it. Of the free slots of a class the lowest is taken.

    Parameters
    ----------
    plan
        The arena; sizes below its ``divert_bytes`` are not offered to it.
    payloads
        In order of arrival.
    """
    arena = VirtualArena(plan, 1)
    in_use: list[tuple[int, int, Hold, int]] = []
    free_slots = [list(range(n_slots)) for _, n_slots in plan.classes]
    written = [[0] * n_slots for _, n_slots in plan.classes]
    offered = payloads.of_at_least(plan.divert_bytes)
    fell_back = np.zeros(offered.n, dtype=np.bool_)
    rows = zip(
        offered.arrival_ns.tolist(), offered.n_bytes.tolist(), offered.hold_ns.tolist(), strict=True
    )
    for number, (at_ns, n_bytes, hold_ns) in enumerate(rows):
        while in_use and in_use[0][0] <= at_ns:
            _, _, hold, slot = heapq.heappop(in_use)
            arena.let_go(hold)
            heapq.heappush(free_slots[hold.index], slot)
        if arena.n_free_for(n_bytes) == 0:
            fell_back[number] = True
            continue
        hold = arena.take(n_bytes)
        slot = heapq.heappop(free_slots[hold.index])
        written[hold.index][slot] = max(written[hold.index][slot], n_bytes)
        heapq.heappush(in_use, (at_ns + hold_ns, number, hold, slot))
    empty = tuple(n_slots for _, n_slots in plan.classes)
    too_large = np.array(
        [class_for(plan, int(n), empty) < 0 for n in offered.n_bytes[fell_back]], dtype=np.bool_
    )
    mean_hold_ns = float(offered.hold_ns.mean()) if offered.n else 0.0
    lost_bytes = int(offered.n_bytes[fell_back].sum())
    diverted_bytes = int(offered.n_bytes.sum())
    return Usage(
        payloads.n,
        offered.n,
        rare_share(fell_back, offered.arrival_ns, mean_hold_ns),
        int(fell_back.sum()),
        int(too_large.sum()),
        arena.n_most_held,
        diverted_bytes - lost_bytes,
        lost_bytes,
        int(payloads.n_bytes.sum()) - diverted_bytes,
        reserved_bytes(plan),
        sum(sum(slots) for slots in written),
    )
