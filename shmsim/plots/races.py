"""What a step costs under each policy, and what none of them can beat."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from shmsim.plots.kinds import Filling
from shmsim.plots.style import (
    COLOURS,
    INK,
    PAPER,
    WIDE,
    is_narrow,
    legend,
    name_of,
    new_figure,
    styled,
    title_axes,
)
from shmsim.stats.estimate import Estimate
from shmsim.units import US

_ROW_IN: Final = 0.3
_LONGEST: Final = {False: 30, True: 16}
_CPU: Final = Filling(COLOURS[5], "")
_LATER: Final = Filling(COLOURS[1], "////")
_SOONER: Final = Filling(COLOURS[2], "....")


class Racer(NamedTuple):
    """One policy in a race.

    Parameters
    ----------
    name
        Its name.
    cpu_ns
        CPU time of all processes for a step.
    cost_ns
        The same and *r* times the time that a step takes longer than the reference's.
    """

    name: str
    cpu_ns: Estimate
    cost_ns: Estimate


@styled
def race_costs(
    racers: Sequence[Racer],
    delay_price: float,
    bound_ns: float | None = None,
    title: str = "",
    width_in: float = WIDE,
) -> Figure:
    """Draw what a step costs under each policy: CPU, then *r* times the time it adds.

    Who is faster than the reference is given back the hatched part. The bar at the end is the
    interval of the whole.

    Parameters
    ----------
    racers
        From top to bottom.
    delay_price
        *r*, for the axis.
    bound_ns
        Cost that no policy can beat; drawn as a line.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If nobody races.
    """
    if not racers:
        raise ValueError("there is no racer to draw; give at least one policy")
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, (1.5 if narrow else 0.95) + _ROW_IN * len(racers))
    axes = figure.subplots()
    looks = {"CPU of a step": _CPU, "r × time added": _LATER, "r × time saved": _SOONER}
    met = ["CPU of a step"]
    for place, racer in enumerate(racers):
        cpu, cost = racer.cpu_ns.value / US, racer.cost_ns.value / US
        part = "r × time added" if cost >= cpu else "r × time saved"
        if abs(cost - cpu) > 1e-3 * cpu:
            met.append(part)
        for begun, ended, filling in ((0.0, cpu, _CPU), (cpu, cost, looks[part])):
            axes.barh(
                place,
                ended - begun,
                left=begun,
                height=0.66,
                color=filling.colour,
                hatch=filling.hatch,
                edgecolor=INK,
                linewidth=0.4,
            )
        half_us = racer.cost_ns.half_width / US
        axes.errorbar(
            cost,
            place,
            xerr=half_us if math.isfinite(half_us) else None,
            fmt="o",
            color=INK,
            markersize=3.5,
            capsize=2.5,
            elinewidth=1,
        )
        axes.annotate(
            f"{cost:.0f}",
            (max(cost, cpu), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8},
        )
    axes.set_yticks(range(len(racers)), [name_of(racer.name, _LONGEST[narrow]) for racer in racers])
    axes.set_ylim(len(racers) - 0.5, -0.5)
    ends_us = [e.value / US for racer in racers for e in (racer.cpu_ns, racer.cost_ns)]
    ends_us.append(0.0 if bound_ns is None else bound_ns / US)
    least_us, most_us = min(*ends_us, 0.0), max(*ends_us, 1e-9)
    axes.set_xlim(least_us - 0.05 * (most_us - least_us) if least_us < 0 else 0.0, 1.13 * most_us)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    after = "\n" if narrow else " "
    axes.set_xlabel(f"cost of a step: CPU + r × time added,{after}r = {delay_price:g} (µs of CPU)")
    title_axes(axes, title)
    labels = [label for label in looks if label in met]
    handles: list[Any] = [
        Patch(facecolor=looks[x].colour, hatch=looks[x].hatch, edgecolor=INK, linewidth=0.4)
        for x in labels
    ]
    if bound_ns is not None:
        handles.append(axes.axvline(bound_ns / US, color=INK, linestyle="--", linewidth=1.2))
        labels.append("bound")
    legend(figure, handles, labels, 2)
    return figure
