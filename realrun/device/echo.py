"""A device that computes nothing and takes as long as a law says."""

import time
from typing import TYPE_CHECKING, Any, Final

from realrun.device.board import LaunchBoard
from realrun.device.bulk import Bulk
from realrun.device.instant import meet
from realrun.device.interface import Launched
from realrun.segment import Segment
from shmsim.message import CallOne
from shmsim.steptime import StepTimeLaw
from shmsim.tape import Tape
from shmsim.units import MS, US

if TYPE_CHECKING:
    from realrun.waiter import Waiter

_LOOK_AGAIN_NS: Final = 20 * US  # for a launch of another worker that is late
_WARM_UP_STEP_NS: Final = 1 * MS  # longest step of a warm-up


class EchoDevice:
    """A device clock: a step is done at ``max(all launched, last done) + drawn step time``.

    It computes nothing, so any step time can be studied on any box. A wait that ends late does not
    delay the steps behind it, because each is counted from the clock and not from when somebody
    looked. Waiting for it sleeps, then spins to meet the instant; that CPU is no CPU of the engine
    and is booked apart, as `emulation_cpu_ns`.

    The launch board makes workers meet as at a collective: a step starts once all have launched it.

    Parameters
    ----------
    segment
        Holds the launch board.
    rank
        This worker.
    step_time, tape
        Law and random numbers: the same in every worker, and in the model.
    guard_ns
        How long before the end to stop sleeping and spin.
    """

    def __init__(
        self, segment: Segment, rank: int, step_time: StepTimeLaw, tape: Tape, guard_ns: int
    ) -> None:
        """Start with nothing launched."""
        self._segment = segment
        self._board = LaunchBoard(segment, rank)
        # A word that never moves, so that only the clock or the stop word ends a wait on it.
        self._idle = segment.layout.idle_words(1 + rank)
        self._step_time = step_time
        self._noise = tape.normal("device", "step")
        self._guard_ns = guard_ns
        self._serial = 0
        self._last_done_ns = 0
        self.emulation_cpu_ns = 0
        self.waiters: list[Waiter] = []

    def load(self, call: CallOne) -> None:
        """Nothing is loaded."""

    def upload(self, bulk: Bulk) -> None:
        """It has no memory: the slots are free as soon as nobody looks at them."""

    def launch(self, call: CallOne, *, is_warm_up: bool) -> Launched:
        """Queue a step; returns at once."""
        self._serial += 1
        launched_ns = self._board.post(self._serial)
        duration_ns = self._step_time.draw_ns(
            call.n_decode, call.n_prefill_tokens, call.n_kv_tokens, self._noise.at(call.step)
        )
        if is_warm_up:
            duration_ns = min(duration_ns, _WARM_UP_STEP_NS)
        return Launched(self._serial, launched_ns, duration_ns)

    def wait(self, step: Launched) -> tuple[int, int]:
        """Wait until a step is done; steps must be waited for in order.

        Returns
        -------
        tuple
            When the last worker had launched it, and when it was done: ``(launched_ns, done_ns)``.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        """
        cpu_ns = time.thread_time_ns()
        launched_ns = step.launched_ns
        # Nobody can be done before this; the others' launches are nearly always there by then.
        self._meet(max(launched_ns, self._last_done_ns) + step.duration_ns)
        for worker in range(self._segment.layout.n_workers):
            while (found := self._board.found(step.serial, worker))[0] < step.serial:
                self._meet(time.monotonic_ns() + _LOOK_AGAIN_NS)
            # A thread that comes too late finds a later step here, and its own is over long since.
            # Only a rank that does not reply can: the others launch once the output rank replied.
            if found[0] == step.serial:
                launched_ns = max(launched_ns, found[1])
        done_ns = max(launched_ns, self._last_done_ns) + step.duration_ns
        self._meet(done_ns)
        self._last_done_ns = done_ns
        self.emulation_cpu_ns += time.thread_time_ns() - cpu_ns
        return launched_ns, done_ns

    def _meet(self, instant_ns: int) -> None:
        meet(self._segment, self._idle, instant_ns, self._guard_ns)

    def outputs(self, step: Launched) -> list[list[int]] | None:
        """It computes none."""
        del step
        return None

    def forget(self) -> None:
        """There is nothing to forget."""

    def begin(self) -> None:
        """Count from here."""
        self.emulation_cpu_ns = 0

    def facts(self) -> dict[str, Any]:
        """It is none."""
        return {"kind": "echo"}

    def close(self) -> None:
        """Nothing is held."""
