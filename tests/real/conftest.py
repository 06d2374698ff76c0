"""What nobody may leave behind."""

import contextlib
import gc
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from realrun.segment import SHM, owner_prefix


def children() -> set[int]:
    """Process ids of the children of this process, ended ones that nobody waited for included."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            pids.update(int(pid) for pid in task.read_text().split())
    return pids


def left_behind() -> set[Path]:
    """Segments and temporary folders of this process."""
    folders = (SHM, Path(tempfile.gettempdir()))
    return {path for folder in folders for path in folder.glob(f"{owner_prefix()}*")}


def end(pids: set[int]) -> None:
    """Kill children and wait for them, so that what one test left can't fail another."""
    for process in gc.get_objects():
        if isinstance(process, subprocess.Popen) and process.pid in pids:
            process.kill()
            process.communicate()
    for pid in pids & children():  # of a test that has forgotten its object
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No test in this folder leaves shared memory, a temporary folder or a process."""
    before = children()
    yield
    left = children() - before
    if left:
        end(left)
    assert left_behind() == set()
    assert left == set()


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def eventually(what, within_s: float = 10.0):
    """Look until something is true; the limit is a watchdog, no measure."""
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"still {found!r} after {within_s} s"
        time.sleep(0.005)
    return found
