"""What a step costs under each policy, and what none of them can beat."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from shmsim.plots.kinds import Filling
from shmsim.plots.pixels import as_png
from shmsim.plots.style import (
    COLOURS,
    INK,
    PAPER,
    WIDE,
    is_narrow,
    legend,
    name_of,
    new_figure,
    styled,
)
from shmsim.stats.estimate import Estimate
from shmsim.units import US

_ROW_IN: Final = 0.3
_HALF_HIGH: Final = 0.33  # of a bar, in rows
_DOTS: Final = 2  # of a picture on a screen, for each that it is wide
_EMPTY: Final = Path(np.empty((0, 2)))
_LONGEST: Final = {False: 30, True: 16}
_CPU, _LATER, _SOONER = "CPU of a step", "r × time added", "r × time saved"
_LOOKS: Final = {
    _CPU: Filling(COLOURS[5], ""),
    _LATER: Filling(COLOURS[1], "////"),
    _SOONER: Filling(COLOURS[2], "...."),
}
_TINY: Final = 1e-3  # of a bar; what is less cannot be seen in it


class Racer(NamedTuple):
    """One policy in a race.

    Parameters
    ----------
    name
        Its name.
    cpu_ns
        CPU time of all processes for a step.
    cost_ns
        The same and *r* times the time that a step takes longer than the reference's.
    """

    name: str
    cpu_ns: Estimate
    cost_ns: Estimate


@styled
def race_costs(
    racers: Sequence[Racer],
    delay_price: float,
    bound_ns: float | None = None,
    title: str = "",
    width_in: float = WIDE,
) -> Figure:
    """Draw what a step costs under each policy: CPU, then *r* times the time it adds.

    Who is faster than the reference is given back the hatched part. The bar at the end is the
    interval of the whole.

    Parameters
    ----------
    racers
        From top to bottom.
    delay_price
        *r*, for the axis.
    bound_ns
        Cost that no policy can beat; drawn as a line.
    title, width_in
        Of the picture.

    Raises
    ------
    ValueError
        If nobody races.
    """
    parts = _Parts([racer.name for racer in racers], width_in)
    parts.move(racers, delay_price, bound_ns, title)
    met = {_CPU, *(_part(racer) for racer in racers if _is_seen(racer))}
    parts.explain([label for label in _LOOKS if label in met], has_bound=bound_ns is not None)
    return parts.figure


class LiveRace:
    """The picture of `race_costs` for sliders: what moves is drawn again, the rest stays.

    Its legend names all that a race may have, and its layout is that of the first race.

    Parameters
    ----------
    names
        Of those who race, in every picture.
    width_in
        Of the picture.

    Raises
    ------
    ValueError
        If nobody races.
    """

    @styled
    def __init__(self, names: Sequence[str], width_in: float = WIDE) -> None:
        """Draw nothing yet."""
        self._parts = _Parts(names, width_in)
        self._parts.explain(list(_LOOKS), has_bound=True)
        self._canvas: Any = FigureCanvasAgg(self.figure)
        self.figure.set_dpi(_DOTS * self.figure.dpi)
        self._still: Any = None  # what does not move, once there was a race to lay it out for

    @property
    def figure(self) -> Figure:
        """As it was drawn last."""
        return self._parts.figure

    @styled
    def png(
        self,
        racers: Sequence[Racer],
        delay_price: float,
        bound_ns: float | None = None,
        title: str = "",
    ) -> bytes:
        """Draw a race; parameters are those of `race_costs`.

        Returns
        -------
        bytes
            A PNG of twice as many dots as the picture is wide, for screens that have them.

        Raises
        ------
        ValueError
            If others race than those that the picture was made for.
        """
        parts, canvas = self._parts, self._canvas
        parts.move(racers, delay_price, bound_ns, title)
        if self._still is None:
            canvas.draw()  # finds the places of all
            self.figure.set_layout_engine(None)
            parts.hold_label()
            for artist in parts.moving:
                artist.set_animated(True)
            canvas.draw()
            self._still = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self._still)
        for artist in parts.moving:
            artist.draw(canvas.get_renderer())
        return as_png(np.asarray(canvas.buffer_rgba()))


class _Parts:
    """The figure of a race, and what of it moves."""

    def __init__(self, names: Sequence[str], width_in: float) -> None:
        n_racers = len(names)
        if not n_racers:
            raise ValueError("there is no racer to draw; give at least one policy")
        self._names = list(names)
        self._is_narrow = is_narrow(width_in)
        height_in = (1.5 if self._is_narrow else 0.95) + _ROW_IN * n_racers
        self.figure = new_figure(width_in, height_in)
        self._axes = axes = self.figure.subplots()
        self._places = places = list(range(n_racers))
        # One patch for all bars of a kind: what takes time is to draw a hatch, not how much of it.
        self._bars = {label: PathPatch(_EMPTY, **_look(label)) for label in _LOOKS}
        for bars in self._bars.values():
            axes.add_patch(bars)
        self._intervals = axes.hlines(places, 0.0, 0.0, colors=INK, linewidth=1)
        (self._ends,) = axes.plot([], [], linestyle="", marker="|", markersize=5, color=INK)
        (self._costs,) = axes.plot([], [], linestyle="", marker="o", markersize=3.5, color=INK)
        self._numbers = [
            axes.annotate(
                "",
                (0.0, place),
                (6, 0),
                textcoords="offset points",
                va="center",
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8},
            )
            for place in places
        ]
        self._title = axes.set_title("", loc="left")
        self._bound = axes.axvline(0.0, color=INK, linestyle="--", linewidth=1.2)
        axes.set_ylim(n_racers - 0.5, -0.5)
        longest = _LONGEST[self._is_narrow]
        axes.set_yticks(places, [name_of(name, longest) for name in names])
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        self.moving: list[Any] = [
            axes.xaxis,
            *self._bars.values(),
            self._intervals,
            self._ends,
            self._costs,
            *self._numbers,
            self._bound,
            self._title,
            axes.spines["left"],
        ]

    def hold_label(self) -> None:
        """Leave the axis' label where it is, in place of measuring all ticks to find that again."""
        axis = self._axes.xaxis
        axis.set_label_coords(*axis.label.get_position(), axis.label.get_transform())

    def explain(self, labels: list[str], *, has_bound: bool) -> None:
        """Add the legend."""
        handles: list[Any] = [Patch(**_look(label)) for label in labels]
        bound = [self._bound] * has_bound
        legend(self.figure, [*handles, *bound], [*labels, *["bound"] * has_bound], 2)

    def move(
        self, racers: Sequence[Racer], delay_price: float, bound_ns: float | None, title: str
    ) -> None:
        """Put everything where a race wants it."""
        axes, places = self._axes, self._places
        names = [racer.name for racer in racers]
        if names != self._names:
            raise ValueError(
                f"this picture is of {', '.join(self._names)}; for {', '.join(names) or 'none'} "
                "make another"
            )
        costs_us = [racer.cost_ns.value / US for racer in racers]
        bars: dict[str, list[Path]] = {label: [] for label in _LOOKS}
        for place, (racer, cost_us) in enumerate(zip(racers, costs_us, strict=True)):
            cpu_us = racer.cpu_ns.value / US
            bars[_CPU].append(_bar(place, 0.0, cpu_us))
            bars[_part(racer)].append(_bar(place, cpu_us, cost_us))
            number = self._numbers[place]
            number.set_text(f"{cost_us:.0f}")
            number.xy = (max(cost_us, cpu_us), place)
        for label, paths in bars.items():
            self._bars[label].set_path(Path.make_compound_path(*paths) if paths else _EMPTY)
        self._costs.set_data(costs_us, places)
        halves_us = [racer.cost_ns.half_width / US for racer in racers]
        known = [place for place in places if math.isfinite(halves_us[place])]
        low_us = [costs_us[place] - halves_us[place] for place in known]
        high_us = [costs_us[place] + halves_us[place] for place in known]
        self._intervals.set_segments(
            [[(low, y), (high, y)] for low, high, y in zip(low_us, high_us, known, strict=True)]
        )
        self._ends.set_data([*low_us, *high_us], [*known, *known])
        bound_us = 0.0 if bound_ns is None else bound_ns / US
        self._bound.set_xdata([bound_us, bound_us])
        self._bound.set_visible(bound_ns is not None)
        ends_us = [*costs_us, *(racer.cpu_ns.value / US for racer in racers), bound_us]
        least_us, most_us = min(*ends_us, 0.0), max(*ends_us, 1e-9)
        margin_us = 0.05 * (most_us - least_us) if least_us < 0 else 0.0
        axes.set_xlim(least_us - margin_us, 1.13 * most_us)
        after = "\n" if self._is_narrow else " "
        axes.set_xlabel(
            f"cost of a step: CPU + r × time added,{after}r = {delay_price:g} (µs of CPU)"
        )
        self._title.set_text(title)


def _part(racer: Racer) -> str:
    """What a racer's time does to its cost."""
    return _LATER if racer.cost_ns.value >= racer.cpu_ns.value else _SOONER


def _is_seen(racer: Racer) -> bool:
    """Whether its time makes a difference that shows."""
    return abs(racer.cost_ns.value - racer.cpu_ns.value) > _TINY * racer.cpu_ns.value


def _look(label: str) -> dict[str, Any]:
    """How all bars of a kind are filled and edged."""
    colour, hatch = _LOOKS[label]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.4}


def _bar(place: int, begun_us: float, ended_us: float) -> Path:
    """The outline of one bar."""
    low, high = place - _HALF_HIGH, place + _HALF_HIGH
    corners = [(begun_us, low), (ended_us, low), (ended_us, high), (begun_us, high)]
    return Path([*corners, corners[0]], closed=True)
