"""The file that a process of the engine leaves: rows of 64-bit numbers, mapped, in a circle.

What a row says is written before its last field, its kind, which is 0 in a row that nobody wrote:
so a kill at any instant leaves whole rows, and the kernel writes them out whoever dies. A process
keeps its newest `N_ROWS` rows. Reading is in `realrun.vllm.traces`.
"""

import itertools
import json
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

FORMAT: Final = "realrun-vllm-trace"
VERSION: Final = 1
SUFFIX: Final = ".trace"
HEADER_BYTES: Final = 4096
N_ROWS: Final = 1 << 18

WAIT: Final = 1  #: a message was awaited and read
SEND: Final = 2  #: a message was written
SAMPLE: Final = 3  #: what the whole process has used so far

#: How the payload of a message went.
INLINE: Final = 0  #: all in the slot
OUT_OF_BAND: Final = 1  #: in the slot, large buffers beside the pickle
SOCKET: Final = 2  #: too long for the slot, so by socket


class Row(NamedTuple):
    """One row; instants on the monotonic clock, which all processes of a machine share.

    Parameters
    ----------
    site, rank
        Which wait of the loop it is, and of which worker's queue.
    thread
        Native id of the thread.
    call, step
        As in `realrun.vllm.calls.Call`.
    sequence
        Number of the message in its queue.
    arm
        Which policy was in force; 0 for vLLM's own waiting.
    pending
        Whether the message was surely on its way.
    started_ns, published_ns, seen_ns, ended_ns
        Begin of the wait, stamp of the message, when it was seen, and when it was read. Of a
        `SEND`: when enqueue began, the stamp, when a slot was free, when enqueue returned.
    stage, stage_kind, cpu_ns, overshoot_ns, belled, preempted
        As in `shmsim.records.WaitRow`, of the wait alone.
    work_cpu_ns
        CPU of reading, the wait left out. Of a `SEND`: the time that writing took, which is that
        unless the core was taken away meanwhile. Of a `SAMPLE`: CPU of the whole process.
    between_cpu_ns
        CPU of the thread since its last wait here ended: what the message before it asked for.
    n_bytes, route
        Of a `SEND`: length of what went into the slot, and `INLINE`, `OUT_OF_BAND` or `SOCKET`.
    n_decode, n_prefill_tokens, n_kv_tokens
        Of the step's batch. Of a `SAMPLE` the first two are voluntary and involuntary switches.
    kind
        `WAIT`, `SEND` or `SAMPLE`.
    """

    site: int = -1
    rank: int = 0
    thread: int = 0
    call: int = 0
    step: int = -1
    sequence: int = 0
    arm: int = 0
    pending: int = 0
    started_ns: int = 0
    published_ns: int = 0
    seen_ns: int = 0
    ended_ns: int = 0
    stage: int = 0
    stage_kind: int = -1
    cpu_ns: int = 0
    overshoot_ns: int = 0
    belled: int = 0
    preempted: int = 0
    work_cpu_ns: int = 0
    between_cpu_ns: int = 0
    n_bytes: int = 0
    route: int = 0
    n_decode: int = 0
    n_prefill_tokens: int = 0
    n_kv_tokens: int = 0
    kind: int = 0


ROW: Final = struct.Struct(f"={len(Row._fields)}q")


class Trace:
    """The file of this process.

    Parameters
    ----------
    folder
        Made if missing.
    about
        What the header says beside process ids and fields: versions, role.
    n_rows
        How many rows are kept.
    """

    def __init__(self, folder: Path, about: dict[str, Any], n_rows: int = N_ROWS) -> None:
        """Make the file; its blocks are taken only as rows come."""
        folder.mkdir(parents=True, exist_ok=True)
        self._n_rows = n_rows
        self._numbers = itertools.count()  # one call, so that two threads never get the same
        self.path = folder / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}"
        header = {
            "format": FORMAT,
            "version": VERSION,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "n_rows": n_rows,
            "fields": Row._fields,
            **about,
        }
        text = json.dumps(header).encode()
        if len(text) > HEADER_BYTES:
            raise ValueError(f"a trace header has at most {HEADER_BYTES} bytes, not {len(text)}")
        with self.path.open("xb+") as file:
            file.truncate(HEADER_BYTES + ROW.size * n_rows)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._memory[: len(text)] = text

    def write(self, row: tuple[int, ...]) -> None:
        """Keep a row, in place of the oldest once there are `n_rows`."""
        at = next(self._numbers) % self._n_rows
        ROW.pack_into(self._memory, HEADER_BYTES + ROW.size * at, *row)
