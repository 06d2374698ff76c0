"""How many slots make it rare that a payload finds none."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shmsim.plots.style import (
    COLOURS,
    INK,
    WIDE,
    legend,
    new_figure,
    styled,
    title_axes,
)
from shmsim.stats.estimate import Estimate

_LEAST_PERCENT: Final = 1e-4  # a share of 0 has no place on a logarithmic axis


class SlotPoint(NamedTuple):
    """What a number of slots does.

    Parameters
    ----------
    n_slots
        How many.
    fallback
        Share of payloads that found none, in [0, 1].
    erlang
        The same by Erlang's formula.
    """

    n_slots: int
    fallback: Estimate
    erlang: float


@styled
def fallback_by_slots(
    points: Sequence[SlotPoint], allowed: float, title: str = "", width_in: float = WIDE
) -> Figure:
    """Draw the share of payloads that find no slot by the number of slots.

    Bars are the intervals of a replay, the line is Erlang's formula; the dashed line is what is
    allowed.

    Parameters
    ----------
    points
        By ascending number of slots.
    allowed
        Share of payloads that may find none.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If there is no point.
    """
    if not points:
        raise ValueError("there is no point to draw; give one for each number of slots")
    figure = new_figure(width_in, 3.3)
    axes = figure.subplots()
    slots = [point.n_slots for point in points]
    formula = axes.plot(
        slots, [_percent(point.erlang) for point in points], "-", color=COLOURS[1], linewidth=1.3
    )[0]
    values = [_percent(point.fallback.value) for point in points]
    replayed = axes.errorbar(
        slots,
        values,
        yerr=[
            [max(v - _percent(p.fallback.low), 0) for v, p in zip(values, points, strict=True)],
            [max(_percent(p.fallback.high) - v, 0) for v, p in zip(values, points, strict=True)],
        ],
        fmt="o",
        color=COLOURS[0],
        markersize=5,
        capsize=2.5,
        elinewidth=1,
    )
    limit = axes.axhline(100 * allowed, color=INK, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylim(bottom=_LEAST_PERCENT / 2)
    axes.yaxis.set_major_formatter(
        lambda percent, _: f"{percent:g}" if percent > 1.01 * _LEAST_PERCENT else "none"
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("slots")
    axes.set_ylabel("payloads that find no slot (%)")
    title_axes(axes, title)
    legend(figure, [replayed, formula, limit], ["replayed", "Erlang's formula", "allowed"], 2)
    return figure


def _percent(share: float) -> float:
    return max(100 * share, _LEAST_PERCENT)
