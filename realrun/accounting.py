"""CPU time and context switches of this process, between two instants."""

import resource
import time

from realrun.publisher import Publisher
from realrun.run_queue import run_queue_wait_ns
from realrun.waiter import Waiter
from shmsim.records import ProcessRow


class Accounting:
    """What this process consumes from its creation on.

    Parameters
    ----------
    process
        Name in the records.
    """

    def __init__(self, process: str) -> None:
        """Read every counter once."""
        self._process = process
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[int, int, int, int, int]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return (
            time.monotonic_ns(),
            time.process_time_ns(),
            run_queue_wait_ns(),
            usage.ru_nvcsw,
            usage.ru_nivcsw,
        )

    def row(
        self, emulation_cpu_ns: int, publisher: Publisher, waiters: list[Waiter], late: int = 0
    ) -> ProcessRow:
        """What was consumed until now, and what publisher and waiters counted since their reset."""
        wall_ns, cpu_ns, run_queue_ns, voluntary, involuntary = (
            after - before for after, before in zip(self._read(), self._start, strict=True)
        )
        return ProcessRow(
            self._process,
            wall_ns,
            cpu_ns - emulation_cpu_ns,
            emulation_cpu_ns,
            run_queue_ns,
            voluntary,
            involuntary,
            publisher.writer.n_notified,
            publisher.writer.n_elided,
            sum(waiter.n_spurious for waiter in waiters),
            sum(waiter.n_rescued for waiter in waiters),
            late,
        )
