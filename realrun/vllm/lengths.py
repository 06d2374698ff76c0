"""How long the prompts and outputs were, as far as the steps of a trace show it.

Rows do not name requests, but how many sequences decode and how many prompt tokens a step takes
says when one comes and when one goes. Who goes is taken to be who came first: that leaves the mean
as it is, and the spread where outputs are alike.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    """What one step was about, as the scheduler sent it.

    Parameters
    ----------
    number
        Of the step; one that does not follow the one before ends what is known.
    n_decode, n_prefill_tokens, n_kv_tokens
        As in `realrun.vllm.calls.Call`.
    """

    number: int
    n_decode: int
    n_prefill_tokens: int
    n_kv_tokens: int


class Lengths(NamedTuple):
    """Token counts of the requests that were seen.

    Parameters
    ----------
    prompts, outputs
        Each ascending, at least 1. What begins before the trace has as its prompt what was there
        already, and what it cuts off the output that it shows.
    """

    prompts: list[int]
    outputs: list[int]

    def quantiles(self) -> dict[str, int]:
        """Medians and 95th percentiles by the name that a config has for them."""
        return {
            f"{name}_p{share}": round(float(np.percentile(values, share)))
            for name, values in (("prompt", self.prompts), ("output", self.outputs))
            for share in (50, 95)
        }


def read_lengths(steps: Sequence[Step]) -> Lengths:
    """Read them off steps in their order.

    Parameters
    ----------
    steps
        At least one that decodes.
    """
    prompts: list[int] = []
    outputs: list[int] = []
    for run in _runs(steps):
        _read_run(run, prompts, outputs)
    return Lengths(sorted(max(n, 1) for n in prompts), sorted(outputs))


def _runs(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Steps without a gap."""
    run: list[Step] = []
    for step in steps:
        if run and step.number != run[-1].number + 1:
            yield run
            run = []
        run.append(step)
    if run:
        yield run


def _read_run(run: list[Step], prompts: list[int], outputs: list[int]) -> None:
    first = run[0]
    #: The step that brought the first token of each sequence that decodes.
    began = deque([first.number] * first.n_decode)
    if first.n_decode:
        prompts += [first.n_kv_tokens // first.n_decode] * first.n_decode
    prompt_tokens = 0
    for before, now in pairwise(run):
        prompt_tokens += before.n_prefill_tokens
        came = _came(before, now) if prompt_tokens else 0
        if came:
            prompts += [prompt_tokens // came] * came
            began.extend([before.number] * came)
            prompt_tokens = 0
        while len(began) > now.n_decode:
            outputs.append(before.number - began.popleft() + 1)
        unseen = now.n_decode - len(
            began
        )  # came with a prompt of one token, which looks like decode
        prompts += [1] * unseen
        began.extend([now.number] * unseen)
    outputs += [run[-1].number - number + 1 for number in began]


def _came(before: Step, now: Step) -> int:
    """How many have their whole prompt behind them after a step that took prompt tokens."""
    more = now.n_decode - before.n_decode
    if more > 0 or not before.n_prefill_tokens:
        return max(more, 0)
    # As many decode as before, or fewer: one came as others left, or a prompt is not done yet.
    taken = before.n_decode + before.n_prefill_tokens
    somebody_left = before.n_kv_tokens + taken > now.n_kv_tokens
    return int(somebody_left)
