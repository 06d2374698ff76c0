"""Runs one step of a decoder, as its scheduler asked for it."""

from typing import Any

import torch

from realrun.model.decoder import Decoder
from realrun.model.prompts import prompt_tokens
from realrun.model.rows import StepInput


def positions_of(inputs: StepInput, idle: int, n_rows: int) -> Any:
    """Where the last token of each row belongs, ``idle`` for who does not decode, int64."""
    positions = torch.full((n_rows,), idle, dtype=torch.int64)
    for row, position in inputs.decode:
        positions[row] = position
    return positions


def prompts_of(inputs: StepInput, vocab: int) -> list[Any]:
    """Token ids of each prompt chunk, int64."""
    return [
        torch.from_numpy(prompt_tokens(c.request_id, c.start, c.n_tokens, vocab))
        for c in inputs.chunks
    ]


def run_eagerly(decoder: Decoder, inputs: StepInput, positions: Any, prompts: list[Any]) -> None:
    """Decode and prefill; the tokens are in `Decoder.tokens` then."""
    if inputs.decode:
        decoder.decode(positions)
    run_chunks(decoder, inputs, prompts)


def run_chunks(decoder: Decoder, inputs: StepInput, prompts: list[Any]) -> None:
    """Take in the prompt chunks."""
    for chunk, prompt in zip(inputs.chunks, prompts, strict=True):
        decoder.prefill(chunk.row, prompt, chunk.start)
