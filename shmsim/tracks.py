"""Which process of a run waits on which track of its timeline, and which messages go between them.

A track is a thread: what happens on it nests. Records name processes only; that a process has a
second thread shows in waits that overlap, or in replies published while the main thread waits.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, pairwise
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from shmsim.records import RunRecords, WaitRow, role
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV

SCHEDULER: Final = "scheduler"
# The main thread of a process has its id; others count from here. No two threads share an id, since
# Perfetto takes them for those of one machine.
_FIRST_OTHER_TID: Final = 1000


_Row = TypeVar("_Row")


class Track(NamedTuple):
    """A thread of a timeline, by the numbers that its events carry."""

    pid: int
    tid: int


class Lane(NamedTuple):
    """A process: its tracks, and its waits by track, in the order of time.

    Parameters
    ----------
    name
        Of the process.
    main
        Track of the main thread, on which it waits for messages.
    waits
        Of each track; a site whose waits overlap those of the main thread has a thread of its own.
    replies
        Track of a thread that replies while the main thread waits; None if there is none.
    """

    name: str
    main: Track
    waits: dict[Track, list[WaitRow]]
    replies: Track | None


class Engine(NamedTuple):
    """One engine of a box: its part of the records, and where it is shown.

    Parameters
    ----------
    prefix
        Of the names of its processes, as ``"engine1/"``; empty if the box has one engine only.
    records
        Its own rows.
    lanes
        Its processes by their roles.
    device
        Track of its device.
    """

    prefix: str
    records: RunRecords
    lanes: dict[str, Lane]
    device: Track


def engines_of(records: RunRecords) -> list[Engine]:
    """Every engine of a run, no two of them on one track.

    Raises
    ------
    ValueError
        If the rows do not say which engine they are of.
    """
    parts = _parts_of(records)
    pids, tids = count(1), count(_FIRST_OTHER_TID)
    lanes = [_lanes_of(part, pids, tids) for part in parts.values()]
    devices = [Track(pid, pid) for _, pid in zip(parts, pids, strict=False)]
    return [
        Engine(prefix, part, its_lanes, device)
        for (prefix, part), its_lanes, device in zip(parts.items(), lanes, devices, strict=True)
    ]


def _parts_of(records: RunRecords) -> dict[str, RunRecords]:
    """The rows of each engine by the prefix of its processes: the reverse of joining them."""
    prefixes = list(dict.fromkeys(_prefix(row.process) for row in records.processes))
    if len(prefixes) == 1:
        return {prefixes[0]: records}
    steps = _cut([row.step for row in records.steps], records.steps)
    requests = _cut([row.request for row in records.requests], records.requests)
    if not len(steps) == len(requests) == len(prefixes):
        raise ValueError(
            f"the run has processes of {len(prefixes)} engines, steps of {len(steps)} and requests "
            f"of {len(requests)}; a timeline needs them of the same"
        )
    return {
        prefix: replace(
            records,
            steps=steps[number],
            waits=[row for row in records.waits if _prefix(row.process) == prefix],
            requests=requests[number],
            processes=[row for row in records.processes if _prefix(row.process) == prefix],
        )
        for number, prefix in enumerate(prefixes)
    }


def _prefix(process: str) -> str:
    return process.removesuffix(role(process))


def _cut(numbers: list[int], rows: Sequence[_Row]) -> list[list[_Row]]:
    """Rows that are numbered engine by engine, cut where the numbers begin anew."""
    found: list[list[_Row]] = []
    for number, before, row in zip(numbers, [None, *numbers], rows, strict=False):
        if before is None or number <= before:
            found.append([])
        found[-1].append(row)
    return found


def _lanes_of(records: RunRecords, pids: Iterator[int], tids: Iterator[int]) -> dict[str, Lane]:
    """Every process of one engine by its role, with its tracks."""
    names = [row.process for row in records.processes]
    by_process: dict[str, dict[int, list[WaitRow]]] = {name: {} for name in names}
    for wait in records.waits:
        by_process[wait.process].setdefault(wait.site, []).append(wait)
    lanes = {}
    for name, pid in zip(names, pids, strict=False):
        main = Track(pid, pid)
        waits: dict[Track, list[WaitRow]] = {main: []}
        for _, at_site in sorted(by_process[name].items()):  # sites of messages come first
            together = sorted(waits[main] + at_site, key=attrgetter("started_ns", "seen_ns"))
            if all(after.started_ns >= before.seen_ns for before, after in pairwise(together)):
                waits[main] = together
            else:
                waits[Track(pid, next(tids))] = sorted(at_site, key=attrgetter("started_ns"))
        lanes[role(name)] = Lane(name, main, waits, None)
    for name, replied_ns in _replies(records).items():
        lane = lanes.get(name)
        if lane and _any_within(replied_ns, lane.waits[lane.main]):
            lanes[name] = lane._replace(replies=Track(lane.main.pid, next(tids)))
    return lanes


def _replies(records: RunRecords) -> dict[str, list[int]]:
    """When each worker published its replies."""
    published_ns: dict[str, list[int]] = defaultdict(list)
    for worker, wait in _with_writers(records):
        published_ns[worker].append(wait.published_ns)
    return published_ns


def _with_writers(records: RunRecords) -> Iterator[tuple[str, WaitRow]]:
    """Waits for replies, each with the worker that ended it: ranks reply in their order."""
    n_seen: dict[tuple[int, int], int] = defaultdict(int)
    for wait in records.waits:
        if wait.site == SCHEDULER_RECV:
            yield f"worker{n_seen[wait.step, wait.call]}", wait
            n_seen[wait.step, wait.call] += 1


def _any_within(instants_ns: list[int], waits: list[WaitRow]) -> bool:
    started_ns = [wait.started_ns for wait in waits]
    for instant_ns in instants_ns:
        index = bisect_left(started_ns, instant_ns) - 1
        if index >= 0 and instant_ns < waits[index].seen_ns:
            return True
    return False


class Message(NamedTuple):
    """A message on its way from the track of its writer to that of one reader."""

    step: int
    call: int
    writer: Track
    reader: Track
    published_ns: int
    seen_ns: int


def messages_of(engine: Engine) -> list[Message]:
    """All messages of an engine that were seen, by the instant of their publication."""
    _, records, lanes, _ = engine
    to_workers = (
        (lanes[SCHEDULER].main, wait) for wait in records.waits if wait.site == WORKER_RECV
    )
    replies = (
        (lanes[writer].replies or lanes[writer].main, wait)
        for writer, wait in _with_writers(records)
        if writer in lanes
    )
    messages = [
        Message(
            wait.step,
            wait.call,
            writer,
            lanes[role(wait.process)].main,
            wait.published_ns,
            wait.seen_ns,
        )
        for writer, wait in chain(to_workers, replies)
    ]
    return sorted(messages, key=attrgetter("published_ns", "writer"))
