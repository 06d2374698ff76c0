"""The decoder that devices compute: one arithmetic, whatever the way it is cut up."""

import shutil
import threading

import pytest

from realrun.model.geometry import TINY
from realrun.model.prompts import prompt_tokens

torch = pytest.importorskip("torch", reason="the decoder needs torch")

from realrun.model.decoder import Decoder  # noqa: E402 - it needs torch
from realrun.model.rows import ChunkInput, StepInput  # noqa: E402
from realrun.model.run import positions_of, prompts_of, run_eagerly  # noqa: E402
from realrun.model.weights import random_weights  # noqa: E402

#: Of float32 sums of a few hundred terms of order one.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
QWEN = TINY._replace(qk_norm=True, tied=False)


def decoder(geometry=TINY, n_rows=4, max_len=64, **share) -> Decoder:
    weights = random_weights(geometry, 1, "cpu", torch.float32, **share)
    return Decoder(geometry, weights, n_rows, max_len)


def prompt(n, name="request-1"):
    return torch.from_numpy(prompt_tokens(name, 0, n, TINY.vocab))


@pytest.fixture(params=[TINY, QWEN], ids=["tied", "qk-norm"])
def geometry(request):
    return request.param


@pytest.mark.parametrize("cuts", [(1,), (4,), (3, 9), (1, 2, 3, 11)])
def test_a_prompt_in_chunks_gives_the_logits_of_a_prompt_in_one_piece(geometry, cuts):
    whole, cut = decoder(geometry), decoder(geometry)
    tokens = prompt(12)
    expected = whole.prefill(0, tokens, 0)
    found = None
    for start, end in zip((0, *cuts), (*cuts, 12), strict=True):
        found = cut.prefill(2, tokens[start:end], start)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert cut.tokens[2] == whole.tokens[0]


def test_decoding_token_by_token_gives_the_logits_of_a_prompt_of_those_tokens(geometry):
    fed = decoder(geometry)
    tokens = prompt(7)
    fed.prefill(1, tokens, 0)
    said = []
    logits = None
    for position in range(7, 12):
        said.append(fed.tokens[1].item())
        positions = torch.tensor([fed.idle, position, fed.idle])
        logits = fed.decode(positions)[1]
    expected = decoder(geometry).prefill(0, torch.cat([tokens, torch.tensor(said)]), 0)[0]
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_a_sequence_does_not_notice_its_neighbours():
    alone, crowded = decoder(), decoder()
    alone.prefill(0, prompt(5), 0)
    crowded.prefill(0, prompt(5), 0)
    crowded.prefill(1, prompt(9, "request-2"), 0)
    crowded.prefill(3, prompt(2, "request-3"), 0)
    for step in range(4):
        one = alone.decode(torch.tensor([5 + step]))
        many = crowded.decode(torch.tensor([5 + step, 9 + step, crowded.idle, 2 + step]))
        torch.testing.assert_close(many[0], one[0], **CLOSE)
    assert alone.tokens[0] == crowded.tokens[0]


def test_an_idle_row_keeps_its_token_and_what_it_has_taken_in():
    waiting = decoder()
    waiting.prefill(0, prompt(6), 0)
    waiting.prefill(1, prompt(3, "request-2"), 0)
    token = waiting.tokens[1].item()
    for step in range(3):
        waiting.decode(torch.tensor([6 + step, waiting.idle]))
    assert waiting.tokens[1] == token
    expected = decoder()
    expected.prefill(1, prompt(3, "request-2"), 0)
    after = waiting.decode(torch.tensor([waiting.idle, 3]))[1]
    torch.testing.assert_close(after, expected.decode(torch.tensor([expected.idle, 3]))[1], **CLOSE)


def test_a_row_that_is_used_again_shows_nothing_of_its_last_sequence():
    used, fresh = decoder(), decoder()
    used.prefill(0, prompt(40, "request-9"), 0)
    for step in range(5):
        used.decode(torch.tensor([40 + step]))
    torch.testing.assert_close(used.prefill(0, prompt(4), 0), fresh.prefill(0, prompt(4), 0))


def test_the_context_may_reach_the_end_of_the_cache():
    full = decoder(max_len=16)
    full.prefill(0, prompt(15), 0)
    logits = full.decode(torch.tensor([15]))
    assert full.idle > 15
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_the_ranks_hold_parts_of_the_weights_that_one_rank_has(n_ranks):
    whole = random_weights(TINY, 1, "cpu", torch.float32)
    parts = [random_weights(TINY, 1, "cpu", torch.float32, r, n_ranks) for r in range(n_ranks)]
    for layer in range(TINY.layers):
        outs = torch.cat([part.layers[layer].out for part in parts], 1)
        torch.testing.assert_close(outs, whole.layers[layer].out, rtol=0, atol=0)
        downs = torch.cat([part.layers[layer].down for part in parts], 1)
        torch.testing.assert_close(downs, whole.layers[layer].down, rtol=0, atol=0)
    assert sum(part.heads for part in parts) == TINY.heads
    for part in parts:
        torch.testing.assert_close(part.embedding, whole.embedding, rtol=0, atol=0)


def test_parameters_are_those_of_the_geometry(geometry):
    weights = random_weights(geometry, 1, "cpu", torch.float32)
    tensors = [weights.embedding, weights.last_norm]
    tensors += [] if geometry.tied else [weights.head]
    for layer in weights.layers:
        tensors += layer if geometry.qk_norm else layer[:-2]
    assert sum(tensor.numel() for tensor in tensors) == geometry.parameters


def test_a_step_of_both_kinds_of_work_does_what_its_parts_do():
    inputs = StepInput((0, 2), ((0, 5),), (ChunkInput(2, "request-2", 0, 6),))
    both, parts = decoder(), decoder()
    for one in (both, parts):
        one.prefill(0, prompt(5), 0)
    run_eagerly(
        both, inputs, positions_of(inputs, both.idle, inputs.n_rows), prompts_of(inputs, TINY.vocab)
    )
    parts.decode(torch.tensor([5]))
    parts.prefill(2, prompt(6, "request-2"), 0)
    assert both.tokens.tolist() == parts.tokens.tolist()


def test_what_is_said_differs_from_step_to_step():
    # Tied random weights would repeat their input for ever.
    chatty = decoder()
    chatty.prefill(0, prompt(5), 0)
    said = []
    for step in range(20):
        chatty.decode(torch.tensor([5 + step]))
        said.append(chatty.tokens[0].item())
    assert len(set(said)) > 10


@pytest.mark.slow
@pytest.mark.timeout(600)  # it compiles, a minute and more on a crowded box
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of its own
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_kernels_give_the_logits_of_eager_ones():
    weights = random_weights(QWEN, 1, "cpu", torch.float32)
    eager = Decoder(QWEN, weights, 3, 64)
    fused = Decoder(QWEN, weights, 3, 64, kernels="compiled")
    fused.prepare()
    assert not fused.tokens.any(), "that leaves no trace"
    for each in (eager, fused):
        each.prefill(0, prompt(5), 0)
        each.prefill(1, prompt(3, "request-2"), 0)
    for step in range(4):
        for rows in ([5], [6, 3], [7, 4, eager.idle]):
            positions = torch.tensor([at if at == eager.idle else at + 3 * step for at in rows])
            n = min(len(rows), 2)
            expected, found = eager.decode(positions)[:n], fused.decode(positions)[:n]
            torch.testing.assert_close(found, expected, **CLOSE)
        assert eager.tokens.tolist() == fused.tokens.tolist()


class Meeting:
    """Adds up the parts of ranks that are threads of this process."""

    def __init__(self, n_ranks):
        self._barrier = threading.Barrier(n_ranks)
        self._parts = [None] * n_ranks

    def of(self, rank):
        def all_reduce(part):
            self._parts[rank] = part.clone()
            self._barrier.wait(20)
            part.copy_(sum(self._parts))
            self._barrier.wait(20)
            return part

        return all_reduce


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_ranks_together_give_the_logits_of_one(geometry, n_ranks):
    meeting = Meeting(n_ranks)
    found = {}

    def run(rank, shares, all_reduce):
        weights = random_weights(geometry, 1, "cpu", torch.float32, rank, shares)
        part = Decoder(geometry, weights, 4, 64, all_reduce)
        said = [part.prefill(0, prompt(6), 0)]
        said += [part.decode(torch.tensor([6 + step]))[0] for step in range(3)]
        found[rank, shares] = torch.cat([logits.reshape(1, -1) for logits in said])

    run(0, 1, lambda part: part)
    ranks = [
        threading.Thread(target=run, args=(rank, n_ranks, meeting.of(rank)))
        for rank in range(n_ranks)
    ]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    for rank in range(n_ranks):
        torch.testing.assert_close(found[rank, n_ranks], found[0, 1], **CLOSE)
