"""What every ring keeps to: order, conservation, and nobody left asleep."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realrun.doorbell import KINDS
from realrun.layout import CURSOR, LENGTH, MAGIC, MAGIC_AT, SegmentLayout
from realrun.ring import Message, RingFull, RingReader, RingWriter, TornSlot
from realrun.segment import Segment
from realrun.waiting import Stopped, TimedOut
from shmsim.units import MS
from shmsim.wait import PARK, SPIN
from tests.conformance.carriers import CARRIERS, carry_by
from tests.real.runs import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(30)]

SPIN_FOR_EVER = (SPIN, 1 << 62, 0, *(PARK, 1 << 62, 0) * 3)
PARK_FOR_EVER = (PARK, 1 << 62, 0) * 4


@pytest.fixture(params=CARRIERS, autouse=True)
def carrier(request, monkeypatch):
    """The ring on one of both."""
    carry_by(request.param, monkeypatch.setattr)
    return request.param


def ends(segment: Segment) -> tuple[RingWriter, list[RingReader]]:
    ring = segment.layout.request
    return RingWriter(segment, ring), [RingReader(segment, ring, r) for r in range(ring.n_readers)]


def receive(reader: RingReader) -> Message:
    reader.wait(SPIN_FOR_EVER)
    return reader.read()


@settings(deadline=None, max_examples=50)
@given(
    n_slots=st.integers(2, 9),
    slot_bytes=st.integers(1, 300),
    n_readers=st.integers(1, 3),
    data=st.data(),
)
def test_whatever_fits_arrives_whole_and_in_order_also_across_the_wrap(
    n_slots, slot_bytes, n_readers, data
):
    with Segment.create(SegmentLayout(n_readers, n_slots, slot_bytes)) as segment:
        writer, readers = ends(segment)
        for burst in data.draw(st.lists(st.integers(1, n_slots), min_size=3, max_size=6)):
            sent = [data.draw(st.binary(max_size=slot_bytes)) for _ in range(burst)]
            for call_id, payload in enumerate(sent):
                writer.publish(call_id, 2**63 + call_id, [payload])
            for reader in readers:
                got = [receive(reader) for _ in sent]
                assert [m.payload for m in got] == sent
                assert [m.call_id for m in got] == [m.flags - 2**63 for m in got]
                assert [m.call_id for m in got] == list(range(burst))
        assert segment.load(MAGIC_AT) == MAGIC


def test_a_full_ring_names_the_reader_and_its_message_and_loses_nothing():
    with Segment.create(SegmentLayout(2, n_slots=3, slot_bytes=8)) as segment:
        writer, (quick, slow) = ends(segment)
        for call_id in range(3):
            writer.publish(call_id, 0, [b""])
        assert [receive(quick).call_id for _ in range(3)] == [0, 1, 2]
        assert receive(slow).call_id == 0
        writer.publish(3, 0, [b""])
        with pytest.raises(RingFull, match=r"reader 1 has not released message 2\b.*message 5\b"):
            writer.publish(4, 0, [b""])
        assert [receive(slow).call_id for _ in range(3)] == [1, 2, 3]
        writer.publish(4, 0, [b""])
        assert [receive(quick).call_id for _ in range(2)] == [3, 4]
        assert receive(slow).call_id == 4


def test_a_payload_that_fits_no_slot_is_refused_and_the_next_one_still_arrives():
    with Segment.create(SegmentLayout(1, slot_bytes=100)) as segment:
        writer, [reader] = ends(segment)
        with pytest.raises(ValueError, match="101 bytes does not fit a slot of 100"):
            writer.publish(0, 0, [bytes(101)])
        writer.publish(1, 0, [bytes(100)])
        assert receive(reader).call_id == 1


def test_what_is_not_published_cannot_be_read():
    with Segment.create(SegmentLayout(1)) as segment:
        _, [reader] = ends(segment)
        with pytest.raises(TornSlot, match=r"holds message 0 .* expected message 1 "):
            reader.read()


def test_a_length_beyond_the_slot_is_an_error_and_no_read_past_it():
    with Segment.create(SegmentLayout(1, slot_bytes=100)) as segment:
        writer, [reader] = ends(segment)
        writer.publish(0, 0, [bytes(100)])
        segment.store(segment.layout.request.slot_at(1) + LENGTH, 101)
        with pytest.raises(TornSlot, match="of 101 bytes, expected message 1 of at most 100"):
            reader.read()


def test_a_wait_that_was_given_a_time_ends_with_it_however_little_it_was():
    with Segment.create(SegmentLayout(1)) as segment:
        writer, [reader] = ends(segment)
        for timeout_ns in (-5, 0, 2 * MS):
            with pytest.raises(TimedOut):
                reader.wait(PARK_FOR_EVER, timeout_ns=timeout_ns)
        writer.publish(0, 0, [b""])
        reader.wait(PARK_FOR_EVER, timeout_ns=-5)
        assert reader.read().call_id == 0


def test_a_stopped_reader_and_a_plan_that_ends_are_told_apart():
    with Segment.create(SegmentLayout(1)) as segment:
        _, [reader] = ends(segment)
        with pytest.raises(ValueError, match="its last stage must last for ever"):
            reader.wait((SPIN, MS, 0) * 4)
        segment.stop()
        with pytest.raises(Stopped):
            reader.wait(SPIN_FOR_EVER)


def test_the_ends_of_a_ring_can_be_opened_again_where_they_were_left():
    with Segment.create(SegmentLayout(1)) as segment:
        writer, [reader] = ends(segment)
        writer.publish(0, 0, [b""])
        writer.publish(1, 0, [b""])
        assert receive(reader).call_id == 0
        writer, [reader] = ends(segment)
        writer.publish(2, 0, [b""])
        assert [receive(reader).call_id for _ in range(2)] == [1, 2]


N_MESSAGES = 10_000


@pytest.mark.parametrize("doorbell", KINDS)
def test_two_processes_that_wait_in_every_way_get_every_message_once_and_in_order(
    carrier, doorbell
):
    rng = random.Random(7)
    layout = SegmentLayout(2, n_slots=5, slot_bytes=300)
    script = Path(__file__).with_name("reads_in_every_way.py")
    with Segment.create(layout, doorbell) as segment:
        writer = RingWriter(segment, layout.request)
        ticket = segment.ticket.to_json()
        cursors = [layout.request.reader_at(reader) + CURSOR for reader in range(2)]
        readers = [
            subprocess.Popen(
                [sys.executable, script, carrier, ticket, str(reader), str(N_MESSAGES)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=segment.ticket.fds,
            )
            for reader in range(2)
        ]
        try:
            checksum = 0
            for call_id in range(N_MESSAGES):
                payload = rng.randbytes(rng.randrange(300))
                checksum = crc32(payload, checksum)
                while True:
                    try:
                        writer.publish(call_id, 0, [payload])
                        break
                    except RingFull:
                        assert not any(reader.poll() for reader in readers)
                        time.sleep(20e-6)
                # With the next message a reader would wake after all. So every now and then there
                # is none until everybody has read this one.
                awaits_all = rng.random() < 0.3
                while awaits_all and min(map(segment.load, cursors)) <= call_id:
                    assert not any(reader.poll() for reader in readers)
                    time.sleep(rng.choice([1e-6, 100e-6, 500e-6]))
            outcomes = [json.loads(reader.communicate(timeout=20)[0]) for reader in readers]
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()
    for outcome in outcomes:
        assert outcome["call_ids_in_order"]
        assert outcome["checksum"] == checksum
        assert outcome["seen_before_published"] == 0
        assert outcome["lost_wakeups"] == 0
        assert outcome["rescued"] == 0
        assert outcome["belled"] > 0, "nobody slept: this run has shown nothing"
        assert len(outcome["kinds"]) == 6
    assert writer.n_notified > 0
    assert writer.n_notified + writer.n_elided == N_MESSAGES


def test_a_cursor_ahead_of_the_head_is_an_error_and_no_wait_for_ever():
    with Segment.create(SegmentLayout(1)) as segment:
        writer, _ = ends(segment)
        segment.store(segment.layout.request.reader_at(0) + CURSOR, 7)
        with pytest.raises(RuntimeError, match="something else wrote to the segment"):
            writer.publish(0, 0, [])
        with pytest.raises(TornSlot, match="has released message 7 of 0"):
            writer.slowest()


def test_a_sleeper_on_a_socket_that_is_gone_still_hears_a_stop():
    with (
        Segment.create(SegmentLayout(1), "zmq") as segment,
        Segment.attach(segment.ticket) as other,
    ):
        reader = RingReader(other, segment.layout.request, 0)
        with pytest.raises(TimedOut):
            reader.wait(PARK_FOR_EVER, timeout_ns=MS)  # which opens its socket

        def stop_without_sockets() -> None:
            shutil.rmtree(segment.ticket.folder)
            segment.stop()

        timer = threading.Timer(0.05, stop_without_sockets)
        timer.start()
        with pytest.raises(Stopped):
            reader.wait(PARK_FOR_EVER)
        timer.join()
