"""Pictures of a page, each in two shapes: for a desk and for a telephone."""

from collections.abc import Callable
from typing import Final

from matplotlib.figure import Figure

from realrun.report.html import Html, element
from realrun.report.replays import typical_plan
from shmsim.plots import (
    NARROW,
    WIDE,
    describe_plan,
    gap_distribution,
    inline_svg,
    step_timeline,
    wake_latency,
)
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.units import US, format_ns
from shmsim.wait import WaitCosts, WaitPolicy

_SHOWN: Final = 0.5  # which step, counted in the length of the run


def picture(
    name: str, title: str, description: str, caption: str, draw: Callable[[float], Figure]
) -> Html:
    """One picture with its caption.

    Parameters
    ----------
    name
        Of this picture within the page, as in `shmsim.plots.inline_svg`.
    title, description
        For who does not see it: what it is, and what it shows.
    caption
        For everybody: how to read it.
    draw
        Draws it at a width in inches.
    """
    shapes = [
        element(
            "div",
            Html(inline_svg(draw(width_in), f"{name}-{shape}", title, description)),
            class_=shape,
        )
        for shape, width_in in (("wide", WIDE), ("narrow", NARROW))
    ]
    return element("figure", *shapes, element("figcaption", caption))


def picture_of_gaps(
    name: str, records: RunRecords, policy: WaitPolicy, costs: WaitCosts
) -> Html | None:
    """How long the scheduler's waits for tokens last, and what its policy did; None without any."""
    found = typical_plan(records, policy, costs)
    if found is None:
        return None
    gaps_ns, plan = found
    return picture(
        f"gaps-{name}",
        "How long the scheduler waits for a reply, and what its plan does meanwhile",
        describe_plan(plan, gaps_ns),
        "Grey: how long the scheduler's waits for the reply with the tokens last, by the stamp of "
        "the publication. Above: what the policy does at which time, by the middle one of its "
        "plans. The shares say in which stage the replies come.",
        lambda width_in: gap_distribution(gaps_ns, plan, "", width_in),
    )


def picture_of_step(name: str, records: RunRecords) -> Html | None:
    """One step from the middle of a run; None if it has none."""
    if not records.steps:
        return None
    step = int(_SHOWN * len(records.steps))
    row = records.steps[step]
    return picture(
        f"step-{name}",
        f"Step {step} across processes and device",
        f"Step {step} takes {format_ns(row.seen_ns - row.scheduled_ns)} from the scheduler's first "
        f"work to the reply seen, of which the device works "
        f"{format_ns(row.done_ns - row.launched_ns)}; the first call is published after "
        f"{format_ns(row.published_ns - row.scheduled_ns)}, and the reply is seen "
        f"{(row.seen_ns - row.replied_ns) / US:.1f} µs after its publication.",
        f"Step {step}, from the middle of the run. Arrows are messages, from their publication to "
        "the moment they were seen. A wait has the colour of the stage that ended it. "
        "'shmsim timeline' writes the whole run for the Perfetto UI.",
        lambda width_in: step_timeline(records, step, "", width_in),
    )


def picture_of_wake_ups(profile: MachineProfile) -> Html:
    """What a wake-up takes on the box of a profile."""
    curve = profile.costs["wake_latency"]
    told = ", ".join(
        f"{format_ns(point.at(0.5))} (p99 {format_ns(point.at(0.99))}) after {format_ns(x)}"
        for x, point in zip(curve.xs, curve.points, strict=True)
    )
    return picture(
        "wake-ups",
        "Wake latency by time asleep",
        f"Median wake-up by the doorbell: {told}.",
        "What a sleeper pays, by how long it slept: publication to seen for who waits on the "
        "doorbell, and by how much a timed sleep ends late.",
        lambda width_in: wake_latency(profile, "", width_in),
    )
