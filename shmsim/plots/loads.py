"""What becomes of a policy when threads outnumber cores, or a quota runs out."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from shmsim.plots.style import (
    FAINT,
    WIDE,
    legend,
    look,
    name_in_legend,
    new_figure,
    styled,
    title_axes,
)
from shmsim.stats.estimate import Estimate
from shmsim.units import MS


class LoadPoint(NamedTuple):
    """One policy under one load.

    Parameters
    ----------
    policy
        Its name.
    load
        Threads that want to run for each core there is; 1 if each has its own.
    tpot_ns
        Time per output token.
    """

    policy: str
    load: float
    tpot_ns: Estimate


@styled
def collapse(points: Sequence[LoadPoint], title: str = "", width_in: float = WIDE) -> Figure:
    """Draw the time per output token by threads for each core: who needs a core of its own falls.

    Bars are intervals, where the estimates have one.

    Raises
    ------
    ValueError
        If there is no point.
    """
    if not points:
        raise ValueError("there is no point to draw; give each policy one for each load")
    figure = new_figure(width_in, 3.6)
    axes = figure.subplots()
    axes.axvline(1, color=FAINT, linewidth=1, linestyle=":")
    handles = []
    policies = list(dict.fromkeys(point.policy for point in points))
    for index, policy in enumerate(policies):
        colour, marker, dashes = look(index)
        own = sorted((p for p in points if p.policy == policy), key=lambda p: p.load)
        estimates = [point.tpot_ns for point in own]
        handles.append(
            axes.errorbar(
                [point.load for point in own],
                [e.value / MS for e in estimates],
                yerr=[
                    [_reach(e.value - e.low) for e in estimates],
                    [_reach(e.high - e.value) for e in estimates],
                ],
                fmt=marker,
                linestyle=dashes,
                color=colour,
                linewidth=1.4,
                markersize=5.5,
                capsize=2,
                elinewidth=0.9,
            )
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted({point.load for point in points}))
    axes.set_xlabel("threads that want to run, for each core")
    axes.set_ylabel("time per output token (ms)")
    title_axes(axes, title)
    legend(figure, handles, [name_in_legend(policy, width_in) for policy in policies], 2)
    return figure


def _reach(distance_ns: float) -> float:
    return max(distance_ns, 0.0) / MS if math.isfinite(distance_ns) else 0.0
