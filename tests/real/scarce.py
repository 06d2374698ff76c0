"""Processes of their own, and what they do when they have no file descriptor left."""

import contextlib
import os
import resource
import traceback
from pathlib import Path

LIMIT = 256


def fork(work, *args) -> int:
    """A child that does this and ends, whatever comes of it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*args)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(1)


def succeeds(work, *args) -> None:
    """Do this in a process of its own."""
    assert os.waitstatus_to_exitcode(os.waitpid(fork(work, *args), 0)[1]) == 0


def set_limit(limit: int) -> None:
    """How many descriptors this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def exhaust(n_left: int = 0) -> list[int]:
    """Use up all descriptors but so many; returns those that do."""
    set_limit(LIMIT)
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    let_go(held, n_left)
    return held


def let_go(held: list[int], n: int = LIMIT) -> None:
    """Close so many of them again."""
    for _ in range(min(n, len(held))):
        os.close(held.pop())


def n_open() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))
