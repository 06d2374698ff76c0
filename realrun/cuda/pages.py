"""What it costs to register memory with a GPU, by size: page by page, so it grows with it."""

import time
from mmap import PAGESIZE, mmap
from typing import Final

import numpy as np

from realrun.cuda.driver import driver
from realrun.cuda.parts import Measured, Say
from realrun.cuda.registration import Registration

SIZES: Final = (4 << 20, 64 << 20, 1 << 30)
_N: Final = 3


def registrations(say: Say) -> Measured:
    """Register and unregister memory whose pages are there already.

    Returns
    -------
    Measured
        Facts ``rows``: bytes, least time to register and to unregister; and ``not_registered``,
        reasons by size.
    """
    rows, reasons = [], {}
    for n_bytes in SIZES:
        say(f"{n_bytes >> 20:,} MiB")
        with mmap(-1, n_bytes) as memory:
            np.frombuffer(memory, np.uint8)[::PAGESIZE] = 1
            taken = []
            for _ in range(_N):
                begun_ns = time.monotonic_ns()
                registration = Registration(driver(), memory)
                registered_ns = time.monotonic_ns()
                if not registration.is_registered:
                    reasons[str(n_bytes)] = registration.reason
                    break
                registration.close()
                taken.append((registered_ns - begun_ns, time.monotonic_ns() - registered_ns))
        if taken:
            rows.append((n_bytes, min(t[0] for t in taken), min(t[1] for t in taken)))
    return Measured([], {"rows": rows, "not_registered": reasons})
