"""The writing end of one of vLLM's queues: a slot by policy, a stamp, and a bell when needed."""

import time
from collections.abc import Sequence
from typing import Any, Final

from realrun.native import ENDED, REHEARSING, STOPPED, store, wait
from realrun.vllm.beside import Beside
from realrun.vllm.process import Process
from realrun.vllm.recording import WriteRecorder
from realrun.waiting import RawWait, until
from shmsim.units import S
from shmsim.wait import StageCpu, WaitContext, WaitOutcome, WaitPolicy

_RECHECK_NS: Final = 5 * S  # as vLLM's readers do


class Cancelled(RuntimeError):  # noqa: N818 - what happened, by its name
    """The queue was shut down during a wait."""


class WriteEnd(WriteRecorder):
    """The writer of one queue; parameters as of `WriteRecorder`."""

    def __init__(
        self, process: Process, beside: Beside, site: int, rank: int, ranks: Sequence[int]
    ) -> None:
        """Start without history."""
        super().__init__(process, beside, site, rank, ranks)
        self._policies: list[WaitPolicy | None] = [arm.policy for arm in process.arms]
        self._rung = 0
        self._last_free_ns = time.monotonic_ns()

    def begin(self, message: Any) -> None:
        """A write begins."""
        self._arm = self._process.arm
        self._slot_cpu_ns = self._free_ns = 0
        super().begin(message)

    def full_behind(self) -> int | None:
        """The reader that keeps vLLM's next slot from being free; None if it is free."""
        if not self.is_used or self._process.arms[self._arm].policy is None:
            return None
        oldest = self._sequence - self._beside.n_slots
        for reader in range(self._beside.n_readers):
            if self._beside.cursor(reader) <= oldest:
                return reader
        return None

    def await_slot(self, reader: int, limit_ns: int) -> bool:
        """Wait by policy until a reader releases a slot; False if the time is over.

        Raises
        ------
        Cancelled
            If the queue is shut down meanwhile.
        """
        policy = self._policies[self._arm]
        assert policy is not None
        beside = self._beside
        words = beside.ring.writer_words(reader)
        seen = beside.cursor(reader)
        ctx = WaitContext(
            self._site,
            0,
            max(time.monotonic_ns() - self._last_free_ns, 0),
            True,
            self._call.n_decode,
            self._call.n_prefill_tokens,
            self._call.n_kv_tokens,
            0.5,
            self._process.costs,
        )
        first, second, third, fourth = policy.plan(ctx)
        plan = until((*first, *second, *third, *fourth), min(limit_ns, _RECHECK_NS))
        if seen > self._sequence - beside.n_slots:
            return True
        raw = RawWait(*wait(beside.memory, words, seen, plan))
        while raw.over == REHEARSING:
            raw = RawWait(*wait(beside.memory, words, seen, plan, raw.stage + 1, raw.started_ns))
        if raw.over == STOPPED:
            store(beside.memory, words.stop, 0)
            raise Cancelled("cancelled")
        cpu_ns = StageCpu(raw.cpu0_ns, raw.cpu1_ns, raw.cpu2_ns, raw.cpu3_ns)
        self._slot_cpu_ns += sum(cpu_ns)
        if raw.over == ENDED:
            return False
        waited_ns = raw.seen_ns - raw.started_ns
        outcome = WaitOutcome(
            waited_ns,
            waited_ns,
            raw.stage,
            cpu_ns,
            raw.overshoot_ns,
            bool(raw.belled),
            raw.preempted,
        )
        self._policies[self._arm] = policy.after(ctx, outcome)
        self._free_ns = self._last_free_ns = raw.seen_ns
        self._tally.slot_waits += 1
        self._tally.spurious += raw.spurious
        self._tally.rescued += raw.rescued
        return True

    def publish(self, slot: memoryview) -> None:
        """The slot was written, and vLLM is about to set its flag."""
        if not self.is_used:
            return
        if self.keeps:
            self._look_at(slot)
        self._published_ns, self._rung = self._beside.publish(self._call.kind)
        self._sequence += 1
        if not self._published_ns:
            # Cannot be: our ring has more slots than vLLM's. Readers would miss the message.
            self._tally.overtaken += 1
            self._beside.give_up()
            self.is_used = False

    def must_ping(self) -> bool:
        """VLLM's flag was set: ring, and say whether somebody may sleep on vLLM's socket."""
        if not self.is_used:
            return True
        tally = self._tally
        tally.sent += 1
        if self._rung:
            self._beside.ring_readers()
            tally.rung += 1
        ping = self._process.arms[self._arm].policy is None or self._beside.anybody_polls()
        tally.pinged += ping
        return ping

    def finish(self) -> None:
        """The write is over, and its readers are at work: keep it."""
        if self.keeps and self.is_used:
            self._keep_send()

    def stop(self) -> None:
        """End the wait of another thread."""
        self._beside.stop_writer()
