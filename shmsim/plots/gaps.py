"""How long waits last, and what a plan does meanwhile."""

from typing import Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from shmsim.plots.kinds import KIND_LOOKS
from shmsim.plots.style import FAINT, INK, PAPER, WIDE, legend, new_figure, styled
from shmsim.units import MS, US, format_ns
from shmsim.wait import KIND_NAMES, WaitPlan

Int64Array = NDArray[np.int64]

_N_BINS: Final = 60
_SHOWN: Final = (1.0, 98.0)  # percentiles between which waits are drawn; a few last seconds
_ASIDE: Final = 0.15  # of the width, on either side


class StageSpan(NamedTuple):
    """One stage of a plan, and which share of the events comes in it.

    Parameters
    ----------
    kind
        As in `shmsim.wait.Stage`.
    from_ns, until_ns
        Instants from the start of the wait. A rehearsal has no length here: it ends when it is
        done.
    share
        Of the events, in [0, 1].
    """

    kind: int
    from_ns: int
    until_ns: int
    share: float


def stages_met(plan: WaitPlan, gaps_ns: Int64Array) -> list[StageSpan]:
    """Which stages of a plan are reached, and how many events come in each.

    Parameters
    ----------
    plan
        The plan.
    gaps_ns
        Start of each wait to the publication, shape ``(n_waits,)``, at least one.
    """
    spans: list[StageSpan] = []
    from_ns = 0
    most_ns = int(gaps_ns.max())
    for stage in plan:
        if from_ns > most_ns and spans:
            break
        inside = (gaps_ns < stage.until_ns) & (gaps_ns >= from_ns)
        if not spans:
            inside |= gaps_ns < 0  # it was there before
        spans.append(StageSpan(stage.kind, from_ns, stage.until_ns, float(inside.mean())))
        from_ns = stage.until_ns
    return spans


@styled
def gap_distribution(
    gaps_ns: Int64Array, plan: WaitPlan, title: str = "", width_in: float = WIDE
) -> Figure:
    """Draw how long waits last, under a strip that says what a plan does at which time.

    Parameters
    ----------
    gaps_ns
        Start of each wait to the publication, shape ``(n_waits,)``.
    plan
        What the waiter does.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If there is no wait.
    """
    if not len(gaps_ns):
        raise ValueError("there is no wait to draw; records of a run hold some for each step")
    spans = stages_met(plan, gaps_ns)
    low_ns, high_ns = _range_of(gaps_ns, spans)
    unit, unit_name = (MS, "ms") if high_ns >= 2 * MS else (US, "µs")
    figure = new_figure(width_in, 3.3)
    strip, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1, 7])
    handles, labels = [], []
    for span in spans:
        kind = KIND_LOOKS[span.kind]
        name = KIND_NAMES[span.kind]
        if span.from_ns == span.until_ns:
            strip.axvline(span.from_ns / unit, color=INK, linewidth=2)
            labels.append(f"then {name}")
        else:
            left, right = max(span.from_ns, low_ns) / unit, min(span.until_ns, high_ns) / unit
            strip.barh(
                0, max(right - left, 0), left=left, height=1, color=kind.colour, hatch=kind.hatch,
                edgecolor=INK, linewidth=0.6,
            )  # fmt: skip
            labels.append(f"{name}: {100 * span.share:.0f} % of events")
            axes.axvline(span.from_ns / unit, color=FAINT, linestyle="--", linewidth=0.9)
        handles.append(Patch(facecolor=kind.colour, hatch=kind.hatch, edgecolor=INK, linewidth=0.6))
    strip.set_ylim(-0.5, 0.5)
    strip.set_yticks([0], ["plan"])
    strip.grid(visible=False)
    strip.spines[["left", "bottom"]].set_visible(False)
    strip.tick_params(length=0)
    shown = gaps_ns[(gaps_ns >= low_ns) & (gaps_ns <= high_ns)] / unit
    axes.hist(
        shown,
        bins=_N_BINS,
        range=(low_ns / unit, high_ns / unit),
        weights=np.full(len(shown), 100 / len(gaps_ns)),
        color=FAINT,
    )
    axes.set_xlim(low_ns / unit, high_ns / unit)
    axes.set_xlabel(f"time from the start of the wait to the publication ({unit_name})")
    axes.set_ylabel("waits (%)")
    beyond = 100 * float((gaps_ns > high_ns).mean())
    if beyond > 0:
        axes.annotate(
            f"{beyond:.2g} % later →",
            (0.99, 0.93),
            xycoords="axes fraction",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
            ha="right",
            color=FAINT,
        )
    if title:
        strip.set_title(title)
    legend(figure, handles, labels, 2)
    return figure


def _range_of(gaps_ns: Int64Array, spans: list[StageSpan]) -> tuple[float, float]:
    """Where nearly all waits end, with the ends of stages that lie near."""
    low_ns, high_ns = (max(float(p), 0.0) for p in np.percentile(gaps_ns, _SHOWN))
    ends = [e for span in spans for e in (span.from_ns, span.until_ns)]
    near = [e for e in ends if low_ns / 2 <= e <= 1.5 * high_ns]
    low_ns, high_ns = min([low_ns, *near]), max([high_ns, *near])
    aside_ns = max(_ASIDE * (high_ns - low_ns), 1.0 * US)
    return max(low_ns - aside_ns, 0.0), high_ns + aside_ns


def describe_plan(plan: WaitPlan, gaps_ns: Int64Array) -> str:
    """What `gap_distribution` shows, in words."""
    parts = []
    for span in stages_met(plan, gaps_ns):
        name = KIND_NAMES[span.kind]
        if span.from_ns == span.until_ns:
            parts.append(f"{name} at {format_ns(span.from_ns)}")
        else:
            parts.append(f"{name} from {format_ns(span.from_ns)} ({span.share:.0%} of events)")
    median_ns = float(np.median(gaps_ns))
    return f"{len(gaps_ns)} waits, median {format_ns(median_ns)}; the plan: {', '.join(parts)}"
