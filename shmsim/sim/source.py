"""What a process of the model waits for, and how whoever brings it about finds out who is armed."""

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shmsim.batching import Batch
from shmsim.sim.clock import VirtualClock

if TYPE_CHECKING:
    import simpy

    from shmsim.sim.cores import Thread
    from shmsim.sim.courier import Courier
    from shmsim.sim.waiter import VirtualWait


class Source(ABC):
    """Something that becomes available at an instant: a message, a slot, the end of a step.

    One process waits for it at a time. Who has a core to itself leaves its plan here
    (`wait`), for whoever is first to look up what it is doing; who shares its cores is told.

    Attributes
    ----------
    wait, started_ns
        The wait in progress, and when it began; None: nobody waits, or on shared cores.
    arrival
        The event that ends the wait, or the sleep within it.
    spinner
        The thread that looks for it, on shared cores.
    armed_since_ns
        Since when a thread on shared cores may be asleep on the doorbell; None: it is not.
    courier
        Carries the last ring from whoever rang, if that takes an I/O thread.
    """

    def __init__(self, env: VirtualClock) -> None:
        """Nobody waits."""
        self.env = env
        self.wait: VirtualWait | None = None
        self.started_ns = 0
        self.arrival: simpy.Event | None = None
        self.spinner: Thread | None = None
        self.armed_since_ns: int | None = None
        self.courier: Courier | None = None

    @abstractmethod
    def found_ns(self) -> int | None:
        """Since when it is there; None while it is not."""

    def announce(self, courier: "Courier | None" = None) -> tuple[int, int]:
        """It is there now: end the wait; returns whether to ring (0, 1), and after what rest."""
        self.courier = courier
        n_armed = rested_ns = 0
        if self.wait is not None:
            armed_ns = self.wait.armed_for(self.env.now_ns - self.started_ns)
            n_armed, rested_ns = int(armed_ns is not None), armed_ns or 0
        elif self.armed_since_ns is not None:
            rested_ns = self.env.now_ns - self.armed_since_ns
            n_armed, self.armed_since_ns = 1, None
        if self.arrival is not None and not self.arrival.triggered:
            self.arrival.succeed(True)
        if self.spinner is not None:
            self.spinner.poke()
        return n_armed, rested_ns if n_armed else 0


@dataclass(frozen=True, slots=True)
class Message:
    """What a slot holds."""

    step: int
    call: int
    batch: Batch | None  # None tells the workers to leave
    pending: bool
    published_ns: int


class Inbox(Source):
    """The messages that one reader has not taken yet."""

    def __init__(self, env: VirtualClock) -> None:
        """Start empty."""
        super().__init__(env)
        self.messages: deque[Message] = deque()
        self.n_released = 0

    def found_ns(self) -> int | None:
        """When the next message was published."""
        return self.messages[0].published_ns if self.messages else None


class Slots(Source):
    """The free slots of a ring."""

    def __init__(self, ring: "Ring") -> None:
        """All are free."""
        super().__init__(ring.env)
        self._ring = ring
        self._freed_ns = 0

    def found_ns(self) -> int | None:
        """When the last slot came free."""
        return None if self._ring.is_full else self._freed_ns

    def freed(self, courier: "Courier | None") -> tuple[int, int]:
        """A slot has come free."""
        self._freed_ns = self.env.now_ns
        return self.announce(courier)


class Ring:
    """Messages from one writer to its readers, visible at once."""

    def __init__(
        self, env: VirtualClock, n_readers: int, n_slots: int, most_in_flight: int
    ) -> None:
        """Start empty; of so many messages at once, at most, there may be more than slots."""
        self.can_fill = n_slots <= most_in_flight
        self.env = env
        self.inboxes = [Inbox(env) for _ in range(n_readers)]
        self.n_slots = n_slots
        self.n_published = 0
        self.slots = Slots(self)

    @property
    def is_full(self) -> bool:
        """Whether the slowest reader still holds the slot that comes next."""
        if not self.can_fill:
            return False
        return self.n_published - min(i.n_released for i in self.inboxes) >= self.n_slots

    def publish(self, message: Message, courier: "Courier | None") -> tuple[int, int]:
        """Make a message visible now; returns how many readers are armed, and how long at most."""
        assert not self.is_full, "a full ring is waited for"
        self.n_published += 1
        n_armed = longest_ns = 0
        for inbox in self.inboxes:
            inbox.messages.append(message)
            armed, rested_ns = inbox.announce(courier)
            n_armed += armed
            longest_ns = max(longest_ns, rested_ns)
        return n_armed, longest_ns

    def release(self, inbox: Inbox, courier: "Courier | None") -> tuple[int, int]:
        """A reader has copied its message out; returns whether to ring for the writer."""
        was_full = self.is_full
        inbox.n_released += 1
        return self.slots.freed(courier) if was_full and not self.is_full else (0, 0)


class StepEnd(Source):
    """The end of one step on the device."""

    def __init__(self, env: VirtualClock) -> None:
        """It is running, or about to."""
        super().__init__(env)
        self._ended_ns: int | None = None

    def found_ns(self) -> int | None:
        """When it ended."""
        return self._ended_ns

    def end(self) -> None:
        """It ends now; a device rings whether somebody is armed or not."""
        self._ended_ns = self.env.now_ns
        self.announce()
