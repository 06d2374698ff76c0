"""The clock of the model, and what happens first of what happens at the same instant."""

from collections.abc import Callable, Generator
from heapq import heappush
from typing import Any, Final

import simpy
from simpy.events import NORMAL

#: What a process of the model is: it yields events, and gives its result back.
Process = Generator[simpy.Event, Any, Any]

_WORK: Final = 0  # whatever is no timer: the end of work, a message, a step that is done
_TIMER: Final = 1


class Timer(simpy.Timeout):
    """The end of a time that somebody gave itself: what comes at that very instant came in time."""


class VirtualClock(simpy.Environment):
    """SimPy's environment, whose time is whole nanoseconds here.

    Events of one instant happen in the order of their kind (timers last), then of the process that
    scheduled them, in the order in which processes were started, and only then in the order in
    which they were scheduled: what other processes have done before does not decide.
    """

    def __init__(self) -> None:
        """Start at 0."""
        super().__init__()
        self._entities: dict[simpy.Process | None, int] = {None: 0}

    @property
    def now_ns(self) -> int:
        """The instant, from the start of the run."""
        return self._now  # type: ignore[return-value] # whole, as every delay is

    def after(self, delay_ns: int, call: Callable[[], None], *, is_timer: bool = False) -> None:
        """Call something after a time."""
        event = Timer(self, delay_ns) if is_timer else self.timeout(delay_ns)
        assert event.callbacks is not None, "a new event has callbacks"
        event.callbacks.append(lambda _: call())

    def schedule(
        self, event: simpy.Event, priority: simpy.events.EventPriority = NORMAL, delay: float = 0
    ) -> None:
        """Let an event happen after a delay."""
        entities, process = self._entities, self._active_proc
        entity = entities.get(process)
        if entity is None:
            entity = entities[process] = len(entities)
        kind = _TIMER if type(event) is Timer else _WORK
        # The third place is SimPy's to break ties with.
        order: Any = (kind, entity, next(self._eid))
        heappush(self._queue, (self._now + delay, priority, order, event))
