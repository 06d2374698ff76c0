"""How realrun waits for its echo device: asleep until shortly before the end, then spinning."""

from typing import Final

import simpy

from shmsim.sim.clock import Process, VirtualClock
from shmsim.sim.contended import Lane, spin
from shmsim.sim.device import Device
from shmsim.sim.draws import Draws
from shmsim.units import FOREVER_NS, US

_LOOK_AGAIN_NS: Final = 20 * US  # as in realrun/device/echo.py, while a worker has not launched


def meet(
    env: VirtualClock, lane: Lane, device: Device, step: int, rank: int, guard_ns: int, draws: Draws
) -> Process:
    """Wait for the end of a step; what that takes of a core is no CPU time of the engine.

    With a core to itself nobody notices how a worker waits. On shared cores its spin keeps others
    from the core, and it may itself be kept from meeting the end.
    """
    end = device.end_of(step, rank)
    thread = lane.thread
    if thread is None:
        if end.found_ns() is None:
            spins_from_ns = max(device.soonest_end_ns(step) - guard_ns, env.now_ns)
            end.arrival = simpy.Event(env)
            yield end.arrival
            lane.emulation_ns += env.now_ns - spins_from_ns
        return
    before_ns = thread.cpu_ns
    while end.found_ns() is None:
        is_crowded = lane.is_guarded and env.now_ns < lane.crowded_until_ns
        wake_ns = device.soonest_end_ns(step) - guard_ns
        if is_crowded:  # the spin is slept through, by the timer
            late_ns = draws.next("timer_overshoot", guard_ns)
            wake_ns = max(wake_ns + guard_ns, env.now_ns + _LOOK_AGAIN_NS) + late_ns
        if wake_ns > env.now_ns:
            thread.sleep()
            if not env.goes_on_at(wake_ns):
                yield simpy.Timeout(env, wake_ns - env.now_ns)
            thread.wake()
            if not thread.ran(0):
                yield thread.run(0)
        if not is_crowded:
            yield from spin(env, lane, end, FOREVER_NS, yields=False)
    lane.emulation_ns += thread.cpu_ns - before_ns
