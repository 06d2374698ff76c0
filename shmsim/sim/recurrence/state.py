"""What the compiled loop remembers between two chunks of steps: arrays of records.

Instants and durations are int64 nanoseconds, flags are 0 or 1.
"""

from typing import Any, Final

import numpy as np

from shmsim.sim.recurrence.memory import records_at

_INT: Final = np.int64


def _record(*names: str, **more: Any) -> np.dtype[Any]:
    arrays = [(name, *kind) for name, kind in more.items()]
    return np.dtype([*((name, _INT) for name in names), *arrays], align=True)


#: A thread: the scheduler, the main thread of a worker, or its reply thread (asynchronous only).
#: ``costs`` is the number of its first cost (`shmsim.sim.recurrence.luck`), ``t_ns`` the instant by
#: its own clock, ``owed_ns`` work that is done with whatever comes next. ``write_ns`` is what it
#: does up to the publication of a call or of a result, ``take_ns`` from seeing one on, if these
#: costs are constant; else -1.
ACTOR: Final = _record(
    "costs", "t_ns", "owed_ns", "cold_plan_ns", "cold_after_ns", "cpu_ns", "courier_ns",
    "emulation_ns", "notified", "elided", "n_published", "n_read", "n_rounds", "n_rows",
    "last_launch_ns", "rank", "write_ns", "take_ns",
)  # fmt: skip

#: A site, its wait in progress, and how its last wait ended; see `shmsim.sim.actor.Site`. ``costs``
#: is the number of its first cost, ``decision`` that of its first among the costs of deciding.
SITE: Final = np.dtype(
    [
        *((name, _INT) for name in (
            "costs", "decision", "begin_ns", "kind", "policy", "first_call",
            "alternates", "n_waits", "n_learnt", "n_lessons", "idle_lessons",
            "last_seen_ns", "call", "step", "pending",
            "n_decode", "n_prefill", "n_kv", "since_ns", "index",
            "started_ns", "found_ns", "seen_ns", "stage", "used_ns", "overshoot_ns", "belled",
            "mode", "rested_ns", "slowness_ns", "armed_ns", "delay_ns", "is_finished",
        )),
        ("uniform", np.float64),
        ("kinds", _INT, 4),
        ("untils_ns", _INT, 4),
        ("periods_ns", _INT, 4),
        ("cpu_ns", _INT, 4),
    ],
    align=True,
)  # fmt: skip

#: The engine: what does not change first, with the addresses of everything; then its queues.
ENGINE: Final = _record(
    "n_workers", "n_replies", "two_calls", "is_async", "depth", "margin", "most_sequences",
    "most_tokens",
    "n_requests", "is_closed", "leaving_mask", "batch_mask", "factor_mask", "second_bytes",
    "has_courier", "has_further", "has_device_policy", "guard_ns", "output_bytes",
    "largest_output_bytes", "n_sized", "keeps_rows", "most_wait_rows", "law_kind",
    "costs", "decisions", "device_decisions", "draw", "settle", "factors", "law_ints",
    "law_floats", "states",
    "device_states", "actors", "sites", "past", "requests", "leaving", "batches", "request_sizes",
    "reply_sizes", "tokens", "step_rows", "wait_rows",
    "wake_latency_ns", "block_cpu_ns", "timer_overshoot_ns", "rehearsal_ns", "deciding_ns",
    "shares_cores",
    "step", "n_done", "n_finished", "n_admitted", "n_begun", "partial", "partial_left",
    "n_decoding", "base", "last_completed_ns", "n_idles", "last_done_ns",
    "culprit", "n_step_rows",
    delay_price=(np.float64,),
)  # fmt: skip

#: A request, and where it stands; ``next`` chains those whose last token comes from one step.
REQUEST: Final = _record(
    "prompt", "output", "arrival_ns", "after_idle", "first_step", "first_ns", "last_ns", "next"
)

#: Requests that leave after a step, by step modulo the longest output: how many, what they leave of
#: `ENGINE.base`, and the first of them.
LEAVING: Final = _record("n", "base", "head")

#: A batch in flight; ``handed_ns`` is when each worker handed it to its reply thread.
BATCH: Final = _record(
    "step", "n_decode", "n_prefill", "n_kv", "n_sequences", "pending", "n_leaving", "first_begun",
    "n_first", "scheduled_ns", "published_ns", "first_launch_ns", "launched_ns", "launcher",
    "soonest_ns", "done_ns", "replied_ns", handed_ns=(_INT, 64),
)  # fmt: skip

#: Columns of `shmsim.records.StepRow`.
STEP: Final = _record(
    "step", "n_decode", "n_prefill_tokens", "scheduled_ns", "published_ns", "launched_ns",
    "done_ns", "replied_ns", "seen_ns",
)  # fmt: skip

#: What figures need of a step.
TOKENS: Final = _record("seen_ns", "n_decode")

#: Columns of `shmsim.records.WaitRow`, the process left out.
WAIT: Final = _record(
    "site", "call", "step", "pending", "started_ns", "published_ns", "seen_ns", "stage", "cpu_ns",
    "overshoot_ns", "belled", "stage_kind",
)  # fmt: skip

#: How many batches are remembered where reply threads may be late: what they have not waited for,
#: or the main thread not learnt from.
N_LATE_BATCHES: Final = 256


def n_batches_for(depth: int) -> int:
    """How many batches are remembered, a power of two: so many in flight, and some before them."""
    return 1 << (depth + 1).bit_length()


actor_at = records_at(ACTOR)
site_at = records_at(SITE)
request_at = records_at(REQUEST)
leaving_at = records_at(LEAVING)
batch_at = records_at(BATCH)
tokens_at = records_at(TOKENS)
step_row_at = records_at(STEP)
wait_row_at = records_at(WAIT)
