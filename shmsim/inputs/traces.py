"""Any trace of requests as a workload; the format by name, or by what stands in the file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shmsim.inputs.mooncake import mooncake_requests
from shmsim.inputs.rows import InputError, Loaded
from shmsim.inputs.vllm import read_bench, read_request_log
from shmsim.nearest import instead
from shmsim.units import S
from shmsim.workload import Request, Workload, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Formats by name, and what they are.
FORMATS: Final = {
    "azure": "CSV of the Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens",
    "mooncake": "JSONL of Mooncake: timestamp (ms), input_length, output_length; hash_ids or not",
    "vllm-requests": "JSONL of a vLLM request log: arrival_time, input_toks, output_toks, ...",
    "vllm-bench": "JSON of vllm bench serve --save-result --save-detailed",
}


def read_workload(
    path: Path,
    trace_format: str = "",
    *,
    start_ns: int = 0,
    duration_ns: int | None = None,
    speed: float = 1.0,
    max_requests: int | None = None,
) -> Loaded[Workload]:
    """Read a trace.

    Parameters
    ----------
    path
        The file.
    trace_format
        One of `FORMATS`; empty recognises it.
    start_ns, duration_ns, speed, max_requests
        As in `shmsim.workload.read_trace`. A closed loop, which a benchmark may have been, has no
        arrivals: of these only ``max_requests`` counts, and the others must be left alone.

    Returns
    -------
    Loaded
        The requests of the window; failed ones of a benchmark are left out and counted.

    Raises
    ------
    ValueError
        If the format is unknown or not recognised, a row is wrong, or the window is empty.
    """
    name = trace_format or recognise(path)
    if name not in FORMATS:
        raise InputError(f"unknown trace format {name!r}{instead(name, FORMATS)}")
    notes: tuple[str, ...] = ()
    skipped: dict[str, int] = {}
    if name == "azure":
        workload = read_trace(
            path,
            start_ns=start_ns,
            duration_ns=duration_ns,
            speed=speed,
            max_requests=max_requests,
        )
        return Loaded(workload, len(workload.requests))
    if name == "vllm-bench":
        bench = read_bench(path)
        workload, skipped = bench.value.workload(), bench.skipped
        if workload.concurrency:
            if start_ns or speed != 1.0:
                raise InputError(
                    f"{path} was a closed loop of {workload.concurrency} requests at once, which "
                    "has no arrivals: leave start and speed alone"
                )
            cut = workload._replace(requests=workload.requests[:max_requests])
            return Loaded(cut, bench.n_rows, skipped)
        requests: Iterable[Request] = workload.requests
    elif name == "mooncake":
        requests = mooncake_requests(path)
        notes = ("hash_ids are not used: the model has no prefix cache",)
    else:
        requests = (
            Request(r.arrival_ns, r.prompt_tokens, r.output_tokens)
            for r in read_request_log(path).value
        )
    chosen: list[Request] = []
    for request in requests:
        offset_ns = request.arrival_ns - start_ns
        if offset_ns < 0:
            continue
        if duration_ns is not None and offset_ns >= duration_ns:
            break
        chosen.append(request._replace(arrival_ns=round(offset_ns / speed)))
        if len(chosen) == max_requests:
            break
    if not chosen:
        raise InputError(
            f"{path}: no request in the window that starts {start_ns / S:g} s after the start"
            + ("" if duration_ns is None else f" and lasts {duration_ns / S:g} s")
        )
    failed = sum(skipped.values())
    return Loaded(Workload(tuple(chosen)), len(chosen) + failed, skipped, notes)


def recognise(path: Path) -> str:
    """Name of the format of a file.

    Raises
    ------
    InputError
        If it cannot be read or is of none that is known.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
            if first.strip() == "{":  # a JSON object over several lines
                first += file.read()
    except OSError as error:
        raise InputError(f"cannot read trace {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from None
    if "TIMESTAMP" in first and not first.startswith("{"):
        return "azure"
    try:
        found = json.loads(first)
    except ValueError:
        found = None
    if isinstance(found, dict):
        for name, key in (
            ("mooncake", "input_length"),
            ("vllm-requests", "arrival_time"),
            ("vllm-bench", "model_id"),
        ):
            if key in found:
                return name
    if not first.strip():
        raise InputError(
            f"{path} is empty, or its first line is; a trace has a request in each row"
        )
    known = "; ".join(f"{name} ({what})" for name, what in FORMATS.items())
    raise InputError(
        f"{path} is in no trace format that is known: {known}. It begins {first[:60]!r}"
    )
