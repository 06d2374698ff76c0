"""Which process of a run waits on which track of its timeline, and which messages go between them.

A track is a thread: what happens on it nests. Records name processes only; that a process has a
second thread shows in waits that overlap, or in replies published while the main thread waits.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, count, pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from shmsim.records import RunRecords, WaitRow, role
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV

SCHEDULER: Final = "scheduler"
# The main thread of a process has its id; others count from here. No two threads share an id, since
# Perfetto takes them for those of one machine.
_FIRST_OTHER_TID: Final = 1000


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


def lanes_of(records: RunRecords) -> dict[str, Lane]:
    """Every process by its role, with its tracks."""
    names = [row.process for row in records.processes]
    by_process: dict[str, dict[int, list[WaitRow]]] = {name: {} for name in names}
    for wait in records.waits:
        by_process[wait.process].setdefault(wait.site, []).append(wait)
    lanes = {}
    tids = count(_FIRST_OTHER_TID)
    for pid, name in enumerate(names, 1):
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


def messages_of(records: RunRecords, lanes: dict[str, Lane]) -> list[Message]:
    """All messages that were seen, by the instant of their publication."""
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
