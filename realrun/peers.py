"""Notices the death of a peer, and ends every wait that would otherwise last for ever.

The kernel tells who watches the moment a process ends, whatever ended it, so this costs nothing
until then. Each process watches all others: the death of a reader, of the writer or of the owner
is noticed everywhere, with nobody in between who could have died too.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Final, Self

from realrun.layout import LEFT
from realrun.segment import Segment, start_time
from realrun.waiting import Stopped

_LOOK_EVERY_MS: Final = 50  # for who attaches; for deaths nobody looks, the kernel tells


class PeerDied(RuntimeError):  # noqa: N818 - what happened, by its name
    """A process of the run has ended before the run did; says which, and what was in flight."""


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
    """

    def __init__(self, segment: Segment, process: int) -> None:
        """Watch nobody yet."""
        _check_kernel()
        self._segment = segment
        self._process = process
        self._pid = os.getpid()
        self._leave_fd = -1
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
            time.sleep(_LOOK_EVERY_MS / 5000)
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
            raise

    def _dead(self) -> list[str]:
        """Whose processes have ended although they had not left."""
        segment = self._segment
        return [
            f"{_name_of(process)} (pid {pid})"
            for process, (pid, started) in enumerate(segment.attendance())
            # In this order: who has left may end at any moment.
            if pid and _has_ended(pid, started)
            if not segment.load(segment.layout.ready_at(process) + LEFT)
        ]

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._leave_fd, select.POLLIN)
        seen = {self._process}
        with contextlib.ExitStack() as descriptors:
            while True:
                everybody = self._segment.attendance()
                for process, (pid, started) in enumerate(everybody):
                    if pid and process not in seen:
                        seen.add(process)
                        fd = _descriptor(pid, started)
                        if fd >= 0:
                            descriptors.callback(os.close, fd)
                            poll.register(fd, select.POLLIN)
                # Behind the registration: who ends from here on is told of.
                if self._dead():
                    self._segment.stop()
                    return
                limit_ms = None if len(seen) == len(everybody) else _LOOK_EVERY_MS
                for fd, _ in poll.poll(limit_ms):
                    if fd == self._leave_fd:
                        return
                    poll.unregister(fd)

    def __enter__(self) -> Self:
        """Say that this process is there, and begin to watch."""
        self._segment.attend(self._process)
        self._leave_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Watch no longer, and tell the others if this process needs nobody any more."""
        if os.getpid() != self._pid:
            return  # a fork speaks for nobody
        os.eventfd_write(self._leave_fd, 1)
        self._thread.join()  # from here on it touches the segment no more
        os.close(self._leave_fd)
        if error is None or self._segment.stopped:
            self._segment.store(self._segment.layout.ready_at(self._process) + LEFT, 1)


def _name_of(process: int) -> str:
    return "the scheduler" if process == 0 else f"worker {process - 1}"


def _descriptor(pid: int, started: int) -> int:
    """A descriptor that becomes readable when a process ends; -1 if it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
    if start_time(pid) != started:  # somebody else has its number by now
        os.close(fd)
        return -1
    return fd


def _has_ended(pid: int, started: int) -> bool:
    """Whether a process has ended, even if its parent has not waited for it yet."""
    fd = _descriptor(pid, started)
    if fd < 0:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(fd)


def _check_kernel() -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        raise RuntimeError(
            f"the death of a process cannot be watched here: pidfd_open failed ({error}); it takes "
            "Linux 5.3, and a container whose seccomp profile allows it"
        ) from None
