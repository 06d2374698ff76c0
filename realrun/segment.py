"""Creates, attaches and removes the shared memory of a run; the only file that does.

A segment is a file in /dev/shm named after its owner, ``shmsim-PID-STARTTIME-TOKEN``, which only
its user may open. Its owner unlinks it as soon as every worker has attached, so that even SIGKILL
of the whole group leaves nothing; what a kill before that leaves, and the temporary folder of a
killed launcher, the next start reaps. It tells a dead owner by process id and start time, and by
a lock that only the owner holds: a process of another container may share the folder but not the
numbers. What was just made has no lock for a moment, so its owner looks again once it has one, and
makes another if somebody reaped the first.
"""

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any, Final, Self

from realrun.budget import check_budget
from realrun.doorbell import (
    KINDS,
    Doorbell,
    EventfdDoorbell,
    FutexDoorbell,
    ZmqDoorbell,
    make_eventfds,
)
from realrun.layout import (
    GEOMETRY_AT,
    MAGIC,
    MAGIC_AT,
    OWNER_PID_AT,
    READY,
    STARTED,
    STOP,
    RingLayout,
    SegmentLayout,
)
from realrun.native import load, store
from shmsim.routing import ArenaPlan, SlotClass

SHM: Final = Path("/dev/shm")
_PREFIX: Final = "shmsim-"
#: Descriptors that libzmq opens at most: once, and for each sleeper that is rung for, both ends of
#: the connection included. Where it gets none it may abort the process.
_ZMQ_FDS: Final = 8
_ZMQ_SLEEPER_FDS: Final = 4


@dataclass(frozen=True)
class Ticket:
    """All that another process of the same user needs to attach.

    Parameters
    ----------
    path
        Of the segment.
    layout
        What is where in it.
    doorbell
        Kind of the doorbells.
    fds
        Of doorbells: a process must inherit them under these numbers (``pass_fds``; a fork does,
        and so does multiprocessing, whatever its start method).
    folder
        Private to the owner, for sockets and other files of the run; empty if there is none.
    """

    path: str
    layout: SegmentLayout
    doorbell: str
    fds: tuple[int, ...]
    folder: str

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        layout = content["layout"]
        classes = tuple(SlotClass(*row) for row in layout["arena"][0])
        layout["arena"] = ArenaPlan(classes, layout["arena"][1])
        content["layout"] = SegmentLayout(**layout)
        content["fds"] = tuple(content["fds"])
        return cls(**content)

    def __getstate__(self) -> dict[str, Any]:
        """Have multiprocessing hand the descriptors on, if it is what pickles this."""
        if context.get_spawning_popen() is None:
            return self.__dict__
        return {**self.__dict__, "fds": tuple(map(reduction.DupFd, self.fds))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the descriptors that multiprocessing handed on."""
        fds = tuple(fd if isinstance(fd, int) else fd.detach() for fd in state["fds"])
        self.__dict__.update(state, fds=fds)


class Segment:
    """The mapped shared memory of one run, with its doorbells.

    Use as a context manager: leaving it unmaps, and removes what this process created.

    Attributes
    ----------
    bytes
        All of it.
    closed
        Whether this process has let go of it.
    """

    def __init__(self, ticket: Ticket, memory: mmap.mmap, owned_fds: tuple[int, ...] = ()) -> None:
        """Wrap a mapping; use `create`, `private` or `attach`."""
        self.ticket = ticket
        self.layout = ticket.layout
        self.memory = memory
        self._owned_fds = owned_fds
        self._owner_pid = os.getpid() if owned_fds else 0
        self.bytes = memoryview(memory)
        self.closed = False
        self._doorbells: dict[str, Doorbell] = {}
        self._lock = threading.RLock()  # a signal handler may stop what is being stopped

    @classmethod
    def create(
        cls, layout: SegmentLayout, doorbell: str = "futex", *, with_folder: bool = False
    ) -> Self:
        """Make a segment and commit all of its memory at once.

        Parameters
        ----------
        doorbell
            ``"futex"``, ``"eventfd"`` or ``"zmq"``; see `realrun.doorbell`.
        with_folder
            Whether to make a private folder, for payloads that go by socket and for files.

        Raises
        ------
        BudgetError
            If /dev/shm or a memory limit has no room for the sum of all parts.
        """
        if doorbell not in KINDS:
            raise ValueError(f"doorbell must be one of {', '.join(KINDS)}, got {doorbell!r}")
        reap_abandoned()
        check_budget(layout, SHM)
        path, fd = _make_file()
        fds, folder = [fd], ""
        try:
            # Pages of tmpfs appear on first touch; without this a full /dev/shm kills the toucher.
            os.posix_fallocate(fd, 0, layout.size)
            memory = mmap.mmap(fd, layout.size)
            bells = []
            if doorbell == "eventfd":
                for ring in layout.rings:
                    made = make_eventfds(ring)
                    bells += made
                    fds += made
            if doorbell == "zmq" or with_folder:
                folder, fd = _make_folder()
                fds.append(fd)
        except OSError:
            path.unlink()
            for open_fd in fds:
                os.close(open_fd)
            check_budget(layout, SHM)  # somebody else took the room meanwhile: say so
            raise
        ticket = Ticket(str(path), layout, doorbell, tuple(bells), folder)
        segment = cls(ticket, memory, tuple(fds))
        segment.store(OWNER_PID_AT, os.getpid())
        segment.store(GEOMETRY_AT, layout.checksum)
        segment.store(MAGIC_AT, MAGIC)
        return segment

    @classmethod
    def private(cls, layout: SegmentLayout) -> Self:
        """Make a segment that no other process can see, and that has no name."""
        return cls(Ticket("", layout, "futex", (), ""), mmap.mmap(-1, layout.size))

    @classmethod
    def attach(cls, ticket: Ticket) -> Self:
        """Map a segment that another process created.

        Raises
        ------
        FileNotFoundError
            If its owner has removed it.
        PermissionError
            If it belongs to somebody else, or others may open it.
        ValueError
            If the file is no segment of this layout, or this process did not inherit the doorbells.
        """
        path, layout = ticket.path, ticket.layout
        for fd in ticket.fds:
            _check_eventfd(fd)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no segment {path}: its owner has ended, or never made it"
            ) from None
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PermissionError(
                    f"{path} must belong to user {os.geteuid()} and be closed to others, but "
                    f"belongs to {status.st_uid} with mode {status.st_mode & 0o777:04o}"
                )
            if status.st_size != layout.size:
                raise ValueError(f"{path} has {status.st_size:,} bytes, expected {layout.size:,}")
            memory = mmap.mmap(fd, layout.size)
        finally:
            os.close(fd)
        segment = cls(ticket, memory)
        found = segment.load(MAGIC_AT), segment.load(GEOMETRY_AT)
        if found != (MAGIC, layout.checksum):
            segment.close()
            raise ValueError(
                f"{path} is not a segment of this version of realrun, or of another layout"
            )
        return segment

    def doorbell(self, ring: RingLayout) -> Doorbell:
        """The bells of a ring, as this process uses them."""
        with self._lock:  # two of a ring would bind one socket twice, and one would be deaf
            if ring.name not in self._doorbells:
                self._doorbells[ring.name] = self._make_doorbell(ring)
            return self._doorbells[ring.name]

    def _make_doorbell(self, ring: RingLayout) -> Doorbell:
        if self.ticket.doorbell == "futex":
            return FutexDoorbell(self.memory, ring)
        if self.ticket.doorbell == "zmq":
            return ZmqDoorbell(Path(self.ticket.folder), ring)
        first = 0
        for other in self.layout.rings:
            if other == ring:
                break
            first += other.n_readers + 1
        return EventfdDoorbell(self.ticket.fds[first : first + ring.n_readers + 1])

    def load(self, at: int) -> int:
        """Read one 8-byte word, whole; nothing behind it is read before it."""
        return load(self.memory, at)

    def store(self, at: int, value: int) -> None:
        """Write one 8-byte word, whole; everything before it is written before it."""
        store(self.memory, at, value)

    @property
    def is_owner(self) -> bool:
        """Whether this process made it; a fork of that process did not."""
        return self._owner_pid == os.getpid()

    def attend(self, process: int) -> None:
        """Say that this process is there: 0 is the scheduler, 1 + r the worker of rank r."""
        at = self.layout.ready_at(process)
        self.store(at + STARTED, start_time(os.getpid()))
        self.store(at + READY, os.getpid())

    def attendance(self) -> list[tuple[int, int]]:
        """Process id and start time of everybody; 0 and 0 of who is not there yet."""
        ready = [self.layout.ready_at(process) for process in range(self.layout.n_workers + 1)]
        return [(self.load(at + READY), self.load(at + STARTED)) for at in ready]

    def stop(self) -> None:
        """End every wait of every process, those that begin later too; from any process."""
        layout = self.layout
        for process in range(layout.n_workers + 1):
            self.store(layout.ready_at(process) + STOP, 1)
        for ring in layout.rings:
            for reader in range(ring.n_readers):
                self.store(ring.reader_words(reader).stop, 1)
                self.store(ring.writer_words(reader).stop, 1)
        for ring in layout.rings:
            # Once the owner has removed the folder there are no sockets to ring by any more, and
            # without descriptors none can be made; who sleeps on one looks at its stop word itself.
            with contextlib.suppress(OSError):
                if self.ticket.doorbell == "zmq":
                    _check_room(_ZMQ_FDS + _ZMQ_SLEEPER_FDS * (ring.n_readers + 1))
                doorbell = self.doorbell(ring)
                doorbell.ring_readers((1 << ring.n_readers) - 1)
                for reader in range(ring.n_readers):
                    doorbell.ring_writer(reader)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self.load(self.layout.ready_at(0) + STOP) != 0

    def unlink(self) -> None:
        """Remove the name, once all have attached; mappings stay valid, and no kill leaves it."""
        if self.ticket.path:
            Path(self.ticket.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap; the name stays."""
        for doorbell in self._doorbells.values():
            doorbell.close()
        self.closed = True
        # A buffer that a caller still holds keeps the mapping alive; it ends with the process.
        with contextlib.suppress(BufferError):
            self.bytes.release()
        with contextlib.suppress(BufferError):
            self.memory.close()

    def __enter__(self) -> Self:
        """Nothing to do: the segment is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unmap, and remove what this process created."""
        is_owner = self.is_owner
        if is_owner:
            self.stop()  # nobody who still waits would ever hear of it
            self.unlink()
        self.close()
        if is_owner:
            # Removing takes descriptors, so those come first that need not outlast the folder; the
            # last one is its lock, if there is one.
            *others, last = self._owned_fds
            for fd in others:
                os.close(fd)
            if self.ticket.folder:
                shutil.rmtree(self.ticket.folder, ignore_errors=True)
            os.close(last)


def _check_room(n: int) -> None:
    """Raise OSError if this process cannot open so many descriptors."""
    with contextlib.ExitStack() as opened:
        for _ in range(n):
            opened.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))


def _make_file() -> tuple[Path, int]:
    """An empty file in /dev/shm, and the descriptor that holds its lock."""
    while True:
        path = SHM / f"{owner_prefix()}{secrets.token_hex(8)}"
        fd = _claim(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if fd is not None:
            return path, fd


def _make_folder() -> tuple[str, int]:
    """An empty folder for temporary files, and the descriptor that holds its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=owner_prefix())
        try:
            fd = _claim(Path(folder), os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            Path(folder).rmdir()
            raise
        if fd is not None:
            return folder, fd


def _claim(path: Path, flags: int) -> int | None:
    """Open and lock what is new; None if somebody who takes its owner for dead has reaped it."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_EX)
    # Who reaps holds the lock: it came before this one, or finds this one and leaves the path.
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(path.lstat(), os.fstat(fd)):
            return fd
    os.close(fd)
    return None


def _check_eventfd(fd: int) -> None:
    try:
        kind = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        kind = "not open"
    if kind != "anon_inode:[eventfd]":
        raise ValueError(
            f"descriptor {fd} of the ticket should be an eventfd, and is {kind} in this process; "
            "start it with subprocess.Popen(..., pass_fds=ticket.fds) or by multiprocessing"
        )


def owner_prefix() -> str:
    """How the names of whatever this process must remove begin."""
    return f"{_PREFIX}{os.getpid()}-{start_time(os.getpid())}-"


def reap_abandoned() -> list[Path]:
    """Remove segments and temporary folders whose owner is dead; returns what was removed."""
    reaped = []
    for folder in (SHM, Path(tempfile.gettempdir())):
        for path in folder.glob(f"{_PREFIX}*-*-*"):
            pid, started, _ = path.name.removeprefix(_PREFIX).split("-", 2)
            if not (pid.isdecimal() and started.isdecimal()):
                continue
            with contextlib.suppress(OSError):
                if start_time(int(pid)) == int(started):
                    continue
                with _unowned(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    reaped.append(path)
    return reaped


@contextlib.contextmanager
def _unowned(path: Path) -> Iterator[None]:
    """Raise OSError if an owner that lives holds its lock, or if it is nothing of ours."""
    # Not blocking: anybody may have put a pipe of such a name into the folder for temporary files.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        is_ours = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if status.st_uid != os.geteuid() or not is_ours:
            raise PermissionError(f"{path} is no file or folder of this user")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def start_time(pid: int) -> int:
    """Clock ticks after boot at which a process started; -1 if there is none.

    Raises
    ------
    OSError
        If that cannot be told, as when this process has no descriptor left: nobody is dead then.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    # The command name may hold anything; fields are counted from its last bracket.
    return int(fields.rpartition(b")")[2].split()[19])
