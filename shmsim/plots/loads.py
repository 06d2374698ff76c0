"""What becomes of a policy when threads outnumber cores, or a quota runs out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from shmsim.plots.style import (
    FAINT,
    WIDE,
    is_narrow,
    legend,
    look,
    name_in_legend,
    new_figure,
    styled,
    title_axes,
)
from shmsim.stats.estimate import Estimate
from shmsim.units import MS


class QuotaPoint(NamedTuple):
    """One policy under one quota.

    Parameters
    ----------
    policy
        Its name.
    quota
        Cores that all processes together may use; 0 for as many as they like.
    tpot_ns, itl_p99_ns
        Time per output token, and the longest gap in a hundred between two tokens.
    """

    policy: str
    quota: float
    tpot_ns: Estimate
    itl_p99_ns: Estimate


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
    policies = list(dict.fromkeys(point.policy for point in points))
    curves = {
        policy: [(p.load, p.tpot_ns) for p in points if p.policy == policy] for policy in policies
    }
    handles = _draw_curves(axes, curves)
    axes.set_xticks(sorted({point.load for point in points}))
    axes.set_xlabel("threads that want to run, for each core")
    axes.set_ylabel("time per output token (ms)")
    title_axes(axes, title)
    legend(figure, handles, [name_in_legend(policy, width_in) for policy in policies], 2)
    return figure


@styled
def quota_effect(points: Sequence[QuotaPoint], title: str = "", width_in: float = WIDE) -> Figure:
    """Draw what a CPU quota does to each policy: to the time per token, and to the longest gaps.

    Who spins uses the quota up, and then everybody stands still until the next period.

    Raises
    ------
    ValueError
        If there is no point.
    """
    if not points:
        raise ValueError("there is no point to draw; give each policy one for each quota")
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, 5.8 if narrow else 3.3)
    panels = figure.subplots(*((2, 1) if narrow else (1, 2)))
    policies = list(dict.fromkeys(point.policy for point in points))
    quotas = sorted({p.quota for p in points}, key=lambda quota: quota or math.inf)
    handles: list[Any] = []
    for axes, field, label in (
        (panels[0], "tpot_ns", "time per output token (ms)"),
        (panels[1], "itl_p99_ns", "gap between tokens, p99 (ms)"),
    ):
        curves = {
            policy: sorted(
                (quotas.index(p.quota), getattr(p, field)) for p in points if p.policy == policy
            )
            for policy in policies
        }
        handles = _draw_curves(axes, curves)
        axes.set_xticks(range(len(quotas)), [f"{q:g}" if q else "none" for q in quotas])
        axes.set_xlabel("quota (cores)")
        axes.set_ylabel(label)
    if title:
        figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    # Two panels leave no room beside them.
    figure.legend(
        handles,
        [name_in_legend(policy, width_in) for policy in policies],
        loc="outside lower left",
        ncols=2 if narrow else 5,
    )
    return figure


def _draw_curves(axes: Axes, curves: Mapping[str, Sequence[tuple[float, Estimate]]]) -> list[Any]:
    """A curve for each policy, times on a logarithmic axis."""
    handles = []
    for index, curve in enumerate(curves.values()):
        colour, marker, dashes = look(index)
        handles.append(
            axes.errorbar(
                [x for x, _ in curve],
                [e.value / MS for _, e in curve],
                yerr=[
                    [_reach(e.value - e.low) for _, e in curve],
                    [_reach(e.high - e.value) for _, e in curve],
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
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    return handles


def _reach(distance_ns: float) -> float:
    return max(distance_ns, 0.0) / MS if math.isfinite(distance_ns) else 0.0
