"""Reads a timeline back and checks what holds of every one, wherever its records are from."""

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from typing import NamedTuple

from shmsim.units import MS
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV


class Span(NamedTuple):
    """A complete event, in whole nanoseconds."""

    track: tuple[int, int]
    name: str
    category: str
    begun_ns: int
    ended_ns: int
    depth: int
    args: dict


class Timeline:
    """A trace file, taken apart.

    Attributes
    ----------
    spans
        Complete events, with how many others each is nested in.
    instants, arrows
        Events of phases i, and s and f.
    messages
        What each arrow stands for: step and call, instant of publication and of sight, and the
        tracks of writer and reader.
    counters
        Values by name, in order of time.
    tracks
        Track of each name of a thread.
    """

    def __init__(self, path):
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        self.trace = json.loads(text, parse_float=Decimal)
        assert self.trace["displayTimeUnit"] == "ns"
        events = self.trace["traceEvents"]
        timed = [event for event in events if event["ph"] != "M"]
        assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
        self.tracks = {
            e["args"]["name"]: (e["pid"], e["tid"])
            for e in events
            if e["ph"] == "M" and e["name"] == "thread_name"
        }
        tids = [tid for _, tid in self.tracks.values()]
        assert len(set(tids)) == len(tids)
        named = set(self.tracks.values())
        assert all((e["pid"], e["tid"]) in named for e in timed)
        self.spans = nested([e for e in timed if e["ph"] == "X"])
        self.instants = [e for e in timed if e["ph"] == "i"]
        self.arrows = [e for e in timed if e["ph"] in "sf"]
        self.counters = defaultdict(list)
        for e in timed:
            if e["ph"] == "C":
                self.counters[e["name"]].append((ns(e["ts"]), e["args"]["n"]))
        self.check_arrows(timed)

    def on(self, name, category=None):
        """Spans of a track, by the name of its thread."""
        track = self.tracks[name]
        return [s for s in self.spans if s.track == track and category in (None, s.category)]

    def check_arrows(self, timed):
        """Each arrow leads from one publication to one sight of it, later and elsewhere."""
        ends = defaultdict(dict)
        last = None
        for event in timed:
            if event["ph"] in "sf":
                assert list(ends[event["id"]]) == (["s"] if event["ph"] == "f" else [])
                ends[event["id"]][event["ph"]] = event | {"said": last["args"]}
                # What Perfetto binds an arrow to: the last thing that began on its track.
                assert (last["name"], last["pid"], last["tid"], last["ts"]) == (
                    {"s": "publish", "f": "see"}[event["ph"]],
                    event["pid"],
                    event["tid"],
                    event["ts"],
                )
            if event["ph"] == "i":
                last = event
        covered = defaultdict(list)
        for span in self.spans:
            covered[span.track].append(span)
        self.messages = []
        for both in ends.values():
            start, end = both["s"], both["f"]
            assert start["said"] == end["said"]
            assert start["ts"] <= end["ts"]
            assert start["pid"] != end["pid"]
            tracks = [(event["pid"], event["tid"]) for event in (start, end)]
            instants_ns = [ns(event["ts"]) for event in (start, end)]
            for track, at_ns in zip(tracks, instants_ns, strict=True):
                assert any(s.begun_ns <= at_ns <= s.ended_ns for s in covered[track])
            self.messages.append((*start["said"].values(), *instants_ns, *tracks))
        self.n_arrows = len(ends)


def ns(microseconds):
    """Decimal microseconds as whole nanoseconds; nothing may be left over."""
    exact = Decimal(microseconds) * 1000
    assert exact == int(exact)
    return int(exact)


def nested(events):
    """Spans with their depth; fails where two of a track overlap without nesting."""
    open_until = defaultdict(list)
    spans = []
    for e in events:
        track = e["pid"], e["tid"]
        begun_ns, ended_ns = ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])
        assert ended_ns >= begun_ns
        stack = open_until[track]
        while stack and stack[-1] <= begun_ns:
            stack.pop()
        assert all(ended_ns <= until_ns for until_ns in stack)
        spans.append(
            Span(track, e["name"], e["cat"], begun_ns, ended_ns, len(stack), e.get("args", {}))
        )
        stack.append(ended_ns)
    return spans


# A machine reads the clock of a process after that of the wall (as in shmsim.laws).
_CLOCKS_APART_NS = {"model": 0, "machine": 1 * MS}


def check_timeline(records, path, engines=None):
    """What holds of the whole timeline of any run; returns it.

    ``engines`` are the records of each engine where the run has several.
    """
    found = Timeline(path)
    for part in engines or [records]:
        check_engine(part, found)
    n_received = sum(wait.site in (SCHEDULER_RECV, WORKER_RECV) for wait in records.waits)
    assert len(found.messages) == n_received
    check_cores(records, found)
    return found


def check_engine(records, found):
    """What holds of the tracks of one engine."""
    end_ns = max(wait.seen_ns for wait in records.waits)
    prefix = records.processes[0].process.rpartition("/")[0]
    prefix += "/" if prefix else ""
    has_replies = any(f"{row.process} replies" in found.tracks for row in records.processes)
    for row in records.processes:
        main = [span for span in found.on(row.process) if span.depth == 0]
        # Every nanosecond of a process is in a wait or in the work between two.
        assert sum(span.ended_ns - span.begun_ns for span in main) == end_ns
        tracks = [name for name in found.tracks if name.split()[0] == row.process]
        spans = [span for name in tracks for span in found.on(name) if span.depth == 0]
        rows = [wait for wait in records.waits if wait.process == row.process]
        waits = [span for span in spans if span.category == "wait"]
        assert sorted((s.begun_ns, s.ended_ns, s.args["step"], s.args["call"]) for s in waits) == (
            sorted((max(w.started_ns, 0), w.seen_ns, w.step, w.call) for w in rows)
        )
        assert len(waits) == sum(len(found.on(name, "wait")) for name in tracks)
        assert sum(s.args["cpu_ns"] for s in waits) == sum(w.cpu_ns for w in rows)
        apart_ns = _CLOCKS_APART_NS[records.meta.get("world", "model")]
        assert all(w.cpu_ns <= w.seen_ns - w.started_ns + apart_ns for w in rows)
        # One rank may reply for all, but each has the thread for it.
        has_second = has_replies and row.process != f"{prefix}scheduler"
        check_cpu(records, row, spans, end_ns, has_second)
    shown = [span.ended_ns - span.begun_ns for span in found.on(f"{prefix}device")]
    assert len(shown) == len(records.steps)
    # Between two steps the device rests or not, but never works on both.
    assert all(span.depth == 0 for span in found.on(f"{prefix}device"))
    for step, took_ns in zip(records.steps, shown, strict=True):
        assert took_ns <= step.done_ns - step.launched_ns
    check_messages(records, found, prefix)
    values = found.counters[f"{prefix}requests in the system"]
    assert values[-1][1] == 0
    assert max(n for _, n in values) <= len(records.requests)


def check_cpu(records, row, spans, end_ns, has_second):
    """What a process used is in its waits or in the work of its tracks, and waits are no more."""
    world = records.meta.get("world", "model")
    apart_ns = _CLOCKS_APART_NS[world]
    waits = [span for span in spans if span.category == "wait"]
    waited_ns = sum(span.args["cpu_ns"] for span in waits)
    worked_ns = sum(s.ended_ns - s.begun_ns for s in spans if s.category != "wait")
    unseen_ns = row.wall_ns - end_ns + apart_ns  # before the run, and after it
    used_ns = row.cpu_ns
    if has_second:  # which stands in for a device all the time that it does not reply
        used_ns += row.emulation_cpu_ns
        worked_ns += end_ns
    assert used_ns <= waited_ns + worked_ns + unseen_ns
    assert waited_ns <= row.cpu_ns + apart_ns
    # Who does nothing but look is on a core, or ready and without one, all the time. How much of
    # that it got, a machine that others use too decides; but who saw something come was on one.
    spun = [s for s in waits if s.name in ("spin", "spin, rung") and s.args["stage"] == 0]
    came_ns = {(w.seen_ns, w.step, w.call): w.published_ns - w.started_ns for w in records.waits}
    for s in spun:
        if came_ns[s.ended_ns, s.args["step"], s.args["call"]] > apart_ns:
            assert s.args["cpu_ns"] > 0
    if world == "model":
        looked_ns = sum(s.ended_ns - s.begun_ns for s in spun if not s.args["preempted"])
        assert looked_ns <= sum(s.args["cpu_ns"] for s in spun) + row.run_queue_ns


def check_messages(records, found, prefix):
    """Every message that was seen has an arrow, from its writer to its reader, at its instants."""
    received = [wait for wait in records.waits if wait.site in (SCHEDULER_RECV, WORKER_RECV)]
    pids = {found.tracks[row.process][0] for row in records.processes}
    messages = [message for message in found.messages if message[5][0] in pids]
    assert sorted(message[:4] + message[5:] for message in messages) == sorted(
        (w.step, w.call, w.published_ns, w.seen_ns, found.tracks[w.process]) for w in received
    )
    scheduler = found.tracks[f"{prefix}scheduler"]
    for *_, writer, reader in messages:
        assert writer[0] in pids
        assert (writer == scheduler) == (reader != scheduler)


def check_cores(records, found):
    """Stays on the cores add up to what processes used and cores were busy, to the nanosecond."""
    if not records.slices:
        return
    on_core = {row.core: found.on(f"core {row.core}", "core") for row in records.cores}
    for core in records.cores:
        assert sum(s.ended_ns - s.begun_ns for s in on_core[core.core]) == core.busy_ns
    for row in records.processes:
        stays = [s for spans in on_core.values() for s in spans if s.name == row.process]
        used_ns = row.cpu_ns + row.emulation_cpu_ns - row.unplaced_ns
        assert sum(s.ended_ns - s.begun_ns for s in stays) == used_ns
