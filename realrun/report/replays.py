"""What a policy planned in the waits of a recorded run, which holds waits but no plans."""

from typing import Final

from shmsim.bounds.recorded import recorded_waits
from shmsim.plots.gaps import Int64Array
from shmsim.records import RunRecords
from shmsim.wait import (
    SCHEDULER_RECV,
    StageCpu,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    check_plan,
)

_UNIFORM: Final = 0.5  # what a policy that draws is given: the record does not say what it drew


def typical_plan(
    records: RunRecords, policy: WaitPolicy, costs: WaitCosts
) -> tuple[Int64Array, WaitPlan] | None:
    """The scheduler's waits for the reply with the tokens, and the middle one of its plans.

    Parameters
    ----------
    records
        Of the run.
    policy
        As it began the run; it learns from the recorded waits again.
    costs
        What it was told.

    Returns
    -------
    gaps_ns, plan
        Start of each wait with a step under way to the publication, shape ``(n_waits,)``, and the
        middle one of the plans, in the order of their first stages. None if there is no such wait,
        or the policy cannot plan with these numbers.
    """
    rows = [row for row in records.waits if row.site == SCHEDULER_RECV]
    if not rows:
        return None
    call = max(row.call for row in rows)
    process = rows[0].process
    rows = [row for row in rows if (row.process, row.call) == (process, call)]
    trace = recorded_waits(records, process, SCHEDULER_RECV, call)
    plans = []
    try:
        for index, row in enumerate(rows):
            context = WaitContext(
                SCHEDULER_RECV,
                call,
                int(trace.since_seen_ns[index]),
                row.pending,
                int(trace.n_decode[index]),
                int(trace.n_prefill_tokens[index]),
                0,
                _UNIFORM,
                costs,
            )
            plans.append(policy.plan(context))
            cpu_ns = [0, 0, 0, 0]
            cpu_ns[row.stage] = row.cpu_ns
            outcome = WaitOutcome(
                row.published_ns - row.started_ns,
                row.seen_ns - row.started_ns,
                row.stage,
                StageCpu(*cpu_ns),
                row.overshoot_ns,
                row.belled,
                row.preempted,
            )
            policy = policy.after(context, outcome)
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError):
        return None  # fields that no file of ours would hold
    pending = [index for index, row in enumerate(rows) if row.pending]
    if not pending:
        return None
    gaps_ns = trace.gap_ns[pending]
    middle = sorted(plans[index] for index in pending)[len(pending) // 2]
    try:
        check_plan(middle)
    except ValueError:
        return None
    return gaps_ns, middle
