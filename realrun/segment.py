"""Creates, attaches and removes the shared memory of a run; the only file that does.

A segment is a file in /dev/shm named after its owner, ``shmsim-PID-STARTTIME-N``. Its owner
unlinks it as soon as every worker has attached, so that even SIGKILL of the whole group leaves
nothing; what a kill before that leaves, and the temporary folder of a killed launcher, the next
start reaps, telling a dead owner by process id and start time.
"""

import contextlib
import mmap
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Final, Self

from realrun.layout import MAGIC, MAGIC_AT, OWNER_PID_AT, SegmentLayout

SHM: Final = Path("/dev/shm")
_PREFIX: Final = "shmsim-"
_numbers = count()


class Segment:
    """The mapped shared memory of one run.

    Use as a context manager: leaving it unmaps, and unlinks if this process created it.
    """

    def __init__(self, path: Path | None, memory: mmap.mmap, layout: SegmentLayout) -> None:
        """Wrap a mapping; use `create` or `attach`."""
        self.path = path
        self.memory = memory
        self.layout = layout
        # Words go through this view: one item is one 8-byte move. struct.pack_into is not: it
        # zeroes its bytes first, and a reader in between sees 0.
        self._words = memoryview(memory).cast("Q")

    @classmethod
    def create(cls, layout: SegmentLayout) -> Self:
        """Make a segment and commit all of its memory at once.

        Raises
        ------
        OSError
            If /dev/shm has no room: reserving up front turns a later SIGBUS into this error.
        """
        reap_abandoned()
        path = SHM / f"{owner_prefix()}{next(_numbers)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Pages of tmpfs appear on first touch; without this a full /dev/shm kills the toucher.
            os.posix_fallocate(fd, 0, layout.size)
            memory = mmap.mmap(fd, layout.size)
        except OSError as error:
            path.unlink()
            free = os.statvfs(SHM)
            raise OSError(
                error.errno,
                f"cannot reserve {layout.size:,} bytes of shared memory: {error.strerror}"
                f"; /dev/shm has {free.f_bavail * free.f_frsize:,} bytes free. Remove what fills "
                "it, or enlarge it (docker run --shm-size=1g)",
            ) from None
        finally:
            os.close(fd)
        segment = cls(path, memory, layout)
        segment.store(MAGIC_AT, MAGIC)
        segment.store(OWNER_PID_AT, os.getpid())
        return segment

    @classmethod
    def private(cls, layout: SegmentLayout) -> Self:
        """Make a segment that no other process can see, and that has no name."""
        return cls(None, mmap.mmap(-1, layout.size), layout)

    @classmethod
    def attach(cls, path: Path, layout: SegmentLayout) -> Self:
        """Map a segment that another process created.

        Raises
        ------
        ValueError
            If the file is no segment of this layout.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size != layout.size:
                raise ValueError(f"{path} has {size} bytes, expected {layout.size}")
            memory = mmap.mmap(fd, layout.size)
        finally:
            os.close(fd)
        segment = cls(path, memory, layout)
        if segment.load(MAGIC_AT) != MAGIC:
            segment.close()
            raise ValueError(f"{path} is not a segment of this version of realrun")
        return segment

    def load(self, at: int) -> int:
        """Read one 8-byte word, whole."""
        return self._words[at >> 3]

    def store(self, at: int, value: int) -> None:
        """Write one 8-byte word, whole."""
        self._words[at >> 3] = value

    def unlink(self) -> None:
        """Remove the name; mappings stay valid."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap; the name stays."""
        self._words.release()
        # A buffer that a caller still holds keeps the mapping alive; it ends with the process.
        with contextlib.suppress(BufferError):
            self.memory.close()

    def __enter__(self) -> Self:
        """Nothing to do: the segment is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unmap, and unlink what this process created."""
        if self.load(OWNER_PID_AT) == os.getpid():
            self.unlink()
        self.close()


def owner_prefix() -> str:
    """How the names of whatever this process must remove begin."""
    return f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-"


def reap_abandoned() -> list[Path]:
    """Remove segments and temporary folders whose owner is dead; returns what was removed."""
    reaped = []
    for folder in (SHM, Path(tempfile.gettempdir())):
        for path in folder.glob(f"{_PREFIX}*-*-*"):
            pid, start_time, _ = path.name.removeprefix(_PREFIX).split("-", 2)
            if not (pid.isdecimal() and start_time.isdecimal()):
                continue
            if _start_time(int(pid)) != int(start_time):
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    reaped.append(path)
    return reaped


def _start_time(pid: int) -> int:
    """Clock ticks after boot at which a process started; -1 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    # The command name may hold spaces and brackets; fields are counted from its last bracket.
    return int(stat.rpartition(")")[2].split()[19])
