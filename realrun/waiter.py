"""Carries out the plans of a policy on a CPU, for one process at one ring."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from realrun.ring import Message
from realrun.waiting import RawWait
from shmsim.records import WaitRow
from shmsim.tape import Stream
from shmsim.wait import (
    PARK,
    StageCpu,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    only,
)


class Known(NamedTuple):
    """What a waiter knows about the step it waits for."""

    step: int
    pending: bool
    n_decode: int
    n_prefill_tokens: int
    n_kv_tokens: int


class _Lesson(NamedTuple):
    """A wait that is over, to learn from."""

    context: WaitContext
    plan: WaitPlan
    step: int
    numbers: bytes
    published_ns: int


def _refuse_to_rehearse(_waiter: "Waiter") -> None:
    raise RuntimeError("this site has no rehearsal, yet its policy asks for one")


class Source(Protocol):
    """Where something comes: a `RingReader`, or a `SlotWatch`."""

    def receive(
        self, plan: tuple[int, ...], rehearse: Callable[[], None], timeout_ns: int | None
    ) -> tuple[int, bytes, Message]:
        """Carry out a flat plan until something is there, and take it."""
        ...


class Waiter:
    """Waits for messages by policy, learns from each wait, and keeps its record.

    Parameters
    ----------
    process
        Name in the records.
    site
        Which wait of the step loop this is.
    source
        Where it waits for messages, or for slots.
    policy
        Start value; each call of a step has a policy of its own from there on.
    costs
        What policies are told.
    uniform
        Random numbers for policies.
    rehearse
        A harmless repeat of the work that follows the wait, for plans that ask for it; told who
        waits.
    records
        Whether to keep a row of each wait; without, memory does not grow.

    Attributes
    ----------
    policies
        What each call's policy is by now.
    n_spurious
        Rings of the doorbell that brought nothing.
    n_rescued
        Messages that a recheck found and no ring had told of: a defect of the doorbell if not 0.
    """

    def __init__(
        self,
        process: str,
        site: int,
        source: Source,
        policy: WaitPolicy,
        costs: WaitCosts,
        uniform: Stream,
        rehearse: Callable[["Waiter"], None] | None = None,
        *,
        records: bool = True,
    ) -> None:
        """Start without history."""
        if not hasattr(policy, "plan"):
            raise TypeError(f"policy must be a policy such as PRESETS['park'], got {policy!r}")
        self.rehearse = partial(rehearse or _refuse_to_rehearse, self)
        self._records = records
        self._process = process
        self._site = site
        self._source = source
        self._start_policy = policy
        self._costs = costs
        self._uniform = uniform
        self.reset()

    def reset(self) -> None:
        """Forget what was learnt and recorded."""
        self.rows: list[WaitRow] = []
        self.n_spurious = 0
        self.n_rescued = 0
        self.policies = [self._start_policy, self._start_policy]
        self._last_seen_ns = time.monotonic_ns()
        self._n_waits = 0
        self._begun = WaitContext(self._site, 0, 0, False, 0, 0, 0, 0.0, self._costs)
        self._step = 0
        self._plan = only(PARK)
        self._lessons: list[_Lesson] = []  # of waits that nothing was learnt from yet
        self._last_lessons: list[_Lesson | None] = [None, None]  # by call

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
        plan = self.begin(call, known)
        seen_ns, numbers, message = self._source.receive(plan, self.rehearse, timeout_ns)
        self.end(seen_ns, numbers, message.published_ns)
        return message, seen_ns

    def begin(self, call: int, known: Known) -> tuple[int, ...]:
        """Ask the policy how to wait, now: its plan, flattened; `end` follows the wait."""
        if any(lesson.context.call == call for lesson in self._lessons):
            self.learn()  # nobody has called it since: a policy decides by all it has met
        index = self._n_waits
        self._n_waits = index + 1
        step, pending, n_decode, n_prefill_tokens, n_kv_tokens = known
        since_seen_ns = time.monotonic_ns() - self._last_seen_ns
        self._step = step
        self._begun = ctx = WaitContext(
            self._site,
            call,
            since_seen_ns,
            pending,
            n_decode,
            n_prefill_tokens,
            n_kv_tokens,
            self._uniform.at(index),
            self._costs,
        )
        self._plan = plan = self.policies[call].plan(ctx)
        first, second, third, fourth = plan
        return (*first, *second, *third, *fourth)

    def end(self, seen_ns: int, numbers: bytes, published_ns: int) -> None:
        """Remember how the wait went (`RawWait.of` reads it), for `learn`."""
        self._last_seen_ns = seen_ns
        self._lessons.append(_Lesson(self._begun, self._plan, self._step, numbers, published_ns))

    def learn(self) -> None:
        """Let the policies learn from the waits since the last time, and record them.

        Best while somebody else is at work: what decides is cold after a sleep, and takes longer
        then than a short wait.
        """
        lessons, self._lessons = self._lessons, []
        for lesson in lessons:
            self._last_lessons[lesson.context.call] = lesson
            self._learn_from(lesson)

    def imitate(self, other: "Waiter") -> None:
        """Know what another waiter knows, and have its last waits to learn from.

        Learning and deciding then go where those of the other one will, through the same code and
        the same numbers; the other one learns nothing by it.
        """
        self._costs = other._costs
        self.policies = list(other.policies)
        self._lessons = [lesson for lesson in other._last_lessons if lesson is not None]

    def _learn_from(self, lesson: _Lesson) -> None:
        ctx, plan, step, numbers, published_ns = lesson
        raw = RawWait.of(numbers)
        self.n_spurious += raw.spurious
        self.n_rescued += raw.rescued
        cpu_ns = StageCpu(raw.cpu0_ns, raw.cpu1_ns, raw.cpu2_ns, raw.cpu3_ns)
        outcome = WaitOutcome(
            published_ns - raw.started_ns,
            raw.seen_ns - raw.started_ns,
            raw.stage,
            cpu_ns,
            raw.overshoot_ns,
            bool(raw.belled),
            raw.preempted,
        )
        self.policies[ctx.call] = self.policies[ctx.call].after(ctx, outcome)
        if not self._records:
            return
        self.rows.append(
            WaitRow(
                self._process,
                self._site,
                ctx.call,
                step,
                ctx.pending,
                raw.started_ns,
                published_ns,
                raw.seen_ns,
                raw.stage,
                sum(cpu_ns),
                raw.overshoot_ns,
                bool(raw.belled),
                raw.preempted,
                plan[raw.stage].kind,
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
