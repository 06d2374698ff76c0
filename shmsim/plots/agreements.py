"""Predicted against measured: errors with their intervals, against the largest one allowed."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from shmsim.plots.style import (
    COLOURS,
    GRID,
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

#: What may be said of an error, and how it is drawn: marker, colour, whether it is filled. The
#: first three come from a test of equivalence; "inside" and "outside" from comparing the error
#: alone, where there are too few runs for a test.
VERDICT_LOOKS: Final[dict[str, tuple[str, str, bool]]] = {
    "holds": ("o", COLOURS[0], True),
    "misses": ("X", COLOURS[1], True),
    "cannot tell": ("s", INK, False),
    "inside": ("o", COLOURS[0], True),
    "outside": ("X", COLOURS[1], True),
}
_ROW_IN: Final = 0.2
_BAND_HEIGHT: Final = 0.8
_LONGEST: Final = {False: 46, True: 26}  # letters of a name, by whether there is little room


class Judged(NamedTuple):
    """One prediction and what became of it.

    Parameters
    ----------
    name
        Of the cell or the policy.
    error, low, high
        Predicted less measured, and the ends of its interval: a share, or cores.
    margin
        The largest error allowed, in the same unit.
    verdict
        A name of `VERDICT_LOOKS`.
    """

    name: str
    error: float
    low: float
    high: float
    margin: float
    verdict: str


@styled
def agreement(
    rows: Sequence[Judged], label: str, title: str = "", width_in: float = WIDE
) -> Figure:
    """Draw the error of each prediction with its interval, and behind it the margin.

    A prediction is as good as the measurement where its interval lies within the grey band.

    Parameters
    ----------
    rows
        From top to bottom.
    label
        Of the axis: what the error is of, and in percent or points of a core; both are a hundred
        times what the rows hold.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If there is no row, or a verdict is unknown.
    """
    if not rows:
        raise ValueError("there is no prediction to draw; a grid or a validation has some")
    unknown = [row.verdict for row in rows if row.verdict not in VERDICT_LOOKS]
    if unknown:
        raise ValueError(f"unknown verdict {unknown[0]!r}; known are {', '.join(VERDICT_LOOKS)}")
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, (1.6 if narrow else 0.9) + _ROW_IN * len(rows))
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(
        places,
        [200 * row.margin for row in rows],
        left=[-100 * row.margin for row in rows],
        height=_BAND_HEIGHT,
        color=GRID,
    )
    for place, row in zip(places, rows, strict=True):
        marker, colour, is_filled = VERDICT_LOOKS[row.verdict]
        axes.errorbar(
            100 * row.error,
            place,
            xerr=[[100 * max(row.error - row.low, 0)], [100 * max(row.high - row.error, 0)]],
            fmt=marker,
            color=colour,
            markerfacecolor=colour if is_filled else PAPER,
            markersize=5.5,
            capsize=2,
            elinewidth=0.9,
        )
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(places, [name_of(row.name, _LONGEST[narrow]) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    after = "\n" if narrow else ": "
    axes.set_xlabel(f"predicted less measured{after}{label}")
    title_axes(axes, title)
    met = [verdict for verdict in VERDICT_LOOKS if any(row.verdict == verdict for row in rows)]
    handles: list[Line2D | Patch] = [
        Line2D(
            [], [], linestyle="", marker=VERDICT_LOOKS[v][0], color=VERDICT_LOOKS[v][1],
            markerfacecolor=VERDICT_LOOKS[v][1] if VERDICT_LOOKS[v][2] else PAPER,
        )
        for v in met
    ]  # fmt: skip
    legend(figure, [*handles, Patch(color=GRID)], [*met, "margin"], 2)
    return figure
