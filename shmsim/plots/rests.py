"""Pictures of waiting; one style for notebooks, reports and paper.

Colours are Okabe and Ito's, then some of Tol's, which colour-blind readers tell apart; worlds
differ by marker, so that a grey print can be read.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shmsim.profile import MachineProfile
from shmsim.units import MS, US, S, format_ns

COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255",
    "#44AA99", "#999999",
)  # fmt: skip


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
    spread_cores, spread_tpot_ns
        Half the range over repeats; drawn as bars.
    """

    policy: str
    world: str
    cores: float
    tpot_ns: float
    spread_cores: float = 0.0
    spread_tpot_ns: float = 0.0


def frontier_points(
    table: dict[str, dict[str, dict[str, float]]], n_workers: int
) -> list[FrontierPoint]:
    """Points of the frontier from the table of a validation.

    Parameters
    ----------
    table
        By policy and figure: ``simulated``, ``measured`` and ``spread``, as ``validation.json``
        stores them.
    n_workers
        How many workers the cores of one worker stand for.
    """
    points = []
    for name, figures in table.items():
        tpot, scheduler, worker = (
            figures[f] for f in ("tpot_p50_ns", "scheduler_cores", "worker_cores")
        )
        for world, key in (("machine", "measured"), ("model", "simulated")):
            cores = scheduler[key] + n_workers * worker[key]
            spread = scheduler["spread"] + n_workers * worker["spread"], tpot["spread"]
            points.append(
                FrontierPoint(
                    name, world, cores, tpot[key], *(spread if world == "machine" else (0.0, 0.0))
                )
            )
    return points


def frontier(points: Sequence[FrontierPoint], title: str = "") -> Figure:
    """Draw CPU against time per output token, policies by colour and worlds by marker.

    The best corner is the lower left. A line joins the two worlds of one policy: its length is the
    error of the model.
    """
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    policies = list(dict.fromkeys(point.policy for point in points))
    for index, policy in enumerate(policies):
        colour = COLOURS[index % len(COLOURS)]
        both = [point for point in points if point.policy == policy]
        axes.plot(
            [p.cores for p in both], [p.tpot_ns / MS for p in both], "-", color=colour, lw=0.8
        )
        for point in both:
            measured = point.world == "machine"
            axes.errorbar(
                point.cores,
                point.tpot_ns / MS,
                xerr=point.spread_cores or None,
                yerr=point.spread_tpot_ns / MS or None,
                fmt="o" if measured else "D",
                color=colour,
                markerfacecolor=colour if measured else "white",
                markersize=7,
                capsize=2,
                elinewidth=0.8,
                label=policy if measured else None,
            )
    axes.plot([], [], "o", color="0.3", label="measured")
    axes.plot([], [], "D", color="0.3", markerfacecolor="white", label="predicted")
    axes.set_xlabel("CPU, scheduler and workers together (cores)")
    axes.set_ylabel("time per output token, median (ms)")
    axes.set_xlim(left=0)
    axes.set_title(title, fontsize=10)
    _tidy(axes)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def rest_costs(profile: MachineProfile) -> Figure:
    """Draw what resting costs, by how long one rested: medians with bars from p10 to p90."""
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    _curves(
        left,
        profile,
        {
            "wake_latency": "wake-up by the doorbell",
            "timer_overshoot": "wake-up by the timer (late by)",
            "notify_armed": "cost of waking, to the waker",
            "park_cpu": "CPU of one park",
        },
    )
    left.set_title("the wake-up itself", fontsize=10)
    _curves(
        right,
        profile,
        {
            "slow_after_park": "after a park",
            "slow_after_doze": "after a doze and a short spin",
            "slow_after_spin": "after spinning as long",
            "slow_after_rehearsal": "after a doze and a rehearsal",
        },
    )
    right.set_title("extra time of the work that follows", fontsize=10)
    left.set_ylabel("µs")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        ticks = [100 * US, 1 * MS, 10 * MS, 100 * MS, 1 * S]
        axes.set_xticks([t / US for t in ticks], [format_ns(t) for t in ticks])
        axes.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
        axes.set_xlabel("rested for")
        axes.legend(fontsize=8, frameon=False)
        _tidy(axes)
    return figure


def _curves(axes: Axes, profile: MachineProfile, labels: dict[str, str]) -> None:
    for index, (name, label) in enumerate(labels.items()):
        curve = profile.costs[name]
        medians = [point.median / US for point in curve.points]
        low = [m - p.at(0.1) / US for m, p in zip(medians, curve.points, strict=True)]
        high = [p.at(0.9) / US - m for m, p in zip(medians, curve.points, strict=True)]
        # Shifted a little, so that bars do not hide each other.
        xs = [x / US * (1 + 0.06 * index) for x in curve.xs]
        axes.errorbar(
            xs,
            medians,
            yerr=[[max(v, 0) for v in low], [max(v, 0) for v in high]],
            fmt="osD^"[index] + "-",
            color=COLOURS[index],
            linewidth=1.4,
            markersize=5,
            capsize=2,
            elinewidth=0.8,
            label=label,
        )


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="0.9", lw=0.6)
    axes.set_axisbelow(True)
