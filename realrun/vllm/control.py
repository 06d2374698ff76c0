"""A file that all processes of an engine map: which policy is in force, and what they counted.

The first word that is not magic is the *arm*: 0 for vLLM's own waiting, n for the n-th policy of
``REALRUN_VLLM_POLICY``. Each process has a line of counters, so that anybody can look whether a
policy is in force: the counters that must move, move.
"""

import fcntl
import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple, Self

from realrun.native import load, store

MAGIC: Final = 0x524C524E564C4C31  # "RLRNVLL1"
LINES: Final = 128
_LINE_BYTES: Final = 128
ARM: Final = 1  #: word that says which policy is in force
MUTE: Final = 2  #: word that is not 0 while records pause
_BYTES: Final = _LINE_BYTES * (1 + LINES)


class Counters(NamedTuple):
    """What one process has done since it started.

    Parameters
    ----------
    pid, is_worker, rank
        Who.
    waits, at_once
        Waits that our plans carried out, and messages that were there already.
    vllm_waits
        Waits that vLLM carried out.
    slot_waits
        Waits of a writer for a slot that our plans carried out.
    sent, rung, pinged
        Messages written; how often a sleeper was rung for; vLLM's pings by socket.
    spurious, rescued
        As in `shmsim.records.ProcessRow`.
    overtaken
        How often our ring was not in step with vLLM's, so that vLLM waited instead: 0.
    """

    pid: int
    is_worker: int
    rank: int
    waits: int = 0
    at_once: int = 0
    vllm_waits: int = 0
    slot_waits: int = 0
    sent: int = 0
    rung: int = 0
    pinged: int = 0
    spurious: int = 0
    rescued: int = 0
    overtaken: int = 0


class Control:
    """The mapped file, or memory of this process only where there is none.

    Parameters
    ----------
    memory
        What is mapped.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        """Wrap a mapping; use `open` or `private`."""
        self.memory = memory
        #: `ARM` and `MUTE` stand for themselves: no order with others to keep, so none to pay for.
        self.words = memoryview(memory).cast("Q")

    @classmethod
    def private(cls, arm: int) -> Self:
        """One that nobody else sees, so that the arm stays."""
        control = cls(mmap.mmap(-1, _BYTES))
        control.arm = arm
        return control

    @classmethod
    def open(cls, path: Path, first_arm: int) -> Self:
        """Map the file; whoever comes first makes it and sets the arm.

        Raises
        ------
        ValueError
            If it is another file.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if size not in (0, _BYTES):
                raise ValueError(f"{path} is no control file: it has {size} bytes, not {_BYTES}")
            os.ftruncate(fd, _BYTES)
            control = cls(mmap.mmap(fd, _BYTES))
            if size == 0:
                control.arm = first_arm
                store(control.memory, 0, MAGIC)
            if load(control.memory, 0) != MAGIC:
                raise ValueError(f"{path} is no control file")
            return control
        finally:
            # By itself it would last as long as the mapping, which has its own copy of fd.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    @property
    def arm(self) -> int:
        """Which policy is in force."""
        return self.words[ARM]

    @arm.setter
    def arm(self, arm: int) -> None:
        self.words[ARM] = arm

    @property
    def muted(self) -> bool:
        """Whether records pause; so that what recording takes can be measured."""
        return self.words[MUTE] != 0

    @muted.setter
    def muted(self, muted: bool) -> None:
        self.words[MUTE] = muted

    def claim(self, path: Path | None) -> int:
        """A line for this process: a free one, or that of a process that is no more.

        Raises
        ------
        ValueError
            If all are taken.
        """
        if path is None:
            return 0
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for line in range(LINES):
                pid = load(self.memory, _at(line))
                if pid in (0, os.getpid()) or not Path(f"/proc/{pid}").exists():
                    store(self.memory, _at(line), os.getpid())
                    return line
        raise ValueError(f"{path} has a line for {LINES} processes, and all are taken")

    def write(self, line: int, counters: Counters) -> None:
        """Show the counters of this process."""
        at = _at(line)
        for i, value in enumerate(counters):
            store(self.memory, at + 8 * i, value)

    def read(self) -> list[Counters]:
        """The counters of all processes that ever claimed a line and lost it to none."""
        width = len(Counters._fields)
        lines = (
            Counters(*(load(self.memory, _at(n) + 8 * i) for i in range(width)))
            for n in range(LINES)
        )
        return [line for line in lines if line.pid]


def _at(line: int) -> int:
    return _LINE_BYTES * (1 + line)
