"""What a worker asks of its device."""

from dataclasses import dataclass
from typing import Any, Protocol

from realrun.device.bulk import Bulk
from realrun.waiter import Waiter
from shmsim.message import CallOne


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way.

    Parameters
    ----------
    serial
        Running number of the step on this device, from 1.
    launched_ns
        When this worker had launched it.
    duration_ns
        How long it will take, of a device that stands in for one; else 0.
    """

    serial: int
    launched_ns: int
    duration_ns: int = 0


class Device(Protocol):
    """Steps are loaded, launched, waited for and read out in order, a few in flight at once.

    The thread that loads and launches may be another than the one that waits and reads.

    Attributes
    ----------
    emulation_cpu_ns
        CPU time of this process that is no work of an engine, but stands in for a device's.
    waiters
        By which the policies wait for the device; empty if none is asked.
    """

    emulation_cpu_ns: int
    waiters: list[Waiter]

    def load(self, call: CallOne) -> None:
        """Bring the inputs of the next step to the device; returns before they are there."""
        ...

    def upload(self, bulk: Bulk) -> None:
        """Bring bulk of the step that was loaded there too, and hold its slots until it is."""
        ...

    def launch(self, call: CallOne, *, is_warm_up: bool) -> Launched:
        """Queue the step that was loaded; returns at once."""
        ...

    def wait(self, step: Launched) -> tuple[int, int]:
        """Wait until a step is over; returns when it was launched, and when it was over.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        """
        ...

    def outputs(self, step: Launched) -> list[list[int]] | None:
        """Tokens of each sequence of a step that was waited for; None: it computed none."""
        ...

    def forget(self) -> None:
        """Forget all sequences: what comes now is another workload. For the launching thread."""
        ...

    def begin(self) -> None:
        """The records begin: nothing is in flight. For the waiting thread."""
        ...

    def facts(self) -> dict[str, Any]:
        """What it is, for the records."""
        ...

    def close(self) -> None:
        """Give back what it holds; nothing is in flight."""
        ...
