"""What is copied to a device is what was sent, and its slot is held for as long as it takes."""

from collections import deque

import pytest

from realrun.cuda.registration import address_of
from realrun.device.bulk import STRIDE, Bulk, Uploads, weight_of
from realrun.layout import SegmentLayout
from shmsim.routing import ARENA, INLINE, ArenaPlan, BySize, SlotClass
from tests.real.handoffs import SOON_NS, handoff, noise

torch = pytest.importorskip("torch", reason="copies to a device need torch")

from realrun.cuda.upload import MEMORIES, Uploader  # noqa: E402 - it needs torch
from realrun.device.cpu import _Lane  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.timeout(30)]

N_BYTES = 40_000
LAYOUT = SegmentLayout(1, arena=ArenaPlan((SlotClass(N_BYTES, 2),), 1000))
INLINE_ALL = BySize(INLINE, INLINE, 0)
ARENA_ALL = BySize(ARENA, ARENA, 0)


class Thread:
    """The thread of a device, which copies when a test says so."""

    def __init__(self):
        self.copies = deque()
        self.lane = _Lane(self.copies.append)

    def catch_up(self):
        while self.copies:
            self.lane.carry_out(self.copies.popleft())


def uploader_for(thread, ends, memory, most_bytes=N_BYTES):
    mapping = ends.attached[0].memory
    start = address_of(mapping)
    shared = range(start, start + len(mapping))
    return Uploader(thread.lane, Uploads(memory, most_bytes, 2), shared, pins=False)


def send(ends, content, n=0):
    """Send bulk; returns it as the receiver has it."""
    ends.sender.send(content, n)
    received = ends.receivers[0].receive(timeout_ns=SOON_NS)
    return Bulk(received.content, received.leases)


@pytest.mark.parametrize("routes", [ARENA_ALL, INLINE_ALL])
@pytest.mark.parametrize("memory", MEMORIES)
def test_what_arrives_on_the_device_is_what_was_sent(memory, routes):
    thread = Thread()
    with handoff(LAYOUT, routes) as ends:
        uploader = uploader_for(thread, ends, memory)
        digest = 0
        for n in range(6):
            sent = noise(N_BYTES - n)
            uploaded = uploader.upload(send(ends, sent, n))
            digest += weight_of(n) * int(sent.view("u1")[::STRIDE].sum())
            thread.catch_up()
            assert uploaded.tensor.numpy().tobytes() == sent.tobytes()
            assert uploaded.landed.query()
            ends.receivers[0].learn()
        assert ends.sender.n_fallbacks == 0, "every slot came back"
        n_bytes = sum(range(N_BYTES - 5, N_BYTES + 1))
        assert uploader.facts() == {
            "memory": memory,
            "copies": 6,
            "bytes": n_bytes,
            "digest": digest,
        }


@pytest.mark.parametrize(
    ("memory", "n_free_at_once"), [("registered", 1), ("pinned", 2), ("pageable", 2)]
)
def test_a_slot_comes_back_when_its_copy_has_landed_and_not_before(memory, n_free_at_once):
    thread = Thread()
    with handoff(LAYOUT) as ends:
        uploader = uploader_for(thread, ends, memory)
        first = noise(N_BYTES)
        uploaded = uploader.upload(send(ends, first))
        ends.receivers[0].learn()
        assert ends.sender.arena.free() == [n_free_at_once]
        # As many as there is room for: whoever let go too early is written over.
        others = [send(ends, noise(N_BYTES), 1 + n) for n in range(n_free_at_once)]
        thread.catch_up()
        assert uploaded.tensor.numpy().tobytes() == first.tobytes()
        del others
        ends.receivers[0].learn()
        assert ends.sender.arena.free() == [2]


def test_a_buffer_that_is_too_small_is_refused():
    with handoff(LAYOUT) as ends:
        bulk = send(ends, noise(N_BYTES))
        with pytest.raises(ValueError, match=r"40,000 bytes does not fit .* larger most_bytes"):
            uploader_for(Thread(), ends, "pinned", 1000).upload(bulk)
        del bulk
