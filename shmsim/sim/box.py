"""The box that engines of the model run on: its clock, its cores, and who may use which."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import simpy

from shmsim.records import CoreRow, SliceRow
from shmsim.sim.clock import VirtualClock
from shmsim.sim.contended import Lane
from shmsim.sim.cores import AMPLE, Host, Schedule
from shmsim.sim.courier import Courier
from shmsim.tape import Tape


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's collector of cyclic garbage at rest: a step leaves none, and looking for it costs.

    It goes through all rows again and again, by which many workers were dearer each than few.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Startable(Protocol):
    """Something that consists of processes of the model."""

    def start(self) -> list[simpy.Process]:
        """Start them."""
        ...


class Box:
    """A machine in virtual time.

    Parameters
    ----------
    rules
        Its cores. `AMPLE`: every thread has one to itself, and none is modelled.
    n_processes
        How many processes will run here; with ``pins`` and a core for each, each gets its own.
    is_guarded
        Whether spins give way once they were preempted, as those of realrun do.
    slowdown
        By which share of itself a step of a device takes longer for each core that is busy.
    tape
        Luck of the hypervisor's thefts.
    traces
        Whether to note who ran where and when.
    """

    def __init__(
        self,
        rules: Schedule = AMPLE,
        n_processes: int = 0,
        *,
        pins: bool = False,
        is_guarded: bool = True,
        slowdown: float = 0.0,
        tape: Tape = Tape(0),  # noqa: B008 - immutable
        traces: bool = False,
    ) -> None:
        """Nobody is here yet."""
        self.env = VirtualClock()
        self.slices: list[SliceRow] = []
        self._is_guarded = is_guarded
        self._slowdown = slowdown
        self._lanes: dict[str, list[Lane]] = {}
        self._pinned: dict[str, int | None] = {}
        self._host: Host | None = None
        self._tape = tape
        if rules != AMPLE:
            # Enough for a thread for replies and one that carries rings in each process.
            n_cores = rules.n_cores or 3 * max(n_processes, 1)
            self._host = Host(self.env, rules, n_cores, self.slices if traces else None)
            for core in self._host.cores:
                phase = tape.uniform(f"core{core.number}", "tick").at(0)
                core.tick_phase_ns = int(phase * rules.tick_ns)
            self._pins = pins and n_processes <= rules.n_cores

    def lane(self, process: str) -> Lane:
        """A thread of a process, beside its others."""
        lanes = self._lanes.setdefault(process, [])
        if self._host is None:
            lanes.append(Lane())
            return lanes[-1]
        if process not in self._pinned:
            self._pinned[process] = len(self._pinned) if self._pins else None
        thread = self._host.thread(process, self._pinned[process])
        lanes.append(Lane(thread, self._is_guarded))
        return lanes[-1]

    def courier(self, process: str) -> Courier:
        """The I/O thread of a process: not pinned."""
        thread = self._host.thread(process) if self._host is not None else None
        return Courier(self.env, thread)

    def lanes_of(self, process: str) -> list[Lane]:
        """All threads of a process."""
        return self._lanes.get(process, [])

    def run(self, engines: Sequence[Startable]) -> None:
        """Run until all processes of all engines have ended."""
        processes = [process for engine in engines for process in engine.start()]
        if self._host is not None:
            draws = [
                self._tape.generator(f"core{core.number}", "steal").standard_exponential
                for core in self._host.cores
            ]
            self._host.start(draws)
        with _uncollected():
            self.env.run(until=self.env.all_of(processes))

    def core_rows(self, wall_ns: int) -> list[CoreRow]:
        """What became of the time of each core; empty where none is modelled."""
        return self._host.rows(wall_ns) if self._host else []

    def slowdown(self) -> float:
        """By which factor a step that begins now takes longer."""
        n_busy = self._host.n_running if self._host else 0
        return 1.0 + self._slowdown * n_busy
