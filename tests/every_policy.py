"""Every policy of the library: all presets, every class with its defaults, and wrappers."""

from shmsim.policies import (
    POLICIES,
    PRESETS,
    BusySpin,
    Clamped,
    IfPreempted,
    Pas,
    PlanHedge,
    SpinBudget,
    StepAhead,
)
from shmsim.units import MS
from shmsim.wait import NAP, POLL

WRAPPED = {
    "clamped-spin": Clamped(BusySpin()),
    "clamped-hedge": Clamped(PlanHedge(), 0.5),
    "budget-ahead": SpinBudget(StepAhead(), 0.1, 5 * MS),
    "if-preempted-clamped-pas": IfPreempted(Clamped(Pas(doze=True))),
}

#: By name; a class's own name stands for its defaults where they are no preset.
EVERY_POLICY = {
    **PRESETS,
    **{
        name: kind()
        for name, kind in POLICIES.items()
        if not any(type(p) is kind and p == kind() for p in PRESETS.values())
    },
    **WRAPPED,
}


def is_deaf(policy, waits):
    """Whether it ever sleeps so that the doorbell does not wake it."""
    for ctx, outcome in waits:
        plan = policy.plan(ctx)
        if any(stage.kind in (NAP, POLL) for stage in plan):
            return True
        policy = policy.after(ctx, outcome)
    return False
