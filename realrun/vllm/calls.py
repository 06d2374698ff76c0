"""What a message of vLLM's broadcast queue asks for, as far as waiting is concerned."""

from typing import Any, Final, NamedTuple

EXECUTE: Final = 0  #: ``execute_model``, the first call of a step
SAMPLE: Final = 1  #: ``sample_tokens``, the second
OTHER: Final = 2  #: anything else: start, health checks, shutdown


class Call(NamedTuple):
    """One call to the workers.

    Parameters
    ----------
    kind
        `EXECUTE`, `SAMPLE` or `OTHER`.
    step
        Number of the step, from 0; -1 before the first. Every process counts alike, since all see
        the same messages.
    n_decode, n_prefill_tokens, n_kv_tokens
        Of the step's batch: sequences that decode, prompt tokens, tokens computed before.
    is_fresh
        Whether no request of the batch was scheduled before: the engine had nothing to do.
    """

    kind: int
    step: int
    n_decode: int
    n_prefill_tokens: int
    n_kv_tokens: int
    is_fresh: bool


#: Before the first message.
NOTHING_YET: Final = Call(OTHER, -1, 0, 0, 0, is_fresh=True)


def describe(message: Any, before: Call) -> Call:
    """What a message asks for, given the one before it.

    Parameters
    ----------
    message
        ``(method, args, kwargs, output_rank)``, as ``MultiprocExecutor.collective_rpc`` sends it.
    """
    method = message[0]
    if method == "execute_model":
        return _of_batch(message[1][0], before.step + 1)
    if method == "sample_tokens":
        _, step, n_decode, n_prefill_tokens, n_kv_tokens, _ = before
        return Call(SAMPLE, step, n_decode, n_prefill_tokens, n_kv_tokens, is_fresh=False)
    return before._replace(kind=OTHER)


def _of_batch(scheduled: Any, step: int) -> Call:
    """Read a ``SchedulerOutput``; it is on the way of every step, so nothing is read twice."""
    n_tokens = scheduled.total_num_scheduled_tokens
    n_sequences = len(scheduled.num_scheduled_tokens)
    n_decode = n_sequences
    if n_tokens != n_sequences:
        n_decode = sum(1 for n in scheduled.num_scheduled_tokens.values() if n == 1)
    known = scheduled.scheduled_cached_reqs.num_computed_tokens
    return Call(EXECUTE, step, n_decode, n_tokens - n_decode, sum(known), is_fresh=not known)


def expected_after(call: Call) -> tuple[Call, bool]:
    """The call that a worker waits for behind another, and whether it is surely on its way."""
    kind, step, n_decode, n_prefill_tokens, n_kv_tokens, is_fresh = call
    batch = n_decode, n_prefill_tokens, n_kv_tokens, is_fresh
    if kind == EXECUTE:
        return Call(SAMPLE, step, *batch), True
    has_work = kind == SAMPLE and n_decode + n_prefill_tokens > 0
    return Call(EXECUTE, step + 1, *batch), has_work
