"""What a tuning searched and what it chose: CPU against latency, with the limits."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shmsim.plots.style import FAINT, WIDE, is_narrow, legend, look, name_of, new_figure, styled
from shmsim.stats.estimate import Estimate

_FARTHEST: Final = 1.6  # times the largest of finalists and limit; what is beyond is left out


class Finalist(NamedTuple):
    """A policy that was judged on tapes held out.

    Parameters
    ----------
    name
        Of the policy; the first is the default.
    cores
        CPU of all processes.
    more
        One latency less the default's, in the unit of its axis.
    """

    name: str
    cores: Estimate
    more: Estimate


class TuningPanel(NamedTuple):
    """One latency of a tuning.

    Parameters
    ----------
    label
        Of its axis.
    searched
        Cores, and latency less the default's, of each candidate.
    finalists
        Of them those that were judged.
    limits
        How much more is allowed.
    """

    label: str
    searched: Sequence[tuple[float, float]]
    finalists: Sequence[Finalist]
    limits: Sequence[float]


@styled
def tuning(panels: Sequence[TuningPanel], chosen: str, width_in: float = WIDE) -> Figure:
    """Draw all candidates, CPU against latency, a panel for each latency.

    The best corner is the lower left. Grey points were only searched; the coloured ones are the
    finalists on the tapes held out, with 95 % intervals of CPU and of the paired difference. What
    lies in the shade breaks a limit.

    Parameters
    ----------
    panels
        From left to right (where it is narrow, from top to bottom), of the same finalists.
    chosen
        Name of the finalist that was chosen; its mark is larger.
    width_in
        Of the picture.

    Raises
    ------
    ValueError
        If there is no panel.
    """
    if not panels:
        raise ValueError("there is no latency to draw; give at least one panel")
    n_rows, n_columns = (len(panels), 1) if is_narrow(width_in) else (1, len(panels))
    figure = new_figure(width_in, 3.8 if n_rows == 1 else 1.4 + 2.6 * n_rows)
    every_axes = figure.subplots(n_rows, n_columns, squeeze=False).flat
    for axes, panel in zip(every_axes, panels, strict=True):
        _draw(axes, panel, chosen)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend(figure, handles, labels, 1 if is_narrow(width_in) else 2)
    figure.suptitle(f"chosen: {name_of(chosen)}", x=0.01, ha="left", fontsize=9.5)
    return figure


def _draw(axes: Axes, panel: TuningPanel, chosen: str) -> None:
    top = _FARTHEST * max(*panel.limits, *(f.more.high for f in panel.finalists), 0.1)
    axes.plot(
        *zip(*(point for point in panel.searched if point[1] <= top), strict=True),
        "o",
        color=FAINT,
        alpha=0.45,
        markersize=3.5,
        label=f"searched ({len(panel.searched)})",
    )
    for index, (name, cores, more) in enumerate(panel.finalists):
        colour, marker, _ = look(index)
        axes.errorbar(
            cores.value,
            more.value,
            xerr=cores.half_width,
            yerr=more.half_width,
            fmt=marker,
            color=colour,
            markersize=10 if name == chosen else 6,
            capsize=2,
            elinewidth=0.9,
            label=f"{name_of(name)} (default)" if index == 0 else name_of(name),
        )
    axes.set_xlim(left=0)
    bottom = axes.get_ylim()[0]
    axes.set_ylim(bottom, top)
    for limit in panel.limits:
        axes.axhspan(limit, top, color=FAINT, alpha=0.12)
        axes.axhline(limit, color=FAINT, linewidth=0.9, linestyle="--", label="limit")
    axes.set_xlabel("CPU, all processes (cores)")
    axes.set_ylabel(panel.label)
