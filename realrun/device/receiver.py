"""A worker without a device: it receives every call and launches nothing."""

import time
from typing import TYPE_CHECKING, Any

from realrun.device.bulk import Bulk
from realrun.device.interface import Launched
from shmsim.message import CallOne

if TYPE_CHECKING:
    from realrun.waiter import Waiter


class NoDevice:
    """Stands for the ranks of a larger engine than there are GPUs for.

    What it takes to hand a call to so many readers is real; its rows are labelled ``emulated``.
    """

    def __init__(self) -> None:
        """Nothing is held."""
        self.emulation_cpu_ns = 0
        self.waiters: list[Waiter] = []
        self._serial = 0

    def load(self, call: CallOne) -> None:
        """Nothing is loaded."""

    def upload(self, bulk: Bulk) -> None:
        """It has no memory: the slots are free as soon as nobody looks at them."""

    def launch(self, call: CallOne, *, is_warm_up: bool) -> Launched:
        """Nothing is launched."""
        del call, is_warm_up
        self._serial += 1
        return Launched(self._serial, time.monotonic_ns())

    def wait(self, step: Launched) -> tuple[int, int]:
        """Nobody waits."""
        return step.launched_ns, step.launched_ns

    def outputs(self, step: Launched) -> list[list[int]] | None:
        """It computes none."""
        del step
        return None

    def forget(self) -> None:
        """There is nothing to forget."""

    def begin(self) -> None:
        """There is nothing to count."""

    def facts(self) -> dict[str, Any]:
        """It is none."""
        return {"kind": "none", "emulated": True}

    def close(self) -> None:
        """Nothing is held."""
