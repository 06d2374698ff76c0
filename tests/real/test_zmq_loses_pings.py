"""vLLM's notification loses the second of two pings in a row; the doorbell of the same kind not.

libzmq learns only every 3,000,000 ticks of the counter (about 1.2 ms at 2.4 GHz) that a queue of
one has room again, and a PUB socket drops what finds no room.
"""

import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
import zmq

from realrun.doorbell import ZmqDoorbell
from realrun.layout import SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment
from realrun.waiting import TimedOut
from shmsim.units import FOREVER_NS, MS
from shmsim.wait import PARK

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

PARK_FOR_EVER = (PARK, FOREVER_NS, 0) * 4
QUICK_S = 0.0006  # within it the fastest counter there is has not made 3,000,000 ticks


class Listener(threading.Thread):
    """Consumes pings and counts them, sleeping in between."""

    def __init__(self, consume):
        """Take what waits up to 10 ms for a ping and says whether one came."""
        super().__init__()
        self._consume = consume
        self.n_heard = 0
        self.is_over = False

    def run(self):
        while not self.is_over:
            self.n_heard += self._consume()

    def hears(self, n, within_s):
        deadline = time.monotonic() + within_s
        while self.n_heard < n:
            if time.monotonic() > deadline:
                return False
            time.sleep(20e-6)
        return True


@contextmanager
def listening(consume):
    listener = Listener(consume)
    listener.start()
    try:
        yield listener
    finally:
        listener.is_over = True
        listener.join()


def count_lost(ping, listener, enough, lost_after_s):
    """Pairs of which a ping was lost, the second sent as soon as the first was consumed.

    Also tells how many pairs were quick: in the others somebody else had the core for too long.
    """
    n_lost = n_quick = 0
    for _ in range(200):
        time.sleep(5e-3)
        before = listener.n_heard
        ping()
        started = time.monotonic()
        if listener.hears(before + 1, lost_after_s):
            ping()
            n_quick += time.monotonic() - started < QUICK_S
        n_lost += not listener.hears(before + 2, lost_after_s)
        if n_lost >= enough:
            break
    return n_lost, n_quick


def test_the_notification_of_vllm_loses_the_second_ping_though_the_first_was_consumed(tmp_path):
    with zmq.Context() as context, context.socket(zmq.PUB) as pub, context.socket(zmq.SUB) as sub:
        for socket in (pub, sub):
            socket.linger = 0
        pub.sndhwm = 1
        sub.setsockopt(zmq.CONFLATE, 1)
        sub.subscribe(b"")
        pub.bind(f"ipc://{tmp_path}/pings")
        sub.connect(f"ipc://{tmp_path}/pings")
        poller = zmq.Poller()
        poller.register(sub, zmq.POLLIN)

        def consume():
            if not poller.poll(10):
                return False
            sub.recv()
            return True

        with listening(consume) as listener:
            deadline = time.monotonic() + 10
            while listener.n_heard == 0:  # until the subscription has arrived
                assert time.monotonic() < deadline
                pub.send(b"\0")
                time.sleep(5e-3)
            time.sleep(20e-3)
            ping = partial(pub.send, b"\0")
            n_lost, n_quick = count_lost(ping, listener, enough=3, lost_after_s=0.3)
    if n_lost < 3 and n_quick < 10:
        pytest.skip(f"this machine is too busy: only {n_quick} pairs within {QUICK_S * 1e3:g} ms")
    assert n_lost >= 3


def test_the_zmq_doorbell_loses_no_ring_of_the_same_pattern():
    with Segment.create(SegmentLayout(1), "zmq") as segment:
        ring = segment.layout.request
        assert isinstance(segment.doorbell(ring), ZmqDoorbell)
        writer, reader = RingWriter(segment, ring), RingReader(segment, ring, 0)
        n_rescued = n_belled = 0

        def consume():
            nonlocal n_rescued, n_belled
            try:
                raw = reader.wait(PARK_FOR_EVER, timeout_ns=10_000 * MS)
            except TimedOut:
                return False
            n_rescued += raw.rescued
            n_belled += raw.belled
            reader.read()
            return True

        def ping():
            writer.publish(0, 0, [b""])

        with listening(consume) as listener:
            n_lost, n_quick = count_lost(ping, listener, enough=1, lost_after_s=10)
            listener.is_over = True
            ping()
        assert (n_lost, n_rescued) == (0, 0)
        assert n_belled > 100, "nobody slept: this has shown nothing"
        assert n_quick > 0
