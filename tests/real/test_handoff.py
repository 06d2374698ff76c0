"""Whatever is sent arrives as it was, by every route, and stays as it arrived."""

from functools import partial
from pickle import PickleBuffer

import numpy as np
import pytest

from realrun.codec import encode
from realrun.handoff import Receiver, Sender
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from realrun.waiting import TimedOut
from shmsim.policies import PRESETS
from shmsim.routing import (
    ARENA,
    INLINE,
    MIB,
    NEVER_BYTES,
    ROUTE_PRESETS,
    SOCKET,
    ArenaPlan,
    BySize,
    SlotClass,
    SlotFirst,
)
from shmsim.units import MS
from shmsim.wait import TYPICAL_COSTS
from tests.real.handoffs import (
    ALL_SOCKET,
    SOON_NS,
    TO_ARENA,
    bytes_with_stream_of,
    each_kind,
    handoff,
    noise,
    receive,
    same,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

DIVERT, SLOT, SMALLER, LARGER = 20_000, 70_000, 30_000, 90_000
COPY_LIMIT = 64 * 1024  # of the codec, and of the receiver
ARENA_PLAN = ArenaPlan((SlotClass(SMALLER, 3), SlotClass(LARGER, 2)), DIVERT)
NO_SLOTS = ArenaPlan((), DIVERT)
INLINE_FIRST = SlotFirst(SOCKET, 0, NEVER_BYTES)
# The presets, and those whose thresholds are beyond these sizes once more with smaller ones.
ROUTES = ROUTE_PRESETS | {
    "small vllm-arena": SlotFirst(SOCKET, 1, SMALLER),
    "small flipped": BySize(SOCKET, ARENA, SMALLER),
}
BOUNDARIES = (DIVERT, SMALLER, COPY_LIMIT, SLOT, LARGER)
#: Where a buffer, the table of parts in front of it and the stream behind it just fit a slot.
FULL_SLOT = [SLOT - lines * 64 + off for lines in range(1, 7) for off in (-1, 0, 1)]


def burst_after_burst(ends, contents):
    """Send as many messages as there are slots, then have each reader receive them, and again."""
    n_slots = ends.segment.layout.n_slots
    for first in range(0, len(contents), n_slots):
        burst = contents[first : first + n_slots]
        for call_id, content in enumerate(burst, first):
            ends.sender.send(content, call_id, flags=7)
        for receiver in ends.receivers:
            for call_id, content in enumerate(burst, first):
                received = receiver.receive(timeout_ns=SOON_NS)
                assert (received.call_id, received.flags) == (call_id, 7)
                assert received.published_ns <= received.seen_ns
                assert same(content, received.content), f"message {call_id} of {type(content)}"
                receiver.learn()
                del received


@pytest.mark.parametrize("arena", [ARENA_PLAN, NO_SLOTS], ids=["arena", "no arena"])
@pytest.mark.parametrize(
    ("n_readers", "copies"), [(1, True), (1, False), (2, False), (3, True), (3, False)]
)
@pytest.mark.parametrize("routes", ROUTES)
def test_every_kind_of_payload_arrives_by_every_route_at_every_boundary(
    routes, n_readers, copies, arena
):
    layout = SegmentLayout(n_readers, n_slots=4, slot_bytes=SLOT, arena=arena)
    contents = [np.array(7.5), np.empty((0, 3)), {"empty": [b"", np.empty(0, "F")]}, None, 1 << 99]
    for boundary in BOUNDARIES:
        for n_bytes in (boundary - 1, boundary, boundary + 1):
            contents += each_kind(n_bytes)
            contents.append(bytes_with_stream_of(n_bytes, partial(encode, divert_bytes=DIVERT)))
    contents += map(noise, FULL_SLOT)
    with handoff(layout, ROUTES[routes], copies=copies) as ends:
        burst_after_burst(ends, contents)


@pytest.mark.parametrize("routes", ["flipped", "vllm-arena", "vllm"])
def test_every_payload_arrives_on_both_sides_of_the_thresholds_as_they_are_shipped(routes):
    classes = (SlotClass(MIB, 1), SlotClass(9 * MIB, 2))
    layout = SegmentLayout(1, 2, 2 * MIB, arena=ArenaPlan(classes, MIB))
    sizes = [size + off for size in (MIB, 2 * MIB, 8 * MIB) for off in (-1, 0, 1)]
    with handoff(layout, ROUTES[routes]) as ends:
        burst_after_burst(ends, [np.full(size, size % 251, np.uint8) for size in sizes])


def routes_taken(ends, content):
    before = list(ends.sender.parts_by_route)
    ends.sender.send(content, 0)
    for receiver in ends.receivers:
        assert same(content, receive(receiver))
    return [n - b for n, b in zip(ends.sender.parts_by_route, before, strict=True)]


def test_a_stream_as_long_as_the_slot_is_inline_and_one_byte_more_is_not():
    layout = SegmentLayout(1, slot_bytes=SLOT, arena=NO_SLOTS)
    make = partial(bytes_with_stream_of, encode=partial(encode, divert_bytes=SLOT + 99))
    with handoff(layout, INLINE_FIRST) as ends:
        # What is not smaller than a buffer of its own has a table of parts in front of it.
        assert routes_taken(ends, make(DIVERT - 1)) == [1, 0, 0]
        assert routes_taken(ends, make(SLOT - 64)) == [1, 0, 0]
        assert routes_taken(ends, make(SLOT - 63)) == [0, 0, 1]
        assert ends.sender.n_fallbacks == 1


def test_a_buffer_is_a_part_of_its_own_from_the_divert_size_on():
    layout = SegmentLayout(1, slot_bytes=SLOT, arena=ARENA_PLAN)
    with handoff(layout, INLINE_FIRST) as ends:
        assert routes_taken(ends, noise(DIVERT - 1)) == [1, 0, 0]
        assert routes_taken(ends, noise(DIVERT)) == [2, 0, 0]


def test_a_policy_that_names_a_route_gets_it():
    layout = SegmentLayout(2, slot_bytes=SLOT, arena=ARENA_PLAN)
    content = [noise(DIVERT), noise(SMALLER)]
    for routes, taken in (
        (INLINE_FIRST, [3, 0, 0]),
        (TO_ARENA, [0, 3, 0]),
        (ALL_SOCKET, [0, 0, 3]),
        (BySize(INLINE, SOCKET, SMALLER), [2, 0, 1]),
    ):
        with handoff(layout, routes) as ends:
            assert routes_taken(ends, content) == taken
            assert ends.sender.n_fallbacks == 0


EVERY_WAY = {
    "inline": INLINE_FIRST,
    "arena": TO_ARENA,
    "socket": ALL_SOCKET,
    "mixed": BySize(SOCKET, ARENA, SMALLER),
}


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("n_readers", [1, 2])
@pytest.mark.parametrize("routes", EVERY_WAY)
def test_the_sender_may_overwrite_what_it_sent_as_soon_as_it_is_sent(routes, n_readers, copies):
    # vLLM corrupted 20 of 20 through its overflow socket.
    n = 20
    classes = (SlotClass(SMALLER, n), SlotClass(3 * MIB, 2 * n))
    layout = SegmentLayout(n_readers, n, 4 * MIB, arena=ArenaPlan(classes, DIVERT))
    with handoff(layout, EVERY_WAY[routes], copies=copies) as ends:
        for call_id in range(n):
            buffers = [bytearray(noise(size)) for size in (999, DIVERT, COPY_LIMIT, 2 * MIB)]
            arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
            content = [*arrays[:3], PickleBuffer(buffers[3]), buffers[0], buffers[2]]
            content = {"list": content, "fortran": arrays[2].reshape(256, 256).T}
            ends.sender.send(content, call_id)
            for array in arrays:
                array[:] = call_id
        for receiver in ends.receivers:
            for _ in range(n):
                got = receive(receiver)
                small, middle, large, largest, *mutable = got["list"]
                assert same(noise(999), small)
                assert same(noise(DIVERT), middle)
                assert same(noise(COPY_LIMIT), large)
                assert bytes(largest) == noise(2 * MIB).tobytes()
                assert mutable == [bytearray(noise(999)), bytearray(noise(COPY_LIMIT))]
                assert same(noise(COPY_LIMIT).reshape(256, 256).T, got["fortran"])


@pytest.mark.parametrize("routes", ROUTES)
def test_a_receiver_may_keep_what_it_got_over_many_turns_of_ring_and_arena(routes):
    layout = SegmentLayout(2, n_slots=2, slot_bytes=SLOT, arena=ARENA_PLAN)
    sizes = [100, DIVERT, SMALLER, COPY_LIMIT, SLOT, LARGER, LARGER + 1] * 5
    with handoff(layout, ROUTES[routes]) as ends:
        kept = [[] for _ in ends.receivers]
        for call_id, size in enumerate(sizes):
            ends.sender.send([noise(size + call_id), call_id], call_id)
            for receiver, keeps in zip(ends.receivers, kept, strict=True):
                keeps.append(receive(receiver))
            # What nobody keeps goes round and round the arena meanwhile.
            for filler in (noise(DIVERT), noise(LARGER)):
                ends.sender.send(filler, call_id)
                for receiver in ends.receivers:
                    assert same(filler, receive(receiver))
        for keeps in kept:
            for call_id, (size, content) in enumerate(zip(sizes, keeps, strict=True)):
                assert same([noise(size + call_id), call_id], content)


def lies_in(array, segment):
    return np.shares_memory(array, np.frombuffer(segment.memory, np.uint8))


def test_only_an_array_from_the_arena_lies_in_the_segment_and_nobody_can_write_to_it():
    layout = SegmentLayout(2, slot_bytes=SLOT, arena=ARENA_PLAN)
    with handoff(layout, TO_ARENA) as ends:
        ends.sender.send([noise(SMALLER), noise(LARGER).reshape(-1, 100).T], 0)
        for receiver, segment in zip(ends.receivers, ends.attached, strict=True):
            for array in receive(receiver):
                assert lies_in(array, segment)
                assert not array.flags.writeable
                with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                    array.flags.writeable = True
    for routes in (INLINE_FIRST, ALL_SOCKET):
        with handoff(layout, routes) as ends:
            for size in (100, SMALLER, COPY_LIMIT):
                ends.sender.send(noise(size), 0)
                for receiver, segment in zip(ends.receivers, ends.attached, strict=True):
                    array = receive(receiver)
                    assert not lies_in(array, segment)
                    array[:] = 0


@pytest.mark.parametrize("routes", [INLINE_FIRST, ALL_SOCKET], ids=["inline", "socket"])
def test_what_one_reader_does_to_its_copy_the_other_does_not_see(routes):
    with handoff(SegmentLayout(2, slot_bytes=SLOT, arena=NO_SLOTS), routes) as ends:
        ends.sender.send(noise(SMALLER), 0)
        first, second = map(receive, ends.receivers)
        first[:] = 0
        assert same(noise(SMALLER), second)


def test_what_can_go_nowhere_is_an_error_with_a_way_out_and_the_next_message_arrives():
    layout = SegmentLayout(1, slot_bytes=SLOT, arena=NO_SLOTS)
    with handoff(layout, INLINE_FIRST, with_folder=False) as ends:
        with pytest.raises(ValueError, match=r"has nowhere to go: .* made without sockets"):
            ends.sender.send(noise(SLOT), 0)
        with pytest.raises(TypeError, match=r"cannot send a builtins\.object"):
            ends.sender.send([noise(DIVERT), object()], 1)
        with pytest.raises(ValueError, match=r"of 2,?200 parts needs a table of 70,\d\d\d bytes"):
            ends.sender.send([noise(DIVERT) for _ in range(2199)], 2)
        ends.sender.send("next", 3)
        assert ends.receivers[0].receive(timeout_ns=0).call_id == 3


@pytest.mark.parametrize("routes", ["all-shm", "all-socket", "small vllm-arena"])
def test_tensors_arrive_as_they_were(routes):
    torch = pytest.importorskip("torch")
    layout = SegmentLayout(2, n_slots=4, slot_bytes=SLOT, arena=ARENA_PLAN)
    contents = [torch.tensor(3), torch.empty(0, 5), torch.nn.Parameter(torch.ones(3)).detach()]
    for size in (DIVERT, SMALLER, SLOT, LARGER):
        for n in (size - 1, size, size + 1):
            flat = torch.from_numpy(noise(n))
            contents += [flat, flat[: n // 2 * 2].view(torch.bfloat16)[:0], [{"x": flat[::2]}]]
        for dtype in (torch.bfloat16, torch.float32, torch.complex64, torch.bool):
            values = torch.from_numpy(noise(size // dtype.itemsize) % 2).to(dtype)
            contents += [values, values.reshape(2, -1).t()]
    with handoff(layout, ROUTES[routes]) as ends:
        burst_after_burst(ends, contents)


@pytest.mark.parametrize("routes", EVERY_WAY)
def test_what_was_received_outlives_the_segment_and_both_ends(routes):
    with handoff(SegmentLayout(1, slot_bytes=SLOT, arena=ARENA_PLAN), EVERY_WAY[routes]) as ends:
        ends.sender.send([noise(DIVERT), noise(SMALLER)], 0)
        kept = receive(ends.receivers[0])
    assert same([noise(DIVERT), noise(SMALLER)], kept)


def test_what_wants_a_socket_where_there_is_none_takes_the_slot_and_is_counted():
    layout = SegmentLayout(1, slot_bytes=SLOT, arena=NO_SLOTS)
    with handoff(layout, ALL_SOCKET, with_folder=False) as ends:
        ends.sender.send({"a": 1}, 1)
        assert receive(ends.receivers[0]) == {"a": 1}
        assert (ends.sender.parts_by_route, ends.sender.n_fallbacks) == ([1, 0, 0], 1)


def test_a_sender_that_finds_no_slot_in_time_says_so_and_has_sent_nothing():
    layout = SegmentLayout(1, n_slots=2, slot_bytes=SLOT, arena=NO_SLOTS)
    with handoff(layout, INLINE_FIRST) as ends:
        for call_id in range(2):
            ends.sender.send(call_id, call_id)
        for content in ("small", bytes(SLOT // 2)):
            with pytest.raises(TimedOut):
                ends.sender.send(content, 2, timeout_ns=MS)
        ends.receivers[0].receive()
        ends.sender.send("after", 2, timeout_ns=SOON_NS)
        assert [receive(ends.receivers[0]) for _ in range(2)] == [1, "after"]


def test_what_is_no_policy_or_no_reader_is_refused_where_it_is_given():
    layout = SegmentLayout(1, slot_bytes=SLOT)
    with Segment.create(layout) as segment:
        ring, costs = layout.request, TYPICAL_COSTS
        with pytest.raises(TypeError, match="policy must be a policy such as PRESETS"):
            Receiver(segment, ring, 0, "park", costs)
        with pytest.raises(TypeError, match="routes must be a policy such as ROUTE_PRESETS"):
            Sender(segment, ring, PRESETS["park"], costs, "vllm")
        with pytest.raises(ValueError, match="readers 0 to 0, and none with number 5"):
            Receiver(segment, ring, 5, PRESETS["park"], costs)
