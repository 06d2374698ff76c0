"""Ten million hand-offs, many with gaps about as long as the reader spins, to find a lost one.

A hand-off is one message at one reader. Some messages follow on each other whether or not they were
read, up to what the ring holds; behind the others, which are `awaited`, the writer falls silent
until everybody has them. Only those can show a lost wake-up: any other is covered up by the next.
"""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple
from zlib import crc32

from realrun.host import exact_timers, prepare_process
from realrun.layout import CURSOR, SegmentLayout
from realrun.ring import RingFull, RingReader, RingWriter, SlotWatch
from realrun.segment import Segment, Ticket
from realrun.waiting import RawWait
from shmsim.claims import Claim
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import PARK, SPIN

SEED: Final = 20_260_307
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


class Cell(NamedTuple):
    """One stream of messages.

    Parameters
    ----------
    doorbell, window_ns, n_readers
        Who waits how: spinning for the window, then parked.
    n_messages
        Each goes to every reader.
    gap_ns, skew
        Between two messages: least, most, and the power of the uniform number between the two.
    awaited
        The share of messages after which the writer is silent until everybody has read them; a gap
        then counts from there.
    """

    doorbell: str
    window_ns: int
    n_readers: int
    n_messages: int
    gap_ns: tuple[int, int]
    skew: int
    awaited: float

    @property
    def plan(self) -> tuple[int, ...]:
        """How both sides wait."""
        park = PARK, FOREVER_NS, RECHECK_NS
        return (SPIN, self.window_ns, 0, *park * 3) if self.window_ns else park * 4


class Effort(NamedTuple):
    """How many hand-offs with each doorbell, of every window and in bulk."""

    around_window: dict[str, int]
    bulk: dict[str, int]


FULL: Final = Effort(
    {"futex": 100_000, "eventfd": 10_000, "zmq": 10_000},
    {"futex": 8_640_000, "eventfd": 500_000, "zmq": 260_000},
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
                yield Cell(doorbell, window_ns, readers, n // 2 // readers, gap_ns, 1, 1.0)
    for doorbell, n in effort.bulk.items():
        for window_ns in _BULK_WINDOWS_NS:
            for readers in (1, 2):
                n_messages = n // 2 // len(_BULK_WINDOWS_NS) // readers
                n_flood = n_messages // 10
                gap_ns = (0, _BULK_GAP_NS)
                yield Cell(doorbell, window_ns, readers, n_messages - n_flood, gap_ns, 3, 0.25)
                # Without gaps the ring is full most of the time: now the writer sleeps.
                yield Cell(doorbell, window_ns, readers, n_flood, (0, 0), 1, 0.0)


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
            writer.notify()
            if uniform() < awaited:
                count["awaited"] += ring.n_readers
                for cursor in cursors:
                    while segment.load(cursor) <= call_id:
                        pass
            until_ns = clock() + least_ns + int((most_ns - least_ns) * uniform() ** skew)
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


def run_cell(cell: Cell, seed: int) -> dict[str, Any]:
    """Run one stream to its end; what never arrives counts as lost."""
    fork = multiprocessing.get_context("fork")
    layout = SegmentLayout(cell.n_readers, **_LAYOUT)
    started = moved = time.monotonic()
    with Segment.create(layout, cell.doorbell) as segment:
        ring = layout.request
        cursors = [ring.reader_at(reader) + CURSOR for reader in range(ring.n_readers)]
        pipes, processes = [], []
        for index in range(-1, cell.n_readers):
            here, there = fork.Pipe()
            target, which = (_read, index) if index >= 0 else (_write, seed)
            processes.append(fork.Process(target=target, args=(cell, segment.ticket, which, there)))
            pipes.append(here)
        outcomes: dict[int, dict[str, int]] = {}
        found: list[int] = []
        try:
            for process in processes:
                process.start()
            while len(outcomes) < len(pipes) and time.monotonic() - moved < _STALL_S:
                before, found = found, [segment.load(at) for at in (ring.head_at, *cursors)]
                if found != before:
                    moved = time.monotonic()
                for i, pipe in enumerate(pipes):
                    if i not in outcomes and pipe.poll(0.01):
                        outcomes[i] = pipe.recv()
                if any(process.exitcode is not None for process in processes):
                    break  # too early: it says why on the terminal
        finally:
            for i, process in enumerate(processes):
                if i in outcomes:
                    pipes[i].send("leave")
                elif process.pid:
                    process.kill()
            for process in processes:
                if process.pid:
                    process.join()
        never = sum(cell.n_messages - segment.load(cursor) for cursor in cursors)
    total: Counter[str] = Counter({"lost": never})
    for outcome in outcomes.values():
        total.update(outcome)
    total["worst_us"] = max((o.get("worst_us", 0) for o in outcomes.values()), default=0)
    names = ("awaited", "belled", "spurious", "rescued", "lost", "disordered", "garbled")
    names += ("slot_waits", "slot_belled", "notified", "elided", "worst_us")
    return {
        **cell._asdict(),
        "hand_offs": cell.n_messages * cell.n_readers,
        **{name: total[name] for name in names},
        "finished": len(outcomes) == len(pipes),
        "seconds": round(time.monotonic() - started, 2),
    }


def soak(effort: Effort) -> tuple[list[Claim], dict[str, Any]]:
    """Run every stream; returns the claims, and the record to go beside them."""
    exact_timers()
    streams = list(cells(effort))
    n_all = sum(cell.n_messages * cell.n_readers for cell in streams)
    # Shuffled, so that a slow minute of the machine does not meet one doorbell alone.
    random.Random(SEED).shuffle(streams)
    started, rows, n_done = time.monotonic(), [], 0
    for i, cell in enumerate(streams):
        row = run_cell(cell, SEED + i)
        rows.append(row)
        n_done += row["hand_offs"]
        print(
            f"  {n_done:,} of {n_all:,} hand-offs, {time.monotonic() - started:.0f} s: "
            f"{cell.doorbell}, window {cell.window_ns / US:g} us, {cell.n_readers} reader(s), "
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
        "n_messages",
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
        "in_all": {name: sum(row[name] for row in rows) for name in (*names, "notified", "elided")},
        "cells": rows,
    }
    return found, record
