"""Payloads of a run: what its steps carried, as the records of model or machine have them."""

import numpy as np

from shmsim.arena_sizing.payloads import Payloads, payloads_of
from shmsim.arena_sizing.retention import CopyTime
from shmsim.config import PayloadConfig
from shmsim.records import StepRow


def payloads_of_steps(
    steps: list[StepRow], payload: PayloadConfig, copy: CopyTime | None
) -> Payloads:
    """The bulk of each step that carried any.

    A slot is taken shortly before the step is published. It is free when the copies to the devices
    have landed, which begin when the step is launched and what came before has ended; without
    copies, when all workers have launched it.

    Parameters
    ----------
    steps
        In their order.
    payload
        How many bytes a step carries.
    copy
        Time of a copy; None where nothing is copied to a device.
    """
    rows = []
    before_ns = 0
    for step in steps:
        n_bytes = payload.bytes_per_step + payload.bytes_per_prefill_token * step.n_prefill_tokens
        if n_bytes:
            free_ns = step.launched_ns
            if copy is not None:
                free_ns = max(free_ns, before_ns) + copy.ns(n_bytes)
            rows.append((step.published_ns, n_bytes, max(free_ns - step.published_ns, 1)))
        before_ns = step.done_ns
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return payloads_of(table[:, 0], table[:, 1], table[:, 2])
