"""Traces in the format of Mooncake (kvcache-ai/Mooncake, FAST 2025): a JSON object per request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shmsim.inputs.rows import Row, read_jsonl
from shmsim.units import MS
from shmsim.workload import Request

BLOCK_TOKENS: Final = 512  # of a block that a hash id stands for


def mooncake_requests(path: Path) -> Iterator[Request]:
    """Requests of a trace, in order of arrival.

    ``timestamp`` is in ms from the start of the trace, ``hash_ids`` one number for each block of
    512 prompt tokens; equal numbers are equal prefixes. The model has no prefix cache, so they are
    checked and not used, and may be absent.

    Raises
    ------
    InputError
        If a row is wrong, or requests are not in order of arrival.
    """
    previous_ns = 0
    for row in read_jsonl(path):
        arrival_ns = row.instant_ns("timestamp", MS)
        if arrival_ns < previous_ns:
            raise row.error("timestamp", "must not be earlier than that of the row before")
        previous_ns = arrival_ns
        prompt, output = row.whole("input_length", 1), row.whole("output_length", 1)
        _check_blocks(row, prompt)
        yield Request(arrival_ns, prompt, output)


def _check_blocks(row: Row, prompt_tokens: int) -> None:
    if "hash_ids" not in row:  # a log of one's own, which knows no prefixes
        return
    ids = row.value("hash_ids")
    n_blocks = -(-prompt_tokens // BLOCK_TOKENS)
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise row.error("hash_ids", "must be a list of whole numbers of at least 0")
    if len(ids) != n_blocks:
        raise row.error(
            "hash_ids", f"must hold {n_blocks} ids, one for each {BLOCK_TOKENS} tokens of "
            f"input_length {prompt_tokens}, holds {len(ids)}"
        )  # fmt: skip
