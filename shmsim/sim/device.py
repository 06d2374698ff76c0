"""The devices of all workers in the model."""

from shmsim.batching import Batch
from shmsim.sim.clock import Process, VirtualClock
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
    """

    def __init__(
        self, env: VirtualClock, step_time: StepTimeLaw, noise: Stream, n_workers: int
    ) -> None:
        """Nothing was launched yet."""
        self._env = env
        self._step_time = step_time
        self._noise = noise
        self._n_workers = n_workers
        self._n_launched: dict[int, int] = {}
        self._ends: dict[int, list[StepEnd]] = {}
        self._n_asking: dict[int, int] = {}
        self._last_done_ns = 0
        self.launched_ns: dict[int, int] = {}
        self.done_ns: dict[int, int] = {}

    def launch(self, batch: Batch) -> None:
        """One worker has launched a step."""
        step = batch.step
        self._n_launched[step] = self._n_launched.get(step, 0) + 1
        if self._n_launched[step] < self._n_workers:
            return
        self.launched_ns[step] = self._env.now_ns
        duration_ns = self._step_time.draw_ns(
            len(batch.decode), batch.n_prefill_tokens, batch.n_kv_tokens, self._noise.at(step)
        )
        done_ns = max(self._env.now_ns, self._last_done_ns) + duration_ns
        self._last_done_ns = self.done_ns[step] = done_ns
        self._env.process(self._finish(step, done_ns - self._env.now_ns))

    def end_of(self, step: int, rank: int) -> StepEnd:
        """What a worker waits for."""
        return self._ends_of(step)[rank]

    def _ends_of(self, step: int) -> list[StepEnd]:
        if step not in self._ends:
            self._ends[step] = [StepEnd(self._env) for _ in range(self._n_workers)]
        return self._ends[step]

    def _finish(self, step: int, after_ns: int) -> Process:
        yield self._env.timeout(after_ns)
        for end in self._ends_of(step):
            end.end()

    def leave(self, step: int) -> None:
        """One of the workers, or the scheduler, will not ask about this step any more."""
        n_asking = self._n_asking.pop(step, self._n_workers + 1) - 1
        if n_asking:
            self._n_asking[step] = n_asking
            return
        for memory in (self._n_launched, self._ends, self.launched_ns, self.done_ns):
            del memory[step]
