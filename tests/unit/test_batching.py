from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.batching import Batcher
from shmsim.units import MS
from shmsim.workload import Request, Workload

SIZES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=12)
LIMITS = st.tuples(st.integers(1, 5), st.integers(1, 16))


def run(batcher, depth, step_ns=2 * MS):
    """Drive a batcher with that many batches in flight; yields (batch, in system when formed)."""
    now_ns = 0
    in_flight = deque()
    while not batcher.is_finished:
        batcher.admit(now_ns)
        while batcher.has_work and len(in_flight) < depth:
            in_flight.append(batcher.schedule())
            yield in_flight[-1]
        if in_flight:
            now_ns += step_ns
            batcher.complete(in_flight.popleft(), now_ns)
        else:
            now_ns = max(now_ns, batcher.next_arrival_ns)


@st.composite
def workloads(draw):
    sizes = draw(SIZES)
    concurrency = draw(st.integers(0, 4))
    gaps = draw(st.lists(st.integers(0, 6 * MS), min_size=len(sizes), max_size=len(sizes)))
    arrivals = [0 if concurrency else sum(gaps[: i + 1]) for i in range(len(sizes))]
    return Workload(
        tuple(Request(t, *size) for t, size in zip(arrivals, sizes, strict=True)), concurrency
    )


@given(workloads(), LIMITS, st.integers(1, 2))
def test_every_request_gets_exactly_its_tokens(workload, limits, depth):
    batcher = Batcher(workload, *limits)
    batches = list(run(batcher, depth))
    given_tokens = Counter(r for batch in batches for r in batch.token_for)
    prompt_tokens = Counter()
    for batch in batches:
        for chunk in batch.prefill:
            prompt_tokens[chunk.request] += chunk.n_tokens
    for i, (request, row) in enumerate(zip(workload.requests, batcher.request_rows(), strict=True)):
        assert given_tokens[i] == request.output_tokens == len(row.token_ns)
        assert prompt_tokens[i] == request.prompt_tokens
        assert row.token_ns == sorted(row.token_ns)
        assert row.token_ns[0] > row.arrival_ns


@given(workloads(), LIMITS, st.integers(1, 2))
def test_no_batch_exceeds_its_limits_is_empty_or_holds_a_request_twice(workload, limits, depth):
    max_sequences, max_tokens = limits
    for number, batch in enumerate(run(Batcher(workload, *limits), depth)):
        members = batch.decode + tuple(chunk.request for chunk in batch.prefill)
        assert batch.step == number
        assert 1 <= batch.n_sequences <= max_sequences
        assert len(batch.decode) + batch.n_prefill_tokens <= max_tokens
        assert all(chunk.n_tokens >= 1 for chunk in batch.prefill)
        assert len(set(members)) == len(members) == batch.n_sequences


@given(workloads(), LIMITS, st.integers(1, 2))
def test_a_request_decodes_only_once_its_whole_prompt_was_scheduled(workload, limits, depth):
    left = [request.prompt_tokens for request in workload.requests]
    for batch in run(Batcher(workload, *limits), depth):
        assert all(left[request] == 0 for request in batch.decode)
        for chunk in batch.prefill:
            left[chunk.request] -= chunk.n_tokens
            assert chunk.is_last == (left[chunk.request] == 0)


@given(workloads(), LIMITS)
def test_requests_start_in_order_of_arrival(workload, limits):
    started = []
    for batch in run(Batcher(workload, *limits), 1):
        started += [c.request for c in batch.prefill if c.request not in started]
    assert started == sorted(started)


@given(workloads(), LIMITS)
def test_the_context_of_a_step_is_prompt_and_output_of_who_decodes(workload, limits):
    n_output = Counter()
    for batch in run(Batcher(workload, *limits), 1):
        expected = sum(workload.requests[r].prompt_tokens + n_output[r] for r in batch.decode)
        assert batch.n_kv_tokens == expected
        n_output.update(batch.token_for)


@given(SIZES, st.integers(1, 5), st.integers(1, 2))
def test_a_closed_loop_keeps_its_number_of_requests_until_none_is_left(sizes, concurrency, depth):
    workload = Workload(tuple(Request(0, *size) for size in sizes), concurrency)
    batcher = Batcher(workload, 64, 4096)
    list(run(batcher, depth))
    rows = batcher.request_rows()
    last_in_ns = max(row.arrival_ns for row in rows)
    changes = Counter()
    for row in rows:
        changes[row.arrival_ns] += 1
        changes[row.token_ns[-1]] -= 1
    n_inside = 0
    for instant_ns in sorted(changes):
        n_inside += changes[instant_ns]
        if instant_ns < last_in_ns:
            assert n_inside == min(concurrency, len(sizes))


def test_asynchronous_scheduling_forms_the_next_batch_before_the_reply():
    batcher = Batcher(Workload((Request(0, 10, 3),)), 8, 64)
    batcher.admit(0)
    first, second, third = batcher.schedule(), batcher.schedule(), batcher.schedule()
    assert first.prefill[0].is_last
    assert second.decode == third.decode == (0,)
    assert not batcher.has_work  # all three tokens are on their way, none has come
    assert not batcher.is_finished
    for batch in (first, second, third):
        batcher.complete(batch, 1 * MS)
    assert batcher.is_finished


def test_a_batch_says_whether_work_is_left_behind_it():
    batcher = Batcher(Workload((Request(0, 10, 2),)), 8, 64)
    batcher.admit(0)
    assert batcher.schedule().pending
    assert not batcher.schedule().pending


def test_a_long_prompt_is_cut_into_chunks_and_decoding_goes_first():
    batcher = Batcher(Workload((Request(0, 4, 9), Request(0, 25, 1))), 8, 10)
    batcher.admit(0)
    tokens = []
    for _ in range(4):
        batch = batcher.schedule()
        tokens.append((len(batch.decode), [c.n_tokens for c in batch.prefill]))
    assert tokens == [(0, [4, 6]), (1, [9]), (1, [9]), (1, [1])]


def test_requests_that_find_the_engine_empty_came_after_idle():
    requests = (Request(0, 1, 1), Request(1 * MS, 1, 1), Request(50 * MS, 1, 1))
    batcher = Batcher(Workload(requests), 8, 64)
    list(run(batcher, 1))
    assert [row.after_idle for row in batcher.request_rows()] == [True, False, True]


def test_nobody_is_let_in_before_arriving():
    batcher = Batcher(Workload((Request(5 * MS, 1, 1),)), 8, 64)
    batcher.admit(5 * MS - 1)
    assert not batcher.has_work
    assert batcher.next_arrival_ns == 5 * MS
    with pytest.raises(RuntimeError, match="nothing to schedule"):
        batcher.schedule()
    batcher.admit(5 * MS)
    assert batcher.has_work
    assert batcher.next_arrival_ns is None
