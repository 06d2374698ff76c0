"""What a process holds."""

import gc
import re
import time
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    """Counts that must not grow.

    Parameters
    ----------
    fds, threads
        Of the process.
    mappings
        Of shared memory of a run.
    private_kib
        Memory that is nobody else's; what it maps of a segment is not in it.
    """

    fds: int
    threads: int
    mappings: int
    private_kib: int


def held() -> Held:
    """What this process holds now; sockets that were closed may take the library a moment."""
    gc.collect()
    fds, before = _fds(), -1
    while fds != before:
        time.sleep(0.03)
        fds, before = _fds(), fds
    status = Path("/proc/self/status").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"(\w+):\s+(\d+)", status)}
    mappings = Path("/proc/self/maps").read_text().count("/shmsim-")
    return Held(fds, numbers["Threads"], mappings, numbers["RssAnon"])


def _fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
