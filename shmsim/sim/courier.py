"""The I/O threads of a socket library: they carry a ring from who sends it to who sleeps on it."""

import simpy

from shmsim.sim.clock import Process, VirtualClock
from shmsim.sim.cores import Thread


class Courier:
    """The I/O thread of one process.

    Its latency is part of the calibrated wake-up latency. Where cores are shared it needs one to
    carry a ring, wherever one is free: socket libraries do not pin it. It carries one at a time.

    Parameters
    ----------
    env
        The clock.
    thread
        Where it runs; None: it has a core to itself.
    """

    def __init__(self, env: VirtualClock, thread: Thread | None) -> None:
        """Sleep."""
        self.thread = thread
        self._turn = simpy.Resource(env)
        self._cpu_ns = 0

    def count(self, cpu_ns: int) -> None:
        """It has carried a ring, on a core of its own."""
        self._cpu_ns += cpu_ns

    def carry(self, cpu_ns: int) -> Process:
        """Carry a ring, if there is a core for it."""
        assert self.thread is not None, "who has a core to itself is not waited for"
        with self._turn.request() as turn:
            yield turn
            self.thread.wake()
            yield self.thread.run(cpu_ns)
            self.thread.sleep()

    @property
    def cpu_ns(self) -> int:
        """CPU time it used."""
        return self.thread.cpu_ns if self.thread is not None else self._cpu_ns
