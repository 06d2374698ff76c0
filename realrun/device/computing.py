"""What devices that compute have in common: rows, serial numbers, and the end ring.

The end of a step is a message in a ring of its own, from the device to its worker: published by the
thread that computes, by one that waits in the driver, or by the GPU itself. So whoever waits for a
device waits as for any message, by the plans of a policy.
"""

from collections import deque
from typing import NamedTuple

from realrun.device.board import LaunchBoard
from realrun.device.interface import Launched
from realrun.model.rows import Rows, StepInput
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from shmsim.message import CallOne


class InFlight(NamedTuple):
    """A step that nobody has waited for yet."""

    step: Launched
    inputs: StepInput
    known: Known


class Computing:
    """Keeps track of what is in flight; a subclass launches, and knows where outputs are.

    Parameters
    ----------
    segment, rank
        Whose end ring it is.
    n_rows, max_len
        Of the KV cache.
    waiter
        Waits for the end ring.
    """

    def __init__(
        self, segment: Segment, rank: int, n_rows: int, max_len: int, waiter: Waiter
    ) -> None:
        """Nothing is in flight."""
        self.segment = segment
        self.ring = segment.layout.ends[rank]
        self._board = LaunchBoard(segment, rank)
        self.waiters = [waiter]
        self.emulation_cpu_ns = 0
        self._rows = Rows(n_rows, max_len)
        self._loaded: StepInput | None = None
        self._in_flight: deque[InFlight] = deque()
        self._last: InFlight | None = None
        self._serial = 0

    def place(self, call: CallOne) -> tuple[int, StepInput]:
        """Serial number and rows of the step that is loaded now."""
        self._loaded = self._rows.place(call)
        return self._serial + 1, self._loaded

    def begun(self, call: CallOne) -> Launched:
        """Note that the step which was loaded is launched."""
        if self._loaded is None:
            raise RuntimeError(f"step {call.step} was launched but not loaded")
        self._serial += 1
        step = Launched(self._serial, self._board.post(self._serial))
        known = Known(call.step, True, call.n_decode, call.n_prefill_tokens, call.n_kv_tokens)
        self._in_flight.append(InFlight(step, self._loaded, known))
        self._loaded = None
        return step

    def wait(self, step: Launched) -> tuple[int, int]:
        """Wait, by policy, until a step is over; steps must be waited for in order.

        Returns
        -------
        tuple
            When the last rank had launched it, and when it was over.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        RuntimeError
            If the end of another step came.
        """
        self._last = last = self._in_flight.popleft()
        message, _ = self.waiters[0].wait(0, last.known)
        if message.call_id != step.serial or last.step != step:
            raise RuntimeError(f"step {message.call_id} ended, expected step {step.serial}")
        self.arrived(message.payload)
        board, ranks = self._board, range(self.segment.layout.n_devices)
        cells = [board.found(step.serial, rank) for rank in ranks]
        # All have launched what they computed together. Who comes late may find a later step.
        launched_ns = max(ns for serial, ns in cells if serial == step.serial)
        return launched_ns, message.published_ns

    def arrived(self, payload: bytes) -> None:
        """The message of an end came."""

    def last_inputs(self, step: Launched) -> StepInput:
        """Inputs of the step that was waited for last."""
        if self._last is None or self._last.step != step:
            raise RuntimeError(f"outputs of step {step.serial}, which is not the last one awaited")
        return self._last.inputs

    def forget(self) -> None:
        """Forget all sequences."""
        self._rows.clear()

    def begin(self) -> None:
        """Forget what was learnt and recorded."""
        self.emulation_cpu_ns = 0
        for waiter in self.waiters:
            waiter.reset()
