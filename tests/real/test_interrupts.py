"""A signal handler that raises, at any instant, leaves nobody asleep who should be awake."""

import contextlib
import gc
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from realrun.layout import CURSOR, SegmentLayout
from realrun.ring import RingFull, RingReader, RingWriter
from realrun.segment import Segment
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK
from tests.real.conftest import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PARKED = (PARK, FOREVER_NS, 0) * 4
N_INTERRUPTS = 1_500
N_MESSAGES = 20_000
LAYOUT = SegmentLayout(1, n_slots=2, slot_bytes=64)
#: ``zmq`` rings in Python, and says so in docs/hand-off.md.
RINGS_IN_ONE_CALL = ["futex", "eventfd"]
PARTNER = """
import sys
from realrun.publisher import Publisher
from realrun.ring import RingReader, RingWriter, SlotWatch
from realrun.segment import Segment, Ticket
from realrun.waiting import Stopped
from tests.real.test_interrupts import N_MESSAGES, PARKED

role, ticket = sys.argv[1:]
with Segment.attach(Ticket.from_json(ticket)) as segment:
    ring = segment.layout.request
    print("ready", flush=True)
    try:
        if role == "reads":
            reader = RingReader(segment, ring, 0)
            while True:
                reader.receive(PARKED)
        writer = RingWriter(segment, ring)
        slots = SlotWatch(writer, segment)
        for call_id in range(N_MESSAGES):
            while writer.slowest() is not None:
                slots.receive(PARKED)
            writer.publish(call_id, 0, [b"message"])
    except Stopped:
        pass
"""


class InterruptedHere(Exception):  # noqa: N818 - no error
    """What a signal handler of somebody's raises."""


@pytest.fixture(autouse=True)
def raises_on_alarm() -> Iterator[None]:
    """Have SIGALRM raise; what it meets in a callback of the collector's would be swallowed."""

    def interrupt(*_: object) -> None:
        raise InterruptedHere

    before = signal.signal(signal.SIGALRM, interrupt)
    others, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = others
    signal.signal(signal.SIGALRM, before)


def until_interrupted(work: Callable[[], object]) -> None:
    """Work until it is done, or until a signal handler raises, soon."""
    with contextlib.suppress(InterruptedHere):
        signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 300e-6))
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def partner(role: str, segment: Segment) -> Iterator[None]:
    """A process at the other end of the request ring."""
    with subprocess.Popen(
        [sys.executable, "-c", PARTNER, role, segment.ticket.to_json()],
        stdout=subprocess.PIPE,
        pass_fds=segment.ticket.fds,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
            segment.stop()
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("doorbell", RINGS_IN_ONE_CALL)
def test_an_interrupted_writer_has_rung_for_what_it_published(doorbell):
    with Segment.create(LAYOUT, doorbell) as segment:
        writer = RingWriter(segment, segment.layout.request)
        cursor_at = segment.layout.request.reader_at(0) + CURSOR
        with partner("reads", segment):

            def publish_on_and_on() -> None:
                while True:
                    with contextlib.suppress(RingFull):
                        writer.publish(0, 0, [b"message"])

            for _ in range(N_INTERRUPTS):
                until_interrupted(publish_on_and_on)
                assert eventually(lambda: segment.load(cursor_at) == writer.sequence), "a ring lost"
        assert writer.n_notified > 0, "the reader never slept: this has shown nothing"


@pytest.mark.parametrize("doorbell", RINGS_IN_ONE_CALL)
def test_an_interrupted_reader_has_rung_for_the_slot_it_released(doorbell):
    with Segment.create(LAYOUT, doorbell) as segment, partner("writes", segment):
        reader = RingReader(segment, segment.layout.request, 0)

        def receive_all() -> None:
            while reader.released < N_MESSAGES:
                reader.receive(PARKED, timeout_ns=5 * 10**9)

        while reader.released < N_MESSAGES:
            until_interrupted(receive_all)
