"""What is kept of a queue whose waits are vLLM's own: nothing here waits, rings or is waited for.

Of our ring beside vLLM's only the stamps are used, so that a message costs its writer one store and
its reader one look: without policies there is nobody to ring for. The ends of
`realrun.vllm.reading` and `realrun.vllm.writing`, which carry out policies, keep the same rows.
"""

import struct
from collections.abc import Sequence
from time import monotonic_ns, thread_time_ns
from typing import Any, Final

from realrun.vllm.beside import Beside
from realrun.vllm.calls import EXECUTE, OTHER, is_expected_after
from realrun.vllm.ends import End
from realrun.vllm.process import Process
from realrun.vllm.trace import INLINE, OUT_OF_BAND, SEND, SOCKET, WAIT
from shmsim.units import S
from shmsim.wait import PARK, SCHEDULER_SLOT, WORKER_RECV, YIELD

#: How a slot begins: whether the payload goes by socket, how many buffers follow, and the length of
#: the first (``MessageQueue.enqueue``).
_HEAD: Final = struct.Struct(">BHI")


class ReadRecorder(End):
    """The reader of a queue.

    Parameters
    ----------
    process, beside, site, rank
        As of `End`.
    window_s
        How long vLLM spins before it sleeps.
    """

    def __init__(
        self, process: Process, beside: Beside, site: int, rank: int, window_s: float
    ) -> None:
        """Start without history."""
        super().__init__(process, beside, site, rank)
        self._window_ns = int(window_s * S)
        self._is_worker = site == WORKER_RECV
        self._known = self._actual = process.last
        self._was_read = False
        self._is_settled = True
        self._seen_ns = monotonic_ns()
        self._since_ns = self._seen_ns  # when the message before was seen
        self._began_cpu_ns = self._read_cpu_ns = self._ended_cpu_ns = 0

    def begin(self) -> None:
        """A read begins: keep the one before."""
        self.settle()
        process = self._process
        self._known = process.last if self._is_worker else process.owed(self._rank)
        self._since_ns = self._seen_ns
        self._was_read = False
        self._began_ns = monotonic_ns()
        self.keeps = process.keeps
        if self.keeps:
            self._began_cpu_ns = thread_time_ns()
        else:
            self._ended_cpu_ns = 0  # what comes until the next row is nobody's

    def seen(self) -> None:
        """The message is there and about to be read."""
        # The clock first: its barrier keeps the look at the stamp behind that at vLLM's flag.
        self._seen_ns = monotonic_ns()
        self._published_ns = published_ns = self._words[self._place]
        if published_ns:  # not of a message from before everybody took part
            self._place = next(self._places)
            self._sequence += 1
            self._was_read = True

    def finish(self, message: Any) -> None:
        """The read is over; `settle` has time for the rest."""
        if not self._was_read:
            return
        process = self._process
        if self._is_worker:
            self._actual = process.called(message, (self._rank,))
        else:
            self._actual = process.paid(self._rank)
        self._is_settled = False
        if self.keeps:
            self._ended_ns = monotonic_ns()
            self._read_cpu_ns = thread_time_ns()

    def settle(self) -> None:
        """Count and keep the last read: off the way of any message."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._published_ns < self._began_ns:
            self._tally.at_once += 1
        else:
            self._tally.vllm_waits += 1
        if self.keeps:
            slept = int(self._seen_ns - self._since_ns > self._window_ns)
            self._keep_wait(self._seen_ns, slept, PARK if slept else YIELD, 0, slept, 0)
        self._process.tick(self._began_ns)

    @property
    def _is_pending(self) -> bool:
        """Whether, by what was known when the read began, a message was surely on its way."""
        known = self._known
        return is_expected_after(known) if self._is_worker else known.kind != OTHER

    @property
    def _was_arrival(self) -> bool:
        """Whether, as it turned out, the engine had nothing to do meanwhile.

        A worker cannot know beforehand, and a policy that learns from it expects such a wait next.
        """
        if not self._is_worker:
            return False
        return self._actual.kind == OTHER or (
            self._actual.kind == EXECUTE and self._actual.is_fresh
        )

    def _keep_wait(
        self, seen_ns: int, stage: int, kind: int, overshoot_ns: int, belled: int, preempted: int
    ) -> None:
        between_ns = self._began_cpu_ns - self._ended_cpu_ns if self._ended_cpu_ns else 0
        self._ended_cpu_ns = self._read_cpu_ns
        # Reading is short and asks for no core: a system call less for everybody who waits.
        used_ns = self._read_cpu_ns - self._began_cpu_ns
        read_ns = min(self._ended_ns - self._seen_ns, used_ns)
        pending = int(self._is_pending and not self._was_arrival)
        waited = (stage, kind, used_ns - read_ns, overshoot_ns, belled, preempted)
        self._keep(WAIT, self._actual, pending, seen_ns, waited, read_ns, between_ns, 0, 0)


class WriteRecorder(End):
    """The writer of a queue.

    Parameters
    ----------
    process, beside, site, rank
        As of `End`.
    ranks
        Workers whose replies are read here: who is not here owes none that anybody would note.
    """

    def __init__(
        self, process: Process, beside: Beside, site: int, rank: int, ranks: Sequence[int]
    ) -> None:
        """Start without history."""
        super().__init__(process, beside, site, rank)
        self._is_scheduler = site == SCHEDULER_SLOT
        self._ranks = ranks
        self._call = process.last
        self._head = 0, 1, 0
        self._n_bytes = 0
        # By policy: when a slot was free, if not at once, and the CPU of the wait for it.
        self._free_ns = self._slot_cpu_ns = 0

    def begin(self, message: Any) -> None:
        """A write begins."""
        self.is_used = self._beside.is_used
        if not self.is_used:
            return
        process = self._process
        if self._is_scheduler:
            self._call = process.called(message, self._ranks)
        else:
            self._call = process.paid(self._rank)
        self.keeps = process.keeps
        self._began_ns = monotonic_ns()

    def publish(self, slot: memoryview) -> None:
        """The slot was written, and vLLM is about to set its flag."""
        if not self.is_used:
            return
        if self.keeps:
            self._look_at(slot)
        self._words[self._place] = self._published_ns = monotonic_ns()
        self._place = next(self._places)
        self._sequence += 1

    def _look_at(self, slot: memoryview) -> None:
        self._head = head = _HEAD.unpack_from(slot)
        if head[1] > 1 and not head[0]:  # large buffers are few, and take long themselves
            self._n_bytes = length_in(slot)

    def finish(self) -> None:
        """The write is over, and its readers are at work: count and keep it."""
        if not self.is_used:
            return
        tally = self._tally
        tally.sent += 1
        tally.pinged += 1
        if self.keeps:
            self._keep_send()

    def _keep_send(self) -> None:
        self._ended_ns = ended_ns = monotonic_ns()
        free_ns = self._free_ns or self._began_ns
        by_socket, n_buffers, n_bytes = self._head
        if by_socket == 1:
            n_bytes, route = 0, SOCKET
        elif n_buffers > 1:
            n_bytes, route = self._n_bytes, OUT_OF_BAND
        else:
            n_bytes, route = _HEAD.size + n_bytes, INLINE
        # Not by the thread's clock, which is a system call for each look at it.
        took_ns = ended_ns - free_ns
        waited = (0, -1, self._slot_cpu_ns, 0, 0, 0)
        self._keep(SEND, self._call, 1, free_ns, waited, took_ns, 0, n_bytes, route)


def length_in(slot: memoryview) -> int:
    """Length of what vLLM wrote into a slot: buffers, each behind its length in 4 bytes."""
    at = 3
    for _ in range(int.from_bytes(slot[1:3], "big")):
        at += 4 + int.from_bytes(slot[at : at + 4], "big")
    return at
