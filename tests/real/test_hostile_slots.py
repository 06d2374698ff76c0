"""Whatever words stand in a slot: a message, or one of two errors, and never more than that."""

import os
import pickle
import struct
import threading
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from realrun.codec import BadMessage
from realrun.handoff import Receiver, Sender
from realrun.layout import CALL_ID, FLAGS, LENGTH, PAYLOAD, PUBLISHED_NS, SEQUENCE, SegmentLayout
from realrun.ring import PARTS, RingWriter, TornSlot
from realrun.segment import Segment
from realrun.waiting import TimedOut
from shmsim.policies import PRESETS
from shmsim.routing import ARENA, INLINE, ArenaPlan, BySize, SlotClass
from shmsim.units import MS
from tests.real.handoffs import COSTS, PARK, handoff, noise, receive, same

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

DIVERT, SLOT_BYTES = 300, 4000
PLAN = ArenaPlan((SlotClass(1000, 3), SlotClass(2000, 1)), DIVERT)
LAYOUT = SegmentLayout(1, n_slots=2, slot_bytes=SLOT_BYTES, arena=PLAN)
RING = LAYOUT.request
SLOT_AT = RING.slot_at(1)
HEADER = {
    "sequence": SEQUENCE,
    "call id": CALL_ID,
    "published": PUBLISHED_NS,
    "length": LENGTH,
    "flags": FLAGS,
}
#: The message of parts has its stream, a buffer inline, and two in the arena.
CONTENT = [noise(400), "text", {"x": noise(900), "y": noise(1700)}]
ROUTES = BySize(INLINE, ARENA, 800)
TABLE = {
    f"{word} of part {part}": 8 + 32 * part + 8 * i
    for part in range(4)
    for i, word in enumerate(("route", "place", "serial", "length"))
}

# Every single bit, what is just beside what is there, and anything.
WORDS = st.one_of(
    st.integers(0, 63).map(lambda bit: ("flip", 1 << bit)),
    st.integers(-70, 70).map(lambda step: ("add", step)),
    st.sampled_from([0, 1, SLOT_BYTES, SLOT_BYTES + 1, LAYOUT.size, 2**32, 2**63, 2**64 - 1]).map(
        lambda word: ("set", word)
    ),
    st.integers(0, 2**64 - 1).map(lambda word: ("set", word)),
)


def changed(word, change):
    how, by = change
    return {"flip": word ^ by, "add": (word + by) % 2**64, "set": by}[how]


@contextmanager
def ends_within_one_process(policy=PARK):
    """Both ends of a segment without a name: it is made in no time."""
    segment = Segment.private(LAYOUT)
    receiver = Receiver(segment, RING, 0, policy, COSTS)
    yield segment, Sender(segment, RING, PARK, COSTS, ROUTES), receiver
    segment.close()


def outcome(receiver):
    """What arrived, or the error by its name; any other error fails the test."""
    try:
        received = receiver.receive(timeout_ns=0)
    except (TornSlot, BadMessage) as error:
        return type(error)
    receiver.learn()
    return received.content


def arrives(segment, sender, receiver, at, change, content):
    """What becomes of a message one word of which was changed."""
    sender.send(content, 5, flags=1)
    segment.store(at, changed(segment.load(at), change))
    found = outcome(receiver)
    if found is not TornSlot:  # whatever it was, it is out of the way of the next one
        sender.send("next", 6)
        assert outcome(receiver) == "next"
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(change=WORDS, policy=st.sampled_from(["park", "wake-ahead", "competitive"]))
@pytest.mark.parametrize("word", HEADER)
@pytest.mark.parametrize("content", ["small", CONTENT], ids=["stream", "parts"])
def test_a_changed_word_of_a_header_gives_the_message_or_one_of_two_errors(
    content, word, change, policy
):
    with ends_within_one_process(PRESETS[policy]) as ends:
        found = arrives(*ends, SLOT_AT + HEADER[word], change, content)
        assert found in (TornSlot, BadMessage) or same(content, found)
        if word == "sequence" and changed(1, change) != 1:
            assert found is TornSlot
        del found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(change=WORDS)
@example(change=("set", 1))
@example(change=("set", 2))
@pytest.mark.parametrize("word", TABLE)
def test_a_changed_word_of_the_table_gives_an_object_of_that_kind_or_an_error(word, change):
    with ends_within_one_process() as ends:
        found = arrives(*ends, SLOT_AT + PAYLOAD + TABLE[word], change, CONTENT)
        assert found in (TornSlot, BadMessage) or alike(CONTENT, found)
        # Only a place that holds something else of the very size is believed.
        if "place" not in word:
            assert found in (TornSlot, BadMessage) or same(CONTENT, found)
        del found


def alike(sent, got):
    """Whether there are the same arrays in the same places, whatever their bytes."""
    first, text, arrays = got
    shapes = [array.shape for array in (first, *arrays.values())]
    return text == sent[1] and shapes == [(400,), (900,), (1700,)]


@settings(max_examples=60)
@given(n_parts=WORDS)
def test_a_changed_number_of_parts_is_an_error(n_parts):
    with ends_within_one_process() as ends:
        found = arrives(*ends, SLOT_AT + PAYLOAD, n_parts, CONTENT)
        assert found is BadMessage or (changed(4, n_parts) == 4 and same(CONTENT, found))
        del found


@settings(max_examples=60)
@given(slot=st.integers(0, 3), change=WORDS)
def test_a_changed_generation_is_an_error_unless_nobody_looks_at_that_slot(slot, change):
    with ends_within_one_process() as (segment, sender, receiver):
        at = LAYOUT.arena_layout.generation_at(slot)
        found = arrives(segment, sender, receiver, at, change, CONTENT)
        is_used = slot in (0, 3)  # the smallest that hold 900 and 1700
        is_same = changed(1, change) == 1
        assert same(CONTENT, found) if is_same or not is_used else found is BadMessage
        del found


@settings(max_examples=60)
@given(changes=st.lists(st.tuples(st.sampled_from(range(0, 4096, 8)), WORDS), max_size=5))
def test_several_changed_words_of_a_slot_are_a_message_or_an_error(changes):
    # Of the words the message uses: a stream of noise is for the tests of the codec.
    with ends_within_one_process() as (segment, sender, receiver):
        sender.send(CONTENT, 5)
        for at, change in changes:
            segment.store(SLOT_AT + at % 200, changed(segment.load(SLOT_AT + at % 200), change))
        outcome(receiver)


@settings(max_examples=60)
@given(change=WORDS)
def test_a_changed_count_of_messages_is_a_torn_slot_or_a_message_that_is_there(change):
    with ends_within_one_process() as (segment, sender, receiver):
        sender.send("first", 0)
        segment.store(RING.head_at, changed(1, change))
        try:
            assert outcome(receiver) == "first"
            assert outcome(receiver) is TornSlot
        except TimedOut:
            assert segment.load(RING.head_at) in (0, 1)


def test_a_route_that_leads_to_a_socket_where_nothing_comes_ends_with_its_time():
    with handoff(SegmentLayout(1, arena=PLAN)) as ends:
        ends.sender.send(noise(400), 0)
        ends.segment.store(ends.segment.layout.request.slot_at(1) + PAYLOAD + 8, 2)
        receiver = ends.receivers[0]
        rescue = threading.Timer(2.0, receiver.cancel)
        rescue.start()
        with pytest.raises((TimedOut, BadMessage)):
            receiver.receive(timeout_ns=50 * MS)
        rescue.cancel()
        rescue.join()


# Pickles that do something.


class Exploit:
    def __init__(self, call, *arguments):
        self._reduced = call, arguments

    def __reduce__(self):
        return self._reduced


def exploits(marker):
    command = f"touch {marker}"
    forged_dtype = (
        b"\x80\x05cnumpy\ndtype\n(X\x02\x00\x00\x00O8K\x00K\x01tR(K\x03X\x01\x00\x00\x00|NNNJ"
        b"\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb."
    )
    yield from (
        pickle.dumps(Exploit(os.system, command), 5),
        pickle.dumps(Exploit(eval, f"open({str(marker)!r}, 'w')"), 5),
        pickle.dumps(Exploit(exec, f"open({str(marker)!r}, 'w')"), 5),
        b"\x80\x05cos\nsystem\n.",
        b"\x80\x05cbuiltins\ngetattr\n.",
        b"\x80\x05cos\nsystem\n(X" + struct.pack("<I", len(command)) + command.encode() + b"tR.",
        b"\x80\x05crealrun.codec\ncodec.pickle.loads\n.",
        b"\x80\x05crealrun.codec\nallow\n.",
        b"\x80\x05crealrun.arena\nArenaReader\n.",
        b"\x80\x05cnumpy\nndarray\n.",
        b"\x80\x05cnumpy._core.multiarray\n_reconstruct\n.",
        forged_dtype,
        b"\x80\x05P0\n.",
        b"\x80\x05\x82\x01.",
        b"",
        b"\x80\x05.",
        b"\x80\xff.",
        pickle.dumps(7, 5)[:-1],
        pickle.dumps(7, 5) + b"more",
        b"\x80\x05" + b"(" * 3000 + b".",
        b"\x80\x05" + b"]" * 3000 + b"e" * 3000 + b".",
    )


def as_one_stream(stream):
    return 0, [stream]


def as_a_large_stream(stream):
    filling = b"\x80\x05B" + struct.pack("<I", 70_000) + bytes(70_000) + b"0"
    return 0, [filling, stream.removeprefix(b"\x80\x05")]


def as_a_part(stream):
    table = struct.pack("<Q4Q", 1, 0, 64, 0, len(stream)).ljust(64, b"\0")
    return PARTS, [table, stream]


@pytest.mark.parametrize("wrap", [as_one_stream, as_a_large_stream, as_a_part])
def test_a_pickle_that_does_something_is_a_bad_message_and_the_next_one_arrives(tmp_path, wrap):
    marker = tmp_path / "it-ran"
    with handoff(SegmentLayout(1, slot_bytes=100_000)) as ends:
        [receiver] = ends.receivers
        forger = RingWriter(ends.segment, ends.segment.layout.request)
        for call_id, stream in enumerate(exploits(marker)):
            flags, pieces = wrap(stream)
            forger.publish(call_id, flags, pieces)
            with pytest.raises(BadMessage):
                receiver.receive(timeout_ns=0)
            assert not marker.exists()
            proper = wrap(pickle.dumps(("next", call_id), 5))
            forger.publish(call_id, proper[0], proper[1])
            assert receive(receiver) == ("next", call_id)
        assert call_id > 15


def test_the_exploits_do_something_where_they_are_let(tmp_path):
    marker = tmp_path / "it-ran"
    pickle.loads(next(exploits(marker)))
    assert marker.exists()
