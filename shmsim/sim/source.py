"""What a process of the model waits for, and how whoever brings it about finds out who is armed."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

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
    late_ns
        How much later than alone the last ring reaches who sleeps: others are woken before.
    """

    wait: "VirtualWait | None" = None
    started_ns = 0
    arrival: "simpy.Event | None" = None
    spinner: "Thread | None" = None
    armed_since_ns: int | None = None
    courier: "Courier | None" = None
    late_ns = 0

    def __init__(self, env: VirtualClock) -> None:
        """Nobody waits."""
        self.env = env

    @abstractmethod
    def found_ns(self) -> int | None:
        """Since when it is there; None while it is not."""

    def announce(self, courier: "Courier | None" = None) -> int | None:
        """It is there now: end the wait; returns after what rest to ring, None: not to ring."""
        rested_ns = self.take_flag()
        self.tell(courier, 0)
        return rested_ns

    def take_flag(self) -> int | None:
        """For how long whoever waits is armed now, None: it is not; nobody else rings for it."""
        if self.wait is not None:
            return self.wait.armed_for(self.env.now_ns - self.started_ns)
        if self.armed_since_ns is None:
            return None
        rested_ns = self.env.now_ns - self.armed_since_ns
        self.armed_since_ns = None
        return rested_ns

    def tell(self, courier: "Courier | None", late_ns: int) -> None:
        """End the wait, which a ring may reach late."""
        self.courier = courier
        if self.arrival is not None and not self.arrival.triggered:
            self.late_ns = late_ns
            self.arrival.succeed(True)
        if self.spinner is not None:
            self.spinner.poke()


class Message(NamedTuple):
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

    def freed(self, courier: "Courier | None") -> int | None:
        """A slot has come free; returns as `announce`."""
        self._freed_ns = self.env.now_ns
        return self.announce(courier)


class Ring:
    """Messages from one writer to its readers, visible to all at once."""

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

    def publish(
        self,
        message: Message,
        courier: "Courier | None",
        further_ns: Callable[[int], int],
    ) -> tuple[int, int]:
        """Make a message visible now; returns how many readers are armed, and how long at most.

        One wake-up call serves all, but it wakes them one after another, in the order of rank: each
        armed reader is reached later than the one before it by what a further one costs.

        Parameters
        ----------
        message, courier
            What, and who carries the rings.
        further_ns
            What a further reader costs, by how long the one that rested longest did; asked where
            several are armed.
        """
        assert not self.is_full, "a full ring is waited for"
        self.n_published += 1
        n_armed = longest_ns = 0
        armed = []
        for inbox in self.inboxes:
            inbox.messages.append(message)
            rested_ns = inbox.take_flag()
            armed.append(rested_ns is not None)
            if rested_ns is not None:
                n_armed += 1
                longest_ns = max(longest_ns, rested_ns)
        each_ns = further_ns(longest_ns) if n_armed > 1 else 0
        late_ns = 0
        for inbox, is_armed in zip(self.inboxes, armed, strict=True):
            inbox.tell(courier, late_ns)
            if is_armed:
                late_ns += each_ns
        return n_armed, longest_ns

    def release(self, inbox: Inbox, courier: "Courier | None") -> int | None:
        """A reader has copied its message out; returns as `Source.announce`, for the writer."""
        was_full = self.is_full
        inbox.n_released += 1
        return self.slots.freed(courier) if was_full and not self.is_full else None


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
