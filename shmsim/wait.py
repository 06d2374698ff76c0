"""The seam between deciding how to wait and waiting: plans, contexts, outcomes.

A policy answers with a `WaitPlan`, which is data. One interpreter carries it out in virtual time
(`shmsim.sim.waiter`), another on a CPU (`realrun.waiter`); neither knows which policy it was.

Everything here is a NamedTuple of numbers, so that numba compiles a policy as it stands.
"""

from typing import Final, NamedTuple, Protocol, Self

from shmsim.units import FOREVER_NS, US, format_ns

# Kinds of a stage. Plain ints: an enum member is not equal-by-bits in compiled code.
SPIN: Final = 0  #: look again and again, with the CPU's pause hint between looks
YIELD: Final = 1  #: look again and again, giving the core to others between looks (sched_yield)
NAP: Final = 2  #: one timed sleep that nothing can cut short
DOZE: Final = 3  #: one timed sleep that the doorbell can cut short
POLL: Final = 4  #: look once every ``period_ns``, sleeping deafly in between
REHEARSE: Final = 6  #: do the work that follows the wait once, on a private copy, to warm caches
PARK: Final = 5  #: sleep until the doorbell; ``period_ns`` > 0 looks again by itself that often

KIND_NAMES: Final = ("spin", "yield", "nap", "doze", "poll", "park", "rehearse")

# Sites: which wait of the step loop this is.
WORKER_RECV: Final = 0  #: a worker waits for the scheduler's next call
SCHEDULER_RECV: Final = 1  #: the scheduler waits for the reply of the output rank

SCHEDULER_SLOT: Final = 2  #: the request ring is full: the scheduler waits for a slot
WORKER_SLOT: Final = 3  #: the reply ring is full: the output rank waits for a slot

DEVICE_DONE: Final = 4  #: a worker waits for the end of a step on its device
SITE_NAMES: Final = (
    "worker_recv",
    "scheduler_recv",
    "scheduler_slot",
    "worker_slot",
    "device_done",
)

MAX_STAGES: Final = 4


class Stage(NamedTuple):
    """One way of waiting, and until when.

    Parameters
    ----------
    kind
        One of `SPIN`, `YIELD`, `NAP`, `DOZE`, `POLL`, `PARK`, `REHEARSE`.
    until_ns
        When the next stage begins, counted from the start of the wait; `FOREVER_NS` for the last.
        A `REHEARSE` stage ends when its rehearsal does, whatever this says.
    period_ns
        Time between two looks of a `POLL`, or between two rechecks of a `PARK` (0: none).
    """

    kind: int
    until_ns: int
    period_ns: int


class WaitPlan(NamedTuple):
    """What to do in one wait: exactly four stages, tried in order, the last one unbounded.

    A plan of fewer stages is padded with `PARK`; stages behind an unbounded one are never reached.
    Every stage looks at the word once before it sleeps, so an event already published is seen in
    the first stage whatever its kind.
    """

    first: Stage
    second: Stage
    third: Stage
    fourth: Stage


class WaitCosts(NamedTuple):
    """What waiting costs on this machine, as calibrated; see `shmsim.profile`.

    Parameters
    ----------
    wake_latency_ns
        Notification to the first instruction of a waiter that parked for about 2 ms, median.
    block_cpu_ns
        CPU time that one park and its unpark take, median.
    timer_overshoot_ns
        How late a timed sleep of about 2 ms ends, 99th percentile.
    rehearsal_ns
        What a rehearsal after a sleep of about 2 ms takes, 90th percentile.
    deciding_ns
        CPU time by which a wait decided by a law (as `StepAhead` does) is dearer than one left
        undecided, after a sleep of about 2 ms, medians.
    delay_price
        Core-seconds one would pay to take one second off the critical path; the *r* of
        `block_penalty_ns`.
    shares_cores
        Whether the engine has more processes than cores: who looks, then, may hold up whom it
        waits for. False, too, where nobody counted.
    """

    wake_latency_ns: int
    block_cpu_ns: int
    timer_overshoot_ns: int
    rehearsal_ns: int
    deciding_ns: int
    delay_price: float
    shares_cores: bool = False


#: Of a virtual machine, to begin with; ``realrun calibrate`` measures those of a box.
TYPICAL_COSTS: Final = WaitCosts(50 * US, 15 * US, 60 * US, 100 * US, 30 * US, 10.0)


class WaitContext(NamedTuple):
    """What is known when a wait starts.

    Parameters
    ----------
    site
        Which wait this is: `WORKER_RECV`, `SCHEDULER_RECV`, `SCHEDULER_SLOT`, `WORKER_SLOT` or
        `DEVICE_DONE`.
    call
        Which call of the step is awaited, 0 or 1. Each (site, call) has a policy of its own, since
        the waits of the two calls differ a hundredfold.
    since_seen_ns
        How long ago this side last saw something in this ring.
    pending
        Whether the peer is at work on what is awaited. False for a worker whose scheduler has no
        request left: its wait lasts until the next arrival, which no step time predicts.
    n_decode, n_prefill_tokens, n_kv_tokens
        Of the last batch this side knows: sequences in decode, prompt tokens, tokens of context.
    uniform
        A random number in [0, 1) for this wait; policies never draw themselves.
    costs
        The calibrated costs.
    """

    site: int
    call: int
    since_seen_ns: int
    pending: bool
    n_decode: int
    n_prefill_tokens: int
    n_kv_tokens: int
    uniform: float
    costs: WaitCosts


class StageCpu(NamedTuple):
    """CPU time of one wait, nanoseconds, by stage of its plan."""

    first: int
    second: int
    third: int
    fourth: int


class WaitOutcome(NamedTuple):
    """How one wait went; instants are counted from the start of the wait.

    Parameters
    ----------
    published_after_ns
        When the producer published, by its own stamp; negative if before the wait began. A sleep
        does not censor it, as it would a gap that the waiter measures itself.
    seen_after_ns
        When this side saw it.
    stage
        Index of the stage in which it was seen, 0 to 3.
    cpu_ns
        CPU time by stage.
    overshoot_ns
        How late the last timed sleep of this wait ended; 0 if there was none.
    belled
        Whether the doorbell ended a sleep.
    preempted
        How often the core was taken from the waiter while it looked.
    """

    published_after_ns: int
    seen_after_ns: int
    stage: int
    cpu_ns: StageCpu
    overshoot_ns: int
    belled: bool
    preempted: int


class WaitPolicy(Protocol):
    """A value that says how to wait, and what to do differently next time."""

    def plan(self, ctx: WaitContext) -> WaitPlan:
        """What to do in the wait that starts now."""
        ...

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> Self:
        """The policy for the next wait at this site."""
        ...


def block_penalty_ns(costs: WaitCosts) -> int:
    """Spin time that costs as much as one park: ``B = r W + C``."""
    return int(costs.delay_price * costs.wake_latency_ns) + costs.block_cpu_ns


def is_left_undecided(looks: float, uniform: float) -> bool:
    """Whether a policy that rests learns nothing from a wait.

    A policy may have a field ``learnt_looks``. While it is below 1 plans are what the last one was,
    and the policy stays as it is but for this share of the waits, which ``ctx.uniform`` draws, and
    where a core was taken.
    """
    return uniform >= looks


def echo_guard_ns(costs: WaitCosts) -> int:
    """How long before the end of a step who waits for an echo device stops sleeping and spins."""
    return min(max(2 * costs.timer_overshoot_ns, 50 * US), 500 * US)


#: Sleep until the doorbell. One value for all plans: making another takes as long as deciding.
ASLEEP: Final = Stage(PARK, FOREVER_NS, 0)


def only(kind: int) -> WaitPlan:
    """Wait in one way for ever."""
    return WaitPlan(Stage(kind, FOREVER_NS, 0), ASLEEP, ASLEEP, ASLEEP)


def then_park(kind: int, until_ns: int, recheck_ns: int) -> WaitPlan:
    """Wait in one way until ``until_ns``, then park, looking again every ``recheck_ns``."""
    parked = Stage(PARK, FOREVER_NS, recheck_ns)
    return WaitPlan(Stage(kind, until_ns, 0), parked, ASLEEP, ASLEEP)


def doze_rehearse_spin_park(doze_until_ns: int, spin_until_ns: int) -> WaitPlan:
    """Doze, warm the caches by rehearsing, meet the event awake; park if it does not come."""
    return WaitPlan(
        Stage(DOZE, doze_until_ns, 0),
        Stage(REHEARSE, doze_until_ns, 0),
        Stage(SPIN, spin_until_ns, 0),
        ASLEEP,
    )


def doze_spin_park(doze_until_ns: int, spin_until_ns: int) -> WaitPlan:
    """Doze, then meet the event awake; park if it does not come."""
    return WaitPlan(Stage(DOZE, doze_until_ns, 0), Stage(SPIN, spin_until_ns, 0), ASLEEP, ASLEEP)


def check_plan(plan: WaitPlan) -> None:
    """Refuse a plan that no waiter could carry out as written.

    Raises
    ------
    ValueError
        If a kind is unknown, stages end out of order, a poll has no period, a nap has no end, or
        no stage is unbounded.
    """
    reached_ns = 0
    for index, stage in enumerate(plan):
        if not 0 <= stage.kind < len(KIND_NAMES):
            raise ValueError(
                f"stage {index} has the unknown kind {stage.kind}; known are "
                + ", ".join(f"{i} ({name})" for i, name in enumerate(KIND_NAMES))
            )
        name = KIND_NAMES[stage.kind]
        if stage.until_ns < reached_ns:
            raise ValueError(
                f"stage {index} ({name}) ends at {stage.until_ns} ns ({format_ns(stage.until_ns)}),"
                f" before it begins at {reached_ns} ns ({format_ns(reached_ns)})"
            )
        if stage.period_ns < 0 or (stage.kind == POLL and stage.period_ns == 0):
            raise ValueError(
                f"stage {index} ({name}).period_ns must be "
                f"{'at least 1' if stage.kind == POLL else 'at least 0'} ns, got {stage.period_ns}"
            )
        if stage.until_ns >= FOREVER_NS:
            if stage.kind in (NAP, REHEARSE):
                raise ValueError(
                    f"stage {index} is a {name} without end, which nothing can cut short; give it "
                    "an end, or doze, poll or park"
                )
            return
        reached_ns = stage.until_ns
    raise ValueError(
        f"the plan ends after {format_ns(reached_ns)}; its last stage must last for ever, "
        "so that no event is missed: give it until_ns=FOREVER_NS"
    )
