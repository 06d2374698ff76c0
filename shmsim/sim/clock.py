"""The clock of the model."""

from collections.abc import Generator
from typing import Any

import simpy

#: What a process of the model is: it yields events, and gives its result back.
Process = Generator[simpy.Event, Any, Any]


class VirtualClock(simpy.Environment):
    """SimPy's environment, whose time is whole nanoseconds here."""

    @property
    def now_ns(self) -> int:
        """The instant, from the start of the run."""
        return self._now  # type: ignore[return-value] # whole, as every delay is
