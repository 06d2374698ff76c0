"""Matches replies to calls."""

from realrun.ring import Message
from realrun.waiter import Known, Waiter


class Replies:
    """The replies of one worker or of all, in the order of calls.

    Parameters
    ----------
    waiters
        One for each reply ring.

    Attributes
    ----------
    n_late
        Replies to calls that nobody waits for any more. They are dropped: taking one for the reply
        to the next call, as engines without call ids do, would be off by one from there on.
    """

    def __init__(self, waiters: list[Waiter]) -> None:
        """Start with nothing owed."""
        self.waiters = waiters
        self.n_late = 0

    def receive(
        self, call: int, call_id: int, known: Known, timeout_ns: int | None = None
    ) -> tuple[Message, int]:
        """Wait until everybody has replied to a call.

        Returns
        -------
        tuple
            The reply of the output rank, and when the last reply was seen.

        Raises
        ------
        RuntimeError
            If a worker replies to a later call: it has left this one out.
        TimedOut
            If a reply does not come in time; it may still come, and is dropped then.
        """
        replies = []
        seen_ns = 0
        for waiter in self.waiters:
            message, one_seen_ns = waiter.wait(call, known, timeout_ns)
            while message.call_id < call_id:
                self.n_late += 1
                message, one_seen_ns = waiter.wait(call, known, timeout_ns)
            if message.call_id > call_id:
                raise RuntimeError(f"reply to call {message.call_id}, expected call {call_id}")
            replies.append(message)
            seen_ns = max(seen_ns, one_seen_ns)
        return replies[0], seen_ns

    def learn(self) -> None:
        """Let the policies learn from their last waits; off the critical path."""
        for waiter in self.waiters:
            waiter.learn()

    def reset(self) -> None:
        """Forget what was learnt, recorded and counted."""
        self.n_late = 0
        for waiter in self.waiters:
            waiter.reset()
