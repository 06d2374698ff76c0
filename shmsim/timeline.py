"""A run as a timeline: Trace Event JSON, the format of ui.perfetto.dev and chrome://tracing.

One track per process with its waits, its work and the steps of the device in it; one per core if
the records say who ran where; arrows from each publication to whoever saw it. Records of the model
and of a machine give the same kinds of events. Nobody has opened one in Perfetto's UI yet: tests
read them back (tests/timelines.py), by the rules below.

The format is described in "Trace Event Format" (Duffy et al., https://docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), and by what Perfetto reads of it
(https://perfetto.dev/docs/getting-started/other-formats). What decides details here:

- ``ts`` and ``dur`` are microseconds with decimals: three of them keep every nanosecond.
- Spans of one thread nest or are disjoint; Perfetto drops or moves others.
- Perfetto draws an arrow from the *end* of one span to the *start* of another, and an instant is a
  span without length. So both ends of an arrow are instants: it is as long as the detection took.
- Perfetto sorts by ``ts`` and keeps the order of the file where it ties: a span comes before the
  instant in it, a publication before it is seen.
"""

import heapq
import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from gzip import GzipFile
from io import TextIOWrapper
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from shmsim.records import RunRecords, SliceRow, WaitRow, role
from shmsim.tracks import SCHEDULER, Engine, Lane, Message, Track, engines_of, messages_of
from shmsim.units import FOREVER_NS, US
from shmsim.wait import DEVICE_DONE, KIND_NAMES, SCHEDULER_RECV, SITE_NAMES, WORKER_RECV
from shmsim.whole import whole

_FIRST_CORE_TID: Final = 2000  # beyond those of threads

# At one instant a span comes before what is in it, and a publication before it is seen.
_SPAN, _PUBLISH, _SEE = 0, 1, 2
#: Instant and rank, by which events are sorted, and the event.
_Entry = tuple[int, int, dict[str, Any]]


class Window(NamedTuple):
    """From when until when a timeline shows a run; spans across its edges are cut there.

    Parameters
    ----------
    from_ns, until_ns
        Instants from the start of the run.
    """

    from_ns: int = 0
    until_ns: int = FOREVER_NS

    def shows(self, instant_ns: int) -> bool:
        """Whether an instant is within."""
        return self.from_ns <= instant_ns <= self.until_ns


def window_of_steps(records: RunRecords, text: str) -> Window:
    """The window of some steps, written as a slice of Python is: ``"100:200"`` ends with step 199.

    Of several engines it shows all, while the first is at those steps.

    Raises
    ------
    ValueError
        If the text is no such range, or the run has no such steps.
    """
    steps = engines_of(records)[0].records.steps
    n_steps = len(steps)
    match = re.fullmatch(r"(\d*):(\d*)", text)
    first, last = (int(match[1] or 0), int(match[2] or n_steps)) if match else (0, 0)
    if not 0 <= first < last <= n_steps:
        raise ValueError(
            f"steps must be FIRST:LAST with 0 <= FIRST < LAST <= {n_steps}, the number of steps of"
            f" this run; got {text!r}"
        )
    return Window(steps[first].scheduled_ns, steps[last - 1].seen_ns)


def write_timeline(records: RunRecords, path: Path, window: Window | None = None) -> int:
    """Write a timeline, event by event; compressed if the name ends in ``.gz``.

    Parameters
    ----------
    records
        Of either world.
    path
        The file to write.
    window
        Which part of the run to show; None: all of it.

    Returns
    -------
    int
        How many events were written.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    n_events = 0
    with whole(path) as unfinished, _opened(unfinished, path.suffix == ".gz") as file:
        about = json.dumps(records.meta)
        file.write(f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":[')
        for event in events(records, window or Window()):
            file.write((",\n" if n_events else "\n") + json.dumps(event, separators=(",", ":")))
            n_events += 1
        file.write("\n]}\n")
    return n_events


@contextmanager
def _opened(unfinished: Path, is_compressed: bool) -> Iterator[TextIO]:
    if not is_compressed:
        with unfinished.open("w") as file:
            yield file
        return
    # gzip notes name and time in its header unless it is told some, and this name holds the number
    # of the process: the same run gives the same bytes.
    with (
        unfinished.open("wb") as raw,
        GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        TextIOWrapper(packed) as text,
    ):
        yield text


def events(records: RunRecords, window: Window) -> Iterator[dict[str, Any]]:
    """The events of a timeline: names of tracks, then the rest by time.

    Raises
    ------
    ValueError
        If the rows of several engines do not say which of them they are of.
    """
    engines = engines_of(records)
    yield from _names(records, engines)
    messages = sorted(
        chain.from_iterable(messages_of(engine) for engine in engines),
        key=attrgetter("published_ns", "writer"),
    )
    sources = [
        *chain.from_iterable(_engine_entries(engine, messages, window) for engine in engines),
        *_core_entries(records, _cores_pid(engines), window),
        _publish_entries(messages, window),
        _see_entries(messages, window),
    ]
    for _, _, event in heapq.merge(*sources, key=itemgetter(0, 1)):
        yield event


def _engine_entries(
    engine: Engine, messages: list[Message], window: Window
) -> Iterator[Iterator[_Entry]]:
    records, lanes = engine.records, engine.lanes
    for lane in lanes.values():
        yield _lane_entries(records, lane, window)
        yield _reply_entries(records, lane, messages, window)
    yield _device_entries(engine, window)
    yield from _counter_entries(engine, window)


# Tracks.


def _names(records: RunRecords, engines: list[Engine]) -> Iterator[dict[str, Any]]:
    """Names and order of all tracks."""
    for lane in chain.from_iterable(engine.lanes.values() for engine in engines):
        yield from _named(lane.main.pid, lane.name, {lane.main.tid: lane.name})
        for track, waits in lane.waits.items():
            if track != lane.main:
                yield from _thread_named(track, f"{lane.name} {SITE_NAMES[waits[0].site]}")
        if lane.replies:
            yield from _thread_named(lane.replies, f"{lane.name} replies")
    for engine in engines:
        name = f"{engine.prefix}device"
        yield from _named(engine.device.pid, name, {engine.device.tid: name})
    cores = sorted({row.core for row in records.slices})
    if cores:
        names = {_FIRST_CORE_TID + core: f"core {core}" for core in cores}
        yield from _named(_cores_pid(engines), "cores", names)


def _named(pid: int, name: str, threads: dict[int, str]) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", Track(pid, 0), {"name": name})
    yield _metadata("process_sort_index", Track(pid, 0), {"sort_index": pid})
    for tid, thread in threads.items():
        yield from _thread_named(Track(pid, tid), thread)


def _thread_named(track: Track, name: str) -> Iterator[dict[str, Any]]:
    yield _metadata("thread_name", track, {"name": name})
    yield _metadata("thread_sort_index", track, {"sort_index": track.tid})


def _metadata(name: str, track: Track, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": track.pid, "tid": track.tid or track.pid, "args": args}


def _cores_pid(engines: list[Engine]) -> int:
    return engines[-1].device.pid + 1


# Spans.


def _span(
    window: Window,
    track: Track,
    name: str,
    category: str,
    begun_ns: int,
    ended_ns: int,
    args: dict[str, Any] | None = None,
) -> Iterator[_Entry]:
    """What of a span is in the window, if anything."""
    from_ns, until_ns = max(begun_ns, window.from_ns), min(ended_ns, window.until_ns)
    if from_ns > until_ns or (from_ns == until_ns and begun_ns < ended_ns):
        return
    event = _event("X", name, category, track, from_ns)
    event["dur"] = (until_ns - from_ns) / US
    if args:
        event["args"] = args
    yield from_ns, _SPAN, event


def _event(phase: str, name: str, category: str, track: Track, ts_ns: int) -> dict[str, Any]:
    return {
        "ph": phase,
        "name": name,
        "cat": category,
        "pid": track.pid,
        "tid": track.tid,
        "ts": ts_ns / US,
    }


def _lane_entries(records: RunRecords, lane: Lane, window: Window) -> Iterator[_Entry]:
    """Waits of a process, and on its main track the work between them."""
    others = [
        _wait_spans(window, track, waits)
        for track, waits in lane.waits.items()
        if track != lane.main
    ]
    return heapq.merge(_main_entries(records, lane, window), *others, key=itemgetter(0, 1))


def _main_entries(records: RunRecords, lane: Lane, window: Window) -> Iterator[_Entry]:
    work = _SchedulerWork(records) if role(lane.name) == SCHEDULER else _WorkerWork(records)
    waits = lane.waits[lane.main]
    begun_ns = 0
    last: WaitRow | None = None
    for wait in waits:
        yield from work.spans(window, lane.main, begun_ns, wait.started_ns, last)
        yield from _wait_span(window, lane.main, wait)
        begun_ns, last = wait.seen_ns, wait
    yield from work.spans(window, lane.main, begun_ns, _end_ns(records), last)


def _end_ns(records: RunRecords) -> int:
    instants = chain((w.seen_ns for w in records.waits), (s.seen_ns for s in records.steps))
    return max(instants, default=0)


def _wait_spans(window: Window, track: Track, waits: list[WaitRow]) -> Iterator[_Entry]:
    for wait in waits:
        yield from _wait_span(window, track, wait)


def _wait_span(window: Window, track: Track, wait: WaitRow) -> Iterator[_Entry]:
    """One wait, named by how it was seen: the kind of the stage, and what ended it."""
    known = wait.stage_kind >= 0
    name = KIND_NAMES[wait.stage_kind] if known else f"stage {wait.stage}"
    if wait.published_ns <= wait.started_ns:
        name += ", at once"
    elif wait.belled:
        name += ", rung"
    args = {
        "site": SITE_NAMES[wait.site],
        "step": wait.step,
        "call": wait.call,
        "pending": wait.pending,
        "stage": wait.stage,
        "cpu_ns": wait.cpu_ns,
        "overshoot_ns": wait.overshoot_ns,
        "preempted": wait.preempted,
        "detection_ns": wait.seen_ns - max(wait.published_ns, wait.started_ns),
    }
    return _span(window, track, name, "wait", wait.started_ns, wait.seen_ns, args)


class _SchedulerWork:
    """What the scheduler does between two waits: it takes replies in, and forms batches."""

    def __init__(self, records: RunRecords) -> None:
        self._scheduled_ns = [step.scheduled_ns for step in records.steps]
        self._steps = records.steps
        self._idle_ns = _idle_periods(records)
        waits = [wait for wait in records.waits if wait.site == SCHEDULER_RECV]
        self._last_call = max((wait.call for wait in waits), default=0)

    def spans(
        self, window: Window, track: Track, begun_ns: int, ended_ns: int, after: WaitRow | None
    ) -> Iterator[_Entry]:
        first = bisect_left(self._scheduled_ns, begun_ns)
        last = bisect_left(self._scheduled_ns, ended_ns)
        marks = [begun_ns, *self._scheduled_ns[first:last], ended_ns]
        if marks[0] < marks[1]:
            name = self._name(after)
            yield from _span(window, track, name, "work", marks[0], marks[1])
            yield from self._idle_spans(window, track, marks[0], marks[1])
        for step, (mark_ns, next_ns) in zip(
            self._steps[first:last], pairwise(marks[1:]), strict=True
        ):
            args = {
                "step": step.step,
                "n_decode": step.n_decode,
                "n_prefill_tokens": step.n_prefill_tokens,
            }
            yield from _span(window, track, "schedule", "work", mark_ns, next_ns, args)

    def _name(self, after: WaitRow | None) -> str:
        if after is not None and after.site != SCHEDULER_RECV:
            return "publish"
        return "complete" if after is None or after.call == self._last_call else "second call"

    def _idle_spans(
        self, window: Window, track: Track, begun_ns: int, ended_ns: int
    ) -> Iterator[_Entry]:
        index = bisect_right(self._idle_ns, (begun_ns, -1))
        for from_ns, until_ns in self._idle_ns[max(index - 1, 0) :]:
            if from_ns >= ended_ns:
                return
            inside = max(from_ns, begun_ns), min(until_ns, ended_ns)
            if inside[0] < inside[1]:
                yield from _span(window, track, "no request", "idle", *inside)


def _idle_periods(records: RunRecords) -> list[tuple[int, int]]:
    """When no request was in the system, from the start of the run on."""
    periods = []
    left_ns = 0
    for request in sorted(records.requests, key=attrgetter("arrival_ns")):
        if request.arrival_ns > left_ns:
            periods.append((left_ns, request.arrival_ns))
        left_ns = max(left_ns, request.token_ns[-1])
    return periods


class _WorkerWork:
    """What a worker does between two waits; the step of the device shows within it."""

    def __init__(self, records: RunRecords) -> None:
        self._steps = {step.step: step for step in records.steps}

    def spans(
        self, window: Window, track: Track, begun_ns: int, ended_ns: int, after: WaitRow | None
    ) -> Iterator[_Entry]:
        if begun_ns >= ended_ns:
            return
        step = self._steps.get(after.step) if after else None
        if after is None or step is None:
            yield from _span(window, track, "work", "work", begun_ns, ended_ns)
            return
        names = {WORKER_RECV: f"work on call {after.call}", DEVICE_DONE: "reply"}
        name = names.get(after.site, "publish")
        yield from _span(window, track, name, "work", begun_ns, ended_ns, {"step": after.step})
        device_ns = max(step.launched_ns, begun_ns)
        if device_ns < step.done_ns <= ended_ns:
            yield from _span(window, track, "device step", "device", device_ns, step.done_ns)


def _reply_entries(
    records: RunRecords, lane: Lane, messages: list["Message"], window: Window
) -> Iterator[_Entry]:
    """What a reply thread does: from the end of a step to its reply."""
    if lane.replies is None:
        return
    done_ns = {step.step: step.done_ns for step in records.steps}
    free_ns = 0
    for message in messages:
        if message.writer == lane.replies:
            begun_ns = min(max(done_ns[message.step], free_ns), message.published_ns)
            free_ns = message.published_ns
            args = {"step": message.step}
            yield from _span(window, lane.replies, "reply", "work", begun_ns, free_ns, args)


def _device_entries(engine: Engine, window: Window) -> Iterator[_Entry]:
    free_ns = 0
    for step in engine.records.steps:
        begun_ns = max(step.launched_ns, free_ns)
        free_ns = step.done_ns
        args = {
            "step": step.step,
            "n_decode": step.n_decode,
            "n_prefill_tokens": step.n_prefill_tokens,
        }
        yield from _span(window, engine.device, "device step", "device", begun_ns, free_ns, args)


def _core_entries(records: RunRecords, pid: int, window: Window) -> Iterator[Iterator[_Entry]]:
    """Who was on each core; an iterator per core."""
    by_core: dict[int, list[SliceRow]] = defaultdict(list)
    for row in sorted(records.slices, key=attrgetter("started_ns")):
        by_core[row.core].append(row)
    for core, rows in by_core.items():
        yield _stays(rows, Track(pid, _FIRST_CORE_TID + core), window)


def _stays(rows: list[SliceRow], track: Track, window: Window) -> Iterator[_Entry]:
    for row in rows:
        yield from _span(window, track, row.process, "core", row.started_ns, row.ended_ns)


# Messages.


def _publish_entries(messages: list[Message], window: Window) -> Iterator[_Entry]:
    """An instant for each publication, and from there the start of an arrow to each reader."""
    last: tuple[Track, int, int] | None = None
    for number, message in enumerate(messages):
        at_ns = message.published_ns
        if not window.shows(at_ns):
            continue
        published = message.writer, message.step, message.call
        if published != last:
            yield at_ns, _PUBLISH, _instant("publish", message, message.writer, at_ns)
            last = published
        if window.shows(message.seen_ns):
            yield at_ns, _PUBLISH, _arrow("s", number, message.writer, at_ns)


def _see_entries(messages: list[Message], window: Window) -> Iterator[_Entry]:
    """An instant for each message that is seen, where its arrow ends."""
    for number, message in sorted(enumerate(messages), key=lambda pair: pair[1].seen_ns):
        at_ns = message.seen_ns
        if not window.shows(at_ns):
            continue
        yield at_ns, _SEE, _instant("see", message, message.reader, at_ns)
        if window.shows(message.published_ns):
            yield at_ns, _SEE, _arrow("f", number, message.reader, at_ns) | {"bp": "e"}


def _instant(name: str, message: Message, track: Track, at_ns: int) -> dict[str, Any]:
    event = _event("i", name, "message", track, at_ns)
    return event | {"s": "t", "args": {"step": message.step, "call": message.call}}


def _arrow(phase: str, number: int, track: Track, at_ns: int) -> dict[str, Any]:
    return _event(phase, "message", "message", track, at_ns) | {"id": number}


# Counters.


def _counter_entries(engine: Engine, window: Window) -> Iterator[Iterator[_Entry]]:
    """Requests in the system, and what is in each batch."""
    requests, steps = engine.records.requests, engine.records.steps
    prefix, lane = engine.prefix, engine.lanes[SCHEDULER]
    changes = sorted(
        chain(
            ((request.arrival_ns, 1) for request in requests),
            ((request.token_ns[-1], -1) for request in requests),
        )
    )
    in_system = zip(
        (at_ns for at_ns, _ in changes), accumulate(by for _, by in changes), strict=True
    )
    yield _counter(f"{prefix}requests in the system", in_system, lane, window)
    decoding = ((step.scheduled_ns, step.n_decode) for step in steps)
    yield _counter(f"{prefix}sequences in decode", decoding, lane, window)
    prefill = ((step.scheduled_ns, step.n_prefill_tokens) for step in steps)
    yield _counter(f"{prefix}prefill tokens", prefill, lane, window)


def _counter(
    name: str, points: Iterable[tuple[int, int]], lane: Lane, window: Window
) -> Iterator[_Entry]:
    """A counter from its value at the start of the window on."""
    before: int | None = None
    for at_ns, value in points:
        if at_ns < window.from_ns:
            before = value
            continue
        if before is not None:
            yield window.from_ns, _SPAN, _count(name, before, lane, window.from_ns)
            before = None
        if at_ns > window.until_ns:
            return
        yield at_ns, _SPAN, _count(name, value, lane, at_ns)


def _count(name: str, value: int, lane: Lane, at_ns: int) -> dict[str, Any]:
    return _event("C", name, "load", lane.main, at_ns) | {"args": {"n": value}}
