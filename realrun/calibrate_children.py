"""Processes that a calibration needs beside its own: attached to its segment, ended with it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from realrun.layout import READY
from realrun.segment import Segment

_START_LIMIT_S: Final = 30.0
_LEAVE_LIMIT_S: Final = 2.0


@contextmanager
def children(segment: Segment, module: str, arguments: list[list[str]]) -> Iterator[None]:
    """Have processes attached to a segment, whose name is gone once all are.

    Parameters
    ----------
    segment
        This process made it. It is stopped in the end, which ends them.
    module
        What they run, with the segment's ticket and the arguments of each.

    Raises
    ------
    RuntimeError
        If one does not come up, or dies within.
    """
    started: list[subprocess.Popen[bytes]] = []
    previous = signal.getsignal(signal.SIGCHLD)
    try:
        for each in arguments:
            # Ctrl-C is for us alone: leaving this block ends them.
            command = [sys.executable, "-m", module, segment.ticket.to_json(), *each]
            started.append(subprocess.Popen(command, pass_fds=segment.ticket.fds, process_group=0))
        signal.signal(signal.SIGCHLD, _one_died)
        deadline = time.monotonic() + _START_LIMIT_S
        for number, process in enumerate(started, 1):
            _await_ready(segment, number, process, deadline)
        segment.unlink()
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)
        segment.stop()
        for process in started:
            _end(process)


def _one_died(*_: object) -> None:
    """End a wait for somebody who will never publish."""
    raise RuntimeError("a partner process of the calibration died; calibrate again")


def _await_ready(
    segment: Segment, number: int, process: subprocess.Popen[bytes], deadline: float
) -> None:
    while not segment.load(segment.layout.ready_at(number) + READY):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("a partner process of the calibration did not come up")
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_LEAVE_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
