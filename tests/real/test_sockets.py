"""The socket route: nothing is lost, nothing is mistaken for something else."""

import struct
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from realrun.codec import BadMessage
from realrun.doorbell import socket_address
from realrun.handoff import Receiver, Sender
from realrun.layout import PAYLOAD, SegmentLayout
from realrun.segment import Segment
from realrun.sockets import PayloadReceiver, PayloadSender
from realrun.waiting import Stopped, TimedOut
from shmsim.routing import MIB
from shmsim.units import MS, S
from tests.real.handoffs import ALL_SOCKET, COSTS, PARK, handoff, noise, receive, same

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

LAYOUT = SegmentLayout(2, n_slots=8)
RING = LAYOUT.request


def never():
    return False


def take(receiver, serial, n_bytes, timeout_ns=10 * S):
    return bytes(receiver.receive(serial, n_bytes, never, timeout_ns))


@contextmanager
def payload_sockets(folder):
    """A sender, and the receivers of both readers."""
    folder.chmod(0o700)
    ends = [PayloadReceiver(folder, RING, reader) for reader in range(2)]
    sender = PayloadSender(folder, RING)
    try:
        yield sender, ends
    finally:
        for end in (sender, *ends):
            end.close()


@contextmanager
def stranger(folder, reader=0):
    """Somebody of the same user who writes to the socket of a reader."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 1000
        push.connect(socket_address(folder, f"{RING.name}-payload-{reader}"))
        yield push


def test_every_reader_gets_every_payload_in_order_whatever_its_pieces(tmp_path):
    with payload_sockets(tmp_path) as (sender, receivers):
        for n in range(1, 200):
            content = noise(37 * n).tobytes()
            serial = sender.send([content[:n], bytearray(content[n:-1]), memoryview(content)[-1:]])
            for receiver in receivers:
                assert take(receiver, serial, len(content)) == content
        assert [receiver.n_late for receiver in receivers] == [0, 0]


def test_a_payload_that_comes_after_its_message_was_given_up_is_never_taken_for_the_next(tmp_path):
    # vLLM: the next overflow read returns the stale payload. Same length, so nothing else tells.
    with payload_sockets(tmp_path) as (sender, [receiver, other]):
        expected = 0
        for n in range(20):
            with pytest.raises(TimedOut, match="did not come by socket in time"):
                receiver.receive(sender._serial + 1, 5, never, MS)
            late = [sender.send([b"stale"]) for _ in range(n % 3 + 1)]
            serial = sender.send([b"fresh"])
            assert take(receiver, serial, 5) == b"fresh"
            expected += len(late)
            assert receiver.n_late == expected
            for one in late:
                assert take(other, one, 5) == b"stale"
            assert take(other, serial, 5) == b"fresh"
        assert other.n_late == 0


def test_the_payloads_of_a_message_that_was_garbled_are_dropped_and_counted():
    with handoff(SegmentLayout(1, n_slots=4), ALL_SOCKET) as ends:
        [receiver] = ends.receivers
        for call_id in range(40):
            ends.sender.send([call_id, np.full(2 * MIB, call_id % 250, np.uint8)], call_id)
            is_garbled = call_id % 3 == 1
            if is_garbled:
                # A third part that is nowhere: what has come for the other two is of no use.
                at = ends.segment.layout.request.slot_at(call_id + 1) + PAYLOAD
                ends.segment.store(at + 8, 99)
                with pytest.raises(BadMessage, match="part 0 came by route 99"):
                    receiver.receive(timeout_ns=S)
            else:
                number, array = receive(receiver)
                assert number == call_id
                assert (array == call_id % 250).all()
        assert receiver.n_late_payloads == 2 * 13


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([b"short", b"x" * 5], "a payload without a number came by socket: b'short'"),
        ([b"", b"x" * 5], "a payload without a number"),
        ([b"12345678" * 2, b"x" * 5], "a payload without a number"),
        ([struct.pack("<Q", 1000), b"x" * 4], "of 4 bytes came by socket, expected .* of 5$"),
        ([struct.pack("<Q", 1000), b"x" * 6], "of 6 bytes came by socket, expected .* of 5$"),
        ([struct.pack("<Q", 1000)], "of 0 bytes came by socket, expected payload 1000 of 5$"),
        ([struct.pack("<Q", 1001), b"x" * 5], "payload 1001 of 5 .* expected payload 1000"),
        ([struct.pack("<Q", 2**64 - 1), b"x" * 5], f"payload {2**64 - 1} of 5 bytes"),
    ],
)
def test_a_forged_payload_is_an_error_that_says_what_came_and_the_next_one_arrives(
    tmp_path, frames, said
):
    with payload_sockets(tmp_path) as (_, [receiver, _]), stranger(tmp_path) as push:
        push.send_multipart(frames)
        with pytest.raises(ValueError, match=said):
            take(receiver, 1000, 5)
        push.send_multipart([struct.pack("<Q", 1002), b"right"])
        assert take(receiver, 1002, 5) == b"right"


def receive_on_and_on(ends):
    while True:
        assert receive(ends.receivers[0]) == "true"
        ends.sender.send("true", 1)


def test_a_forged_payload_is_a_bad_message_and_the_next_one_arrives():
    with handoff(SegmentLayout(1), ALL_SOCKET) as ends:
        [receiver] = ends.receivers
        with stranger(Path(ends.segment.ticket.folder)) as push:
            push.send_multipart([b"forged", b"payload"])
            ends.sender.send("true", 0)
            # Nobody says which of two connections is served first.
            with pytest.raises(BadMessage, match="a payload without a number"):
                receive_on_and_on(ends)
            ends.sender.send("next", 2)
            assert receive(receiver) == "next"


def test_a_reader_that_starts_late_finds_everything():
    with Segment.create(LAYOUT, with_folder=True) as segment:
        sender = Sender(segment, RING, PARK, COSTS, ALL_SOCKET)
        for call_id in range(LAYOUT.n_slots):
            sender.send(noise(1000 * (call_id + 1)), call_id)
        receivers = [Receiver(segment, RING, reader, PARK, COSTS) for reader in range(2)]
        for call_id in range(LAYOUT.n_slots):
            for receiver in receivers:
                assert same(noise(1000 * (call_id + 1)), receive(receiver))
        for end in (sender, *receivers):
            end.close()


def test_thousands_of_messages_by_socket_arrive_in_order():
    with handoff(SegmentLayout(2, n_slots=16), ALL_SOCKET) as ends:
        for first in range(0, 3200, 16):
            for call_id in range(first, first + 16):
                ends.sender.send([call_id] * (call_id % 7), call_id)
            for receiver in ends.receivers:
                for call_id in range(first, first + 16):
                    received = receiver.receive(timeout_ns=S)
                    assert (received.call_id, received.content) == (
                        call_id,
                        [call_id] * (call_id % 7),
                    )
        assert [receiver.n_late_payloads for receiver in ends.receivers] == [0, 0]


def test_a_sender_that_waits_for_a_reader_to_take_its_memory_leaves_when_the_run_is_stopped():
    with Segment.create(SegmentLayout(1), with_folder=True) as segment:
        sender = Sender(segment, segment.layout.request, PARK, COSTS, ALL_SOCKET, copies=False)
        stop = threading.Timer(0.05, segment.stop)
        stop.start()
        with pytest.raises(Stopped):
            sender.send(noise(MIB), 0)  # nobody reads
        stop.join()
        sender.close()


def test_a_sender_that_does_not_copy_returns_without_any_reader_having_looked():
    # The kernel and the library take the bytes; a reader at work must not hold the sender up.
    with handoff(SegmentLayout(2), ALL_SOCKET, copies=False) as ends:
        ends.sender.send(noise(8 * MIB), 0)
        for receiver in ends.receivers:
            assert same(noise(8 * MIB), receive(receiver))


def test_a_receiver_that_waits_for_a_payload_leaves_when_it_is_cancelled():
    with handoff(SegmentLayout(1), ALL_SOCKET) as ends:
        [receiver] = ends.receivers
        ends.sender.send("never", 0)
        at = ends.segment.layout.request.slot_at(1) + PAYLOAD + 8 + 16
        ends.segment.store(at, ends.segment.load(at) + 1)  # of a serial number nobody sends
        cancel = threading.Timer(0.05, receiver.cancel)
        cancel.start()
        with pytest.raises(Stopped):
            receiver.receive()
        cancel.join()


def test_a_payload_that_does_not_come_ends_the_wait_when_its_time_is_over():
    # vLLM: an RPC deadline must also hold where the slot is there and its payload is not.
    with handoff(SegmentLayout(1), ALL_SOCKET) as ends:
        [receiver] = ends.receivers
        ends.sender.send("late", 0)
        at = ends.segment.layout.request.slot_at(1) + PAYLOAD + 8 + 16
        ends.segment.store(at, ends.segment.load(at) + 1)
        rescue = threading.Timer(2.0, receiver.cancel)
        rescue.start()
        with pytest.raises(TimedOut):
            receiver.receive(timeout_ns=50 * MS)
        rescue.cancel()
        rescue.join()


def test_a_folder_too_deep_for_a_socket_is_refused_with_the_way_out(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir(mode=0o700)
    with pytest.raises(ValueError, match="the path of a socket may have 107; set TMPDIR"):
        PayloadReceiver(deep, RING, 0)
    with pytest.raises(ValueError, match="the path of a socket may have 107; set TMPDIR"):
        PayloadSender(deep, RING)
