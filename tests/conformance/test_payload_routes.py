"""The model finds the same way for every part of a message as the machine does."""

import numpy as np
import pytest

from realrun.layout import SegmentLayout
from shmsim.routing import ARENA, INLINE, ROUTE_PRESETS, SOCKET, ArenaPlan, BySize, SlotClass
from shmsim.sim.arena import VirtualArena
from shmsim.sim.payload import place
from tests.real.handoffs import handoff, receive

PLANS = {
    "arena": ArenaPlan((SlotClass(30_000, 1), SlotClass(120_000, 2)), 10_000),
    "none": ArenaPlan((), 10_000),
    # Diverts shortly below what a slot of the ring holds: a stream may need a table to fit, or not.
    "late": ArenaPlan((), 65_450),
}
POLICIES = {
    **ROUTE_PRESETS,
    "small-to-arena": BySize(ARENA, INLINE, 20_000),
    "large-inline": BySize(SOCKET, INLINE, 20_000),
}
SIZES = [1, 9_999, 10_000, 20_000, 29_999, 30_000, 64_000, *range(65_200, 65_560, 20), 120_000]
SIZES += [120_001, 300_000]


@pytest.mark.real
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", POLICIES)
def test_parts_go_where_the_machine_sends_them(name, plan):
    """Two messages of each size on their way: the second finds what the first has left.

    The pairs are read before the next ones are sent, so that the slots come back.
    """
    routes = POLICIES[name]
    layout = SegmentLayout(n_workers=1, slot_bytes=1 << 16, arena=plan)
    arena = VirtualArena(plan, 1)
    counted, n_fallbacks = [0, 0, 0], 0
    with handoff(layout, routes) as ends:
        for n_bytes in SIZES:
            content = np.zeros(n_bytes, np.uint8)
            is_diverted = n_bytes >= plan.divert_bytes
            placements = []
            for call_id in range(2):
                stream_bytes = ends.sender._encoder.encode(content)[1]
                ends.sender.send(content, call_id)
                sizes = (stream_bytes, n_bytes) if is_diverted else (stream_bytes,)
                placement = place(sizes, plan.divert_bytes, routes, layout.slot_bytes, arena)
                placements.append(placement)
                n_fallbacks += placement.n_fallbacks
                for part in placement.parts:
                    counted[part.route] += 1
                assert counted == ends.sender.parts_by_route, (n_bytes, call_id)
                assert n_fallbacks == ends.sender.n_fallbacks, (n_bytes, call_id)
            for placement in placements:
                assert len(receive(ends.receivers[0])) == n_bytes
                for part in placement.parts:
                    if part.hold is not None:
                        arena.let_go(part.hold)
    assert sum(counted) > 2 * len(SIZES)
