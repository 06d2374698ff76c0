"""Graph, eager and CPU paths compute the same logits."""

import pytest

from realrun.model.geometry import TINY
from realrun.model.prompts import prompt_tokens
from tests.gpu.conftest import MAX_LEN, N_ROWS

torch = pytest.importorskip("torch", reason="the decoder needs torch")

from realrun.cuda.graphs import DecodeGraphs, buckets_up_to  # noqa: E402 - it needs torch
from realrun.model.decoder import Decoder  # noqa: E402
from realrun.model.weights import LayerWeights, Weights, random_weights  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.quick, pytest.mark.timeout(300)]

#: float32 on both sides; kernels add up in another order.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
#: bf16 has 8 bits: eager and graph run the same kernels, so they differ by less than their step.
BF16 = {"rtol": 1e-2, "atol": 1e-2}


def moved(weights: Weights, device, dtype) -> Weights:
    """The same weights elsewhere."""
    layers = tuple(LayerWeights(*(t.to(device, dtype) for t in w)) for w in weights.layers)
    embedding = weights.embedding.to(device, dtype)
    is_tied = weights.head is weights.embedding
    head = embedding if is_tied else weights.head.to(device, dtype)
    last = weights.last_norm.to(device, dtype)
    return weights._replace(embedding=embedding, layers=layers, last_norm=last, head=head)


def decoder(device, dtype=torch.float32, **kernels) -> Decoder:
    weights = moved(random_weights(TINY, 1, "cpu", torch.float32), device, dtype)
    return Decoder(TINY, weights, N_ROWS, MAX_LEN, **kernels)


def fill(decoder, device):
    """A prompt in each of the first three rows."""
    for row, n in enumerate((5, 9, 2)):
        prompt = torch.from_numpy(prompt_tokens(f"request-{row}", 0, n, TINY.vocab)).to(device)
        decoder.prefill(row, prompt, 0)


def test_prompts_and_steps_on_the_gpu_give_the_logits_of_the_cpu():
    cpu, gpu = decoder("cpu"), decoder("cuda")
    fill(cpu, "cpu")
    fill(gpu, "cuda")
    for step in range(8):
        positions = torch.tensor([5 + step, 9 + step, 2 + step])
        expected = cpu.decode(positions)
        found = gpu.decode(positions.cuda())
        torch.testing.assert_close(found.cpu(), expected, **CLOSE)
        gpu.tokens.copy_(cpu.tokens)  # a tie between two tokens is no difference of paths


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bucket", buckets_up_to(N_ROWS))
def test_a_graph_gives_the_logits_of_the_eager_step(bucket, dtype):
    compare(bucket, dtype, "eager")


def compare(bucket, dtype, kernels):
    """Logits of a graph, of whatever kernels, and of the eager step without one."""
    eager, graphed = decoder("cuda", dtype), decoder("cuda", dtype, kernels=kernels)
    positions = torch.zeros(N_ROWS, dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graphs = DecodeGraphs(graphed, positions)
    stream.synchronize()
    fill(eager, "cuda")
    fill(graphed, "cuda")
    starts = [5, 9, 2, eager.idle, eager.idle, eager.idle]
    for step in range(6):
        at = torch.tensor([s if s == eager.idle else s + step for s in starts])
        expected = eager.decode(at[:bucket].cuda())
        positions.copy_(at)
        torch.cuda.synchronize()
        graphs.replay(bucket)
        torch.cuda.synchronize()
        n = min(bucket, 3)
        close = BF16 if dtype == torch.bfloat16 else CLOSE
        torch.testing.assert_close(graphs.logits[bucket][:n], expected[:n], **close)
        graphed.tokens.copy_(eager.tokens)


def test_capturing_leaves_no_trace_in_cache_and_tokens():
    plain, graphed = decoder("cuda"), decoder("cuda")
    stream = torch.cuda.Stream()
    fill(plain, "cuda")
    fill(graphed, "cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        DecodeGraphs(graphed, torch.zeros(N_ROWS, dtype=torch.int64, device="cuda"))
    stream.synchronize()
    assert plain.tokens.tolist() == graphed.tokens.tolist()
    at = torch.tensor([5, 9, 2], device="cuda")
    torch.testing.assert_close(graphed.decode(at), plain.decode(at), **CLOSE)


def test_a_bucket_is_the_smallest_that_holds_the_rows():
    assert buckets_up_to(6) == [1, 2, 4, 6]
    assert buckets_up_to(8) == [1, 2, 4, 8]
    assert buckets_up_to(1) == [1]
