"""The picture of a tuning: CPU against latency, the limits, and what was chosen."""

import math
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shmsim.plots.style import FAINT, WIDE, legend, look, name_of, new_figure, styled
from shmsim.plots.vector import write_svg
from shmsim.sim.tune import Tuned
from shmsim.tuner.goal import CORES
from shmsim.units import MS


class _Axis(NamedTuple):
    """One latency, as it is drawn: how much more than the default's."""

    figure: str
    label: str
    is_share: bool


_SHOWN: Final = (
    _Axis("tpot_p99_ns", "TPOT p99, more than the default's (%)", is_share=True),
    _Axis("ttft_after_idle_p50_ns", "TTFT after idle p50, more than the default's (ms)", False),
)
_FARTHEST: Final = 1.6  # times the largest of finalists and limit; what is beyond is left out


@styled
def tuning_picture(tuned: Tuned, width_in: float = WIDE) -> Figure:
    """Draw all candidates, CPU against TPOT and against TTFT after idle.

    The best corner is the lower left. Grey points were only searched; the coloured ones are the
    finalists on the tapes held out, with 95 % intervals of CPU and of the paired difference. What
    lies in the shade breaks a limit.
    """
    shown = [a for a in _SHOWN if not math.isnan(tuned.finalists[0].figures[a.figure].value)]
    figure = new_figure(width_in, 3.8)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, axis in zip(panels, shown, strict=True):
        _draw(axes, tuned, axis)
    handles, labels = panels[0].get_legend_handles_labels()
    legend(figure, handles, labels, 2)
    figure.suptitle(f"chosen: {tuned.chosen.name}", x=0.01, ha="left", fontsize=9.5)
    return figure


def _draw(axes: Axes, tuned: Tuned, axis: _Axis) -> None:
    default = next(s.figures for s in tuned.searched if s.candidate.name == tuned.default)
    base = default[axis.figure]
    unit = 0.01 * base if axis.is_share else MS
    limits = [
        limit.amount * (base if limit.is_share else 1.0) / unit
        for limit in tuned.goal.limits
        if limit.figure == axis.figure
    ]
    finalists = [(f, f.figures[CORES], f.more[axis.figure]) for f in tuned.finalists]
    top = _FARTHEST * max(*limits, *(more.high / unit for *_, more in finalists), 0.1)
    searched = [
        (s.figures[CORES], (s.figures[axis.figure] - base) / unit)
        for s in tuned.searched
        if (s.figures[axis.figure] - base) / unit <= top
    ]
    axes.plot(
        *zip(*searched, strict=True),
        "o",
        color=FAINT,
        alpha=0.45,
        markersize=3.5,
        label=f"searched ({len(tuned.searched)})",
    )
    for index, (finalist, cores, more) in enumerate(finalists):
        colour, marker, _ = look(index)
        name = name_of(finalist.candidate.name)
        axes.errorbar(
            cores.value,
            more.value / unit,
            xerr=cores.half_width,
            yerr=more.half_width / unit,
            fmt=marker,
            color=colour,
            markersize=10 if finalist.candidate == tuned.chosen else 6,
            capsize=2,
            elinewidth=0.9,
            label=f"{name} (default)" if index == 0 else name,
        )
    axes.set_xlim(left=0)
    bottom = axes.get_ylim()[0]
    axes.set_ylim(bottom, top)
    for limit in limits:
        axes.axhspan(limit, top, color=FAINT, alpha=0.12)
        axes.axhline(limit, color=FAINT, linewidth=0.9, linestyle="--", label="limit")
    axes.set_xlabel("CPU, all processes (cores)")
    axes.set_ylabel(axis.label)


def write_picture(path: Path, tuned: Tuned) -> None:
    """Store the picture, as SVG."""
    write_svg(tuning_picture(tuned), path)
