"""Predicted beside measured, in the unit of both."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shmsim.plots.style import (
    COLOURS,
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

_ROW_IN: Final = 0.32
_APART: Final = 0.15  # of a row: above it what was measured, below what was predicted
_LONGEST: Final = {False: 40, True: 20}


class Prediction(NamedTuple):
    """One quantity in both worlds; one of the two may be missing.

    Parameters
    ----------
    name
        Of the row.
    predicted, measured
        In one unit; without an interval where its ends are NaN.
    """

    name: str
    predicted: Estimate | None
    measured: Estimate | None


@styled
def predicted_and_measured(
    rows: Sequence[Prediction],
    label: str,
    unit: float,
    title: str = "",
    width_in: float = WIDE,
) -> Figure:
    """Draw a row for each prediction: filled what was measured, hollow what was predicted.

    Parameters
    ----------
    rows
        From top to bottom.
    label
        Of the axis, with its unit.
    unit
        What estimates are divided by, as `shmsim.units.MS`.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """
    shown = [row for row in rows if row.predicted or row.measured]
    if not shown:
        raise ValueError("there is nothing to draw; give rows that were predicted or measured")
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, (1.25 if narrow else 0.85) + _ROW_IN * len(shown))
    axes = figure.subplots()
    looks = {
        "measured": ("o", COLOURS[0], COLOURS[0], -_APART),
        "predicted": ("D", COLOURS[1], PAPER, _APART),
    }
    met = []
    for place, row in enumerate(shown):
        for world, estimate in (("measured", row.measured), ("predicted", row.predicted)):
            if estimate is None:
                continue
            met.append(world)
            marker, colour, filling, aside = looks[world]
            axes.errorbar(
                estimate.value / unit,
                place + aside,
                xerr=_bars(estimate, unit),
                fmt=marker,
                color=colour,
                markerfacecolor=filling,
                markersize=6,
                capsize=2.5,
                elinewidth=1.1,
            )
    axes.set_yticks(range(len(shown)), [name_of(row.name, _LONGEST[narrow]) for row in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.margins(x=0.06)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    title_axes(axes, title)
    worlds = [world for world in looks if world in met]
    handles = [
        Line2D(
            [], [], linestyle="", marker=looks[w][0], color=looks[w][1], markerfacecolor=looks[w][2]
        )
        for w in worlds
    ]
    legend(figure, handles, worlds, 2)
    return figure


def _bars(estimate: Estimate, unit: float) -> list[list[float]] | None:
    if not math.isfinite(estimate.half_width):
        return None
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    return [[max(below, 0.0) / unit], [max(above, 0.0) / unit]]


def ranged(values: Sequence[float]) -> Estimate:
    """Mean of some runs with the least and the most of them; of one run without an interval."""
    if not len(values):
        raise ValueError("there is no run to take the mean of")
    several = len(values) > 1
    return Estimate(
        sum(values) / len(values),
        min(values) if several else math.nan,
        max(values) if several else math.nan,
        math.nan,
        len(values),
        "range of runs",
    )
