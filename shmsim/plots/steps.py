"""One step across processes, device and cores."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from shmsim.plots.kinds import KIND_LOOKS, Filling
from shmsim.plots.style import (
    COLOURS,
    FAINT,
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
from shmsim.records import RunRecords, StepRow
from shmsim.timeline import Window, events
from shmsim.units import US, format_ns
from shmsim.wait import KIND_NAMES

_WORK: Final = Filling(COLOURS[2], "")
_DEVICE: Final = Filling(INK, "")
#: Who is on a core, in the order of appearance; unlike those of waits, which are of other rows.
_ON_CORE: Final = (
    Filling("#b4b4bc", ""),
    Filling(COLOURS[4], "oo"),
    Filling(COLOURS[3], "++"),
    Filling(COLOURS[8], "**"),
)
_OTHER: Final = Filling(PAPER, "")
_CATEGORIES: Final = {
    "work": ("work", _WORK),
    "device": ("device step", _DEVICE),
    "idle": ("no request", _OTHER),
}
_ROW_IN: Final = 0.36
_TALL, _THIN = 0.72, 0.3  # a device step is drawn thin, within the work of its worker
_ASIDE: Final = 0.4  # of the host's time, shown before, after and on either side of a cut
_Track = tuple[int, int]


class _Bar(NamedTuple):
    """A span as it is drawn."""

    track: _Track
    label: str
    filling: Filling
    begun_us: float
    ended_us: float
    is_device: bool


@styled
def step_timeline(
    records: RunRecords, step: int, title: str = "", width_in: float = WIDE
) -> Figure:
    """Draw what everybody does in one step: waits by the stage that ended them, work, messages.

    A row for each thread, for the device and, if the records say who ran where, for each core.
    Arrows go from each publication to whoever saw it. Where the device works much longer than the
    host, the middle of the step is left out. A wait is drawn as the stage that ended it from its
    beginning on: records do not say when a stage began.

    Parameters
    ----------
    records
        Of either world.
    step
        Running number of the step.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If the run has no such step.
    """
    if not 0 <= step < len(records.steps):
        raise ValueError(f"the run has the steps 0 to {len(records.steps) - 1}, got {step}")
    row = records.steps[step]
    windows = _windows(row)
    found = list(events(records, Window(windows[0].from_ns, windows[-1].until_ns)))
    bars = list(_bars(found, row.scheduled_ns / US))
    busy = {bar.track for bar in bars}
    names = {
        (e["pid"], e["tid"]): str(e["args"]["name"])
        for e in found
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    rows = {track: index for index, track in enumerate(t for t in names if t in busy)}
    figure = new_figure(width_in, (1.7 if is_narrow(width_in) else 1.0) + _ROW_IN * len(rows))
    panels = figure.subplots(
        1,
        len(windows),
        sharey=True,
        squeeze=False,
        width_ratios=[w.until_ns - w.from_ns for w in windows],
    )[0]
    for axes, window in zip(panels, windows, strict=True):
        _draw_bars(axes, bars, rows)
        _draw_messages(axes, found, rows, row.scheduled_ns / US)
        axes.set_xlim(
            (window.from_ns - row.scheduled_ns) / US, (window.until_ns - row.scheduled_ns) / US
        )
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(3 if len(windows) > 1 else 6, integer=True))
        axes.tick_params(axis="y", length=0)
        # One label below both would run into a legend that is below, too.
        axes.set_xlabel("time in the step (µs)")
    panels[0].set_yticks(range(len(rows)), [name_of(names[track]) for track in rows])
    panels[0].invert_yaxis()
    if len(windows) > 1:
        cut_ns = windows[1].from_ns - windows[0].until_ns
        panels[1].spines["left"].set_linestyle((0, (2, 2)))
        panels[0].spines["right"].set(visible=True, linestyle=(0, (2, 2)))
        panels[1].set_title(f"… {format_ns(cut_ns)} left out", fontsize=8, color=FAINT)
    title_axes(panels[0], title)
    shown = {bar.label: bar.filling for bar in bars}
    handles = [
        Patch(facecolor=f.colour, hatch=f.hatch, edgecolor=INK, linewidth=0.4)
        for f in shown.values()
    ]
    legend(figure, handles, list(shown), 2)
    return figure


def _windows(row: StepRow) -> list[Window]:
    """All of a step, or only its ends if the host's part would be too thin to see beside it."""
    host_ns = (row.launched_ns - row.scheduled_ns) + (row.seen_ns - row.done_ns)
    aside_ns = max(_ASIDE * host_ns, 1 * US)
    begun_ns, ended_ns = max(row.scheduled_ns - aside_ns, 0), row.seen_ns + aside_ns
    launched_ns, done_ns = row.launched_ns + aside_ns, row.done_ns - aside_ns
    if done_ns - launched_ns < 2 * host_ns:
        return [Window(int(begun_ns), int(ended_ns))]
    return [Window(int(begun_ns), int(launched_ns)), Window(int(done_ns), int(ended_ns))]


def _draw_bars(axes: Axes, bars: list[_Bar], rows: dict[_Track, int]) -> None:
    for bar in bars:
        axes.barh(
            rows[bar.track],
            bar.ended_us - bar.begun_us,
            left=bar.begun_us,
            height=_THIN if bar.is_device else _TALL,
            color=bar.filling.colour,
            hatch=bar.filling.hatch,
            edgecolor=INK,
            linewidth=0.4,
        )


def _bars(found: list[dict[str, Any]], origin_us: float) -> Iterator[_Bar]:
    on_core: dict[str, int] = {}
    for event in found:
        if event["ph"] != "X":
            continue
        if event["cat"] == "wait":
            label, filling = _wait_look(event["name"])
        elif event["cat"] == "core":
            who = on_core.setdefault(event["name"], len(on_core))
            label, filling = f"{name_of(event['name'])} has it", _ON_CORE[who % len(_ON_CORE)]
        else:
            label, filling = _CATEGORIES[event["cat"]]
        begun_us = event["ts"] - origin_us
        yield _Bar(
            (event["pid"], event["tid"]),
            label,
            filling,
            begun_us,
            begun_us + event["dur"],
            event["cat"] == "device",
        )


def _wait_look(name: str) -> tuple[str, Filling]:
    """Of a wait by its name in the timeline, which begins with the kind of its last stage."""
    kind = name.partition(",")[0]
    if kind not in KIND_NAMES:
        return "wait", _OTHER
    return f"wait, ended in {kind}", KIND_LOOKS[KIND_NAMES.index(kind)]


def _draw_messages(
    axes: Axes, found: list[dict[str, Any]], rows: dict[_Track, int], origin_us: float
) -> None:
    sent = {event["id"]: event for event in found if event["ph"] == "s"}
    for event in found:
        if event["ph"] != "f" or event["id"] not in sent:
            continue
        start = sent[event["id"]]
        ends = [(e["ts"] - origin_us, rows.get((e["pid"], e["tid"]))) for e in (start, event)]
        (from_us, writer), (until_us, reader) = ends
        if writer is None or reader is None:
            continue
        inwards = _TALL / 2 if reader > writer else -_TALL / 2
        axes.annotate(
            "",
            xy=(until_us, reader - inwards),
            xytext=(from_us, writer + inwards),
            arrowprops={
                "arrowstyle": "-|>",
                "color": INK,
                "linewidth": 0.9,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
