"""What the picture of a tuning is made of; `shmsim.plots` draws it."""

import math
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.figure import Figure

from shmsim.plots import WIDE, Finalist, TuningPanel, tuning, write_svg
from shmsim.sim.tune import Tuned
from shmsim.stats.estimate import Estimate
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


def tuning_picture(tuned: Tuned, width_in: float = WIDE) -> Figure:
    """Draw all candidates, CPU against TPOT and against TTFT after idle; see `plots.tuning`."""
    shown = [a for a in _SHOWN if not math.isnan(tuned.finalists[0].figures[a.figure].value)]
    return tuning([_panel(tuned, axis) for axis in shown], tuned.chosen.name, width_in)


def _panel(tuned: Tuned, axis: _Axis) -> TuningPanel:
    default = next(s.figures for s in tuned.searched if s.candidate.name == tuned.default)
    base = default[axis.figure]
    unit = 0.01 * base if axis.is_share else MS
    return TuningPanel(
        axis.label,
        [(s.figures[CORES], (s.figures[axis.figure] - base) / unit) for s in tuned.searched],
        [
            Finalist(f.candidate.name, f.figures[CORES], _in(unit, f.more[axis.figure]))
            for f in tuned.finalists
        ],
        [
            limit.amount * (base if limit.is_share else 1.0) / unit
            for limit in tuned.goal.limits
            if limit.figure == axis.figure
        ],
    )


def _in(unit: float, ns: Estimate) -> Estimate:
    return ns._replace(value=ns.value / unit, low=ns.low / unit, high=ns.high / unit)


def write_picture(path: Path, tuned: Tuned) -> None:
    """Store the picture, as SVG."""
    write_svg(tuning_picture(tuned), path)
