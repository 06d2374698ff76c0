"""Measures what waiting costs on this box, one cost at a time, and writes a profile.

Costs of single calls come from `realrun.bench`. What a sleep costs needs two processes on two
cores: this one waits, its partner publishes after a given time. Replicates are interleaved, so that
a drift of the machine shows as spread between them instead of as a difference between costs.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

from realrun.bench import Measured, Undisturbed, hot_costs, policy_costs, round_ns
from realrun.calibrate_bell import FURTHER, further_costs, further_source
from realrun.calibrate_children import children
from realrun.cores import spread_cores
from realrun.host import (
    exact_timers,
    machine_facts,
    settled_heap,
)
from realrun.partner import LAYOUT, PLAY_SCHEDULER, PLAY_WORKER, SPIN_PLAN, TELL, encode_order
from realrun.rehearsal import Rehearsal
from realrun.ring import LEAVE, Message, RingReader, RingWriter
from realrun.run_queue import run_queue_wait_ns
from realrun.segment import Segment
from realrun.waiting import RawWait
from shmsim.policies import WakeAhead
from shmsim.profile import COSTS, OPTIONAL_COSTS, Curve, Distribution, MachineProfile
from shmsim.units import FOREVER_NS, MS, US, S, format_ns
from shmsim.wait import DOZE, PARK, REHEARSE, SPIN, YIELD

#: How long to rest, and how many samples in one replicate.
RESTS: Final = (
    (50 * US, 60),
    (500 * US, 60),
    (2 * MS, 60),
    (10 * MS, 24),
    (100 * MS, 8),
    (1 * S, 1),
)
#: Samples in a row, up to `_LONG_NS`. A loop does nothing else between two rests; bookkeeping in
#: between made the work after a spin of 2 ms look four times as slow as it is.
_IN_A_ROW: Final = 3
N_REPLICATES: Final = 4
#: For comparisons that ask whether the model is right, and not which policy is better.
N_THOROUGH: Final = 12
_N_HOT: Final = 200
_N_COLD: Final = 3  # of each class of policies, after each rest
_N_YIELD: Final = 60
_MEET_NS: Final = 200 * US  # from the end of a doze to the publication that ends the spin after it
_LONG_NS: Final = 100 * MS
_TOO_BUSY: Final = "this box is too busy to calibrate"
_WAY_OUT: Final = (
    "stop what runs beside ('top' shows it) and try again; 'shmsim simulate -p vm-2cpu' predicts "
    "without measuring, by a profile that comes along"
)
#: A wake-up on an idle core queues for microseconds, and the kernel's own threads take less than a
#: thousandth of a core; more than this means that somebody else was there.
_STOLEN_LIMIT_NS: Final = 100 * US

#: Called with a label and the share done, 0 to 1.
Progress = Callable[[str, float], None]

_REST: Final = (PARK, FOREVER_NS, 0)
_PARK_PLAN: Final = _REST * 4
_YIELD_PLAN: Final = (YIELD, FOREVER_NS, 0, *_REST * 3)


def _doze_plan(until_ns: int) -> tuple[int, ...]:
    return (DOZE, until_ns, 0, SPIN, FOREVER_NS, 0, *_REST * 2)


def _rehearse_plan(until_ns: int) -> tuple[int, ...]:
    return (DOZE, until_ns, 0, REHEARSE, until_ns, 0, SPIN, FOREVER_NS, 0, *_REST)


class _Samples:
    """Samples by cost and x, one list per replicate."""

    def __init__(self) -> None:
        self._lists: defaultdict[tuple[str, float], list[list[int]]] = defaultdict(list)
        self.replicate = 0

    def add(self, name: str, x: float, values: list[int]) -> None:
        lists = self._lists[name, x]
        while len(lists) <= self.replicate:
            lists.append([])
        lists[self.replicate] += values

    def add_all(self, measured: Measured) -> None:
        self.add(*measured)

    def has(self, name: str) -> bool:
        return any(n == name and any(lists) for (n, _), lists in self._lists.items())

    def curve(self, name: str) -> Curve:
        xs = sorted(x for (n, x), lists in self._lists.items() if n == name and any(lists))
        points = tuple(Distribution.of(list(self._lists[name, x])) for x in xs)
        by = "asleep_ns" if ":" in name else (COSTS | OPTIONAL_COSTS)[name][0]
        return Curve(by, tuple(xs), points)


@settled_heap()
def calibrate(
    progress: Progress | None = None, doorbell: str = "futex", n_replicates: int = N_REPLICATES
) -> MachineProfile:
    """Measure every cost of this box; takes about 14 s for each replicate.

    Parameters
    ----------
    progress
        Told what is being measured.
    doorbell
        By which a waiter is woken; see `realrun.doorbell`.
    n_replicates
        How often everything is measured, at least 1.

    Raises
    ------
    OSError
        If shared memory cannot be had.
    RuntimeError
        If the partner process does not come up.
    """
    facts = {**machine_facts(), "doorbell": doorbell, "replicates": n_replicates}
    exact_timers()
    report = progress or (lambda _label, _share: None)
    samples = _Samples()
    affinity = os.sched_getaffinity(0)
    cores = spread_cores()
    pinned = len(cores) >= 2
    n_disturbed = 0
    try:
        if pinned:
            os.sched_setaffinity(0, {cores[1]})
        a_round_ns = round_ns()
        if a_round_ns is not None:
            facts["round_ns"] = round(a_round_ns, 2)
        for replicate in range(n_replicates):
            samples.replicate = replicate
            done = replicate / n_replicates
            report(f"replicate {replicate + 1} of {n_replicates}: single calls", done)
            for measured in hot_costs(_N_HOT):
                samples.add_all(measured)
            report(f"replicate {replicate + 1} of {n_replicates}: policies", done)
            for measured in policy_costs(_N_HOT, _N_COLD):
                samples.add_all(measured)
            n_disturbed += _measure_rests(
                samples,
                doorbell,
                cores[0] if pinned else -1,
                partial(_report_part, report, done, 1 / n_replicates),
            )
            if pinned:
                for measured in further_costs(doorbell, cores):
                    samples.add_all(measured)
    finally:
        os.sched_setaffinity(0, affinity)
    report("done", 1.0)
    empty = [name for name, (by, _) in COSTS.items() if by != "policy" and not samples.has(name)]
    if empty:
        raise RuntimeError(f"{_TOO_BUSY}: no undisturbed sample of {', '.join(empty)}; {_WAY_OUT}")
    required = [name for name, (by, _) in COSTS.items() if by != "policy"]
    found = [*required, *filter(samples.has, OPTIONAL_COSTS)]
    costs = {name: samples.curve(name) for name in found}
    policies = sorted({n.partition(":")[2] for n, _ in samples._lists if ":" in n})
    return MachineProfile(
        costs,
        {
            name: {what: samples.curve(f"{what}:{name}") for what in ("plan", "after")}
            for name in policies
        },
        facts | {"pinned": pinned, "disturbed_samples": n_disturbed},
        datetime.now(UTC).isoformat(timespec="seconds"),
        {name: further_source(len(cores)) for name in costs if name == FURTHER},
    )


def _report_part(report: Progress, done: float, part: float, label: str, share: float) -> None:
    """Report progress within one replicate."""
    report(label, done + part * share)


def _measure_rests(samples: _Samples, doorbell: str, partner_core: int, report: Progress) -> int:
    """Wait for the partner in every way and for every time, and work right afterwards.

    Returns how many measurements were dropped because somebody else took a core.
    """
    with (
        Segment.create(LAYOUT, doorbell) as segment,
        Segment.private(LAYOUT) as private,
        Segment.private(LAYOUT) as other,
        children(segment, "realrun.partner", [[str(partner_core)]]),
    ):
        rests = _Rests(segment, private, other, samples, doorbell)
        rests.measure(report)
        return rests.n_disturbed


def _cpu_of_other_threads_ns() -> int:
    """CPU time of all threads of this process but the one that asks."""
    return time.process_time_ns() - time.thread_time_ns()


class _Rest(NamedTuple):
    """One rest and the work right after it."""

    raw: RawWait
    published_ns: int
    notify_ns: int  # what it cost the partner to publish
    slowness_ns: int
    rehearsed_ns: int
    others_ns: int  # CPU of the other threads

    @property
    def late_ns(self) -> int:
        return self.raw.seen_ns - self.published_ns


class _Rests:
    """One replicate of everything that needs the partner."""

    def __init__(
        self,
        segment: Segment,
        private: Segment,
        other: Segment,
        samples: _Samples,
        doorbell: str,
    ) -> None:
        self._requests = RingWriter(segment, segment.layout.request)
        self._replies = RingReader(segment, segment.layout.replies[0], 0)
        self._samples = samples
        self._loop = Rehearsal(private, WakeAhead())
        self._loop.wait_once()
        # Another object than the one whose work is timed, as in a run: what a rehearsal warms is
        # the code, and of the data only what both share.
        self._rehearsal = Rehearsal(other, WakeAhead())
        self._rehearsal.wait_once()
        self._rehearsed_ns = 0
        self._doorbell = doorbell
        self._n = 0
        self._n_tried = 0
        self._n_given_up = 0
        self.n_disturbed = 0

    def measure(self, report: Progress) -> None:
        ways = (self._spin, self._park, self._doze, self._rehearse)
        total_ns = sum(rest_ns * n for rest_ns, n in RESTS)
        spent_ns = 0
        for _ in range(_N_YIELD):
            undisturbed = Undisturbed()
            raw, message = self._ask(500 * US, PLAY_WORKER, _YIELD_PLAN)
            if undisturbed():
                self._samples.add("yield_detection", 0, [raw.seen_ns - message.published_ns])
        for rest_ns, n in RESTS:
            report(f"resting for {format_ns(rest_ns)} and working afterwards", spent_ns / total_ns)
            spent_ns += rest_ns * n
            for i in range(n // self._in_a_row(rest_ns)):
                # The ways alternate, so that a drift hits all of them.
                for way in ways:
                    self._n_tried += 1
                    # Once more if disturbed; not the long ones, of which hardly any is undisturbed
                    # on a busy box.
                    tries = 2 if rest_ns < _LONG_NS else 1
                    if not any(
                        way(rest_ns, bool((i + self._samples.replicate) % 2)) for _ in range(tries)
                    ):
                        self._n_given_up += 1
        self._requests.publish(0, LEAVE, [])
        if self._n_given_up > self._n_tried / 2:
            raise RuntimeError(
                f"{_TOO_BUSY}: in {self._n_given_up} of {self._n_tried} measurements another "
                f"process took the core; {_WAY_OUT}"
            )

    @staticmethod
    def _in_a_row(rest_ns: int) -> int:
        return _IN_A_ROW if rest_ns < _LONG_NS else 1

    def _ask(
        self,
        delay_ns: int,
        part: int,
        plan: tuple[int, ...],
        rehearse: Callable[[], None] = lambda: None,
    ) -> tuple[RawWait, Message]:
        """Let the partner publish after a delay, and wait for it by a plan."""
        self._n += 1
        self._requests.publish(self._n, 0, [encode_order(delay_ns, part)])
        raw = self._replies.wait(plan, rehearse)
        return raw, self._replies.read()

    def _rests(
        self, mode: str, rest_ns: int, is_worker: bool, plan: tuple[int, ...], delay_ns: int
    ) -> list[_Rest]:
        """Rest and work at once, several times.

        Work is timed from the instant at which the message was seen: the way back from the wait
        meets the coldest caches of all. The first time is left out where there are several: what is
        cold then is cold by the bookkeeping before.

        Returns
        -------
        list
            Empty if another process took the core of either side meanwhile, since then the times
            are about that one.
        """
        loop = self._loop
        if is_worker:
            part = PLAY_SCHEDULER
            prepare, work, finish = (
                loop.prepare_worker_work, loop.worker_work, loop.finish_worker_work
            )  # fmt: skip
        else:
            part = PLAY_WORKER
            prepare, work, finish = (
                loop.prepare_scheduler_work, loop.scheduler_work, loop.finish_scheduler_work
            )  # fmt: skip
        rehearsal = self._rehearsal
        rehearse = rehearsal.rehearse_worker if is_worker else rehearsal.rehearse_scheduler
        timed = partial(self._timed, partial(rehearse, loop.waiter))
        # What the work needs is put in place before the rest, so that work alone follows it.
        prepare()
        (rehearsal.prepare_worker_work if is_worker else rehearsal.prepare_scheduler_work)()
        n_wanted = self._in_a_row(rest_ns)
        n_times = n_wanted + 1 if n_wanted > 1 else 1
        queued_ns = run_queue_wait_ns()
        found = []
        for _ in range(n_times):
            others_ns = _cpu_of_other_threads_ns()
            raw, message = self._ask(delay_ns, part, plan, timed)
            work()
            ended_ns = time.monotonic_ns()
            others_ns = _cpu_of_other_threads_ns() - others_ns
            loop.decide()
            finish()
            prepare()
            found.append((raw, message, ended_ns - raw.seen_ns, self._rehearsed_ns, others_ns))
        told = []
        hot_ns = 0
        for _ in range(2):  # again at once, and once more: what the last takes is hot
            raw, message = self._ask(0, TELL, SPIN_PLAN)
            work()
            hot_ns = time.monotonic_ns() - raw.seen_ns
            told.append(message)
            loop.decide()
            finish()
            prepare()
        for left in (loop, rehearsal):  # take out what is still prepared
            (left.request_reader if is_worker else left.reply_reader).read()
        stolen_ns = run_queue_wait_ns() - queued_ns
        told.append(self._ask(0, TELL, SPIN_PLAN)[1])
        stolen_ns += sum(int.from_bytes(message.payload[8:], "little") for message in told)
        # A spinner that lost its core shortly before waits on the bell instead.
        did_not_spin = mode != "park" and any(raw.belled for raw, *_ in found)
        if did_not_spin or stolen_ns > _STOLEN_LIMIT_NS + n_times * rest_ns // 1000:
            self.n_disturbed += 1
            return []
        # Each reply tells of the one before it.
        notify_ns = [int.from_bytes(message.payload[:8], "little") for _, message, *_ in found[1:]]
        notify_ns.append(int.from_bytes(told[0].payload[:8], "little"))
        rests = [
            _Rest(raw, message.published_ns, notify, work_ns - hot_ns, rehearsed_ns, others_ns)
            for (raw, message, work_ns, rehearsed_ns, others_ns), notify in zip(
                found, notify_ns, strict=True
            )
        ][-n_wanted:]
        name = f"{'worker_' if is_worker else ''}slow_after_{mode}"
        self._samples.add(name, rest_ns, [rest.slowness_ns for rest in rests])
        return rests

    def _timed(self, rehearse: Callable[[], None]) -> None:
        started_ns = time.monotonic_ns()
        rehearse()
        self._rehearsed_ns = time.monotonic_ns() - started_ns

    def _rehearse(self, rest_ns: int, is_worker: bool) -> bool:
        plan = _rehearse_plan(rest_ns)
        rests = self._rests("rehearsal", rest_ns, is_worker, plan, rest_ns + 3 * _MEET_NS)
        rests = [rest for rest in rests if rest.raw.stage == 2]
        name = "worker_rehearsal" if is_worker else "rehearsal"
        self._samples.add(name, rest_ns, [rest.rehearsed_ns for rest in rests])
        return bool(rests)

    def _spin(self, rest_ns: int, is_worker: bool) -> bool:
        rests = self._rests("spin", rest_ns, is_worker, SPIN_PLAN, rest_ns)
        self._samples.add("spin_detection", 0, [max(0, rest.late_ns) for rest in rests])
        return bool(rests)

    def _park(self, rest_ns: int, is_worker: bool) -> bool:
        rests = self._rests("park", rest_ns, is_worker, _PARK_PLAN, rest_ns)
        rests = [rest for rest in rests if rest.raw.belled]
        self._samples.add("wake_latency", rest_ns, [rest.late_ns for rest in rests])
        self._samples.add("park_cpu", rest_ns, [rest.raw.cpu0_ns for rest in rests])
        self._samples.add("notify_armed", rest_ns, [rest.notify_ns for rest in rests])
        if self._doorbell == "zmq":  # the one other thread that this wait keeps busy
            self._samples.add("io_thread_cpu", rest_ns, [rest.others_ns for rest in rests])
        return bool(rests)

    def _doze(self, rest_ns: int, is_worker: bool) -> bool:
        plan = _doze_plan(rest_ns)
        rests = self._rests("doze", rest_ns, is_worker, plan, rest_ns + _MEET_NS)
        rests = [rest for rest in rests if rest.raw.stage == 1]
        self._samples.add("timer_overshoot", rest_ns, [rest.raw.overshoot_ns for rest in rests])
        self._samples.add("doze_cpu", rest_ns, [rest.raw.cpu0_ns for rest in rests])
        return bool(rests)
