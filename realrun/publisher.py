"""Publishes by policy: the writer of a full ring waits for a slot as readers wait for messages.

Why nobody waits for ever: the scheduler owes the workers nothing while it waits for a slot, and
they need nothing from it to release one, unless whoever reads calls in turn waits for a slot of the
reply ring. In sync one step is in flight, and every ring has at least two slots, so that it is
never full. In async it can be, with more steps in flight than slots; but then a thread of its own
replies, and the one that reads calls goes on (tests/protocol/test_two_rings.py,
tests/real/test_back_pressure.py).
"""

from realrun.native import BytesLike
from realrun.ring import RingFull, RingWriter
from realrun.waiter import Known, Waiter


class Publisher:
    """The writing end of a ring, with its doorbell and its way to wait.

    Parameters
    ----------
    writer
        The ring.
    waiter
        Waits for a slot (`realrun.ring.SlotWatch`).
    """

    def __init__(self, writer: RingWriter, waiter: Waiter) -> None:
        """Join both."""
        self.writer = writer
        self.waiter = waiter

    def await_slot(self, known: Known, timeout_ns: int | None = None) -> None:
        """Wait until there is a slot for the next message.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        TimedOut
            If there was none in time.
        """
        while self.writer.slowest() is not None:
            self.waiter.wait(0, known, timeout_ns)
            self.waiter.learn()

    def send(
        self,
        call_id: int,
        flags: int,
        pieces: list[BytesLike],
        known: Known,
        timeout_ns: int | None = None,
    ) -> int:
        """Publish a message, after waiting for a slot if there is none; returns the stamp.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        TimedOut
            If there was no slot in time.
        """
        while True:
            # Ask by trying: publish looks for a free slot anyhow, and nearly always finds one.
            try:
                return self.writer.publish(call_id, flags, pieces)
            except RingFull:
                self.await_slot(known, timeout_ns)

    def reset(self) -> None:
        """Forget what was counted and recorded."""
        self.writer.n_notified = self.writer.n_elided = self.writer.n_announced = 0
        self.waiter.reset()
