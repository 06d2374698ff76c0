"""Which request is in which row of the static KV cache.

The scheduler says what to compute and not who has finished; but it never leaves out a sequence that
runs (`shmsim.batching`, while a batch has room for a token of each), so who is absent from a batch
has ended and its row is free.
"""

from typing import NamedTuple

from shmsim.message import CallOne


class ChunkInput(NamedTuple):
    """Prompt tokens of one sequence: ``n_tokens`` of them, from position ``start`` on."""

    row: int
    request_id: str
    start: int
    n_tokens: int


class StepInput(NamedTuple):
    """One batch in terms of rows.

    Parameters
    ----------
    rows
        Row of each sequence, in the order of the call: decoding ones first.
    decode
        ``(row, position)`` of each decoding sequence, where its last token belongs.
    chunks
        Prompt chunks.
    """

    rows: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]
    chunks: tuple[ChunkInput, ...]

    @property
    def n_rows(self) -> int:
        """How many rows, from the first on, hold all decoding sequences."""
        return 1 + max((row for row, _ in self.decode), default=-1)


class Rows:
    """Rows of the cache and who is in them.

    Parameters
    ----------
    n_rows
        As many sequences as can run at once.
    max_len
        Most tokens of context of one sequence.
    """

    def __init__(self, n_rows: int, max_len: int) -> None:
        """All rows are free."""
        self._n_rows = n_rows
        self._max_len = max_len
        self.clear()

    def clear(self) -> None:
        """Free all rows."""
        self._row_of: dict[str, int] = {}
        self._length: dict[str, int] = {}

    def place(self, call: CallOne) -> StepInput:
        """Give every sequence of a batch its row, the lowest one that is free.

        Raises
        ------
        RuntimeError
            If a sequence that decodes has no row, there is no row left, or a context is too long.
        """
        present = set(call.request_ids)
        for request_id in [r for r in self._row_of if r not in present]:
            del self._row_of[request_id], self._length[request_id]
        free = sorted(set(range(self._n_rows)) - set(self._row_of.values()), reverse=True)
        decode: list[tuple[int, int]] = []
        chunks: list[ChunkInput] = []
        for index, request_id in enumerate(call.request_ids):
            n_tokens = call.num_scheduled_tokens[index]
            is_decoding = index < call.n_decode
            if request_id not in self._row_of:
                if is_decoding or not free:
                    raise RuntimeError(
                        f"step {call.step}: {request_id} "
                        + ("decodes but has no KV cache here" if is_decoding else "has no row")
                        + f"; {self._n_rows} rows, one for each of engine.max_sequences"
                    )
                self._row_of[request_id] = free.pop()
                self._length[request_id] = 0
            row, start = self._row_of[request_id], self._length[request_id]
            self._length[request_id] = end = start + n_tokens
            if end > self._max_len:
                raise RuntimeError(
                    f"step {call.step}: {request_id} has {end} tokens of context and the cache "
                    f"holds {self._max_len}; raise device.max_len, or shorten the requests"
                )
            if is_decoding:
                decode.append((row, start))
            else:
                chunks.append(ChunkInput(row, request_id, start, n_tokens))
        rows = tuple(self._row_of[request_id] for request_id in call.request_ids)
        return StepInput(rows, tuple(decode), tuple(chunks))
