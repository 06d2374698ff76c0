"""The devices of all workers in the model."""

from collections.abc import Callable
from functools import partial

import simpy

from shmsim.batching import Batch
from shmsim.sim.clock import VirtualClock
from shmsim.sim.source import StepEnd
from shmsim.steptime import StepTimeLaw
from shmsim.tape import Stream


class Device:
    """One device for each worker; a step begins on all of them once the last has launched it.

    Parameters
    ----------
    env
        The clock.
    step_time
        How long a batch takes.
    noise
        Standard normal numbers, one for each step.
    n_workers
        How many devices take part in a step.
    slowdown
        By which factor a step that begins now takes longer.
    """

    def __init__(
        self,
        env: VirtualClock,
        step_time: StepTimeLaw,
        noise: Stream,
        n_workers: int,
        slowdown: Callable[[], float],
    ) -> None:
        """Nothing was launched yet."""
        self._env = env
        self._step_time = step_time
        self._noise = noise
        self._n_workers = n_workers
        self._slowdown = slowdown
        self._n_launched: dict[int, int] = {}
        self._ends: dict[int, list[StepEnd]] = {}
        self._n_asking: dict[int, int] = {}
        self._last_done_ns = 0
        self.launched_ns: dict[int, int] = {}
        self.done_ns: dict[int, int] = {}
        self._soonest_ns: dict[int, int] = {}
        self._drawn_ns: dict[int, int] = {}
        self._n_begun = self._n_ended = 0
        self._copies: dict[int, list[tuple[int, int, Callable[[], None]]]] = {}
        self._landed_ns: dict[int, int] = {}
        self._awaited: dict[int, simpy.Event] = {}

    def launch(self, batch: Batch) -> None:
        """One worker has launched a step."""
        step, now_ns = batch.step, self._env.now_ns
        n_launched = self._n_launched[step] = self._n_launched.get(step, 0) + 1
        if n_launched == 1:
            self._drawn_ns[step] = drawn_ns = self._step_time.draw_ns(
                len(batch.decode), batch.n_prefill_tokens, batch.n_kv_tokens, self._noise.at(step)
            )
            self._soonest_ns[step] = max(now_ns, self._last_done_ns) + drawn_ns
        if n_launched < self._n_workers:
            return
        self.launched_ns[step] = now_ns
        duration_ns = int(self._drawn_ns.pop(step) * self._slowdown())
        begun_ns = max(self._env.now_ns, self._last_done_ns, self._landed_ns.pop(step, 0))
        done_ns = begun_ns + duration_ns
        self._last_done_ns = self.done_ns[step] = self._soonest_ns[step] = done_ns
        self._env.after(done_ns - self._env.now_ns, partial(self._finish, step))
        self._n_begun = step + 1
        self._start_copies(step + 1)

    def copy(self, step: int, after_ns: int, landed: Callable[[], None]) -> None:
        """One worker has called for a copy to its device, before it launches a step.

        Copies and steps follow each other in one stream: the copy goes on when what was launched
        before it has ended, and the step begins when the copies of all workers have landed.

        Parameters
        ----------
        step
            The step that it is for.
        after_ns
            How long after the return of the call it lands, if the stream is free.
        landed
            Called when it does.
        """
        self._copies.setdefault(step, []).append((self._env.now_ns, after_ns, landed))
        self._start_copies(step)

    def _start_copies(self, step: int) -> None:
        """Say when copies land, once everything before them has an end."""
        if step != self._n_begun:
            return
        for called_ns, after_ns, landed in self._copies.pop(step, ()):
            landed_ns = max(called_ns, self._last_done_ns) + after_ns
            self._landed_ns[step] = max(landed_ns, self._landed_ns.get(step, 0))
            self._env.after(max(landed_ns - self._env.now_ns, 0), landed)

    def end_before(self, step: int) -> simpy.Event | None:
        """The end of what was launched before a step; None if it has ended."""
        if step <= self._n_ended:
            return None
        return self._awaited.setdefault(step - 1, self._env.event())

    def soonest_end_ns(self, step: int) -> int:
        """When a step that was launched by somebody will be done, as far as it is known now."""
        return self._soonest_ns[step]

    def end_of(self, step: int, rank: int) -> StepEnd:
        """What a worker waits for."""
        return self._ends_of(step)[rank]

    def _ends_of(self, step: int) -> list[StepEnd]:
        if step not in self._ends:
            self._ends[step] = [StepEnd(self._env) for _ in range(self._n_workers)]
        return self._ends[step]

    def _finish(self, step: int) -> None:
        for end in self._ends_of(step):
            end.end()
        self._n_ended = step + 1
        if step in self._awaited:
            self._awaited.pop(step).succeed()

    def leave(self, step: int) -> None:
        """One of the workers, or the scheduler, will not ask about this step any more."""
        n_asking = self._n_asking.pop(step, self._n_workers + 1) - 1
        if n_asking:
            self._n_asking[step] = n_asking
            return
        for memory in (self._n_launched, self._ends, self._soonest_ns):
            del memory[step]
        del self.launched_ns[step], self.done_ns[step]
