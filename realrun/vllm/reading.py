"""The reading end of one of vLLM's queues: how its waits go, what they teach, what is kept."""

import os
import time
from typing import Final

from realrun.host import exact_timers
from realrun.native import ENDED, REHEARSING, SEEN, STOPPED, store, wait
from realrun.vllm.beside import Beside
from realrun.vllm.calls import SAMPLE, expected_after
from realrun.vllm.process import Process
from realrun.vllm.recording import ReadRecorder
from realrun.waiting import RawWait, until
from shmsim.units import MS
from shmsim.wait import (
    PARK,
    YIELD,
    StageCpu,
    WaitContext,
    WaitOutcome,
    WaitPolicy,
)

#: So long may vLLM's flag come behind our head. Its writer sets it next; who takes longer was
#: stopped there, or is dead, and then vLLM's own wait is the one that knows what to do.
_FLAG_WITHIN_NS: Final = 10 * MS


class ReadEnd(ReadRecorder):
    """One reader of one queue.

    Parameters
    ----------
    process, beside, site, rank, window_s
        As of `ReadRecorder`.
    reader
        Which of the ring's readers this is.

    Attributes
    ----------
    window_s
        vLLM's spin window in the wait that has begun; None for its own.
    by_policy
        Whether the wait that has begun is carried out by a plan.
    """

    def __init__(
        self, process: Process, beside: Beside, site: int, rank: int, window_s: float, reader: int
    ) -> None:
        """Start without history."""
        super().__init__(process, beside, site, rank, window_s)
        self._reader = reader
        self._waited = beside.ring.reader_words(reader)  # the words of a wait
        self._policies: list[list[WaitPolicy | None]] = [
            [arm.policy, arm.policy] for arm in process.arms
        ]
        self.by_policy = False
        self.window_s: float | None = None
        self._last_seen_ns = self._seen_ns
        self._is_exact = self._polled = self._was_overtaken = False
        self._plan: tuple[int, ...] = ()
        self._raw: RawWait | None = None

    # A read, in the order of what happens.

    def begin(self) -> None:
        """A read begins: learn from the one before, and look how to wait."""
        process = self._process
        self.settle()
        self.is_used = self._beside.is_used
        if not self.is_used:
            self.by_policy = self.keeps = False
            self.window_s = None
            return
        self._raw = None
        self._plan = ()
        self._polled = self._was_overtaken = False
        self._arm = process.arm
        arm = process.arms[self._arm]
        self.window_s = arm.window_s
        self.by_policy = arm.policy is not None
        super().begin()
        self._since_ns, self._seen_ns = self._last_seen_ns, self._began_ns

    def carry_out(self, timeout_ms: int | None) -> bool:
        """Wait by policy for at most that long; False if vLLM shall wait instead."""
        if self._raw is not None and self._raw.over == SEEN:
            return self._wait_for_the_flag()
        if not self._plan:
            if not self._is_exact:
                exact_timers()  # of this thread, which is the one that waits
                self._is_exact = True
            if self._beside.head != self._sequence:  # published since `begin`
                self._raw = RawWait(SEEN, *(time.monotonic_ns(),) * 2, *(0,) * 10)
                return True
            self._plan = self._ask()
        before = self._raw
        stage = 0 if before is None else before.stage
        started_ns = self._began_ns if before is None else before.started_ns
        plan = self._plan
        if timeout_ms is not None:
            limit_ns = int(timeout_ms * MS)  # which vLLM's socket takes with a fraction, too
            plan = until(plan, time.monotonic_ns() - started_ns + limit_ns)
        memory, words = self._beside.memory, self._waited
        raw = RawWait(*wait(memory, words, self._sequence, plan, stage, started_ns))
        while raw.over == REHEARSING:  # there is no copy of vLLM's work to rehearse on
            raw = RawWait(*wait(memory, words, self._sequence, plan, raw.stage + 1, raw.started_ns))
        if raw.over == STOPPED:
            # vLLM looks at its own flag next, and raises if it shuts down.
            store(memory, words.stop, 0)
        if raw.over == ENDED:  # the next slice begins in the stage that was cut short
            raw = raw._replace(stage=self._stage_at(time.monotonic_ns() - started_ns))
        self._raw = raw if before is None else _both(before, raw)
        return True

    def _stage_at(self, elapsed_ns: int) -> int:
        stage = 0
        while stage < 3 and self._plan[3 * stage + 1] <= elapsed_ns:
            stage += 1
        return stage

    def _wait_for_the_flag(self) -> bool:
        """Our head has moved and vLLM's flag has not yet: it does in an instant."""
        assert self._raw is not None
        if time.monotonic_ns() - self._raw.seen_ns < _FLAG_WITHIN_NS:
            os.sched_yield()
            return True
        if not self._was_overtaken:
            self._tally.overtaken += 1
        self._was_overtaken = True
        return False

    def start_poll(self) -> None:
        """Say that vLLM's wait may sleep on its socket.

        The writer sets vLLM's flag, then looks whether anybody polls; this side says so, then looks
        whether there is something (`has_nothing`). With vLLM's fence on both sides one of the two
        sees the other.
        """
        self._beside.set_polling(self._reader, 1)

    def has_nothing(self) -> bool:
        """Whether nothing was published that was not read."""
        return self._beside.head == self._sequence

    def after_poll(self) -> None:
        """The poll is over, or did not come to pass."""
        self._polled = True
        self._beside.set_polling(self._reader, 0)

    def seen(self) -> None:
        """The message is there and about to be read; said only if rows are kept."""
        self._seen_ns = time.monotonic_ns()

    def read(self) -> None:
        """VLLM's slot was released: release ours."""
        beside = self._beside
        # It may be used since a moment after this read began; its first message counts too.
        self._published_ns = published_ns = beside.take(self._reader) if beside.is_used else 0
        self._was_read = published_ns > 0
        if not self._was_read:
            return
        self._sequence += 1
        self._last_seen_ns = self._seen_ns if self._raw is None else self._raw.seen_ns

    def stop(self) -> None:
        """End the wait of another thread."""
        self._beside.stop_reader(self._reader)

    # What is asked and learnt.

    def _context(self) -> WaitContext:
        known = self._known
        call = expected_after(known) if self._is_worker else known
        return WaitContext(
            self._site,
            1 if call.kind == SAMPLE else 0,
            max(self._began_ns - self._since_ns, 0),
            self._is_pending,
            known.n_decode,
            known.n_prefill_tokens,
            known.n_kv_tokens,
            _uniform(self._sequence),
            self._process.costs,
        )

    def _ask(self) -> tuple[int, ...]:
        self._asked = self._context()
        policy = self._policies[self._arm][self._asked.call]
        assert policy is not None
        first, second, third, fourth = policy.plan(self._asked)
        return (*first, *second, *third, *fourth)

    def settle(self) -> None:
        """Learn from the last read, count and keep it: off the way of any message."""
        if self._is_settled:
            return
        self._is_settled = True
        if not self.is_used:  # when the read began
            return
        raw, tally = self._raw, self._tally
        if self.by_policy and raw is not None and self._plan:
            self._learn(self._asked, raw)
            tally.waits += 1
            tally.spurious += raw.spurious
            tally.rescued += raw.rescued
        elif self.by_policy:
            now_ns = self._began_ns
            self._learn(self._context(), RawWait(SEEN, now_ns, now_ns, *(0,) * 10))
            tally.at_once += 1
        elif self._published_ns < self._began_ns:
            tally.at_once += 1
        else:
            tally.vllm_waits += 1
        if self.keeps:
            if raw is not None and self._plan:
                seen_ns, kind = min(raw.seen_ns, self._seen_ns), self._plan[3 * raw.stage]
                how = raw.stage, kind, raw.overshoot_ns, raw.belled, raw.preempted
                self._keep_wait(seen_ns, *how)
            else:
                polled = int(self._polled)
                kind = PARK if polled else YIELD
                self._keep_wait(self._seen_ns, polled, kind, 0, polled, 0)
        self._process.tick(self._began_ns)

    def _learn(self, ctx: WaitContext, raw: RawWait) -> None:
        policies = self._policies[self._arm]
        policy = policies[ctx.call]
        assert policy is not None
        if self._was_arrival:
            ctx = ctx._replace(pending=False)
        outcome = WaitOutcome(
            self._published_ns - raw.started_ns,
            raw.seen_ns - raw.started_ns,
            raw.stage,
            StageCpu(raw.cpu0_ns, raw.cpu1_ns, raw.cpu2_ns, raw.cpu3_ns),
            raw.overshoot_ns,
            bool(raw.belled),
            raw.preempted,
        )
        policies[ctx.call] = policy.after(ctx, outcome)


def _both(before: RawWait, after: RawWait) -> RawWait:
    """Two slices of one wait as one."""
    cpus_ns = [a + b for a, b in zip(before[4:8], after[4:8], strict=True)]
    return after._replace(
        cpu0_ns=cpus_ns[0],
        cpu1_ns=cpus_ns[1],
        cpu2_ns=cpus_ns[2],
        cpu3_ns=cpus_ns[3],
        preempted=before.preempted + after.preempted,
        spurious=before.spurious + after.spurious,
        rescued=before.rescued + after.rescued,
    )


def _uniform(n: int) -> float:
    """The n-th number of a sequence that fills [0, 1) evenly (Weyl's, of the golden ratio)."""
    return n * 0.6180339887498949 % 1.0
