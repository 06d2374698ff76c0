"""Who is in which row of the KV cache."""

import pytest

from realrun.model.rows import ChunkInput, Rows
from shmsim.batching import Batcher
from shmsim.message import CallOne, decode_request, encode_request
from shmsim.workload import Request, Workload


def call(step, decode=(), prefill=()):
    """Decoding requests, and (request, tokens) of prompt chunks."""
    ids = (*decode, *(request for request, _ in prefill))
    tokens = (*(1 for _ in decode), *(n for _, n in prefill))
    return CallOne(step, ids, tokens, len(decode), sum(n for _, n in prefill), 0)


def test_a_sequence_keeps_its_row_and_its_context_grows():
    rows = Rows(4, 100)
    assert rows.place(call(0, prefill=[("a", 5)])).chunks == (ChunkInput(0, "a", 0, 5),)
    assert rows.place(call(1, prefill=[("a", 3)])).chunks == (ChunkInput(0, "a", 5, 3),)
    assert rows.place(call(2, ["a"], [("b", 2)])).decode == ((0, 8),)
    both = rows.place(call(3, ["a", "b"]))
    assert both.decode == ((0, 9), (1, 2))
    assert both.rows == (0, 1)


def test_a_row_is_free_once_its_sequence_is_absent_and_the_lowest_one_is_taken():
    rows = Rows(3, 100)
    rows.place(call(0, prefill=[("a", 1), ("b", 1), ("c", 1)]))
    rows.place(call(1, ["a", "c"]))
    placed = rows.place(call(2, ["c"], [("d", 4)]))
    assert placed.rows == (2, 0)
    assert placed.n_rows == 3, "the first rows up to the last that decodes"


def test_nothing_is_left_of_a_request_of_the_same_name():
    rows = Rows(2, 100)
    rows.place(call(0, prefill=[("a", 7)]))
    rows.clear()
    assert rows.place(call(1, prefill=[("a", 2)])).chunks[0].start == 0


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (call(1, ["z"]), "z decodes but has no KV cache"),
        (call(1, ["a"], [("b", 1), ("c", 1)]), "c has no row; 2 rows"),
        (call(1, prefill=[("a", 6)]), r"11 tokens of context .* raise device\.max_len"),
    ],
    ids=["unknown", "too-many", "too-long"],
)
def test_what_has_no_place_is_refused(then, message):
    rows = Rows(2, 10)
    rows.place(call(0, prefill=[("a", 5)]))
    with pytest.raises(RuntimeError, match=message):
        rows.place(then)


def test_every_batch_of_the_scheduler_has_its_place():
    requests = tuple(Request(0, 1 + 13 * i % 40, 1 + i % 9) for i in range(60))
    batcher = Batcher(Workload(requests, concurrency=9), 4, 16)
    rows = Rows(4, 60)
    found = {}
    while batcher.has_work:
        batch = batcher.schedule()
        placed = rows.place(decode_request(encode_request(batch)))
        assert len(set(placed.rows)) == len(placed.rows), "nobody shares a row"
        for request, (_, position) in zip(batch.decode, placed.decode, strict=True):
            found.setdefault(request, []).append(position)
        batcher.complete(batch, 0)
    for request, positions in found.items():
        n_prompt = requests[request].prompt_tokens
        assert positions == list(range(n_prompt, n_prompt + len(positions)))
