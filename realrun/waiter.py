"""Carries out the plans of a policy on a CPU, for one process at one ring."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from realrun.ring import Message, RingReader, SlotWatch
from shmsim.records import WaitRow
from shmsim.tape import Stream
from shmsim.wait import StageCpu, WaitContext, WaitCosts, WaitOutcome, WaitPolicy

if TYPE_CHECKING:
    from realrun.waiting import RawWait


class Known(NamedTuple):
    """What a waiter knows about the step it waits for."""

    step: int
    pending: bool
    n_decode: int
    n_prefill_tokens: int
    n_kv_tokens: int


def _refuse_to_rehearse() -> None:
    raise RuntimeError("this site has no rehearsal, yet its policy asks for one")


class Waiter:
    """Waits for messages by policy, learns from each wait, and keeps its record.

    Parameters
    ----------
    process
        Name in the records.
    site
        Which wait of the step loop this is.
    reader
        Where it waits for messages, or for slots.
    policy
        Start value; each call of a step has a policy of its own from there on.
    costs
        What policies are told.
    uniform
        Random numbers for policies.
    rehearse
        A harmless repeat of the work that follows the wait, for plans that ask for it.

    Attributes
    ----------
    n_spurious
        Rings of the doorbell that brought nothing.
    n_rescued
        Messages that a recheck found and no ring had told of: a defect of the doorbell if not 0.
    """

    def __init__(
        self,
        process: str,
        site: int,
        reader: RingReader | SlotWatch,
        policy: WaitPolicy,
        costs: WaitCosts,
        uniform: Stream,
        rehearse: Callable[[], None] | None = None,
    ) -> None:
        """Start without history."""
        self._rehearse = rehearse or _refuse_to_rehearse
        self._process = process
        self._site = site
        self._reader = reader
        self._start_policy = policy
        self._costs = costs
        self._uniform = uniform
        self.reset()

    def reset(self) -> None:
        """Forget what was learnt and recorded."""
        self.rows: list[WaitRow] = []
        self.n_spurious = 0
        self.n_rescued = 0
        self._policies = [self._start_policy, self._start_policy]
        self._last_seen_ns = time.monotonic_ns()
        self._n_waits = 0
        self._finished: tuple[WaitContext, RawWait, Message, int] | None = None

    def wait(self, call: int, known: Known, timeout_ns: int | None = None) -> tuple[Message, int]:
        """Wait for the next message; returns it and when it was seen.

        Call `learn` once whatever the message asked for is on its way.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        TimedOut
            If nothing came in time.
        """
        ctx, plan = self.prepare(call, known)
        raw = self._reader.wait(plan, self._rehearse, timeout_ns)
        self.n_spurious += raw.spurious
        self.n_rescued += raw.rescued
        message = self._reader.read()
        self._last_seen_ns = raw.seen_ns
        self._finished = ctx, raw, message, known.step
        return message, raw.seen_ns

    def prepare(self, call: int, known: Known) -> tuple[WaitContext, tuple[int, ...]]:
        """Context of the wait that starts now, and the policy's plan, flattened."""
        index = self._n_waits
        self._n_waits = index + 1
        ctx = WaitContext(
            self._site,
            call,
            time.monotonic_ns() - self._last_seen_ns,
            known.pending,
            known.n_decode,
            known.n_prefill_tokens,
            known.n_kv_tokens,
            self._uniform.at(index),
            self._costs,
        )
        first, second, third, fourth = self._policies[call].plan(ctx)
        return ctx, (*first, *second, *third, *fourth)

    def learn(self) -> None:
        """Let the policy learn from the last wait, and record it; off the critical path."""
        if self._finished is None:
            return
        ctx, raw, message, step = self._finished
        self._finished = None
        cpu_ns = StageCpu(raw.cpu0_ns, raw.cpu1_ns, raw.cpu2_ns, raw.cpu3_ns)
        outcome = WaitOutcome(
            message.published_ns - raw.started_ns,
            raw.seen_ns - raw.started_ns,
            raw.stage,
            cpu_ns,
            raw.overshoot_ns,
            bool(raw.belled),
            raw.preempted,
        )
        self._policies[ctx.call] = self._policies[ctx.call].after(ctx, outcome)
        self.rows.append(
            WaitRow(
                self._process,
                self._site,
                ctx.call,
                step,
                ctx.pending,
                raw.started_ns,
                message.published_ns,
                raw.seen_ns,
                raw.stage,
                sum(cpu_ns),
                raw.overshoot_ns,
                bool(raw.belled),
                raw.preempted,
            )
        )

    def rows_since(self, origin_ns: int) -> list[WaitRow]:
        """The records, counted from an instant."""
        return [
            row._replace(
                started_ns=row.started_ns - origin_ns,
                published_ns=row.published_ns - origin_ns,
                seen_ns=row.seen_ns - origin_ns,
            )
            for row in self.rows
        ]
