"""CPU against time per output token: what each policy costs, and what it gives."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shmsim.plots.style import (
    FAINT,
    INK,
    PAPER,
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

MODEL, MACHINE = "model", "machine"


class FrontierPoint(NamedTuple):
    """One policy in one world, on the plane of CPU and delay.

    Parameters
    ----------
    policy, world
        Which; world is ``"model"`` or ``"machine"``.
    cores
        CPU time over wall time, all processes together.
    tpot_ns
        Median time per output token.
    """

    policy: str
    world: str
    cores: Estimate
    tpot_ns: Estimate


def frontier_points(
    table: Mapping[str, Mapping[str, Mapping[str, float]]], n_workers: int
) -> list[FrontierPoint]:
    """Points of the frontier from the table of a validation.

    Parameters
    ----------
    table
        By policy and figure: ``simulated``, ``measured`` and ``spread``, as ``validation.json``
        stores them. Half the range of the repeats becomes the interval.
    n_workers
        How many workers the cores of one worker stand for.
    """
    points = []
    for name, figures in table.items():
        tpot, scheduler, worker = (
            figures[f] for f in ("tpot_p50_ns", "scheduler_cores", "worker_cores")
        )
        for world, key in ((MACHINE, "measured"), (MODEL, "simulated")):
            is_measured = world == MACHINE
            cores_spread = scheduler["spread"] + n_workers * worker["spread"]
            points.append(
                FrontierPoint(
                    name,
                    world,
                    _ranged(
                        scheduler[key] + n_workers * worker[key],
                        cores_spread if is_measured else math.nan,
                    ),
                    _ranged(tpot[key], tpot["spread"] if is_measured else math.nan),
                )
            )
    return points


def _ranged(value: float, spread: float) -> Estimate:
    return Estimate(value, value - spread, value + spread, math.nan, 0, "range of repeats")


def frontier_of_estimates(
    estimates: Mapping[str, Mapping[str, Estimate]], n_workers: int, world: str = MODEL
) -> list[FrontierPoint]:
    """Points of the frontier from estimates by policy and figure, as a cell of a sweep has them.

    Parameters
    ----------
    estimates
        As `shmsim.sweep.tables.CellResult.estimates`, or `shmsim.figures.summarize_with_intervals`
        of each policy.
    n_workers
        How many workers the cores of one worker stand for. The ends of the intervals of scheduler
        and workers add up, so that the interval of the sum is rather too wide than too narrow.
    world
        ``"model"`` or ``"machine"``.
    """
    points = []
    for policy, figures in estimates.items():
        scheduler, worker = figures["scheduler_cores"], figures["worker_cores"]
        cores = scheduler._replace(
            value=scheduler.value + n_workers * worker.value,
            low=scheduler.low + n_workers * worker.low,
            high=scheduler.high + n_workers * worker.high,
        )
        points.append(FrontierPoint(policy, world, cores, figures["tpot_p50_ns"]))
    return points


@styled
def frontier(
    points: Sequence[FrontierPoint],
    title: str = "",
    width_in: float = WIDE,
    statistic: str = "median",
) -> Figure:
    """Draw CPU against time per output token.

    The best corner is the lower left. A policy has a colour and a shape, filled where it was
    measured and hollow where it was predicted; the line between the two is the error of the model.
    The grey stairs join the policies that no other beats in both, of the machine if it is there.
    ``statistic`` says what of the times per token the points are.
    """
    figure = new_figure(width_in, 3.9)
    axes = figure.subplots()
    _draw_stairs(axes, points)
    policies = list(dict.fromkeys(point.policy for point in points))
    for index, policy in enumerate(policies):
        both = [point for point in points if point.policy == policy]
        axes.plot(
            [p.cores.value for p in both],
            [p.tpot_ns.value / MS for p in both],
            "-",
            color=look(index).colour,
            linewidth=0.9,
        )
        for point in both:
            _draw_point(axes, point, index)
    axes.set_xlabel("CPU, scheduler and workers together (cores)")
    axes.set_ylabel(f"time per output token, {statistic} (ms)")
    axes.set_xlim(left=0)
    axes.margins(y=0.12)
    title_axes(axes, title)
    handles = [
        Line2D([], [], linestyle="", marker=look(i).marker, color=look(i).colour)
        for i in range(len(policies))
    ]
    worlds = {point.world for point in points}
    labels = [name_in_legend(policy, width_in) for policy in policies]
    for world, label, filling in ((MACHINE, "measured", INK), (MODEL, "predicted", PAPER)):
        if world in worlds:
            handles.append(
                Line2D([], [], linestyle="", marker="o", color=INK, markerfacecolor=filling)
            )
            labels.append(label)
    legend(figure, handles, labels, 2 if is_narrow(width_in) else 1)
    return figure


def _draw_point(axes: Axes, point: FrontierPoint, index: int) -> None:
    colour, marker, _ = look(index)
    axes.errorbar(
        point.cores.value,
        point.tpot_ns.value / MS,
        xerr=_bars(point.cores, 1),
        yerr=_bars(point.tpot_ns, MS),
        fmt=marker,
        color=colour,
        markerfacecolor=colour if point.world == MACHINE else PAPER,
        markersize=7,
        capsize=2.5,
        elinewidth=0.9,
    )


def _bars(estimate: Estimate, unit: float) -> list[list[float]] | None:
    """How far an interval reaches to either side; None if there is none."""
    if not math.isfinite(estimate.half_width):
        return None
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    return [[max(below, 0) / unit], [max(above, 0) / unit]]


def _draw_stairs(axes: Axes, points: Sequence[FrontierPoint]) -> None:
    world = MACHINE if any(point.world == MACHINE for point in points) else MODEL
    best: list[FrontierPoint] = []
    for point in sorted(
        (p for p in points if p.world == world), key=lambda p: (p.cores.value, p.tpot_ns.value)
    ):
        if not best or point.tpot_ns.value < best[-1].tpot_ns.value:
            best.append(point)
    axes.step(
        [point.cores.value for point in best],
        [point.tpot_ns.value / MS for point in best],
        where="post",
        color=FAINT,
        linewidth=0.9,
        linestyle=":",
    )
