"""Carries out a wait plan on cores that others want too.

The same stages and the same draws as `shmsim.sim.waiter`, event by event: what a waiter is doing
when its message comes depends on who has the core. With a core for every thread both give the same
result, to the nanosecond (tests/theory/test_cores.py).
"""

from typing import Final

import simpy

from shmsim.sim.clock import Process, VirtualClock
from shmsim.sim.cores import Thread
from shmsim.sim.courier import Courier
from shmsim.sim.deciding import Cold
from shmsim.sim.draws import Draws
from shmsim.sim.source import Source
from shmsim.sim.waiter import DOZED, PARKED, REHEARSED, SPUN, Seen, ring_delay_ns
from shmsim.units import FOREVER_NS, MS
from shmsim.wait import DOZE, MAX_STAGES, PARK, POLL, REHEARSE, SPIN, YIELD, StageCpu, WaitPlan

# As in realrun/_native.c: who lost its core for that long while it span sleeps on the doorbell
# instead of spinning, for a while.
_DESCHEDULED_NS: Final = 1 * MS
_CROWDED_FOR_NS: Final = 100 * MS
CARRYING: Final = "io_thread_cpu"  #: the cost of one I/O thread for one ring


class Lane:
    """A thread of a process, and what it remembers from wait to wait.

    Parameters
    ----------
    thread
        Where it runs; None: it has a core to itself.
    is_guarded
        Whether its spins give way once they were preempted, as those of realrun do.

    Attributes
    ----------
    owed_ns
        Work that it has done, as far as anybody can tell, but that the clock was not told of yet:
        work that follows is added to it, and both take one event.
    cold
        How cold deciding is to it.
    """

    def __init__(self, thread: Thread | None = None, is_guarded: bool = True) -> None:
        """Nothing has happened yet."""
        self.thread = thread
        self.is_guarded = is_guarded
        self.owed_ns = 0
        self.cold = Cold()
        self.crowded_until_ns = 0
        self.emulation_ns = 0  #: CPU time of standing in for a device
        self.unplaced_ns = 0  #: CPU time of going to sleep, which delays nobody
        self._n_preempted = 0

    def take_preemptions(self) -> int:
        """How often the core was taken from it since the last question."""
        if self.thread is None:
            return 0
        before, self._n_preempted = self._n_preempted, self.thread.n_preempted
        return self._n_preempted - before


def spin(
    env: VirtualClock, lane: Lane, source: Source, deadline_ns: int, *, yields: bool
) -> Process:
    """Look until it is there, the deadline, or the lane finds that its core was taken from it."""
    thread = lane.thread
    assert thread is not None, "who has a core to itself does not share it"
    thread.off_core_ns = 0
    gives_way = lane.is_guarded and not yields

    def look() -> bool:
        crowded = gives_way and thread.off_core_ns > _DESCHEDULED_NS
        return source.found_ns() is not None or crowded

    source.spinner = thread
    yield thread.spin(look, deadline_ns, yields=yields)
    source.spinner = None
    if gives_way and thread.off_core_ns > _DESCHEDULED_NS:
        lane.crowded_until_ns = env.now_ns + _CROWDED_FOR_NS


class SharedWait:
    """One wait of one lane.

    Parameters
    ----------
    env, lane, draws
        The clock, who waits, and its costs.
    plan, index, rehearsal
        As of `shmsim.sim.waiter.VirtualWait`.
    courier
        Brings rings to it, if that takes an I/O thread.
    """

    def __init__(
        self,
        env: VirtualClock,
        lane: Lane,
        draws: Draws,
        plan: WaitPlan,
        index: int,
        rehearsal: str,
        courier: Courier | None = None,
    ) -> None:
        """Start to wait."""
        self._env = env
        assert lane.thread is not None, "who has a core to itself does not share it"
        self._lane = lane
        self._thread = lane.thread
        self._draws = draws
        self._plan = plan
        self._index = index
        self._rehearsal = rehearsal
        self._courier = courier
        self._overshoot_ns = self._dozed_ns = 0
        self._belled = False
        self._booked_ns = 0

    def see(self, source: Source) -> Process:
        """Wait; returns a `Seen`."""
        env, started_ns = self._env, self._env.now_ns
        self._booked_ns = self._cpu_ns()
        cpu_ns = [0] * MAX_STAGES
        rehearsed = False
        stage = rested_ns = 0
        found = spun = False
        for stage, (kind, until_ns, period_ns) in enumerate(self._plan):
            if source.found_ns() is not None:
                break
            begun_ns, found = env.now_ns, False
            if kind == REHEARSE:
                rehearsed = True
                cost_ns = self._draws.at(self._rehearsal, self._index, self._dozed_ns)
                if not self._thread.ran(cost_ns):
                    yield self._thread.run(cost_ns)
                cpu_ns[stage] = self._spent()
                continue
            deadline_ns = FOREVER_NS if until_ns >= FOREVER_NS else started_ns + until_ns
            if begun_ns >= deadline_ns:
                continue
            if kind in (SPIN, YIELD):
                found = yield from self._spin(source, deadline_ns, yields=kind == YIELD)
                if found and not self._belled:
                    spun, rested_ns = True, env.now_ns - begun_ns
                    name = "spin_detection" if kind == SPIN else "yield_detection"
                    detection_ns = self._draws.at(name, self._index)
                    if not self._thread.ran(detection_ns):
                        yield self._thread.run(detection_ns)
            elif kind in (DOZE, PARK):
                found = yield from self._sleep_on_bell(source, deadline_ns, period_ns)
            else:
                period = period_ns if kind == POLL else deadline_ns - begun_ns
                found = yield from self._nap(source, deadline_ns, period)
            cpu_ns[stage] = self._spent()
            if found:
                break
        else:
            raise AssertionError("the last stage of a plan lasts for ever (check_plan)")
        mode = SPUN
        if self._dozed_ns:
            mode, rested_ns = DOZED if spun else PARKED, self._dozed_ns
        if rehearsed and not self._belled:
            mode = REHEARSED
        return Seen(
            env.now_ns - started_ns,
            stage,
            StageCpu(*cpu_ns),
            self._overshoot_ns,
            self._belled,
            mode,
            rested_ns,
        )

    def _cpu_ns(self) -> int:
        return self._thread.cpu_ns + self._lane.unplaced_ns

    def _spent(self) -> int:
        """CPU time since the last question."""
        before_ns, self._booked_ns = self._booked_ns, self._cpu_ns()
        return self._booked_ns - before_ns

    def _spin(self, source: Source, deadline_ns: int, *, yields: bool) -> Process:
        """Look until it is there or the deadline; give way while the cores are crowded."""
        env, lane = self._env, self._lane
        while True:
            if lane.is_guarded and not yields and env.now_ns < lane.crowded_until_ns:
                until_ns = min(lane.crowded_until_ns, deadline_ns)
                if (yield from self._sleep_on_bell(source, until_ns, 0)):
                    return True
                if env.now_ns >= deadline_ns:
                    return False
            yield from spin(env, lane, source, deadline_ns, yields=yields)
            if source.found_ns() is not None:
                return True
            if env.now_ns >= deadline_ns:
                return False

    def _sleep_on_bell(self, source: Source, deadline_ns: int, period_ns: int) -> Process:
        """Sleep until the ring or the deadline; returns whether it is there."""
        env, draws, index = self._env, self._draws, self._index
        begun_ns = env.now_ns
        source.armed_since_ns = begun_ns
        rang = yield from self._rest(source, deadline_ns)
        rested_ns = env.now_ns - begun_ns
        delay_ns = ring_delay_ns(source.late_ns, rested_ns, period_ns) if rang else 0
        if delay_ns and env.now_ns + delay_ns > deadline_ns:
            yield simpy.Timeout(env, deadline_ns - env.now_ns)
            rang, rested_ns = False, deadline_ns - begun_ns
        elif delay_ns and not env.goes_on_at(env.now_ns + delay_ns):
            yield simpy.Timeout(env, delay_ns)
        if rang:
            self._belled = True
            self._dozed_ns = rested_ns
            cpu_ns = draws.at("park_cpu", index, rested_ns)
            if period_ns:
                cpu_ns += rested_ns // period_ns * draws.at("doze_cpu", index, period_ns)
            latency_ns = draws.at("wake_latency", index, rested_ns)
            if source.courier is not None and self._courier is not None:
                carry_ns = min(draws.at(CARRYING, index, rested_ns), latency_ns // 3)
                latency_ns -= 2 * carry_ns
                yield from source.courier.carry(carry_ns)
                yield from self._courier.carry(carry_ns)
            yield from self._wake(latency_ns, cpu_ns)
            return True
        self._overshoot_ns = draws.at("timer_overshoot", index, rested_ns)
        self._dozed_ns = rested_ns
        yield from self._wake(self._overshoot_ns, draws.at("doze_cpu", index, rested_ns))
        source.armed_since_ns = None
        return source.found_ns() is not None

    def _nap(self, source: Source, deadline_ns: int, period_ns: int) -> Process:
        """Sleep deaf to the doorbell, again and again until the deadline."""
        env, draws, index = self._env, self._draws, self._index
        self._overshoot_ns = draws.at("timer_overshoot", index, period_ns)
        self._dozed_ns = period_ns
        while True:
            self._thread.sleep()
            yield simpy.Timeout(env, period_ns)
            yield from self._wake(self._overshoot_ns, draws.at("doze_cpu", index, period_ns))
            if source.found_ns() is not None:
                return True
            if env.now_ns >= deadline_ns:
                return False

    def _rest(self, source: Source, deadline_ns: int) -> Process:
        """Be asleep until the announcement (True) or the deadline (False)."""
        env = self._env
        source.arrival = arrival = simpy.Event(env)
        self._thread.sleep()
        if deadline_ns < FOREVER_NS:

            def give_up() -> None:
                if not arrival.triggered:
                    arrival.succeed(False)

            env.after(deadline_ns - env.now_ns, give_up, is_timer=True)
        rang = yield arrival
        source.arrival = None
        return rang

    def _wake(self, latency_ns: int, cpu_ns: int) -> Process:
        """Be awake after a latency that contains the CPU time, if a core is free by then."""
        on_core_ns = min(cpu_ns, latency_ns)
        self._lane.unplaced_ns += cpu_ns - on_core_ns
        if not self._env.goes_on_at(self._env.now_ns + latency_ns - on_core_ns):
            yield simpy.Timeout(self._env, latency_ns - on_core_ns)
        self._thread.wake()
        if not self._thread.ran(on_core_ns):
            yield self._thread.run(on_core_ns)
