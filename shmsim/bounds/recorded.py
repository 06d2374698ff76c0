"""Waits of a recorded run, of the model or of a machine."""

import numpy as np

from shmsim.bounds.trace import WaitTrace, trace_of
from shmsim.records import RunRecords
from shmsim.wait import SITE_NAMES, WORKER_RECV


def recorded_waits(records: RunRecords, process: str, site: int, call: int = 0) -> WaitTrace:
    """The waits of one process at one site for one call, as a trace.

    Their gaps come from the publication stamps, so the policy that was running censors none. But a
    step that waited for it is part of the gaps of others: replays say what a policy would do with
    these gaps, a run what it does to them. Records do not hold the context tokens of a batch.

    Parameters
    ----------
    records
        Of the run.
    process
        Its name in the records, such as ``"scheduler"``.
    site, call
        Which of its waits, as in `shmsim.wait.WaitContext`.

    Raises
    ------
    ValueError
        If there are no such waits.
    """
    rows = [r for r in records.waits if (r.process, r.site, r.call) == (process, site, call)]
    if not rows:
        known = sorted({(r.process, SITE_NAMES[r.site], r.call) for r in records.waits})
        raise ValueError(
            f"the records hold no waits of {process} at {SITE_NAMES[site]}, call {call}; "
            f"they hold {known}"
        )
    batches = {step.step: (step.n_decode, step.n_prefill_tokens) for step in records.steps}
    # A worker that waits for the first call of a step knows the batch of the one before.
    behind = 1 if site == WORKER_RECV and call == 0 else 0
    features = [batches.get(row.step - behind, (0, 0)) for row in rows]
    seen_ns = np.array([row.seen_ns for row in rows])
    started_ns = np.array([row.started_ns for row in rows])
    return trace_of(
        [row.published_ns - row.started_ns for row in rows],
        [decode for decode, _ in features],
        [prefill for _, prefill in features],
        0,
        [row.pending for row in rows],
        np.maximum(started_ns - np.concatenate([started_ns[:1], seen_ns[:-1]]), 0),
    )
