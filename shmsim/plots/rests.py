"""What resting costs, by how long one rested: from a profile."""

from collections.abc import Mapping
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from shmsim.plots.style import WIDE, is_narrow, legend, look, new_figure, styled, title_axes
from shmsim.profile import MachineProfile
from shmsim.units import MS, US, S, format_ns

_RESTS_NS: Final = (50 * US, 500 * US, 2 * MS, 10 * MS, 100 * MS, 1 * S)
_SHIFT: Final = 0.06  # of each curve to the right, so that bars do not hide each other
_WAKE_UP: Final = {
    "wake_latency": "wake-up by the doorbell",
    "timer_overshoot": "wake-up by the timer: late by",
    "notify_armed": "cost of waking, to the waker",
    "park_cpu": "CPU of one park",
}
_AFTERWARDS: Final = {
    "slow_after_park": "after a park",
    "slow_after_doze": "after a doze and a short spin",
    "slow_after_spin": "after spinning as long",
    "slow_after_rehearsal": "after a doze and a rehearsal",
}


@styled
def rest_costs(profile: MachineProfile, width_in: float = WIDE) -> Figure:
    """Draw what resting costs, by how long one rested: medians with bars from p10 to p90."""
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, 7.3 if narrow else 4.4)
    shape = (2, 1) if narrow else (1, 2)
    first, second = figure.subplots(*shape, sharey=True)
    for axes, labels, title in (
        (first, _WAKE_UP, "the wake-up itself"),
        (second, _AFTERWARDS, "extra time of the work that follows"),
    ):
        _draw_curves(axes, profile, labels)
        axes.set_title(title)
        axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.24))
        if narrow or axes is first:
            axes.set_ylabel("median, p10 to p90 (µs)")
    return figure


@styled
def wake_latency(profile: MachineProfile, title: str = "", width_in: float = WIDE) -> Figure:
    """Draw how long a wake-up takes, by how long the sleeper slept.

    Median and p99 of the wake-up by the doorbell (publication to seen), and by how much a timer is
    late; bands from p10 to p90.
    """
    figure = new_figure(width_in, 3.5)
    axes = figure.subplots()
    handles, labels = [], []
    for index, (name, label) in enumerate(
        (("wake_latency", "doorbell"), ("timer_overshoot", "timer: late by"))
    ):
        curve = profile.costs[name]
        colour, marker, _ = look(index)
        xs = [x / US for x in curve.xs]
        for p, dashes, text in ((0.5, "-", "median"), (0.99, "--", "p99")):
            (line,) = axes.plot(
                xs,
                [point.at(p) / US for point in curve.points],
                dashes,
                marker=marker,
                markersize=5,
                color=colour,
                linewidth=1.4,
            )
            handles.append(line)
            labels.append(f"{label}, {text}")
        axes.fill_between(
            xs,
            [point.at(0.1) / US for point in curve.points],
            [point.at(0.9) / US for point in curve.points],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    _scale_times(axes)
    axes.set_xlabel("time asleep")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("wake latency; band p10 to p90 (µs)")
    title_axes(axes, title)
    legend(figure, handles, labels, 2)
    return figure


def _scale_times(axes: Axes) -> None:
    axes.set_xscale("log")
    # The unit below, or on a telephone 500 µs and 2 ms run into one another.
    names = [format_ns(t).replace(" ", "\n") for t in _RESTS_NS]
    axes.set_xticks([t / US for t in _RESTS_NS], names)
    axes.set_xticks([], minor=True)


def _draw_curves(axes: Axes, profile: MachineProfile, labels: Mapping[str, str]) -> None:
    for index, (name, label) in enumerate(labels.items()):
        curve = profile.costs[name]
        colour, marker, dashes = look(index)
        medians = [point.median / US for point in curve.points]
        low = [m - p.at(0.1) / US for m, p in zip(medians, curve.points, strict=True)]
        high = [p.at(0.9) / US - m for m, p in zip(medians, curve.points, strict=True)]
        axes.errorbar(
            [x / US * (1 + _SHIFT * index) for x in curve.xs],
            medians,
            yerr=[[max(v, 0) for v in low], [max(v, 0) for v in high]],
            fmt=marker,
            linestyle=dashes,
            color=colour,
            linewidth=1.4,
            markersize=5,
            capsize=2,
            elinewidth=0.8,
            label=label,
        )
    _scale_times(axes)
    axes.set_xlabel("rested for")
    axes.set_yscale("symlog", linthresh=1, linscale=0.3)  # some work is no slower: 0 µs
    axes.set_ylim(bottom=0)
    axes.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
