"""Laws that the records of every run keep, whichever policy waited and however long.

What enters leaves: requests, tokens, messages, time. `check_laws` is cheap enough to end every run
of the model with it, so that a defect is caught where it happens and not in a figure.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmsim.metrics import step_time_ns
from shmsim.records import RunRecords, WaitRow, column, role
from shmsim.units import MS
from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT, WORKER_RECV, WORKER_SLOT

Int64Array = NDArray[np.int64]

# A machine reads the clock of a process after that of the wall, and other threads run in between.
_CLOCKS_APART_NS: Final = 1 * MS
_N_SHOWN: Final = 3


class BrokenLawError(RuntimeError):
    """Records that cannot be true.

    Attributes
    ----------
    law
        Name of the law, a key of `EVERY_WORLD` or `MODEL_ONLY`.
    """

    def __init__(self, law: str, finding: str) -> None:
        """Say which law, and what was found: numbers and rows."""
        super().__init__(f"the records break the law of {law}: {finding}")
        self.law = law


class Run(NamedTuple):
    """What a law looks at.

    Parameters
    ----------
    records
        Of one finished run.
    n_workers
        How many workers it had.
    n_threads
        How many threads of one process may run at once.
    is_model
        Whether its time is virtual, so that it adds up to the nanosecond.
    n_devices
        How many workers, from the first on, launch steps.
    """

    records: RunRecords
    n_workers: int
    n_threads: int
    is_model: bool
    n_devices: int


#: Says what is wrong, or None.
Law = Callable[[Run], str | None]


def check_laws(
    records: RunRecords,
    *,
    n_workers: int,
    n_threads: int = 1,
    n_devices: int = 0,
    has_steps: bool = True,
) -> None:
    """Check the records of a finished run against every law that holds in their world.

    Parameters
    ----------
    records
        The run; ``meta["world"]`` says which laws apply: those of `EVERY_WORLD`, and to records of
        the model also those of `MODEL_ONLY`.
    n_workers
        Workers of the engine.
    n_threads
        How many threads of one process may run at once: 2 with asynchronous scheduling, whose
        workers have a reply thread.
    n_devices
        How many workers, from the first on, launch steps; 0: all.
    has_steps
        Whether steps and waits were kept; without them the laws of `OF_STEPS` are left out.

    Raises
    ------
    BrokenLawError
        If a law is broken; names it, the numbers and the first rows.
    ValueError
        If the records do not say which world they are from.
    """
    world = records.meta.get("world")
    if world not in ("model", "machine"):
        raise ValueError(
            "cannot tell which laws apply: meta['world'] must be 'model' or 'machine',"
            f" got {world!r}"
        )
    run = Run(records, n_workers, n_threads, world == "model", n_devices or n_workers)
    for name, law in (EVERY_WORLD | MODEL_ONLY if run.is_model else EVERY_WORLD).items():
        finding = law(run) if has_steps or name not in OF_STEPS else None
        if finding is not None:
            raise BrokenLawError(name, finding)


# Requests and tokens.


def _tokens_of_requests(run: Run) -> str | None:
    """Each request has exactly its tokens, in order, none before its arrival."""
    requests = run.records.requests
    n_tokens = np.fromiter((len(r.token_ns) for r in requests), np.int64)
    short = n_tokens != column(requests, "output_tokens")
    if short.any() or (n_tokens == 0).any():
        return _rows("not as many tokens as asked for", requests, short | (n_tokens == 0))
    token_ns = _all_tokens(run)
    ends = np.cumsum(n_tokens)
    gaps = np.diff(token_ns, prepend=0)
    gaps[ends - n_tokens] = token_ns[ends - n_tokens] - column(requests, "arrival_ns")
    late = np.add.reduceat(gaps < 0, ends - n_tokens) > 0 if len(requests) else short
    return _rows("a token before the one before it, or before the arrival", requests, late)


def _tokens_of_steps(run: Run) -> str | None:
    """What steps worked on is what requests asked for, and tokens leave when a step is seen."""
    steps, requests = run.records.steps, run.records.requests
    asked = int(column(requests, "prompt_tokens").sum())
    done = int(column(steps, "n_prefill_tokens").sum())
    if asked != done:
        return f"requests brought {asked} prompt tokens, steps worked on {done}"
    asked = int(column(requests, "output_tokens").sum()) - len(requests)
    done = int(column(steps, "n_decode").sum())
    if asked != done:
        return f"requests need {asked} tokens after their first, steps decoded {done}"
    left_ns, n_left = np.unique(_all_tokens(run), return_counts=True)
    seen_ns, where = np.unique(column(steps, "seen_ns"), return_inverse=True)
    lost = ~np.isin(left_ns, seen_ns)
    if lost.any():
        return (
            f"{n_left[lost].sum()} tokens left when no step was seen, at {_few(left_ns[lost])} ns"
        )
    n_decoded = np.bincount(where, column(steps, "n_decode"), len(seen_ns))
    n_tokens = np.zeros(len(seen_ns))
    n_tokens[np.searchsorted(seen_ns, left_ns)] = n_left
    return _rows("fewer tokens left than were decoded", steps, (n_tokens < n_decoded)[where])


# Messages.


class _Waits(NamedTuple):
    """Waits for messages of one kind of ring, as arrays; shape ``(n_waits,)`` each."""

    rows: list[WaitRow]
    step: Int64Array
    call: Int64Array
    published_ns: Int64Array
    seen_ns: Int64Array


def _waits_at(run: Run, site: int) -> _Waits:
    rows = [wait for wait in run.records.waits if wait.site == site]
    return _Waits(
        rows, *(column(rows, name) for name in ("step", "call", "published_ns", "seen_ns"))
    )


def _messages_to_workers(run: Run) -> str | None:
    """Every worker sees every call of every step once, and the same message as the others."""
    steps, n_steps = run.records.steps, len(run.records.steps)
    rank = {f"worker{index}": index for index in range(run.n_workers)}
    waits = _waits_at(run, WORKER_RECV)
    strangers = [wait for wait in waits.rows if role(wait.process) not in rank]
    if strangers:
        return f"{strangers[0].process!r} is none of {run.n_workers} workers: {strangers[0]}"
    ranks = np.fromiter((rank[role(wait.process)] for wait in waits.rows), np.int64)
    leaves = waits.step >= n_steps  # the wait that a goodbye ends; not every world records it
    n_calls = int(waits.call.max(initial=0)) + 1
    shape = (run.n_workers, n_calls, n_steps)
    key = (ranks * n_calls + waits.call) * n_steps + waits.step
    key = key[~leaves]
    n_seen = np.bincount(key, minlength=run.n_workers * n_calls * n_steps).reshape(shape)
    if (n_seen != 1).any():
        worker, call, step = np.argwhere(n_seen != 1)[0]
        return (
            f"worker{worker} saw call {call} of step {step} {n_seen[worker, call, step]} times;"
            " it was published once"
        )
    published_ns = np.empty(shape, np.int64)
    published_ns.reshape(-1)[key] = waits.published_ns[~leaves]
    other = (published_ns != published_ns[:1]).any(axis=0)
    if other.any():
        call, step = np.argwhere(other)[0]
        stamps = ", ".join(str(ns) for ns in published_ns[:, call, step])
        return f"call {call} of step {step} carries different publish stamps: {stamps} ns"
    wrong = published_ns[0, 0] != column(steps, "published_ns") if n_steps else leaves[:0]
    if wrong.any():
        return _rows("workers saw call 0 with another publish stamp", steps, wrong)
    n_goodbyes = np.bincount(ranks[leaves], minlength=run.n_workers)
    if (n_goodbyes != n_goodbyes[0]).any() or n_goodbyes[0] > 1:
        return f"workers saw {_few(n_goodbyes)} goodbyes; one was published to all"
    n_published = n_calls * n_steps + int(n_goodbyes[0])
    return _rung(run, ["scheduler"], n_published)


def _messages_to_scheduler(run: Run) -> str | None:
    """The scheduler sees every reply that was published, as often for each step."""
    steps, n_steps = run.records.steps, len(run.records.steps)
    waits = _waits_at(run, SCHEDULER_RECV)
    n_calls = int(waits.call.max(initial=0)) + 1
    beyond = (waits.step < 0) | (waits.step >= n_steps)
    if beyond.any():
        return _rows(f"a reply to none of {n_steps} steps", waits.rows, beyond)
    key = waits.call * n_steps + waits.step
    n_seen = np.bincount(key, minlength=n_calls * n_steps).reshape(n_calls, n_steps)
    if n_steps and ((n_seen != n_seen[:, :1]).any() or n_seen[-1, 0] == 0):
        call, step = np.argwhere(n_seen != np.median(n_seen, axis=1, keepdims=True))[0]
        return (
            f"the scheduler saw {n_seen[call, step]} replies to call {call} of step {step},"
            f" and {int(np.median(n_seen[call]))} to that call of most steps"
        )
    last = waits.call == n_calls - 1
    number, first = np.unique(waits.step[last], return_index=True)
    replied_ns = column(steps, "replied_ns")
    seen_ns = np.zeros(n_steps, np.int64)
    np.maximum.at(seen_ns, waits.step[last], waits.seen_ns[last])
    wrong = (waits.published_ns[last][first] != replied_ns[number]) | (
        seen_ns != column(steps, "seen_ns")
    )
    if wrong.any():
        return _rows("the waits for its reply have other stamps", steps, wrong)
    workers = [f"worker{rank}" for rank in range(run.n_workers)]
    return _rung(run, workers, len(waits.rows))


def _rung(run: Run, writers: list[str], n_seen: int) -> str | None:
    """Every publication rings, or finds nobody armed; so do some releases of a full ring."""
    processes = {role(row.process): row for row in run.records.processes}
    missing = [name for name in writers if name not in processes]
    if missing:
        return f"no account of {', '.join(missing)}"
    n_published = sum(processes[name].notified + processes[name].elided for name in writers)
    was_full = any(w.site in (SCHEDULER_SLOT, WORKER_SLOT) for w in run.records.waits)
    if n_published == n_seen or (was_full and n_published > n_seen):
        return None
    return f"{', '.join(writers)} published {n_published} messages, {n_seen} were seen"


def _seen_after_published(run: Run) -> str | None:
    """Nothing is seen before it was published, or before the wait began."""
    waits = run.records.waits
    seen_ns = column(waits, "seen_ns")
    early = (seen_ns < column(waits, "published_ns")) | (seen_ns < column(waits, "started_ns"))
    return _rows("seen before it was published or before the wait began", waits, early)


def _one_wait_at_a_time(run: Run) -> str | None:
    """A process does not begin a wait at a site before the last one there has ended."""
    waits = run.records.waits
    names = {name: index for index, name in enumerate(dict.fromkeys(w.process for w in waits))}
    place = column(waits, "site") * len(names) + np.fromiter(
        (names[w.process] for w in waits), np.int64
    )
    started_ns, seen_ns = column(waits, "started_ns"), column(waits, "seen_ns")
    order = np.lexsort((seen_ns, started_ns, place))
    same = place[order][1:] == place[order][:-1]
    overlaps = np.zeros(len(waits), bool)
    overlaps[order[1:]] = same & (started_ns[order][1:] < seen_ns[order][:-1])
    return _rows("it begins within another wait at its site", waits, overlaps)


# Steps.


def _causality(run: Run) -> str | None:
    """Scheduled, published, seen by all, launched, done, replied, seen: in this order."""
    steps = run.records.steps
    names = ("scheduled_ns", "published_ns", "launched_ns", "done_ns", "replied_ns", "seen_ns")
    unordered = np.zeros(len(steps), bool)
    for earlier, later in pairwise(names):
        unordered |= column(steps, earlier) > column(steps, later)
    if unordered.any():
        return _rows("its instants are not in the order of their causes", steps, unordered)
    waits = _waits_at(run, WORKER_RECV)
    launching = {f"worker{index}" for index in range(run.n_devices)}
    launches = np.fromiter((role(wait.process) in launching for wait in waits.rows), bool)
    is_first = launches & (waits.call == 0) & (waits.step < len(steps))
    called_ns = np.zeros(len(steps), np.int64)
    np.maximum.at(called_ns, waits.step[is_first], waits.seen_ns[is_first])
    launched_ns = column(steps, "launched_ns")
    return _rows(
        "launched before every worker that launches saw it", steps, called_ns > launched_ns
    )


def _steps_in_order(run: Run) -> str | None:
    """Steps are numbered without a gap, and each instant is no earlier than the step before's."""
    steps = run.records.steps
    unordered = column(steps, "step") != np.arange(len(steps))
    for name in ("scheduled_ns", "published_ns", "launched_ns", "done_ns", "seen_ns"):
        unordered |= np.diff(column(steps, name), prepend=np.iinfo(np.int64).min // 2) < 0
    return _rows("it is not the successor of the step before it", steps, unordered)


# Time.


def _cpu_within_wall(run: Run) -> str | None:
    """A process cannot use more CPU time than its threads have wall time."""
    processes = run.records.processes
    used_ns = _used_ns(run)
    limit_ns = run.n_threads * column(processes, "wall_ns")
    limit_ns += 0 if run.is_model else _CLOCKS_APART_NS
    beyond = (used_ns < 0) | (used_ns > limit_ns)
    return _rows(f"more CPU time than {run.n_threads} threads have", processes, beyond)


def _used_ns(run: Run) -> Int64Array:
    """CPU time of each process that some core must have spent."""
    processes = run.records.processes
    used_ns = column(processes, "cpu_ns") + column(processes, "emulation_cpu_ns")
    return used_ns - column(processes, "unplaced_ns")


def _little(run: Run) -> str | None:
    """The integral of the requests in the system over the run is the sum of their sojourns.

    Both are whole nanoseconds and equal exactly if every request comes and goes within the run.
    That a batch holds no more sequences than there are requests ties the count to the steps.
    """
    requests, steps = run.records.requests, run.records.steps
    if not requests:
        return None
    wall_ns = max((row.wall_ns for row in run.records.processes), default=0)
    arrived_ns = np.sort(column(requests, "arrival_ns"))
    left_ns = np.sort(np.fromiter((r.token_ns[-1] for r in requests), np.int64))
    instants = np.concatenate([arrived_ns, left_ns])
    change = np.repeat((1, -1), len(requests))
    order = np.argsort(instants, kind="stable")
    n_inside = np.cumsum(change[order])
    times_ns = np.clip(instants[order], 0, wall_ns)
    integral = sum((n_inside[:-1] * np.diff(times_ns)).tolist())
    sojourn_ns = sum(left_ns.tolist()) - sum(arrived_ns.tolist())
    if integral != sojourn_ns:
        return (
            f"requests in the system add up to {integral} ns from 0 to {wall_ns} ns,"
            f" their sojourns to {sojourn_ns} ns"
        )
    scheduled_ns = column(steps, "scheduled_ns")
    inside = np.searchsorted(arrived_ns, scheduled_ns, "right") - np.searchsorted(
        left_ns, scheduled_ns, "left"
    )
    n_batch = column(steps, "n_decode") + (column(steps, "n_prefill_tokens") > 0)
    return _rows("its batch holds more sequences than the system", steps, n_batch > inside)


def _utilisation(run: Run) -> str | None:
    """Nobody is busy for less than no time or for more than all of it."""
    cores = run.records.cores
    beyond = np.zeros(len(cores), bool)
    for name in ("busy_ns", "stolen_ns", "idle_ns"):
        part_ns = column(cores, name)
        beyond |= (part_ns < 0) | (part_ns > column(cores, "wall_ns"))
    if beyond.any():
        return _rows("a share of its time is not in [0, 1]", cores, beyond)
    busy_ns = float(step_time_ns(run.records.steps).sum())
    wall_ns = max((row.wall_ns for row in run.records.processes), default=0)
    if busy_ns > wall_ns:
        return f"the device was busy for {busy_ns:.0f} ns of {wall_ns} ns"
    return None


def _one_thread_on_a_core(run: Run) -> str | None:
    """Two stays on one core do not overlap, and each lasts."""
    slices = run.records.slices
    core, started_ns = column(slices, "core"), column(slices, "started_ns")
    ended_ns = column(slices, "ended_ns")
    order = np.lexsort((started_ns, core))
    bad = ended_ns <= started_ns
    same = core[order][1:] == core[order][:-1]
    bad[order[1:]] |= same & (started_ns[order][1:] < ended_ns[order][:-1])
    return _rows("it overlaps another stay on its core, or lasts no time", slices, bad)


def _core_time(run: Run) -> str | None:
    """The time of each core is busy, stolen or idle, to the nanosecond."""
    cores = run.records.cores
    left_ns = column(cores, "wall_ns")
    for name in ("busy_ns", "stolen_ns", "idle_ns"):
        left_ns -= column(cores, name)
    return _rows("busy + stolen + idle is not its wall time", cores, left_ns != 0)


def _cpu_on_cores(run: Run) -> str | None:
    """What cores were busy for is what processes used."""
    if not run.records.cores:
        return None
    busy_ns = int(column(run.records.cores, "busy_ns").sum())
    used_ns = int(_used_ns(run).sum())
    # Of a box with several engines these are the records of one, and its cores worked for all.
    is_alone = all(row.process == role(row.process) for row in run.records.processes)
    if busy_ns == used_ns or (not is_alone and busy_ns > used_ns):
        return None
    return f"cores were busy for {busy_ns} ns, processes used {used_ns} ns"


def _slices_on_cores(run: Run) -> str | None:
    """The stays on a core add up to the time it was busy."""
    slices, cores = run.records.slices, run.records.cores
    if not slices or not cores:
        return None
    number = column(cores, "core")
    core, stay_ns = (
        column(slices, "core"),
        column(slices, "ended_ns") - column(slices, "started_ns"),
    )
    total_ns = np.array([stay_ns[core == n].sum() for n in number.tolist()])
    return _rows(
        "its stays do not add up to its busy time", cores, total_ns != column(cores, "busy_ns")
    )


def _cpu_of_waits(run: Run) -> str | None:
    """A process uses no more CPU time in its waits than in all."""
    waits, processes = run.records.waits, run.records.processes
    used_ns = dict.fromkeys((row.process for row in processes), 0)
    for wait in waits:
        used_ns[wait.process] = used_ns.get(wait.process, 0) + wait.cpu_ns
    beyond = np.array([used_ns[row.process] > row.cpu_ns for row in processes], bool)
    return _rows("its waits used more CPU time", processes, beyond)


# Payloads.


def _payloads(run: Run) -> str | None:
    """Every worker gets the payloads that were sent, their parts by the routes they were sent by.

    A payload has one part or two: its bulk is in the pickle stream, or beside it.
    """
    rows = run.records.processes
    n_payloads, n_fallbacks = column(rows, "payloads"), column(rows, "fallbacks")
    by_route = np.stack([column(rows, name) for name in ("inline", "arena", "socket")])
    n_parts = by_route.sum(axis=0)
    wrong = (n_parts < n_payloads) | (n_parts > 2 * n_payloads) | (by_route < 0).any(axis=0)
    wrong |= (n_fallbacks < 0) | (n_fallbacks > n_parts)
    if wrong.any():
        return _rows("its routes do not add up to its payloads", rows, wrong)
    sent = [index for index, row in enumerate(rows) if role(row.process) == "scheduler"]
    if not sent:
        return "no account of the scheduler, who sends them"
    lost = (by_route != by_route[:, sent]).any(axis=0) | (n_payloads != n_payloads[sent])
    return _rows("it received other parts than were sent", rows, lost)


def _arena(run: Run) -> str | None:
    """Slots of the arena that are taken come back, and are never more than there are."""
    rows = run.records.processes
    used, most = column(rows, "arena"), column(rows, "arena_most")
    kept = used != column(rows, "arena_released")
    if kept.any():
        return _rows("slots of the arena were not given back", rows, kept)
    beyond = (most < 0) | (most > column(rows, "arena_slots")) | (most > used)
    return _rows("more of the arena was in use than it has, or was taken", rows, beyond)


#: What holds on a machine too.
EVERY_WORLD: Final[dict[str, Law]] = {
    "tokens of requests": _tokens_of_requests,
    "tokens of steps": _tokens_of_steps,
    "messages to workers": _messages_to_workers,
    "messages to the scheduler": _messages_to_scheduler,
    "seen after published": _seen_after_published,
    "one wait at a time": _one_wait_at_a_time,
    "causality": _causality,
    "steps in order": _steps_in_order,
    "CPU within wall time": _cpu_within_wall,
    "Little": _little,
    "utilisation": _utilisation,
    "one thread on a core": _one_thread_on_a_core,
    "payloads": _payloads,
    "arena": _arena,
}

#: Sums that only virtual time keeps to the nanosecond.
MODEL_ONLY: Final[dict[str, Law]] = {
    "core time": _core_time,
    "CPU on cores": _cpu_on_cores,
    "slices on cores": _slices_on_cores,
    "CPU of waits": _cpu_of_waits,
}


#: Laws that compare something with the rows of steps.
OF_STEPS: Final = frozenset(("tokens of steps", "messages to workers", "messages to the scheduler"))


def _all_tokens(run: Run) -> Int64Array:
    each = (np.asarray(row.token_ns, np.int64) for row in run.records.requests)
    return np.concatenate([np.empty(0, np.int64), *each])


def _rows(finding: str, rows: list[Any], is_bad: NDArray[np.bool_]) -> str | None:
    """Name the first rows that break a law; None if none does."""
    bad = np.flatnonzero(is_bad)
    if not len(bad):
        return None
    shown = "; ".join(str(rows[index]) for index in bad[:_N_SHOWN])
    return f"{finding}, in {len(bad)} of {len(rows)} rows: {shown}"


def _few(values: Iterable[Any]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown[:_N_SHOWN]) + (", ..." if len(shown) > _N_SHOWN else "")
