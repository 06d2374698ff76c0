"""What vLLM's benchmarks leave behind: request logs and the JSON of ``vllm bench serve``."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmsim.inputs.rows import InputError, Loaded, Row, missing, read_json, read_jsonl
from shmsim.units import MS
from shmsim.workload import Request, Workload

_DETAILS: Final = ("input_lens", "output_lens", "ttfts", "itls")


class LoggedRequest(NamedTuple):
    """One request as an engine logged it, ns.

    Parameters
    ----------
    arrival_ns
        From the arrival of the first request, by the clock of the client.
    prompt_tokens, output_tokens
        At least 1 each.
    queued_ns, scheduled_ns, first_token_ns, last_token_ns
        By the clock of the engine, from when it queued the first request.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    queued_ns: int
    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int


def read_request_log(path: Path) -> Loaded[tuple[LoggedRequest, ...]]:
    """Read a log with one JSON object per request.

    The fields are those of the logs that LLMServingSim publishes of its vLLM runs:
    ``input_toks``, ``output_toks``, ``arrival_time`` (s since 1970), ``queued_ts``,
    ``scheduled_ts``, ``first_token_ts``, ``last_token_ts`` (s, monotonic).

    Raises
    ------
    InputError
        If a row is wrong, requests are not in order of arrival, or the instants of one are not in
        order.
    """
    logged: list[LoggedRequest] = []
    arrived_ns = queued_ns = 0
    stages = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    for row in read_jsonl(path):
        arrival_ns = row.instant_ns("arrival_time")
        instants = [row.instant_ns(stage) for stage in stages]
        if not logged:
            arrived_ns, queued_ns = arrival_ns, instants[0]
        elif arrival_ns - arrived_ns < logged[-1].arrival_ns:
            raise row.error("arrival_time", "must not be earlier than that of the row before")
        for i in range(1, len(stages)):
            if instants[i] < instants[i - 1]:
                raise row.error(stages[i], f"must not be earlier than {stages[i - 1]}")
        logged.append(
            LoggedRequest(
                arrival_ns - arrived_ns,
                row.whole("input_toks", 1),
                row.whole("output_toks", 1),
                *(instant - queued_ns for instant in instants),
            )
        )
    return Loaded(tuple(logged), len(logged))


class BenchResult(NamedTuple):
    """The outcome of one ``vllm bench serve``.

    Parameters
    ----------
    model
        ``model_id`` of the file.
    duration_ns
        Of the benchmark.
    completed
        Requests that succeeded.
    request_rate_per_s
        Asked for; infinity sends everything at once.
    max_concurrency
        Requests in the engine at once; 0 is no limit.
    summary_ns
        Statistics such as ``"median_tpot"`` and ``"p99_itl"``.
    requests
        Of each request that succeeded, in order of its start; empty without ``--save-detailed``.
    """

    model: str
    duration_ns: int
    completed: int
    request_rate_per_s: float
    max_concurrency: int
    summary_ns: dict[str, float]
    requests: "tuple[BenchRequest, ...]"

    def workload(self) -> Workload:
        """The same requests, to be sent again.

        Raises
        ------
        InputError
            If the file says too little.
        """
        if not self.requests:
            raise InputError(
                "the benchmark kept no requests; run vllm bench serve with --save-detailed"
            )
        if self.max_concurrency and self.request_rate_per_s == float("inf"):
            requests = (Request(0, r.prompt_tokens, r.output_tokens) for r in self.requests)
            return Workload(tuple(requests), self.max_concurrency)
        if self.requests[0].started_ns is None:
            raise InputError(
                "the benchmark kept no start_times and was no closed loop, so it does not tell "
                "when requests arrived; run it with a newer vLLM, or with --max-concurrency alone"
            )
        return Workload(
            tuple(
                Request(r.started_ns or 0, r.prompt_tokens, r.output_tokens) for r in self.requests
            )
        )


class BenchRequest(NamedTuple):
    """One request of a benchmark.

    Parameters
    ----------
    started_ns
        From the first one's start; None if the file does not tell.
    prompt_tokens, output_tokens
        At least 1 each.
    token_ns
        When each chunk of the answer came, from the start of the request.
    """

    started_ns: int | None
    prompt_tokens: int
    output_tokens: int
    token_ns: tuple[int, ...]


def read_bench(path: Path) -> Loaded[BenchResult]:
    """Read the JSON that ``vllm bench serve --save-result`` writes.

    Requests that failed are left out, and counted.

    Raises
    ------
    InputError
        If the file is of another kind, a value is wrong, or its lists do not fit together.
    """
    row = read_json(path)
    for key in ("model_id", "duration", "completed"):
        row.value(key)
    summary_ns = {
        key.removesuffix("_ms"): MS * row.number(key)
        for key in row.columns
        if key.endswith("_ms") and key.split("_")[-2] in ("ttft", "tpot", "itl", "e2el")
    }
    rate = row.value("request_rate") if "request_rate" in row else "inf"
    requests, skipped, n_rows = _requests(row)
    completed = row.whole("completed")
    if requests and len(requests) != completed:
        raise row.error("completed", f"must be {len(requests)}, the requests without an error")
    result = BenchResult(
        row.text("model_id"),
        row.instant_ns("duration"),
        completed,
        float("inf") if rate == "inf" else row.number("request_rate", 1e-9),
        row.whole("max_concurrency", 1) if "max_concurrency" in row else 0,
        summary_ns,
        requests,
    )
    notes = () if requests else ("no single requests: the benchmark ran without --save-detailed",)
    return Loaded(result, n_rows, skipped, notes)


def _requests(row: Row) -> tuple[tuple[BenchRequest, ...], dict[str, int], int]:
    """Requests that succeeded in order of their start, the others by reason, and how many."""
    there = [key for key in _DETAILS if key in row]
    if not there:
        return (), {}, 0
    if len(there) != len(_DETAILS):
        absent = [key for key in _DETAILS if key not in there]
        raise InputError(f"{row.where}: {missing(absent, row.columns)}")
    columns = [_list(row, key) for key in _DETAILS]
    n = len(columns[0])
    starts = _list(row, "start_times") if "start_times" in row else [None] * n
    errors = _list(row, "errors") if "errors" in row else [""] * n
    for key, column in zip([*_DETAILS, "start_times", "errors"], [*columns, starts, errors],
                           strict=True):  # fmt: skip
        if len(column) != n:
            raise InputError(
                f"{row.where}: {key} must hold {n} values as {_DETAILS[0]} does, got {len(column)}"
            )
    skipped: dict[str, int] = {}
    requests: list[BenchRequest] = []
    for i, (prompt, output, ttft, itls, start, error) in enumerate(
        zip(*columns, starts, errors, strict=True)
    ):
        cells = {"input_lens": prompt, "output_lens": output, "ttfts": ttft, "start_times": start}
        one = Row(f"{row.where}, request {i}", cells)
        if error or one.whole("output_lens") == 0:
            skipped["the request failed"] = skipped.get("the request failed", 0) + 1
            continue
        if not isinstance(itls, list):
            raise InputError(f"{one.where}: itls must be a list of times in s, got {itls!r}")
        gaps_ns = [Row(one.where, {"itls": gap}).instant_ns("itls") for gap in itls]
        requests.append(
            BenchRequest(
                None if start is None else one.instant_ns("start_times"),
                one.whole("input_lens", 1),
                one.whole("output_lens", 1),
                tuple(accumulate([one.instant_ns("ttfts"), *gaps_ns])),
            )
        )
    return _from_first(requests), skipped, n


def _from_first(requests: list[BenchRequest]) -> tuple[BenchRequest, ...]:
    """In order of their start, which is counted from the first; unchanged if it is not known."""
    starts = [r.started_ns for r in requests if r.started_ns is not None]
    if len(starts) != len(requests):
        return tuple(requests)
    first_ns = min(starts, default=0)
    shifted = [r._replace(started_ns=s - first_ns) for r, s in zip(requests, starts, strict=True)]
    return tuple(sorted(shifted, key=lambda r: r.started_ns or 0))


def _list(row: Row, key: str) -> Sequence[Any]:
    value = row.value(key)
    if not isinstance(value, list):
        raise row.error(key, "must be a list")
    return value
