"""How full an arena is, and when a payload finds no slot."""

import heapq
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from shmsim.arena_sizing.payloads import Payloads
from shmsim.plots.style import (
    COLOURS,
    INK,
    WIDE,
    is_narrow,
    legend,
    look,
    new_figure,
    styled,
)
from shmsim.routing import MIB, ArenaPlan, class_for
from shmsim.units import S

Int64Array = NDArray[np.int64]


class Occupancy(NamedTuple):
    """Slots in use over time.

    Parameters
    ----------
    plan
        The arena.
    at_ns
        When the number of slots in use changed, ascending, shape ``(n_changes,)``.
    held
        Slots of each class in use from then on, shape ``(n_classes, n_changes)``.
    fell_back_ns, fell_back_class
        When a payload found no slot, and which class has the smallest slots that it would fit into
        (the largest, if it fits into none); both of shape ``(n_fallbacks,)``.
    """

    plan: ArenaPlan
    at_ns: Int64Array
    held: Int64Array
    fell_back_ns: Int64Array
    fell_back_class: Int64Array


def occupancy_of(plan: ArenaPlan, payloads: Payloads) -> Occupancy:
    """Pass payloads through an arena, by the rule of the model and the machine.

    As `shmsim.arena_sizing.replay.replay`, which counts, this looks on.

    Parameters
    ----------
    plan
        The arena; sizes below its ``divert_bytes`` are not offered to it.
    payloads
        In order of arrival.
    """
    offered = payloads.of_at_least(plan.divert_bytes)
    held = [0] * len(plan.classes)
    changes: list[tuple[int, ...]] = []
    instants: list[int] = []
    in_use: list[tuple[int, int]] = []
    fell_back: list[tuple[int, int]] = []

    def note(at_ns: int, index: int, by: int) -> None:
        held[index] += by
        instants.append(at_ns)
        changes.append(tuple(held))

    def let_go_until(at_ns: float) -> None:
        while in_use and in_use[0][0] <= at_ns:
            freed_ns, index = heapq.heappop(in_use)
            note(freed_ns, index, -1)

    rows = zip(
        offered.arrival_ns.tolist(), offered.n_bytes.tolist(), offered.hold_ns.tolist(), strict=True
    )
    for at_ns, n_bytes, hold_ns in rows:
        let_go_until(at_ns)
        free = tuple(c.n_slots - n for c, n in zip(plan.classes, held, strict=True))
        index = class_for(plan, n_bytes, free)
        if index < 0:
            fell_back.append((at_ns, _wanted(plan, n_bytes)))
            continue
        note(at_ns, index, 1)
        heapq.heappush(in_use, (at_ns + hold_ns, index))
    let_go_until(float("inf"))
    table = np.array(changes, dtype=np.int64).reshape(-1, len(held)).T
    lost = np.array(fell_back, dtype=np.int64).reshape(-1, 2)
    return Occupancy(plan, np.array(instants, dtype=np.int64), table, lost[:, 0], lost[:, 1])


def _wanted(plan: ArenaPlan, n_bytes: int) -> int:
    sizes = [slots.slot_bytes for slots in plan.classes]
    fitting = [size for size in sizes if size >= n_bytes]
    return sizes.index(min(fitting) if fitting else max(sizes))


@styled
def arena_occupancy(occupancy: Occupancy, title: str = "", width_in: float = WIDE) -> Figure:
    """Draw the slots in use over time, a panel for each class, with those there are.

    Crosses on the upper edge: payloads that found no slot.

    Raises
    ------
    ValueError
        If no payload came to the arena.
    """
    n_events = len(occupancy.at_ns) + len(occupancy.fell_back_ns)
    if not n_events:
        raise ValueError("no payload came to the arena; offer some of at least its divert_bytes")
    classes = occupancy.plan.classes
    extra_in = 1.5 if is_narrow(width_in) else 0.9
    figure = new_figure(width_in, extra_in + 1.3 * len(classes))
    panels = figure.subplots(len(classes), 1, sharex=True, squeeze=False)[:, 0]
    handles: list[Line2D] = []
    labels: list[str] = []
    for index, (axes, slots) in enumerate(zip(panels, classes, strict=True)):
        colour = look(index).colour
        axes.step(
            occupancy.at_ns / S, occupancy.held[index], where="post", color=colour, linewidth=0.9
        )
        axes.fill_between(
            occupancy.at_ns / S, occupancy.held[index], step="post", color=colour, alpha=0.25,
            linewidth=0,
        )  # fmt: skip
        limit = axes.axhline(slots.n_slots, color=INK, linestyle="--", linewidth=1)
        lost_ns = occupancy.fell_back_ns[occupancy.fell_back_class == index]
        if len(lost_ns):  # an empty line has no extent, and no layout then fits
            axes.plot(
                lost_ns / S,
                np.full(len(lost_ns), 1.12 * slots.n_slots),
                "x",
                color=COLOURS[1],
                markersize=5,
                clip_on=False,
            )
        axes.set_ylim(0, 1.2 * slots.n_slots)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel("slots in use")
        axes.set_title(f"{slots.n_slots} slots of {slots.slot_bytes / MIB:g} MiB")
        handles, labels = [limit], ["slots there are"]
        if len(occupancy.fell_back_ns):
            handles.append(Line2D([], [], linestyle="", marker="x", color=COLOURS[1]))
            labels.append("found no slot")
    panels[-1].set_xlabel("time (s)")
    if title:
        figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    legend(figure, handles, labels, 2)
    return figure
