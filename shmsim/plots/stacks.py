"""What something is made of: a bar for each, cut into its parts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from shmsim.plots.kinds import Filling
from shmsim.plots.style import (
    COLOURS,
    GRID,
    INK,
    PAPER,
    WIDE,
    is_narrow,
    legend,
    name_in_legend,
    name_of,
    new_figure,
    styled,
    title_axes,
)

_FILLINGS: Final = (
    Filling(COLOURS[0], ""),
    Filling(COLOURS[4], "////"),
    Filling(COLOURS[2], ".."),
    Filling(COLOURS[3], "xx"),
    Filling(COLOURS[5], "--"),
    Filling(COLOURS[8], "\\\\\\\\"),
    Filling(COLOURS[6], "++"),
    Filling(GRID, ""),
)
_ROW_IN: Final = 0.3
_LONGEST: Final = {False: 34, True: 18}  # letters of a name, by whether there is little room


class Stack(NamedTuple):
    """One bar.

    Parameters
    ----------
    name
        Of the policy or the process.
    parts
        By name, from left to right, in the unit of the picture; each at least 0.
    """

    name: str
    parts: Mapping[str, float]


@styled
def stacked(
    rows: Sequence[Stack],
    label: str,
    title: str = "",
    mark: tuple[str, float] | None = None,
    width_in: float = WIDE,
) -> Figure:
    """Draw what each row is made of, with the sum at its end.

    Parameters
    ----------
    rows
        From top to bottom; a part has one colour and hatch in all of them.
    label
        Of the axis, with its unit.
    title, width_in
        Of the picture.
    mark
        Name and place of a line through all rows: what none can beat.

    Raises
    ------
    ValueError
        If there is no row, or a part is negative or one of more than eight.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.parts))
    if not rows or not names:
        raise ValueError("there is no bar to draw; give rows with at least one part")
    if len(names) > len(_FILLINGS):
        raise ValueError(f"{len(names)} parts cannot be told apart; give {len(_FILLINGS)} at most")
    for row in rows:
        for name, value in row.parts.items():
            if value < 0:
                raise ValueError(f"{row.name}: a part is at least 0, got {value:g} of {name!r}")
    narrow = is_narrow(width_in)
    in_rows = -(-(len(names) + (mark is not None)) // 2) * 0.17 if narrow else 0
    figure = new_figure(width_in, 0.95 + in_rows + _ROW_IN * len(rows))
    axes = figure.subplots()
    fillings = dict(zip(names, _FILLINGS, strict=False))
    totals = [sum(row.parts.values()) for row in rows]
    for place, row in enumerate(rows):
        begun = 0.0
        for name, value in row.parts.items():
            axes.barh(
                place,
                value,
                left=begun,
                height=0.68,
                color=fillings[name].colour,
                hatch=fillings[name].hatch,
                edgecolor=INK,
                linewidth=0.4,
            )
            begun += value
        axes.annotate(
            f"{totals[place]:.3g}",
            (begun, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8},
        )
    axes.set_yticks(range(len(rows)), [name_of(row.name, _LONGEST[narrow]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * max(*totals, mark[1] if mark else 0.0, 1e-12))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    title_axes(axes, title)
    handles: list[Any] = [
        Patch(facecolor=f.colour, hatch=f.hatch, edgecolor=INK, linewidth=0.4)
        for f in fillings.values()
    ]
    labels = [name_in_legend(name, width_in) for name in names]
    if mark is not None:
        handles.append(axes.axvline(mark[1], color=INK, linestyle="--", linewidth=1.2))
        labels.append(name_in_legend(mark[0], width_in))
    legend(figure, handles, labels, 2)
    return figure
