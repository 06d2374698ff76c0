"""The device a worker runs its steps on."""

import time
from dataclasses import dataclass
from typing import Final

from realrun.native import STOPPED, wait
from realrun.segment import Segment
from realrun.waiting import Stopped
from shmsim.message import CallOne
from shmsim.steptime import StepTimeLaw
from shmsim.tape import Tape
from shmsim.units import MS, US
from shmsim.wait import NAP, PARK, SPIN

_PARK_UNREACHED: Final = (PARK, 0, 0)
_LOOK_AGAIN_NS: Final = 20 * US  # for a launch of another worker that is late
_WARM_UP_STEP_NS: Final = 1 * MS  # longest step of a warm-up


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way."""

    serial: int
    launched_ns: int  # by this worker
    duration_ns: int


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
        self._board = segment.layout.board
        self._rank = rank
        # A word that never moves, so that only the clock or the stop word ends a wait on it.
        self._idle = segment.layout.idle_words(1 + rank)
        self._step_time = step_time
        self._noise = tape.normal("device", "step")
        self._guard_ns = guard_ns
        self._serial = 0
        self._last_done_ns = 0
        self.emulation_cpu_ns = 0

    def launch(self, call: CallOne, *, is_warm_up: bool) -> Launched:
        """Queue a step; returns at once."""
        self._serial += 1
        cell_at = self._board.cell_at(self._serial, self._rank)
        # The stamp first: whoever sees the serial finds it. x86 and the extension's next fence
        # keep the order; readers take the maximum over workers and look again if it is absent.
        launched_ns = time.monotonic_ns()
        self._segment.store(cell_at + 8, launched_ns)
        self._segment.store(cell_at, self._serial)
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
        for worker in range(self._board.n_workers):
            cell_at = self._board.cell_at(step.serial, worker)
            while (found := self._segment.load(cell_at)) < step.serial:
                self._meet(time.monotonic_ns() + _LOOK_AGAIN_NS)
            # A thread that comes too late finds a later step here, and its own is over long since.
            # Only a rank that does not reply can: the others launch once the output rank replied.
            if found == step.serial:
                launched_ns = max(launched_ns, self._segment.load(cell_at + 8))
        done_ns = max(launched_ns, self._last_done_ns) + step.duration_ns
        self._meet(done_ns)
        self._last_done_ns = done_ns
        self.emulation_cpu_ns += time.thread_time_ns() - cpu_ns
        return launched_ns, done_ns

    def _meet(self, instant_ns: int) -> None:
        """Sleep, then spin, until an instant."""
        left_ns = instant_ns - time.monotonic_ns()
        if left_ns <= 0:
            return
        nap_ns = max(left_ns - self._guard_ns, 0)
        plan = (NAP, nap_ns, 0, SPIN, left_ns, 0, *_PARK_UNREACHED, *_PARK_UNREACHED)
        over = wait(self._segment.memory, self._idle, 0, plan)[0]
        if over == STOPPED:
            raise Stopped
