"""Carries out one wait on words of a segment: for whoever has nothing to decide any more."""

import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from realrun.doorbell import Ear
from realrun.layout import Words
from realrun.native import ENDED, LISTENING, REHEARSING, SEEN, STOPPED, wait
from realrun.segment import Segment


class Stopped(Exception):  # noqa: N818 - not an error: the run is over
    """The stop word was set during a wait."""


class TimedOut(TimeoutError):  # noqa: N818 - what happened, by its name
    """The time that a wait was given is over."""


class RawWait(NamedTuple):
    """What `realrun.native.wait` says about one wait; instants on the monotonic clock."""

    over: int
    started_ns: int
    seen_ns: int
    stage: int
    cpu0_ns: int
    cpu1_ns: int
    cpu2_ns: int
    cpu3_ns: int
    overshoot_ns: int
    belled: int
    preempted: int
    spurious: int
    rescued: int

    @classmethod
    def of(cls, numbers: bytes) -> "RawWait":
        """What `realrun.native.receive` says, which packs it."""
        return cls(*_NUMBERS.unpack(numbers))

    @property
    def numbers(self) -> bytes:
        """The same, packed."""
        return _NUMBERS.pack(*self)


_NUMBERS: Final = struct.Struct(f"={len(RawWait._fields)}q")


def no_rehearsal() -> None:
    """Rehearse nothing."""


def carry_out(
    segment: Segment,
    words: Words,
    seen: int,
    plan: tuple[int, ...],
    ear: Ear = Ear(),  # noqa: B008 - immutable
    rehearse: Callable[[], None] = no_rehearsal,
    timeout_ns: int | None = None,
) -> RawWait:
    """Wait until a word differs from ``seen``.

    Parameters
    ----------
    words
        What is watched, slept on, armed, and looked at for a stop.
    plan
        Four stages of three numbers.
    ear
        What to sleep on.
    rehearse
        Called at a REHEARSE stage.
    timeout_ns
        How long at most; None: for ever.

    Raises
    ------
    Stopped
        If the stop word was set instead.
    TimedOut
        If the time is over.
    ValueError
        If the plan ends although its last stage must last for ever.
    """
    if timeout_ns is not None:
        plan = until(plan, timeout_ns)
    fd, drain = ear
    raw = wait(segment.memory, words, seen, plan, 0, 0, fd, drain is not None)
    return carry_on(RawWait(*raw), segment, words, seen, plan, ear, rehearse, timeout_ns)


def carry_on(
    begun: RawWait,
    segment: Segment,
    words: Words,
    seen: int,
    plan: tuple[int, ...],
    ear: Ear,
    rehearse: Callable[[], None],
    timeout_ns: int | None,
) -> RawWait:
    """Finish a wait of which `wait` has returned once; parameters as of `carry_out`."""
    raw = carry_through(begun, segment, words, seen, plan, ear, rehearse)
    if raw.over == SEEN:
        return raw
    if raw.over == STOPPED:
        raise Stopped
    if timeout_ns is not None:
        raise TimedOut(f"nothing came within {timeout_ns:,} ns")
    raise ValueError(
        f"the plan {plan} ended before a message came; its last stage must last for ever"
    )


def carry_through(
    begun: RawWait,
    segment: Segment,
    words: Words,
    seen: int,
    plan: tuple[int, ...],
    ear: Ear,
    rehearse: Callable[[], None],
) -> RawWait:
    """As `carry_on`, but says how it ended: `SEEN`, `STOPPED` or `ENDED`."""
    fd, drain = ear
    memory = segment.memory
    raw = begun
    while raw.over in (REHEARSING, LISTENING):
        before = raw
        stage = raw.stage
        cpu_ns = time.thread_time_ns()
        if raw.over == REHEARSING:
            rehearse()
            stage += 1
        else:
            assert drain is not None, "only a socket's ear is listened to"
            drain()
        cpu_ns = time.thread_time_ns() - cpu_ns
        raw = RawWait(
            *wait(memory, words, seen, plan, stage, raw.started_ns, fd, drain is not None)
        )
        raw = both(before, raw, cpu_ns)
    assert raw.over in (SEEN, STOPPED, ENDED), f"a wait is over as {raw.over}"
    return raw


def both(before: RawWait, after: RawWait, cpu_ns: int) -> RawWait:
    """Both parts of a wait and what was done in between, as one."""
    cpus_ns = [a + b for a, b in zip(before[4:8], after[4:8], strict=True)]
    cpus_ns[before.stage] += cpu_ns
    rang = before.over == LISTENING
    is_over = after.stage == before.stage and after.over == SEEN
    return after._replace(
        cpu0_ns=cpus_ns[0],
        cpu1_ns=cpus_ns[1],
        cpu2_ns=cpus_ns[2],
        cpu3_ns=cpus_ns[3],
        overshoot_ns=after.overshoot_ns or before.overshoot_ns,
        belled=int(rang and is_over) or after.belled,
        preempted=before.preempted + after.preempted,
        spurious=before.spurious + after.spurious + int(rang and not is_over),
        rescued=before.rescued + after.rescued,
    )


def until(plan: tuple[int, ...], limit_ns: int) -> tuple[int, ...]:
    """The plan, cut off after a time; a limit that has passed still allows one look."""
    limit_ns = max(limit_ns, 0)
    # Written out: before every wait that has a deadline, and a generator takes thrice as long.
    a, a_ns, a_period, b, b_ns, b_period, c, c_ns, c_period, d, d_ns, d_period = plan
    return (
        *(a, min(a_ns, limit_ns), a_period),
        *(b, min(b_ns, limit_ns), b_period),
        *(c, min(c_ns, limit_ns), c_period),
        *(d, min(d_ns, limit_ns), d_period),
    )
