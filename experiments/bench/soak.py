"""Ten million hand-offs, many with gaps about as long as the reader spins, to find a lost one.

A hand-off is one message at one reader. Some messages follow on each other whether or not they were
read, up to what the ring holds; behind the others, which are `awaited`, the writer falls silent
until everybody has them. Only those can show a lost wake-up: any other is covered up by the next.

Long windows take their time, so several rings run at once there, each with processes of its own.
"""

import contextlib
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from zlib import crc32

from realrun.host import exact_timers, prepare_process
from realrun.layout import CURSOR, SegmentLayout
from realrun.ring import RingFull, RingReader, RingWriter, SlotWatch
from realrun.segment import Segment, Ticket
from realrun.waiting import RawWait
from shmsim.claims import Claim
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import PARK, SPIN

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

SEED: Final = 20_260_307
_SEEDS: Final = 1000  # from one ring of a stream to the next; there are fewer streams
LATE_NS: Final = 1 * S
#: A park looks again by itself, so that the soak goes on after a lost wake-up; so much later that
#: it is counted: `rescued` counts only those of which the writer did not mean to tell.
RECHECK_NS: Final = S * 3 // 2
_STALL_S: Final = 20.0
_LAYOUT: Final = {"n_slots": 8, "slot_bytes": 256, "reply_slot_bytes": 64}
_CHECKSUM_BYTES: Final = 4
_WINDOWS_NS: Final = (0, 50 * US, MS // 2, 1 * MS, 2 * MS)
_BULK_WINDOWS_NS: Final = (0, 50 * US)
_BULK_GAP_NS: Final = 200 * US
#: A sleep ends late by less than that, mostly; what is left of a gap then, the writer spins.
_LATE_SLEEP_NS: Final = 200 * US
_LOOK_EVERY_S: Final = 0.02


class Cell(NamedTuple):
    """One stream of messages.

    Parameters
    ----------
    doorbell, window_ns, n_readers
        Who waits how: spinning for the window, then parked.
    n_messages
        Of each ring; each goes to every reader of it.
    gap_ns, skew
        Between two messages: least, most, and the power of the uniform number between the two.
    awaited
        The share of messages after which the writer is silent until everybody has read them; a gap
        then counts from there.
    n_rings
        How many such rings at once, each with a writer and readers of its own.
    """

    doorbell: str
    window_ns: int
    n_readers: int
    n_messages: int
    gap_ns: tuple[int, int]
    skew: int
    awaited: float
    n_rings: int = 1

    @property
    def plan(self) -> tuple[int, ...]:
        """How both sides wait."""
        park = PARK, FOREVER_NS, RECHECK_NS
        return (SPIN, self.window_ns, 0, *park * 3) if self.window_ns else park * 4

    @property
    def hand_offs(self) -> int:
        """How many in all."""
        return self.n_messages * self.n_readers * self.n_rings


class Effort(NamedTuple):
    """How many hand-offs with each doorbell, of every window and in bulk."""

    around_window: dict[str, int]
    bulk: dict[str, int]


FULL: Final = Effort(
    {"futex": 100_000, "eventfd": 100_000, "zmq": 100_000},
    {"futex": 7_740_000, "eventfd": 500_000, "zmq": 260_000},
)
QUICK: Final = Effort(
    {"futex": 1_000, "eventfd": 200, "zmq": 200},
    {"futex": 40_000, "eventfd": 5_000, "zmq": 5_000},
)
TINY: Final = Effort(
    {"futex": 200, "eventfd": 80, "zmq": 80},
    {"futex": 4_000, "eventfd": 800, "zmq": 800},
)


def cells(effort: Effort) -> Iterator[Cell]:
    """Every stream, half of the hand-offs to one reader and half to two."""
    for doorbell, n in effort.around_window.items():
        for window_ns in _WINDOWS_NS:
            middle_ns = window_ns or _BULK_GAP_NS // 2
            gap_ns = (middle_ns // 2, middle_ns * 3 // 2)
            for readers in (1, 2):
                rings = _rings(window_ns, readers)
                n_messages = n // 2 // readers // rings
                yield Cell(doorbell, window_ns, readers, n_messages, gap_ns, 1, 1.0, rings)
    for doorbell, n in effort.bulk.items():
        for window_ns in _BULK_WINDOWS_NS:
            for readers in (1, 2):
                n_messages = n // 2 // len(_BULK_WINDOWS_NS) // readers
                n_flood = n_messages // 10
                gap_ns = (0, _BULK_GAP_NS)
                yield Cell(doorbell, window_ns, readers, n_messages - n_flood, gap_ns, 3, 0.25)
                # Without gaps the ring is full most of the time: now the writer sleeps.
                yield Cell(doorbell, window_ns, readers, n_flood, (0, 0), 1, 0.0)


def _rings(window_ns: int, n_readers: int) -> int:
    """How many rings at once."""
    # A single reader keeps to its window, so that half of the messages come just before and half
    # just after it goes to sleep. Readers that share cores go to sleep when they are descheduled,
    # at moments of all kinds, and the more there are the sooner it is over.
    return 4 if n_readers > 1 and window_ns >= MS // 2 else 1


def _write(cell: Cell, ticket: Ticket, seed: int, out: Connection) -> None:
    prepare_process()
    rng = random.Random(seed)
    uniform, clock = rng.random, time.monotonic_ns
    bodies = [rng.randbytes(rng.randrange(1, 200)) for _ in range(1024)]
    least_ns, most_ns = cell.gap_ns
    plan, skew, awaited = cell.plan, cell.skew, cell.awaited
    count: Counter[str] = Counter()
    with Segment.attach(ticket) as segment:
        ring = segment.layout.request
        writer = RingWriter(segment, ring)
        watch = SlotWatch(writer, segment)
        cursors = [ring.reader_at(reader) + CURSOR for reader in range(ring.n_readers)]
        for call_id in range(cell.n_messages):
            body = bodies[int(uniform() * 1024)]
            pieces = [crc32(body, call_id).to_bytes(_CHECKSUM_BYTES, "little"), body]
            while True:
                try:
                    writer.publish(call_id, 0, pieces)
                    break
                except RingFull:
                    _, numbers, freed = watch.receive(plan)
                    raw = RawWait.of(numbers)
                    count["slot_waits"] += 1
                    count["slot_belled"] += raw.belled
                    count["spurious"] += raw.spurious
                    count["rescued"] += raw.rescued
                    count["lost"] += raw.seen_ns - max(freed.published_ns, raw.started_ns) > LATE_NS
            if uniform() < awaited:
                count["awaited"] += ring.n_readers
                for cursor in cursors:
                    while segment.load(cursor) <= call_id:
                        os.sched_yield()
            gap_ns = least_ns + int((most_ns - least_ns) * uniform() ** skew)
            until_ns = clock() + gap_ns
            if gap_ns > _LATE_SLEEP_NS:
                time.sleep((gap_ns - _LATE_SLEEP_NS) / S)
            while clock() < until_ns:
                pass
        out.send({**count, "notified": writer.n_notified, "elided": writer.n_elided})
        out.recv()  # the socket that rings must not close before everybody has heard


def _read(cell: Cell, ticket: Ticket, reader_index: int, out: Connection) -> None:
    prepare_process()
    plan = cell.plan
    belled = spurious = rescued = lost = disordered = garbled = worst_ns = 0
    with Segment.attach(ticket) as segment:
        reader = RingReader(segment, segment.layout.request, reader_index)
        for expected in range(cell.n_messages):
            seen_ns, numbers, message = reader.receive(plan)
            call_id, _, published_ns, payload = message
            raw = RawWait.of(numbers)
            delay_ns = seen_ns - published_ns
            worst_ns = max(worst_ns, delay_ns)
            lost += delay_ns > LATE_NS
            disordered += call_id != expected
            checksum = int.from_bytes(payload[:_CHECKSUM_BYTES], "little")
            garbled += crc32(payload[_CHECKSUM_BYTES:], call_id) != checksum
            belled += raw.belled
            spurious += raw.spurious
            rescued += raw.rescued
    out.send(
        {
            "belled": belled,
            "spurious": spurious,
            "rescued": rescued,
            "lost": lost,
            "disordered": disordered,
            "garbled": garbled,
            "worst_us": worst_ns // US,
        }
    )
    out.recv()


class _Ring:
    """One ring of a stream, with its writer and readers; use as a context manager.

    Attributes
    ----------
    outcomes
        What its processes have counted, once they are done.
    never
        Hand-offs that did not happen, once it is left.
    """

    def __init__(self, cell: Cell, seed: int) -> None:
        self.outcomes: dict[int, dict[str, int]] = {}
        self.never = 0
        self._cell = cell
        self._seed = seed
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        self._found: list[int] = []
        self._moved = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether all of its processes have come to their end."""
        return len(self.outcomes) == 1 + self._cell.n_readers

    def __enter__(self) -> Self:
        fork = multiprocessing.get_context("fork")
        layout = SegmentLayout(self._cell.n_readers, **_LAYOUT)
        self._segment = Segment.create(layout, self._cell.doorbell)
        ring = layout.request
        self._cursors = [ring.reader_at(reader) + CURSOR for reader in range(ring.n_readers)]
        self._progress = [ring.head_at, *self._cursors]
        for index in range(-1, self._cell.n_readers):
            here, there = fork.Pipe()
            target, which = (_read, index) if index >= 0 else (_write, self._seed)
            arguments = (self._cell, self._segment.ticket, which, there)
            self._processes.append(fork.Process(target=target, args=arguments))
            self._pipes.append(here)
        try:
            for process in self._processes:
                process.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def goes_on(self) -> bool:
        """Listen to who is done; False once all are, or nothing moves, or somebody has failed."""
        before, self._found = self._found, [self._segment.load(at) for at in self._progress]
        if self._found != before:
            self._moved = time.monotonic()
        for i, pipe in enumerate(self._pipes):
            if i not in self.outcomes and pipe.poll():
                with contextlib.suppress(EOFError):  # it has died
                    self.outcomes[i] = pipe.recv()
        if any(process.exitcode is not None for process in self._processes):
            return False  # too early: it says why on the terminal
        return not self.finished and time.monotonic() - self._moved < _STALL_S

    def __exit__(self, *_: object) -> None:
        for i, process in enumerate(self._processes):
            if i in self.outcomes:
                self._pipes[i].send("leave")
            elif process.pid:
                process.kill()
        for process in self._processes:
            if process.pid:
                process.join()
        at_most = self._cell.n_messages
        self.never = sum(at_most - self._segment.load(cursor) for cursor in self._cursors)
        self._segment.__exit__()


def run_cell(cell: Cell, seed: int) -> dict[str, Any]:
    """Run one stream to its end; what never arrives counts as lost."""
    started = time.monotonic()
    with contextlib.ExitStack() as running:
        rings = [running.enter_context(_Ring(cell, seed + _SEEDS * i)) for i in range(cell.n_rings)]
        for ring in rings:
            while ring.goes_on():
                time.sleep(_LOOK_EVERY_S)
    outcomes = [outcome for ring in rings for outcome in ring.outcomes.values()]
    total: Counter[str] = Counter({"lost": sum(ring.never for ring in rings)})
    for outcome in outcomes:
        total.update(outcome)
    total["worst_us"] = max((o.get("worst_us", 0) for o in outcomes), default=0)
    names = ("awaited", "belled", "spurious", "rescued", "lost", "disordered", "garbled")
    names += ("slot_waits", "slot_belled", "notified", "elided", "worst_us")
    return {
        **cell._asdict(),
        "hand_offs": cell.hand_offs,
        **{name: total[name] for name in names},
        "finished": all(ring.finished for ring in rings),
        "seconds": round(time.monotonic() - started, 2),
    }


def soak(effort: Effort) -> tuple[list[Claim], dict[str, Any]]:
    """Run every stream; returns the claims, and the record to go beside them."""
    exact_timers()
    streams = list(cells(effort))
    n_all = sum(cell.hand_offs for cell in streams)
    # Shuffled, so that a slow minute of the machine does not meet one doorbell alone.
    random.Random(SEED).shuffle(streams)
    started, rows, n_done = time.monotonic(), [], 0
    for i, cell in enumerate(streams):
        row = run_cell(cell, SEED + i)
        rows.append(row)
        n_done += row["hand_offs"]
        print(
            f"  {n_done:,} of {n_all:,} hand-offs, {time.monotonic() - started:.0f} s: "
            f"{cell.doorbell}, window {cell.window_ns / US:g} us, {cell.n_readers} reader(s) of "
            f"{cell.n_rings} ring(s), "
            f"{row['hand_offs']:,}: ended a sleep {row['belled']:,}, worst {row['worst_us']:,} us, "
            f"lost {row['lost']}, rescued {row['rescued']}",
            flush=True,
        )
    found = []
    for name, counted in {
        "lost": ("lost",),
        "rescued": ("rescued",),
        "garbled": ("disordered", "garbled"),
    }.items():
        value = float(sum(row[key] for row in rows for key in counted))
        found.append(Claim(f"handoff/{name}", value, value, value, "count", 0.0, "<=", n_all, SEED))
    names = (
        "hand_offs",
        "awaited",
        "belled",
        "spurious",
        "slot_waits",
        "slot_belled",
    )
    record = {
        "seed": SEED,
        "recheck_ms": RECHECK_NS / MS,
        "seconds": round(time.monotonic() - started, 1),
        "all_finished": all(row["finished"] for row in rows),
        "in_all": {
            "n_messages": sum(row["n_messages"] * row["n_rings"] for row in rows),
            **{name: sum(row[name] for row in rows) for name in (*names, "notified", "elided")},
        },
        "cells": rows,
    }
    return found, record
