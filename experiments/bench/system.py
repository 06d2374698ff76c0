"""What a system under test must offer, and how it starts its readers."""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_PR_SET_PDEATHSIG: Final = 1
_LEAVE_S: Final = 3.0


class UnavailableError(Exception):
    """Something that the system needs is not on this machine; the message says what."""


def segment_prefix(driver: int) -> str:
    """Start of the names that a system chooses in ``/dev/shm``, for the process id of its driver.

    The harness removes what is left there under these names if it must end the driver by force.
    """
    return f"bench_{driver}_"


class System(ABC):
    """One way to hand a call to other processes and to get a reply from each.

    A subclass starts its readers in `start`, with `spawn`; each of them waits for a message,
    answers it with `message.REPLY`, and returns once it receives `message.LEAVE`. Everything the
    clock needs is in the driver: a subclass neither measures nor sleeps.

    Attributes
    ----------
    wakes_ns
        Of each call, how long until the last reader, awake, had seen it, less pickling; only where
        the system can tell. It grows until the driver clears it.
    """

    #: Core of each reader; None where the kernel chooses. The driver sets it before `start`.
    reader_core: int | None = None

    def __init__(self) -> None:
        self.readers: list[BaseProcess] = []
        self.wakes_ns: list[int] = []

    @abstractmethod
    def start(self, n_readers: int) -> None:
        """Create the channels and the readers; return once a call would reach all of them.

        Raises
        ------
        UnavailableError
            If this machine cannot run the system.
        """

    @abstractmethod
    def call(self, message: Any) -> None:
        """Hand a message to every reader and wait for a reply from each."""

    @abstractmethod
    def close(self) -> None:
        """Tell every reader to leave and give back what `start` took."""

    def about(self) -> dict[str, Any]:
        """Versions and settings worth storing beside the figures."""
        return {}

    def counts(self) -> dict[str, int]:
        """Events counted so far, all increasing; the driver reports how many a burst had."""
        return {}

    def own(self) -> dict[str, list[int]]:
        """Durations in ns that only this system can measure, by name; see `costs`."""
        return {}

    def time_calls(self, n: int, gap_ns: int, limit_ns: int, message: Any) -> list[int]:
        """Round trips in ns, each from before `call` until it returned.

        Parameters
        ----------
        n
            How many calls.
        gap_ns
            Sleep before each of them.
        limit_ns
            Stop early once this much time has gone, after one call at least.
        message
            What is handed over.
        """
        samples: list[int] = []
        deadline_ns = time.monotonic_ns() + limit_ns
        while len(samples) < n and not (samples and time.monotonic_ns() > deadline_ns):
            if gap_ns:
                time.sleep(gap_ns / 1e9)
            before_ns = time.monotonic_ns()
            self.call(message)
            samples.append(time.monotonic_ns() - before_ns)
        return samples

    def spawn(self, read: Callable[..., None], *arguments: Any) -> None:
        """Start a reader that runs ``read(*arguments)`` on its core.

        The child inherits the core of the thread that starts it, and so do all threads that its
        libraries make while they are imported.
        """
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_reader, args=(os.getpid(), read, arguments))
        own = os.sched_getaffinity(0)
        if self.reader_core is not None:
            os.sched_setaffinity(0, {self.reader_core})
        try:
            process.start()
        finally:
            os.sched_setaffinity(0, own)
        self.readers.append(process)

    def join(self) -> None:
        """Wait for the readers to return; end those that do not."""
        deadline_s = time.monotonic() + _LEAVE_S
        for process in self.readers:
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _reader(parent: int, read: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """First function of a reader: it dies with the driver, and only the driver ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between, so the signal will never come
        sys.exit(1)
    read(*arguments)
