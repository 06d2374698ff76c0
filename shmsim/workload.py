"""Requests: how long they are and when they arrive.

The statistics behind `AZURE_CONVERSATION` are those of the Azure LLM inference trace 2023,
conversation part (CC-BY-4.0): 5.53 requests/s, almost Poisson within a minute, prompt tokens
p50/p95 1020/4083, output tokens 129/451.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from shmsim.tape import Tape
from shmsim.units import S

_TRACE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_Z95: Final = 1.6448536269514722  # standard normal 95th percentile


class Request(NamedTuple):
    """One request.

    Parameters
    ----------
    arrival_ns
        When it arrives, from the start of the run; 0 in a closed loop, where the end of another
        request decides.
    prompt_tokens, output_tokens
        At least 1 each.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int


class Workload(NamedTuple):
    """Requests in order of arrival.

    Parameters
    ----------
    requests
        In order of arrival.
    concurrency
        In a closed loop, how many requests are in the engine at once; 0 for an open loop.
    """

    requests: tuple[Request, ...]
    concurrency: int = 0

    @property
    def n_output_tokens(self) -> int:
        """Tokens the engine has to generate."""
        return sum(request.output_tokens for request in self.requests)


class Lengths(NamedTuple):
    """A log-normal law of token counts, given by two quantiles; equal ones mean a constant.

    Parameters
    ----------
    p50, p95
        Median and 95th percentile, tokens.
    longest
        Where the law is cut.
    """

    p50: int
    p95: int
    longest: int

    def draw(self, n: int, rng: np.random.Generator) -> list[int]:
        """Draw ``n`` lengths, each within 1 and ``longest``."""
        sigma = np.log(self.p95 / self.p50) / _Z95
        lengths = np.exp(np.log(self.p50) + sigma * rng.standard_normal(n))
        return [int(x) for x in np.clip(np.rint(lengths), 1, self.longest)]


AZURE_CONVERSATION_PROMPT: Final = Lengths(1020, 4083, 8192)
AZURE_CONVERSATION_OUTPUT: Final = Lengths(129, 451, 1024)


def closed_loop(
    n_requests: int, concurrency: int, prompt: Lengths, output: Lengths, tape: Tape
) -> Workload:
    """Requests of which a fixed number is in the engine at any time."""
    lengths = zip(*_lengths(n_requests, prompt, output, tape), strict=True)
    return Workload(tuple(Request(0, p, o) for p, o in lengths), concurrency)


def open_loop(
    n_requests: int,
    rate_per_s: float,
    burstiness: float,
    prompt: Lengths,
    output: Lengths,
    tape: Tape,
) -> Workload:
    """Requests that arrive by themselves.

    Parameters
    ----------
    n_requests, rate_per_s
        How many, and how many per second on average.
    burstiness
        Shape of the Gamma law of the gaps, as in vLLM's benchmark: 1 is Poisson, less is burstier.
    prompt, output
        Laws of the token counts.
    tape
        Where the numbers come from.
    """
    rng = tape.generator("workload", "arrivals")
    gaps_s = rng.gamma(burstiness, 1.0 / (burstiness * rate_per_s), n_requests)
    arrivals_ns = np.rint(np.cumsum(gaps_s) * S).astype(np.int64)
    prompts, outputs = _lengths(n_requests, prompt, output, tape)
    return Workload(
        tuple(Request(int(t), p, o) for t, p, o in zip(arrivals_ns, prompts, outputs, strict=True))
    )


def _lengths(n: int, prompt: Lengths, output: Lengths, tape: Tape) -> tuple[list[int], list[int]]:
    return (
        prompt.draw(n, tape.generator("workload", "prompt tokens")),
        output.draw(n, tape.generator("workload", "output tokens")),
    )


def read_trace(
    path: Path,
    *,
    start_ns: int = 0,
    duration_ns: int | None = None,
    speed: float = 1.0,
    max_requests: int | None = None,
) -> Workload:
    """Read a trace in the format of the Azure LLM inference traces.

    Parameters
    ----------
    path
        CSV with columns ``TIMESTAMP`` (date and time), ``ContextTokens``, ``GeneratedTokens``.
    start_ns, duration_ns
        The window of the trace to use, from its first row; None is up to the end.
    speed
        2.0 makes requests arrive twice as fast. Applied after the window is cut.
    max_requests
        Stop after that many.

    Raises
    ------
    ValueError
        If the file cannot be read, a column is missing, a time is unreadable or earlier than the
        row before, a token count is not a whole number of at least 1, or the window is empty.
        Names the line.
    """
    requests: list[Request] = []
    first_ns: int | None = None
    for now_ns, prompt, output in _trace_rows(path):
        first_ns = now_ns if first_ns is None else first_ns
        offset_ns = now_ns - first_ns - start_ns
        if offset_ns < 0:
            continue
        if duration_ns is not None and offset_ns >= duration_ns:
            break
        requests.append(Request(round(offset_ns / speed), prompt, output))
        if max_requests is not None and len(requests) == max_requests:
            break
    if first_ns is None:
        raise ValueError(f"{path} has a header and no row below it; a row is a request")
    if not requests:
        raise ValueError(
            f"{path}: no request in the window that starts {start_ns / S:g} s after the first row"
            + ("" if duration_ns is None else f" and lasts {duration_ns / S:g} s")
        )
    return Workload(tuple(requests))


def _trace_rows(path: Path) -> Iterator[tuple[int, int, int]]:
    """Time, prompt tokens and output tokens of each row, checked."""
    previous_ns = None
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            found = reader.fieldnames or ()
            missing = [name for name in _TRACE_COLUMNS if name not in found]
            if missing:
                raise ValueError(
                    f"{path}: column {', '.join(missing)} is missing; a trace has the columns "
                    f"{', '.join(_TRACE_COLUMNS)}, this file has {', '.join(found) or 'none'}"
                )
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                now_ns = _timestamp_ns(row["TIMESTAMP"], where)
                if previous_ns is not None and now_ns < previous_ns:
                    raise ValueError(
                        f"{where}: TIMESTAMP {row['TIMESTAMP']} is earlier than the row before; "
                        "sort the trace by time"
                    )
                previous_ns = now_ns
                prompt = _tokens(row, "ContextTokens", where)
                yield now_ns, prompt, _tokens(row, "GeneratedTokens", where)
    except OSError as error:
        raise ValueError(f"cannot read trace {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None


def _timestamp_ns(text: str | None, where: str) -> int:
    # The 2024 traces write the offset of UTC behind the time, the 2023 ones do not.
    try:
        instant = np.datetime64((text or "").strip().removesuffix("+00:00"), "ns")
        if not np.isnat(instant):
            return int(instant.astype(np.int64))
    except ValueError:
        pass
    raise ValueError(
        f"{where}: TIMESTAMP {text!r} is no date and time as in '2023-11-16 18:15:46.6805900'"
    )


def _tokens(row: dict[str, str], column: str, where: str) -> int:
    text = row[column] or ""
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"{where}: {column} must be a whole number of at least 1, got {text!r}")
    return int(text)
