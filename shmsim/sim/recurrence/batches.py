"""Continuous batching in compiled code: the batches of `shmsim.batching.Batcher`, step by step.

While a batch may hold all sequences (``max_sequences <= max_batched_tokens``), a request decodes in
every step from its first token on. So each step costs a few operations, however many sequences
decode: how many leave after which step is known when their first token is scheduled. Only the
request admitted last can have a part of its prompt left.
"""

from typing import Any

from shmsim.sim.recurrence.memory import inner, within
from shmsim.sim.recurrence.state import leaving_at, request_at


@within
def has_work(eng: Any) -> Any:
    """`Batcher.has_work`."""
    return eng.n_admitted > eng.n_begun or eng.n_decoding > 0 or eng.partial >= 0


@within
def admit(eng: Any, now_ns: Any) -> Any:
    """`Batcher.admit`."""
    if eng.is_closed:
        return
    while eng.n_admitted < eng.n_requests:
        request = request_at(eng.requests, eng.n_admitted)
        if request.arrival_ns > now_ns:
            return
        was_idle = eng.n_finished == eng.n_admitted
        request.after_idle = was_idle and request.arrival_ns > eng.last_completed_ns
        eng.n_admitted += 1


@inner
def _begin_output(eng: Any, batch: Any, number: Any) -> Any:
    """The first token of a request comes from this step."""
    request, step = request_at(eng.requests, number), batch.step
    request.first_step = step
    last = leaving_at(eng.leaving, (step + request.output - 1) & eng.leaving_mask)
    request.next = last.head
    last.head = number
    if request.output == 1:
        batch.n_leaving += 1
    else:
        last.n += 1
        # In step s it has prompt + (s - first_step) tokens of context.
        last.base += request.prompt - step
        eng.base += request.prompt - step
        eng.n_decoding += 1
    batch.n_first += 1


@within
def schedule(eng: Any, batch: Any) -> Any:
    """`Batcher.schedule`."""
    step = eng.step
    eng.step += 1
    batch.step = step
    n_decode = eng.n_decoding
    batch.n_decode = n_decode
    batch.n_kv = eng.base + n_decode * step
    gone = leaving_at(eng.leaving, step & eng.leaving_mask)
    batch.n_leaving = gone.n
    eng.n_decoding -= gone.n
    eng.base -= gone.base
    gone.n = 0
    gone.base = 0
    batch.n_first = 0
    batch.first_begun = eng.n_begun - (1 if eng.partial >= 0 else 0)
    budget = eng.most_tokens - n_decode
    n_chunks = 0
    if eng.partial >= 0 and budget > 0:
        n_tokens = min(budget, eng.partial_left)
        budget -= n_tokens
        eng.partial_left -= n_tokens
        n_chunks += 1
        if eng.partial_left == 0:
            _begin_output(eng, batch, eng.partial)
            eng.partial = -1
    while eng.n_admitted > eng.n_begun and budget > 0 and n_decode + n_chunks < eng.most_sequences:
        number = eng.n_begun
        eng.n_begun += 1
        left = request_at(eng.requests, number).prompt
        n_tokens = min(budget, left)
        budget -= n_tokens
        n_chunks += 1
        if n_tokens == left:
            _begin_output(eng, batch, number)
        else:
            eng.partial = number
            eng.partial_left = left - n_tokens
    batch.n_prefill = eng.most_tokens - n_decode - budget
    batch.n_sequences = n_decode + n_chunks
    batch.pending = has_work(eng)


@within
def complete(eng: Any, batch: Any, now_ns: Any) -> Any:
    """`Batcher.complete`."""
    eng.last_completed_ns = now_ns
    for number in range(batch.first_begun, batch.first_begun + batch.n_first):
        request_at(eng.requests, number).first_ns = now_ns
    if batch.n_leaving == 0:
        return
    gone = leaving_at(eng.leaving, batch.step & eng.leaving_mask)
    number = gone.head
    gone.head = -1
    while number >= 0:
        request_at(eng.requests, number).last_ns = now_ns
        number = request_at(eng.requests, number).next
    for _ in range(batch.n_leaving):
        eng.n_finished += 1
        if eng.is_closed and eng.n_admitted < eng.n_requests:
            request_at(eng.requests, eng.n_admitted).arrival_ns = now_ns
            eng.n_admitted += 1
