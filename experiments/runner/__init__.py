"""What all experiments have in common: cells, records, resuming, merging; `run.py` is its command.

ctrl_c, experiment <- find, kept, origin, profiles, record <- carry_out, merge
"""

from runner.experiment import (
    MACHINE_WORLDS,
    WORLDS,
    Cell,
    Content,
    Context,
    Experiment,
    Findings,
    Plan,
    Progress,
    Results,
    Skipped,
)
from runner.record import Record, read_record

__all__ = [
    "MACHINE_WORLDS",
    "WORLDS",
    "Cell",
    "Content",
    "Context",
    "Experiment",
    "Findings",
    "Plan",
    "Progress",
    "Record",
    "Results",
    "Skipped",
    "read_record",
]
