"""What scheduler and workers say to each other, and its bytes.

Both worlds use this code: the machine sends the bytes, the model needs their number. A message is
pickled because that is what the engines under study do, and only ever read by the processes of the
run that wrote it, in a way that can call nothing; no file is.
"""

import io
import pickle
from typing import Any, NamedTuple

from shmsim.batching import Batch


class CallOne(NamedTuple):
    """First call of a step, ``execute_model``: the batch in the terms of vLLM's scheduler output.

    Parameters
    ----------
    step
        Running number of the step.
    request_ids
        Of every sequence in the batch, as strings.
    num_scheduled_tokens
        Tokens of each in this step.
    n_decode, n_prefill_tokens, n_kv_tokens
        Sums that policies and devices are told.
    """

    step: int
    request_ids: tuple[str, ...]
    num_scheduled_tokens: tuple[int, ...]
    n_decode: int
    n_prefill_tokens: int
    n_kv_tokens: int


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse: a message is tuples, lists, numbers and strings, and calls nothing."""
        raise pickle.UnpicklingError(f"a message of the loop may not ask for {module}.{name}")


def _load(payload: bytes) -> Any:
    return _PlainUnpickler(io.BytesIO(payload)).load()


def encode_request(batch: Batch) -> bytes:
    """First call of a step."""
    ids = batch.decode + tuple(chunk.request for chunk in batch.prefill)
    tokens = (1,) * len(batch.decode) + tuple(chunk.n_tokens for chunk in batch.prefill)
    content = CallOne(
        batch.step,
        tuple([f"request-{i}" for i in ids]),
        tokens,
        len(batch.decode),
        batch.n_prefill_tokens,
        batch.n_kv_tokens,
    )
    return pickle.dumps(tuple(content), protocol=5)


def decode_request(payload: bytes) -> CallOne:
    """Read the first call of a step."""
    return CallOne(*_load(payload))


def largest_bytes(max_sequences: int) -> int:
    """Room for every message of an engine whose batches have at most so many sequences."""
    return 1024 + 64 * max_sequences


def encode_second_call(step: int) -> bytes:
    """Second call, ``sample_tokens``; also the reply to the first, which carries no result."""
    return pickle.dumps((step,), protocol=5)


def decode_second_call(payload: bytes) -> int:
    """Read the second call, or the reply to the first."""
    step: int = _load(payload)[0]
    return step


def encode_reply(call: CallOne, tokens: list[list[int]] | None = None) -> bytes:
    """Sampled tokens of a step: one for every sequence of the batch.

    Where nobody computes any, which tokens they are plays no part; their number and size do.
    """
    tokens = tokens or [[call.step]] * len(call.request_ids)
    content = (call.step, list(call.request_ids), tokens)
    return pickle.dumps(content, protocol=5)


def decode_reply(payload: bytes) -> tuple[int, list[str], list[list[int]]]:
    """Read the tokens of a step."""
    content: tuple[int, list[str], list[list[int]]] = _load(payload)
    return content


def decode_batch(n_sequences: int) -> Batch:
    """A batch that decodes that many sequences, for measuring and sizing messages."""
    return Batch(1000, tuple(range(n_sequences)), (), 1000 * n_sequences, True)
