"""Notices the death of a peer, and ends every wait that would otherwise last for ever.

The kernel tells who watches the moment a process ends, whatever ended it, so this costs nothing
until then. Each process watches all others: the death of a reader, of the writer or of the owner
is noticed everywhere, with nobody in between who could have died too.

It takes a file descriptor for each process. They are set aside when watching begins, so that a
process that runs out of descriptors later goes on watching, also whoever attaches after that.
"""

import contextlib
import errno
import os
import resource
import select
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self

from realrun.layout import LEFT
from realrun.segment import Segment, start_time
from realrun.waiting import Stopped

_LOOK_EVERY_S: Final = 0.05  # for who attaches; for deaths nobody looks, the kernel tells
_PATIENCE_S: Final = 0.5  # with a process that cannot be watched


class PeerDied(RuntimeError):  # noqa: N818 - what happened, by its name
    """A process of the run has ended before the run did; says which, and what was in flight."""


class _Peer(NamedTuple):
    """A process: its number may be another's by now, but not with the same start time."""

    pid: int
    started: int


class _Deaths:
    """Tells which processes have ended; what that takes is opened at the start.

    Parameters
    ----------
    n_peers
        How many processes there will be at most.

    Attributes
    ----------
    leave
        An eventfd that ends the sleep.
    """

    def __init__(self, n_peers: int) -> None:
        """Watch nobody yet."""
        self._n_peers = n_peers
        self._ended: set[_Peer] = set()
        self._watched: dict[int, _Peer] = {}  # by descriptor
        self._spare: list[int] = []
        self._lock = threading.RLock()  # a signal handler may ask while its thread does
        # Of all ways to wait for descriptors this alone works whatever their numbers and the limit.
        self._epoll = select.epoll()
        self.leave = -1
        try:
            self.leave = os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll.register(self.leave, select.EPOLLIN)
            self._set_aside()
        except OSError:
            self.close()
            raise

    def among(self, peers: Iterable[_Peer]) -> tuple[set[_Peer], OSError | None]:
        """Watch these processes as well.

        Returns
        -------
        tuple
            Who has ended, even if its parent has not waited for it yet; and why one of them cannot
            be watched, if so.
        """
        failure = None
        with self._lock:
            known = self._ended.union(self._watched.values())
            for peer in peers:
                if peer not in known:
                    try:
                        self._begin(peer)
                    except OSError as error:
                        failure = error
            # The kernel tells one sleeper after the other. Whom it told first may have stopped the
            # run before it comes to this one, so ask anew, which looks at the process itself.
            for fd, peer in self._watched.items():
                if peer not in self._ended:
                    self._epoll.modify(fd, select.EPOLLIN)
            # Nothing is forgotten here: the thread that sleeps must be told as well.
            told = [self._watched[fd] for fd, _ in self._epoll.poll(0) if fd in self._watched]
            return self._ended.union(told), failure

    def sleep(self, limit_s: float | None) -> bool:
        """Sleep until somebody ends or the limit is over; False once somebody wrote to `leave`."""
        events = self._epoll.poll(limit_s)
        with self._lock:
            for fd, _ in events:
                if fd == self.leave:
                    return False
                self._ended.add(self._watched[fd])
                self._epoll.unregister(fd)  # or the next sleep would be over at once
        return True

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Let go of what is set aside, for somebody who opens a descriptor or two in here."""
        while self._spare:
            os.close(self._spare.pop())
        try:
            yield
        finally:
            # Another thread may have been quicker; then this makes up for it the next time.
            with contextlib.suppress(OSError):
                self._set_aside()

    def _set_aside(self) -> None:
        """Occupy a descriptor for each process to come, and one to look up its start time."""
        while len(self._spare) <= self._n_peers - len(self._watched):
            # No duplicate of another: the number of open files is limited too, for all processes.
            self._spare.append(os.eventfd(0, os.EFD_CLOEXEC))

    def _begin(self, peer: _Peer) -> None:
        with self.room():
            fd = _descriptor(peer)
            if fd < 0:
                self._ended.add(peer)
                return
            try:
                self._epoll.register(fd, select.EPOLLIN)
            except OSError:
                os.close(fd)
                raise
            self._watched[fd] = peer

    def close(self) -> None:
        """Close every descriptor."""
        self._epoll.close()
        for fd in (self.leave, *self._spare, *self._watched):
            if fd >= 0:
                os.close(fd)


class Watchdog:
    """Watches the other processes of a segment from a thread of its own.

    Use as a context manager within that of the segment, around all use of it. Who leaves it
    without an error, or after the run was stopped, needs nobody any more and may end; whose
    process ends otherwise has died.

    Parameters
    ----------
    segment
        Whose processes each have a watchdog, or call `Segment.attend`.
    process
        Which of them this one is.

    Raises
    ------
    RuntimeError
        If the kernel does not let processes be watched.
    OSError
        If there are too few descriptors to watch them. Entering raises it too; so do `await_all`
        and `explains` when it is found out only then, as by a process whose limit was lowered.
    """

    def __init__(self, segment: Segment, process: int) -> None:
        """Watch nobody yet."""
        self._segment = segment
        self._process = process
        self._pid = os.getpid()
        self._n_processes = segment.layout.n_workers + 1
        self._deaths: _Deaths | None = None
        self._failure: OSError | None = None
        with self._naming_the_limit():
            _check_kernel()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def await_all(self, timeout_s: float) -> None:
        """Wait until everybody is there; the owner then removes the name of the segment.

        Raises
        ------
        TimeoutError
            If somebody is not; names them.
        PeerDied
            If somebody was there and has ended.
        Stopped
            If the run was stopped meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while missing := [
            _name_of(process)
            for process, (pid, _) in enumerate(self._segment.attendance())
            if not pid
        ]:
            with self.explains(f"the start of {', '.join(missing)}"):
                if self._segment.stopped:
                    raise Stopped
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{', '.join(missing)} did not attach within {timeout_s:g} s; look whether it "
                    "was started and what it says"
                )
            time.sleep(_LOOK_EVERY_S / 5)
        self._dead()  # raises if somebody of them cannot be watched
        if self._segment.is_owner:
            self._segment.unlink()

    @contextlib.contextmanager
    def explains(self, in_flight: str) -> Iterator[None]:
        """Turn a `Stopped` into `PeerDied` if a death is why; says what was in flight."""
        try:
            yield
        except Stopped:
            # Whoever stopped the run because of a death was told of it by the kernel, which tells
            # everybody who asks from then on.
            if dead := self._dead():
                raise PeerDied(f"{' and '.join(dead)} ended; in flight: {in_flight}") from None
            if self._failure is not None:
                raise self._failure from None
            raise

    def _dead(self) -> list[str]:
        """Whose processes have ended although they had not left."""
        segment = self._segment
        peers = [_Peer(*row) for row in segment.attendance()]
        ended, failure = self._ended([peer for peer in peers if peer.pid])
        dead = [
            f"{_name_of(process)} (pid {peer.pid})"
            for process, peer in enumerate(peers)
            # In this order: who has left may end at any moment.
            if peer in ended
            if not segment.load(segment.layout.ready_at(process) + LEFT)
        ]
        if failure is not None and not dead:
            with self._naming_the_limit():
                raise failure
        return dead

    def _ended(self, peers: list[_Peer]) -> tuple[set[_Peer], OSError | None]:
        # What a fork has inherited is its parent's.
        if self._deaths is not None and os.getpid() == self._pid:
            return self._deaths.among(peers)
        with (
            self._naming_the_limit(),
            contextlib.closing(_Deaths(self._n_processes)) as deaths,
        ):
            return deaths.among(peers)

    def _watch(self) -> None:
        deaths = self._deaths
        assert deaths is not None, "it was entered"
        blind_s = 0.0
        while True:
            everybody = all(pid for pid, _ in self._segment.attendance())
            # Behind the look, which watches who is new: who ends from here on is told of.
            try:
                dead = bool(self._dead())
                blind_s = 0.0
            except OSError as error:
                # Another thread took what was set aside in the instant it was let go of, or the
                # limit was lowered. Rather an end than a wait for somebody who may be dead.
                dead, everybody = False, False
                blind_s += _LOOK_EVERY_S
                if blind_s > _PATIENCE_S:
                    self._failure, dead = error, True
            if dead:
                self._segment.stop()
                return
            if not deaths.sleep(None if everybody else _LOOK_EVERY_S):
                return

    def __enter__(self) -> Self:
        """Say that this process is there, and begin to watch."""
        with contextlib.ExitStack() as undo:
            with self._naming_the_limit():
                self._deaths = _Deaths(self._n_processes)
                undo.callback(self._close)
                with self._deaths.room():  # its start time is in a file
                    self._segment.attend(self._process)
            self._dead()  # whoever is there is watched before anything else is opened
            self._thread.start()
            undo.pop_all()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Watch no longer, and tell the others if this process needs nobody any more."""
        if os.getpid() != self._pid:
            return  # a fork speaks for nobody
        assert self._deaths is not None, "it was entered"
        os.eventfd_write(self._deaths.leave, 1)
        self._thread.join()  # from here on it touches the segment no more
        self._close()
        if error is None or self._segment.stopped:
            self._segment.store(self._segment.layout.ready_at(self._process) + LEFT, 1)

    def _close(self) -> None:
        deaths, self._deaths = self._deaths, None
        if deaths is not None:
            deaths.close()

    @contextlib.contextmanager
    def _naming_the_limit(self) -> Iterator[None]:
        """Say how many descriptors are allowed, and how many it takes, if there are too few."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            way_out = (
                f"this one may have {limit:,} in all; raise `ulimit -n`, or close others"
                if error.errno == errno.EMFILE
                else "the whole machine has none; raise the sysctl fs.file-max, or close others"
            )
            n = self._n_processes
            raise OSError(
                error.errno,
                f"no file descriptor is left to watch processes with: {n} take {n + 3}, "
                f"and {way_out}",
            ) from None


def _name_of(process: int) -> str:
    return "the scheduler" if process == 0 else f"worker {process - 1}"


def _descriptor(peer: _Peer) -> int:
    """A descriptor that becomes readable when a process ends; -1 if it is gone."""
    try:
        fd = os.pidfd_open(peer.pid)
    except ProcessLookupError:
        return -1
    try:
        if start_time(peer.pid) == peer.started:
            return fd
    except OSError:
        os.close(fd)
        raise
    os.close(fd)  # somebody else has its number by now
    return -1


def _check_kernel() -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            raise
        raise RuntimeError(
            f"the death of a process cannot be watched here: pidfd_open failed ({error}); it takes "
            "Linux 5.3, and a container whose seccomp profile allows it"
        ) from None
