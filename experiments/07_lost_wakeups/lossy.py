"""A hand-off whose doorbell loses rings: vLLM's wiring of its notification, on our ring.

The message itself goes through the ring and is never lost; what is lost is the ping that should end
the reader's sleep. The writer pings for every message on a PUB socket that holds few; the reader
yields for a window after its last read, then polls a SUB socket that keeps only the newest
(``SpinCondition`` in vLLM's ``shm_broadcast.py``, 0.33).
"""

import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq

from realrun.host import prepare_process
from realrun.layout import CURSOR, SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment, Ticket
from realrun.waiting import TimedOut
from shmsim.units import FOREVER_NS, MS, S
from shmsim.wait import PARK, YIELD

#: A yielder never sleeps on the ring's own doorbell, as a guarded spinner does on a crowded core.
_LOOK: Final = (YIELD, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)
#: A sleep ends late by less than that, mostly; the writer spins for what is left of a gap.
_LATE_SLEEP_NS: Final = 200_000
_HELLO_EVERY_S: Final = 0.005
_START_LIMIT_S: Final = 20.0
_PING: Final = b"\0"
_UNTIL_KILLED_S: Final = 3600.0


class Lossy(NamedTuple):
    """One stream of messages, each sent once the last one was read.

    Parameters
    ----------
    window_ns
        How long after its last read the reader looks on before it polls.
    gap_ns
        From a read to the next publication.
    messages
        How many.
    recheck_ns
        How long a poll lasts at most; whole milliseconds.
    hwm
        How many pings the PUB socket holds.
    """

    window_ns: int
    gap_ns: int
    messages: int
    recheck_ns: int
    hwm: int = 1


def run(stream: Lossy) -> dict[str, Any]:
    """Send all messages from one process to another; what the reader saw.

    Returns
    -------
    dict
        ``stalls``: messages that nothing but a recheck found; ``slept``: messages for which the
        reader polled; ``pinged``: those of them that a ping ended; ``delays_ns``: publication to
        seen, each.

    Raises
    ------
    RuntimeError
        If one of the processes died.
    """
    fork = multiprocessing.get_context("fork")
    layout = SegmentLayout(1, n_slots=8, slot_bytes=256, reply_slot_bytes=64)
    with tempfile.TemporaryDirectory() as folder, Segment.create(layout, "futex") as segment:
        address = f"ipc://{Path(folder) / 'pings'}"
        here, there = fork.Pipe()
        processes = [
            fork.Process(target=_write, args=(stream, segment.ticket, address)),
            fork.Process(target=_read, args=(stream, segment.ticket, address, there)),
        ]
        try:
            for process in processes:
                process.start()
            there.close()
            if not here.poll(_limit_s(stream)):
                raise RuntimeError(f"the reader of {stream} did not come to its end")
            found: dict[str, Any] = here.recv()
            return found
        except EOFError:
            raise RuntimeError(f"a process of {stream} died; it says why above") from None
        finally:
            for process in processes:
                if process.pid:
                    process.kill()
                    process.join()


def _limit_s(stream: Lossy) -> float:
    each_ns = stream.gap_ns + 2 * stream.recheck_ns + 5 * MS
    return _START_LIMIT_S + stream.messages * each_ns / S


def _write(stream: Lossy, ticket: Ticket, address: str) -> None:
    prepare_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # our parent ends us
    with (
        zmq.Context() as context,
        context.socket(zmq.PUB) as pub,
        Segment.attach(ticket) as segment,
    ):
        pub.linger = 0
        pub.sndhwm = stream.hwm
        pub.bind(address)
        ring = segment.layout.request
        writer = RingWriter(segment, ring)
        cursor = ring.reader_at(0) + CURSOR
        # Until the subscription has arrived; the reader says so by its first read.
        writer.publish(0, 0, [b""])
        while segment.load(cursor) < 1:
            pub.send(_PING)
            time.sleep(_HELLO_EVERY_S)
        for call_id in range(1, stream.messages + 1):
            _pause(stream.gap_ns)
            writer.publish(call_id, 0, [b""])
            pub.send(_PING)
            while segment.load(cursor) <= call_id:
                os.sched_yield()
        time.sleep(_UNTIL_KILLED_S)  # a closing socket would wake the reader


def _pause(gap_ns: int) -> None:
    until_ns = time.monotonic_ns() + gap_ns
    if gap_ns > _LATE_SLEEP_NS:
        time.sleep((gap_ns - _LATE_SLEEP_NS) / S)
    while time.monotonic_ns() < until_ns:
        pass


def _read(stream: Lossy, ticket: Ticket, address: str, out: Connection) -> None:
    prepare_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # our parent ends us
    with (
        zmq.Context() as context,
        context.socket(zmq.SUB) as sub,
        Segment.attach(ticket) as segment,
    ):
        sub.linger = 0
        sub.setsockopt(zmq.CONFLATE, 1)
        sub.subscribe(b"")
        sub.connect(address)
        poller = zmq.Poller()
        poller.register(sub, zmq.POLLIN)
        reader = RingReader(segment, segment.layout.request, 0)
        poller.poll()  # the subscription has arrived
        reader.receive(_LOOK)
        out.send(_receive_all(stream, reader, sub, poller))
        time.sleep(_UNTIL_KILLED_S)


def _receive_all(
    stream: Lossy, reader: RingReader, sub: "zmq.Socket[bytes]", poller: zmq.Poller
) -> dict[str, Any]:
    stalls = slept = pinged = 0
    delays_ns = []
    read_ns = time.monotonic_ns()
    for _ in range(stream.messages):
        rang = polled = False
        while True:
            left_ns = read_ns + stream.window_ns - time.monotonic_ns()
            try:
                seen_ns = reader.wait(_LOOK, timeout_ns=max(left_ns, 0)).seen_ns
                break
            except TimedOut:
                polled = True
                rang = bool(poller.poll(stream.recheck_ns // MS))
                if rang:
                    sub.recv(zmq.NOBLOCK)
        published_ns = reader.read().published_ns
        read_ns = time.monotonic_ns()
        delays_ns.append(seen_ns - published_ns)
        slept += polled
        pinged += polled and rang
        # Found by the recheck: the last poll ended without a ping, though one had been sent.
        stalls += polled and not rang
    return {"stalls": stalls, "slept": slept, "pinged": pinged, "delays_ns": delays_ns}
