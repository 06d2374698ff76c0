"""Reads what the processes of an engine left (`realrun.vllm.trace`)."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from realrun.vllm.trace import (
    FORMAT,
    HEADER_BYTES,
    ROW,
    SAMPLE,
    SEND,
    SUFFIX,
    VERSION,
    WAIT,
    Row,
)
from shmsim.wait import WORKER_RECV, WORKER_SLOT

_DTYPE: Final = np.dtype([(name, "<i8") for name in Row._fields])
Rows = NDArray[Any]  # structured, a field for each of `Row`


class ProcessTrace(NamedTuple):
    """What one process left.

    Parameters
    ----------
    about
        The header of its file.
    rows
        In the order of time.
    """

    about: dict[str, Any]
    rows: Rows

    @property
    def is_worker(self) -> bool:
        """Whether it is a worker, by the queues it used."""
        return bool(np.isin(self.rows["site"], (WORKER_RECV, WORKER_SLOT)).any())

    @property
    def name(self) -> str:
        """As in the records of a run."""
        if not self.is_worker:
            return "scheduler"
        of_worker = self.rows[np.isin(self.rows["site"], (WORKER_RECV, WORKER_SLOT))]
        return f"worker{of_worker['rank'][0]}"


def read_header(path: Path) -> dict[str, Any]:
    """Read what the file of a process says about it.

    Raises
    ------
    ValueError
        If it is no trace, or one of another version.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    try:
        about: dict[str, Any] = json.loads(head.rstrip(b"\0"))
        known = about["format"], about["version"], tuple(about["fields"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no trace of a vLLM process") from None
    if known != (FORMAT, VERSION, Row._fields):
        raise ValueError(f"{path} is a trace of version {known[1]}; this reads {VERSION}")
    return about


def read_trace(path: Path) -> ProcessTrace:
    """Read the file of one process.

    Raises
    ------
    ValueError
        As `read_header` does.
    """
    about = read_header(path)
    with path.open("rb") as file:
        file.seek(HEADER_BYTES)
        content = file.read()
    whole = len(content) - len(content) % ROW.size
    rows = np.frombuffer(content[:whole], _DTYPE)
    rows = rows[np.isin(rows["kind"], (WAIT, SEND, SAMPLE))]
    return ProcessTrace(about, rows[np.argsort(rows["started_ns"], kind="stable")])


def read_traces(folder: Path) -> list[ProcessTrace]:
    """Read all files of one engine: EngineCore first, then its workers by rank.

    Raises
    ------
    ValueError
        If there are none, or those of several engines.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    traces = [trace for path in paths if len((trace := read_trace(path)).rows)]
    traces.sort(key=lambda trace: (trace.is_worker, trace.name))
    names = [trace.name for trace in traces]
    if not traces:
        raise ValueError(
            f"{folder} holds no rows of any process; was REALRUN_VLLM_TRACE set where vLLM starts, "
            "is this package installed beside it, and what does vLLM's log say about realrun?"
        )
    if len(set(names)) < len(names):
        raise ValueError(
            f"{folder} holds several starts or engines ({', '.join(names)}); give each a folder"
        )
    return traces
