"""Pictures of waiting; one style for notebooks, reports and paper (experiments keep figures only).

Every function draws one picture from values and returns a matplotlib figure, which a notebook
shows as it is; `write_svg` stores it, `inline_svg` makes it a part of a page. ``width_in`` is the
width in inches: `WIDE` for a page, `NARROW` for a telephone, where legends go below.
"""

from shmsim.plots.agreements import Judged, agreement
from shmsim.plots.arenas import Occupancy, arena_occupancy, occupancy_of
from shmsim.plots.fallbacks import SlotPoint, fallback_by_slots
from shmsim.plots.frontiers import (
    FrontierPoint,
    frontier,
    frontier_of_estimates,
    frontier_points,
)
from shmsim.plots.gaps import describe_plan, gap_distribution, stages_met
from shmsim.plots.loads import LoadPoint, QuotaPoint, collapse, quota_effect
from shmsim.plots.predictions import Prediction, predicted_and_measured, ranged
from shmsim.plots.races import LiveRace, Racer, race_costs
from shmsim.plots.rests import rest_costs, wake_latency
from shmsim.plots.stacks import Stack, stacked
from shmsim.plots.steps import step_timeline
from shmsim.plots.style import NARROW, WIDE
from shmsim.plots.tunings import Finalist, TuningPanel, tuning
from shmsim.plots.vector import inline_svg, write_svg

__all__ = [
    "NARROW",
    "WIDE",
    "Finalist",
    "FrontierPoint",
    "Judged",
    "LiveRace",
    "LoadPoint",
    "Occupancy",
    "Prediction",
    "QuotaPoint",
    "Racer",
    "SlotPoint",
    "Stack",
    "TuningPanel",
    "agreement",
    "arena_occupancy",
    "collapse",
    "describe_plan",
    "fallback_by_slots",
    "frontier",
    "frontier_of_estimates",
    "frontier_points",
    "gap_distribution",
    "inline_svg",
    "occupancy_of",
    "predicted_and_measured",
    "quota_effect",
    "race_costs",
    "ranged",
    "rest_costs",
    "stacked",
    "stages_met",
    "step_timeline",
    "tuning",
    "wake_latency",
    "write_svg",
]
