"""The clock of the model, and what happens first of what happens at the same instant."""

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any, Final

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL

#: What a process of the model is: it yields events, and gives its result back.
Process = Generator[simpy.Event, Any, Any]

# What breaks the ties of one instant is one number: the kind before the process before the turn.
_PROCESS: Final = 1 << 40
_TIMER: Final = 1 << 80


class Call:
    """Something that is called at an instant, where SimPy would make an event with a callback."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        """Remember what."""
        self.call = call


class VirtualClock(simpy.Environment):
    """SimPy's environment, whose time is whole nanoseconds here.

    Events of one instant happen in the order of their kind (timers last), then of the process that
    scheduled them, in the order in which processes were started, and only then in the order in
    which they were scheduled: what other processes have done before does not decide.

    Attributes
    ----------
    now_ns
        The instant, from the start of the run.
    """

    def __init__(self) -> None:
        """Start at 0."""
        super().__init__()
        self.now_ns = 0
        self._orders: dict[simpy.Process | None, int] = {None: 0}
        self._is_alone = False

    def after(self, delay_ns: int, call: Callable[[], None], *, is_timer: bool = False) -> None:
        """Call something after a time.

        A timer is the end of a time that somebody gave itself: what comes at that very instant
        came in time.
        """
        order = self.order(is_timer=is_timer)
        self.enter(self.now_ns + delay_ns, order, Call(call))

    def enter(self, instant_ns: int, order: int, what: Call) -> None:
        """Let something be called at an instant, in an order among what comes then."""
        entry: Any = (instant_ns, NORMAL, order, what)
        heappush(self._queue, entry)

    def goes_on_at(self, instant_ns: int) -> bool:
        """Move the clock on for the process that runs, if nothing else is due until then.

        It has then slept without an event. If it returns False, an event it must be.
        """
        queue = self._queue
        if not self._is_alone or instant_ns < self.now_ns or (queue and queue[0][0] <= instant_ns):
            return False
        if self._active_proc not in self._orders:
            self.order()
        self._now = self.now_ns = instant_ns
        return True

    def schedule(
        self, event: simpy.Event, priority: simpy.events.EventPriority = NORMAL, delay: float = 0
    ) -> None:
        """Let an event happen after a delay."""
        entry: Any = (self._now + delay, priority, self.order(), event)
        heappush(self._queue, entry)

    def order(self, *, is_timer: bool = False, is_own: bool = False) -> int:
        """What breaks ties with what others schedule for the same instant.

        With ``is_own`` as if the clock scheduled it and not the process that runs.
        """
        orders, process = self._orders, None if is_own else self._active_proc
        try:
            order = orders[process]
        except KeyError:
            order = orders[process] = len(orders) * _PROCESS
        if is_timer:
            order += _TIMER
        return order + next(self._eid)

    def step(self) -> None:
        """Let what comes next happen."""
        if not self._queue:
            raise EmptySchedule
        entry: Any = heappop(self._queue)
        what = entry[3]
        self._now = self.now_ns = entry[0]
        if type(what) is Call:
            what.call()
            return
        callbacks, what.callbacks = what.callbacks, None
        # Else whoever is called next would find the clock ahead of what it is called for.
        self._is_alone = len(callbacks) == 1
        for callback in callbacks:
            callback(what)
        if not what._ok and not what.defused:
            raise what._value


class Timer:
    """Calls something at an instant that may be set anew, and mostly is before it has come.

    What was set before waits in the clock's queue, smallest last in a list of its own; what was set
    last goes in when that comes up, or at once if it is due before. So who puts its end off again
    and again has one entry there, not one for each time.

    Parameters
    ----------
    clock
        Whose instants.
    call
        What to call.
    """

    def __init__(self, clock: VirtualClock, call: Callable[[], None]) -> None:
        """Be set to nothing."""
        self._clock = clock
        self._call = call
        self._due: tuple[int, int] | None = None
        self._queued: list[tuple[int, int]] = []
        self._entry = Call(self._comes_up)

    def set(self, instant_ns: int, order: int) -> None:
        """Call at an instant, in an order among what comes then (`VirtualClock.order`)."""
        self._due = due = (instant_ns, order)
        if not self._queued or due < self._queued[-1]:
            self._enter(due)

    def stop(self) -> None:
        """Call no more."""
        self._due = None

    def _enter(self, due: tuple[int, int]) -> None:
        self._queued.append(due)
        self._clock.enter(*due, self._entry)

    def _comes_up(self) -> None:
        due, came = self._due, self._queued.pop()
        if due == came:
            self._due = None
            self._call()
        elif due is not None and (not self._queued or due < self._queued[-1]):
            self._enter(due)
