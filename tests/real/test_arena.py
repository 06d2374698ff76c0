"""A slot of the arena is used again once every reader has let go of it, and never before."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest

from realrun.codec import BadMessage
from realrun.handoff import Sender
from realrun.layout import PAYLOAD, SegmentLayout
from shmsim.routing import ARENA, INLINE, MIB, ArenaPlan, BySize, SlotClass
from tests.real.handoffs import ALL_SOCKET, COSTS, PARK, handoff, noise, receive, same

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

SIZE = 10_000
SLOTS = 3
SLOT_BYTES = 40_000
PLAN = ArenaPlan((SlotClass(SIZE, SLOTS),), SIZE // 2)
#: Buffers to the arena, streams inline.
BULK = BySize(INLINE, ARENA, SIZE // 2)


class Copy:
    """Stands for the event behind a copy to a device."""

    def __init__(self):
        self.is_done = False

    def query(self):
        return self.is_done


def layout(n_readers=1, plan=PLAN, **geometry):
    return SegmentLayout(n_readers, slot_bytes=SLOT_BYTES, arena=plan, **geometry)


def into_arena(ends):
    """Whether a buffer that every reader drops at once finds a slot."""
    before = ends.sender.parts_by_route[1]
    ends.sender.send(noise(SIZE), 0)
    for receiver in ends.receivers:
        assert same(noise(SIZE), receive(receiver))
    return ends.sender.parts_by_route[1] > before


def fill(ends, reader=0):
    """Let one reader keep a buffer in every slot, while the others let go."""
    kept = []
    for _ in range(SLOTS):
        ends.sender.send(noise(SIZE), 0)
        got = list(map(receive, ends.receivers))
        kept.append(got[reader])
        del got
    assert not into_arena(ends), "a slot that somebody looks at was used again"
    return kept


@pytest.mark.parametrize("last", range(3))
def test_a_slot_is_used_again_only_after_every_reader_has_released_it(last):
    with handoff(layout(3), BULK) as ends:
        kept = fill(ends, last)
        for n in range(SLOTS):
            del kept[0]
            assert into_arena(ends), f"{n + 1} slots are free"
        assert ends.sender.n_fallbacks == 1


def test_a_reader_that_has_not_even_looked_holds_its_slots():
    with handoff(layout(2), BULK) as ends:
        for call_id in range(SLOTS + 1):
            ends.sender.send(noise(SIZE), call_id)
            receive(ends.receivers[0])
        assert ends.sender.n_fallbacks == 1
        for _ in range(SLOTS + 1):
            assert same(noise(SIZE), receive(ends.receivers[1]))
        assert into_arena(ends)


def test_a_full_arena_is_a_fallback_that_is_counted_and_never_a_wait():
    with handoff(layout(), BULK) as ends:
        kept = fill(ends)
        assert ends.sender.n_fallbacks == 1
        for n in range(100):
            assert not into_arena(ends)
            assert ends.sender.n_fallbacks == 2 + n
        assert all(same(noise(SIZE), array) for array in kept)


def test_what_fits_no_class_falls_back_and_each_part_goes_to_the_smallest_that_holds_it():
    plan = ArenaPlan((SlotClass(SIZE, 2), SlotClass(2 * SIZE, 2)), SIZE // 2)
    with handoff(layout(plan=plan), BULK) as ends:
        free = ends.sender.arena.free
        for n_bytes, left in (
            (SIZE - 1, [1, 2]),
            (SIZE, [1, 2]),
            (SIZE + 1, [2, 1]),
            (2 * SIZE - 1, [2, 1]),
            (2 * SIZE, [2, 1]),
            (2 * SIZE + 1, [2, 2]),
        ):
            ends.sender.send(noise(n_bytes), 0)
            got = receive(ends.receivers[0])
            assert free() == left, f"{n_bytes:,} bytes"
            assert same(noise(n_bytes), got)
            del got
        assert free() == [2, 2]
        assert ends.sender.n_fallbacks == 1


def test_a_view_of_a_view_holds_the_slot():
    with handoff(layout(), BULK) as ends:
        arrays = fill(ends)
        views = [memoryview(arrays[0])[5:9], arrays[1][2:8].reshape(2, 3).T[1:], arrays[2].data]
        expected = [bytes(view) for view in views]
        del arrays
        gc.collect()
        for _ in range(2 * SLOTS):
            assert not into_arena(ends)
        assert [bytes(view) for view in views] == expected
        views.clear()
        assert into_arena(ends)


def test_a_view_in_a_cycle_holds_the_slot_until_it_is_collected():
    with handoff(layout(), BULK) as ends:
        cycle = [fill(ends)]
        cycle.append(cycle)
        gc.collect()
        gc.disable()
        try:
            del cycle
            assert not into_arena(ends)
            gc.collect()
            assert into_arena(ends)
        finally:
            gc.enable()


def test_a_view_that_dies_in_another_thread_releases_its_slot():
    with handoff(layout(), BULK) as ends:
        kept = fill(ends)
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        assert into_arena(ends)


def fill_with_copies(ends):
    """Fill every slot with what is being copied to a device; the views are gone already."""
    copies = [Copy() for _ in range(SLOTS)]
    for copy in copies:
        ends.sender.send(noise(SIZE), 0)
        received = ends.receivers[0].receive()
        received.hold_until(copy)
        del received
        ends.receivers[0].learn()
    return copies


def test_a_copy_that_has_not_completed_holds_the_slot_of_a_dead_view():
    with handoff(layout(), BULK) as ends:
        copies = fill_with_copies(ends)
        assert not into_arena(ends)
        copies[1].is_done = True
        # The slot comes free when this reader looks next, which is after a message.
        ends.receivers[0].learn()
        assert all(into_arena(ends) for _ in range(3))
        assert ends.sender.n_fallbacks == 1
        ends.sender.send([noise(SIZE), noise(SIZE)], 0)
        assert ends.sender.n_fallbacks == 2, "one slot is free, and two are not"


def test_only_the_last_of_several_copies_releases_a_slot():
    with handoff(layout(plan=ArenaPlan((SlotClass(SIZE, 1),), SIZE // 2)), BULK) as ends:
        ends.sender.send(noise(SIZE), 0)
        received = ends.receivers[0].receive()
        copies = [Copy(), Copy()]
        for copy in copies:
            received.hold_until(copy)
        del received
        for copy in copies:
            assert not into_arena(ends)
            copy.is_done = True
            ends.receivers[0].learn()
        assert into_arena(ends)


def test_a_completed_copy_does_not_release_a_slot_that_is_still_looked_at():
    with handoff(layout(plan=ArenaPlan((SlotClass(SIZE, 1),), SIZE // 2)), BULK) as ends:
        ends.sender.send(noise(SIZE), 0)
        received = ends.receivers[0].receive()
        copy = Copy()
        received.hold_until(copy)
        copy.is_done = True
        ends.receivers[0].learn()
        assert not into_arena(ends)
        assert same(noise(SIZE), received.content)
        del received
        assert into_arena(ends)


def test_a_message_that_could_not_be_sent_gives_its_slots_back():
    with handoff(layout(), BULK, with_folder=False) as ends:
        for n in range(5 * SLOTS):
            # The arena takes the smaller two; the largest finds no room at all.
            with pytest.raises(ValueError, match="made without sockets"):
                ends.sender.send([noise(SIZE), noise(SIZE), noise(SLOT_BYTES)], n)
            with pytest.raises(TypeError, match="cannot send"):
                ends.sender.send([noise(SIZE), object()], n)
        assert ends.sender.arena.free() == [SLOTS]
        for _ in range(5 * SLOTS):
            assert into_arena(ends)


def cut_the_stream(segment):
    """Shorten the stream of the message in the first slot, the first part of its table, by 3."""
    length_at = segment.layout.request.slot_at(1) + PAYLOAD + 8 + 24
    segment.store(length_at, segment.load(length_at) - 3)


def test_a_garbled_message_gives_its_slots_back():
    with handoff(layout(), BULK) as ends:
        ends.sender.send([noise(SIZE), noise(SIZE)], 0)
        assert ends.sender.arena.free() == [SLOTS - 2]
        cut_the_stream(ends.segment)
        with pytest.raises(BadMessage):
            ends.receivers[0].receive(timeout_ns=0)
        assert ends.sender.arena.free() == [SLOTS]


def test_a_message_has_no_leases_of_the_garbled_one_before_it():
    with handoff(layout(), BULK) as ends:
        ends.sender.send(noise(SIZE), 0)
        cut_the_stream(ends.segment)
        with pytest.raises(BadMessage):
            ends.receivers[0].receive(timeout_ns=0)
        ends.sender.send("next", 1)
        received = ends.receivers[0].receive(timeout_ns=0)
        assert (received.content, received.leases) == ("next", ())


def peak_bytes(do):
    gc.collect()
    tracemalloc.start()
    try:
        result = do()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_payload_is_copied_once_into_the_arena_and_not_at_all_out_of_it():
    n_bytes = 32 * MIB
    with handoff(layout(plan=ArenaPlan((SlotClass(n_bytes, 1),), MIB)), BULK) as ends:
        content = [np.ones(n_bytes, np.uint8), "x"]
        _, sending = peak_bytes(lambda: ends.sender.send(content, 0))
        received, receiving = peak_bytes(lambda: ends.receivers[0].receive(timeout_ns=0))
        assert same(content, received.content)
        assert sending < MIB
        assert receiving < MIB


def test_a_payload_is_copied_once_into_a_slot_of_the_ring_and_once_out_of_it():
    n_bytes = 8 * MIB
    geometry = SegmentLayout(1, n_slots=2, slot_bytes=n_bytes + 1000)
    for content in (np.ones(n_bytes, np.uint8), b"x" * n_bytes, bytearray(n_bytes)):
        with handoff(geometry, with_folder=False) as ends:
            send, receiver = ends.sender.send, ends.receivers[0]
            _, sending = peak_bytes(lambda: send(content, 0))  # noqa: B023 - called at once
            received, receiving = peak_bytes(lambda: receiver.receive(timeout_ns=0))  # noqa: B023
            assert same(content, received.content)
            assert sending < MIB
            assert receiving < n_bytes + MIB


def test_a_sender_that_starts_again_uses_no_slot_that_is_still_looked_at():
    with handoff(layout(), BULK) as ends:
        kept = fill(ends)
        again = Sender(ends.segment, ends.segment.layout.request, PARK, COSTS, BULK)
        again.send(noise(SIZE), 0)
        assert again.n_fallbacks == 1
        assert same(noise(SIZE), receive(ends.receivers[0]))
        assert all(same(noise(SIZE), array) for array in kept)


def test_a_message_by_socket_needs_no_slot_of_a_full_arena():
    with handoff(layout(), ALL_SOCKET) as ends:
        assert not into_arena(ends)
        assert ends.sender.n_fallbacks == 0
