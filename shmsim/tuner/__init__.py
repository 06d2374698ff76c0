"""What a tuner wants and what it tries; pure: it neither runs a model nor draws a number.

`goal` says what is better, `candidates` what to try; `shmsim.sim.tune` runs it.
"""

from shmsim.tuner.candidates import coarse, distinct, neighbours, written
from shmsim.tuner.goal import Goal, Judged, Limit, parse_goal

__all__ = [
    "Goal",
    "Judged",
    "Limit",
    "coarse",
    "distinct",
    "neighbours",
    "parse_goal",
    "written",
]
