"""Continuous batching (`shmsim.batching.Batcher`), on words."""

from shmsim.sim.events import words as w
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.memory import Words


@compiled
def _request(s: Words, batcher: int, number: int) -> int:
    return s[batcher + w.BA_REQUESTS] + w.REQUEST * number


@compiled
def admit(s: Words, batcher: int, now_ns: int) -> None:
    """Let in every request that has arrived by now."""
    if s[batcher + w.BA_CONCURRENCY] != 0:
        return
    while s[batcher + w.BA_N_ADMITTED] < s[batcher + w.BA_N_REQUESTS]:
        arrival_ns = s[_request(s, batcher, s[batcher + w.BA_N_ADMITTED]) + w.RQ_ARRIVAL]
        if arrival_ns > now_ns:
            return
        admit_next(s, batcher, arrival_ns)


@compiled
def admit_next(s: Words, batcher: int, arrival_ns: int) -> None:
    """Let the next request in."""
    n = s[batcher + w.BA_N_ADMITTED]
    was_idle = s[batcher + w.BA_N_FINISHED] == n and arrival_ns > s[batcher + w.BA_LAST_COMPLETED]
    request = _request(s, batcher, n)
    s[request + w.RQ_AFTER_IDLE] = 1 if was_idle else 0
    s[request + w.RQ_ARRIVAL] = arrival_ns
    s[batcher + w.BA_N_ADMITTED] = n + 1


@compiled
def has_work(s: Words, batcher: int) -> bool:
    """Whether a batch can be formed now."""
    return (
        s[batcher + w.BA_N_TAKEN] < s[batcher + w.BA_N_ADMITTED] or s[batcher + w.BA_N_RUNNING] > 0
    )


@compiled
def is_finished(s: Words, batcher: int) -> bool:
    """Whether every request has all of its tokens."""
    return s[batcher + w.BA_N_FINISHED] == s[batcher + w.BA_N_REQUESTS]


@compiled
def next_arrival_ns(s: Words, batcher: int) -> int:
    """When the next request arrives."""
    return s[_request(s, batcher, s[batcher + w.BA_N_ADMITTED]) + w.RQ_ARRIVAL]


@compiled
def batch_of(s: Words, batcher: int, step: int) -> int:
    """The batch of a step that is in flight, or in the making."""
    number = step % s[batcher + w.BA_N_BATCHES]
    return s[batcher + w.BA_BATCHES] + s[batcher + w.BA_BATCH_WORDS] * number


@compiled
def form(s: Words, batcher: int) -> int:
    """Form the next batch: a token for whoever decodes, then prompt chunks."""
    step = s[batcher + w.BA_STEP]
    s[batcher + w.BA_STEP] = step + 1
    batch = batch_of(s, batcher, step)
    budget = s[batcher + w.BA_MAX_TOKENS]
    running = s[batcher + w.BA_RUNNING]
    n_decode = n_chunks = n_prefill = n_kv = n_left = 0
    decoded = batch + w.BT_TOKENS
    # Requests that get their first token come behind those that decode: keep them at the end.
    first = decoded + s[batcher + w.BA_MAX_SEQUENCES]
    n_first = 0
    for i in range(s[batcher + w.BA_N_RUNNING]):
        number = s[running + i]
        request = _request(s, batcher, number)
        left = s[request + w.RQ_PROMPT_LEFT]
        if left != 0:
            n_tokens = min(budget, left)
            if n_tokens != 0:
                budget -= n_tokens
                n_chunks += 1
                n_prefill += n_tokens
                if _prefill(s, request, n_tokens):
                    s[first + n_first] = number
                    n_first += 1
        elif budget != 0:
            budget -= 1
            n_kv += s[request + w.RQ_PROMPT] + s[request + w.RQ_N_SCHEDULED]
            s[request + w.RQ_N_SCHEDULED] += 1
            s[decoded + n_decode] = number
            n_decode += 1
        if s[request + w.RQ_N_SCHEDULED] < s[request + w.RQ_OUTPUT]:
            s[running + n_left] = number
            n_left += 1
    n_in_batch = n_decode + n_chunks
    while (
        s[batcher + w.BA_N_TAKEN] < s[batcher + w.BA_N_ADMITTED]
        and budget != 0
        and n_in_batch < s[batcher + w.BA_MAX_SEQUENCES]
    ):
        number = s[batcher + w.BA_N_TAKEN]
        s[batcher + w.BA_N_TAKEN] = number + 1
        request = _request(s, batcher, number)
        n_tokens = min(budget, s[request + w.RQ_PROMPT_LEFT])
        budget -= n_tokens
        n_in_batch += 1
        n_prefill += n_tokens
        if _prefill(s, request, n_tokens):
            s[first + n_first] = number
            n_first += 1
        if s[request + w.RQ_N_SCHEDULED] < s[request + w.RQ_OUTPUT]:
            s[running + n_left] = number
            n_left += 1
    s[batcher + w.BA_N_RUNNING] = n_left
    for i in range(n_first):
        s[decoded + n_decode + i] = s[first + i]
    s[batch + w.M_STEP] = step
    s[batch + w.M_CALL] = 0
    s[batch + w.M_IS_BATCH] = 1
    s[batch + w.M_PENDING] = 1 if has_work(s, batcher) else 0
    s[batch + w.M_N_DECODE] = n_decode
    s[batch + w.M_N_PREFILL] = n_prefill
    s[batch + w.M_N_KV] = n_kv
    s[batch + w.M_N_SEQUENCES] = n_in_batch
    s[batch + w.BT_N_TOKENS] = n_decode + n_first
    return batch


@compiled
def _prefill(s: Words, request: int, n_tokens: int) -> bool:
    """Work on a prompt; returns whether it is done, so that the first token comes."""
    left = s[request + w.RQ_PROMPT_LEFT] - n_tokens
    s[request + w.RQ_PROMPT_LEFT] = left
    if left == 0:
        s[request + w.RQ_N_SCHEDULED] += 1
    return left == 0


@compiled
def complete(s: Words, batcher: int, batch: int, now_ns: int) -> None:
    """Note the tokens of a batch whose reply was seen; in a closed loop, let others in."""
    s[batcher + w.BA_LAST_COMPLETED] = now_ns
    for i in range(s[batch + w.BT_N_TOKENS]):
        request = _request(s, batcher, s[batch + w.BT_TOKENS + i])
        n_tokens = s[request + w.RQ_N_TOKENS]
        s[s[request + w.RQ_TOKENS] + n_tokens] = now_ns
        s[request + w.RQ_N_TOKENS] = n_tokens + 1
        if n_tokens + 1 == s[request + w.RQ_OUTPUT]:
            s[batcher + w.BA_N_FINISHED] += 1
            if (
                s[batcher + w.BA_CONCURRENCY] != 0
                and s[batcher + w.BA_N_ADMITTED] < s[batcher + w.BA_N_REQUESTS]
            ):
                admit_next(s, batcher, now_ns)
