"""Continuous batching: which tokens the next step works on. Pure, so both worlds run this code."""

from collections import deque
from typing import NamedTuple

from shmsim.records import RequestRow
from shmsim.workload import Workload


class Chunk(NamedTuple):
    """Prompt tokens of one request within a step."""

    request: int
    n_tokens: int
    is_last: bool


class Batch(NamedTuple):
    """The work of one step.

    Parameters
    ----------
    step
        Running number from 0.
    decode
        Requests that get their next token.
    prefill
        Prompt chunks; the request of a last chunk gets its first token.
    n_kv_tokens
        Tokens of context of the decoding requests.
    pending
        Whether work is left after this step, as far as the scheduler knows when it schedules.
    """

    step: int
    decode: tuple[int, ...]
    prefill: tuple[Chunk, ...]
    n_kv_tokens: int
    pending: bool

    @property
    def n_sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.decode) + len(self.prefill)

    @property
    def n_prefill_tokens(self) -> int:
        """Prompt tokens in the batch."""
        return sum([chunk.n_tokens for chunk in self.prefill]) if self.prefill else 0

    @property
    def token_for(self) -> tuple[int, ...]:
        """Requests that get a token from this step."""
        return self.decode + tuple(chunk.request for chunk in self.prefill if chunk.is_last)


class _Progress:
    """Where one request stands."""

    __slots__ = ("n_output", "n_prompt", "n_scheduled", "prompt_left", "token_ns")

    def __init__(self, n_prompt: int, n_output: int) -> None:
        self.n_prompt = n_prompt
        self.n_output = n_output
        self.prompt_left = n_prompt
        self.n_scheduled = 0
        self.token_ns: list[int] = []


class Batcher:
    """Waiting and running requests, first come first served, without preemption.

    Tokens count as scheduled when a batch is formed, not when its reply comes: with asynchronous
    scheduling the next batch is formed in between.

    Parameters
    ----------
    workload
        The requests.
    max_sequences
        Most sequences in a batch.
    max_batched_tokens
        Most tokens in a batch, prompt chunks and decode tokens together.
    """

    def __init__(self, workload: Workload, max_sequences: int, max_batched_tokens: int) -> None:
        """Start before the first arrival."""
        self._workload = workload
        self._max_sequences = max_sequences
        self._max_batched_tokens = max_batched_tokens
        self._progress = [_Progress(r.prompt_tokens, r.output_tokens) for r in workload.requests]
        self._arrival_ns = [r.arrival_ns for r in workload.requests]
        self._n_admitted = 0
        self._n_finished = 0
        self._after_idle: list[bool] = []
        self._last_completed_ns = -1
        self._step = 0
        self._waiting: deque[int] = deque()
        self._running: list[int] = []
        if workload.concurrency:
            for _ in range(min(workload.concurrency, len(workload.requests))):
                self._admit_next(0)

    def admit(self, now_ns: int) -> None:
        """Let in every request that has arrived by now."""
        if self._workload.concurrency:
            return
        requests = self._workload.requests
        while self._n_admitted < len(requests):
            arrival_ns = requests[self._n_admitted].arrival_ns
            if arrival_ns > now_ns:
                return
            self._admit_next(arrival_ns)

    def _admit_next(self, arrival_ns: int) -> None:
        was_idle = self._n_finished == self._n_admitted and arrival_ns > self._last_completed_ns
        self._after_idle.append(was_idle)
        self._arrival_ns[self._n_admitted] = arrival_ns
        self._waiting.append(self._n_admitted)
        self._n_admitted += 1

    @property
    def has_work(self) -> bool:
        """Whether a batch can be formed now."""
        return bool(self._waiting or self._running)

    @property
    def is_finished(self) -> bool:
        """Whether every request has all of its tokens."""
        return self._n_finished == len(self._progress)

    @property
    def next_arrival_ns(self) -> int | None:
        """When the next request arrives; None if all are in, or another's end lets it in."""
        if self._workload.concurrency or self._n_admitted == len(self._progress):
            return None
        return self._workload.requests[self._n_admitted].arrival_ns

    def schedule(self) -> Batch:
        """Form the next batch: a token for whoever decodes, then prompt chunks.

        Raises
        ------
        RuntimeError
            If there is no work; ask `has_work` first.
        """
        if not self.has_work:
            raise RuntimeError("nothing to schedule: no request is waiting or running")
        budget = self._max_batched_tokens
        decode: list[int] = []
        chunks: list[Chunk] = []
        still_running: list[int] = []
        n_kv_tokens = 0
        for request in self._running:
            progress = self._progress[request]
            if progress.prompt_left:
                n_tokens = min(budget, progress.prompt_left)
                if n_tokens:
                    budget -= n_tokens
                    self._prefill(request, n_tokens, chunks)
            elif budget:
                budget -= 1
                n_kv_tokens += progress.n_prompt + progress.n_scheduled
                progress.n_scheduled += 1
                decode.append(request)
            if progress.n_scheduled < progress.n_output:
                still_running.append(request)
        n_in_batch = len(decode) + len(chunks)
        while self._waiting and budget and n_in_batch < self._max_sequences:
            request = self._waiting.popleft()
            progress = self._progress[request]
            n_tokens = min(budget, progress.prompt_left)
            budget -= n_tokens
            n_in_batch += 1
            self._prefill(request, n_tokens, chunks)
            if progress.n_scheduled < progress.n_output:
                still_running.append(request)
        self._running = still_running
        step, self._step = self._step, self._step + 1
        return Batch(step, tuple(decode), tuple(chunks), n_kv_tokens, self.has_work)

    def _prefill(self, request: int, n_tokens: int, chunks: list[Chunk]) -> None:
        progress = self._progress[request]
        progress.prompt_left -= n_tokens
        is_last = progress.prompt_left == 0
        progress.n_scheduled += is_last
        chunks.append(Chunk(request, n_tokens, is_last))

    def complete(self, batch: Batch, now_ns: int) -> None:
        """Note the tokens of a batch whose reply was seen; in a closed loop, let others in."""
        self._last_completed_ns = now_ns
        for request in batch.token_for:
            progress = self._progress[request]
            progress.token_ns.append(now_ns)
            if len(progress.token_ns) == progress.n_output:
                self._n_finished += 1
                if self._workload.concurrency and self._n_admitted < len(self._progress):
                    self._admit_next(now_ns)

    def request_rows(self) -> list[RequestRow]:
        """What became of each request; complete once `is_finished`."""
        return [
            RequestRow(
                request,
                self._arrival_ns[request],
                self._after_idle[request],
                progress.n_prompt,
                progress.n_output,
                progress.token_ns,
            )
            for request, progress in enumerate(self._progress)
        ]
