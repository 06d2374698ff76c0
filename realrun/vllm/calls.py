"""What a message of vLLM's broadcast queue asks for, as far as waiting is concerned."""

from functools import partial
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


#: Made for every message that is on its way, and so a third of the time that the name takes.
_call: Final = partial(tuple.__new__, Call)
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
        # A ``SchedulerOutput``.
        scheduled = message[1][0]
        n_tokens = scheduled.total_num_scheduled_tokens
        n_sequences = n_decode = len(scheduled.num_scheduled_tokens)
        if n_tokens != n_sequences:
            n_decode = sum(1 for n in scheduled.num_scheduled_tokens.values() if n == 1)
        known = scheduled.scheduled_cached_reqs.num_computed_tokens
        n_prefill = n_tokens - n_decode
        return _call((EXECUTE, before[1] + 1, n_decode, n_prefill, sum(known), not known))
    if method == "sample_tokens":
        _, step, n_decode, n_prefill_tokens, n_kv_tokens, _ = before
        return _call((SAMPLE, step, n_decode, n_prefill_tokens, n_kv_tokens, False))
    return before._replace(kind=OTHER)


def expected_after(call: Call) -> Call:
    """The call that a worker waits for behind another."""
    if call.kind == EXECUTE:  # not by `_replace`, which takes thrice as long
        return _call((SAMPLE, *call[1:]))
    return _call((EXECUTE, call.step + 1, *call[2:]))


def is_expected_after(call: Call) -> bool:
    """Whether another call is surely on its way behind this."""
    kind = call.kind
    if kind == SAMPLE:
        return call.n_decode + call.n_prefill_tokens > 0
    return kind == EXECUTE
