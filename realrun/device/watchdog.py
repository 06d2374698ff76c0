"""Ends a process that hangs where nothing can interrupt it, and says where."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def within(limit_s: float, doing: str) -> Iterator[None]:
    """End this process if a block takes too long: ranks that hang in NCCL cannot be asked to stop.

    Its launcher reports the last line that it said.

    Parameters
    ----------
    limit_s
        How long it may take.
    doing
        What it does, for that line.
    """
    timer = threading.Timer(limit_s, _end, (f"{doing} took more than {limit_s:g} s",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(what: str) -> None:
    print(  # noqa: T201 - the launcher keeps what a child says
        f"{what}; another rank may have died, or NCCL may hang (set NCCL_DEBUG=WARN to hear why)",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
