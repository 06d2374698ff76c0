"""Shared memory as the GPU sees it."""

import time

import numpy as np
import pytest

from realrun.cuda.driver import driver
from realrun.cuda.registration import Registration, address_of
from realrun.device.bulk import STRIDE, Bulk, Uploads, weight_of
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.routing import ArenaPlan, SlotClass
from tests.real.handoffs import handoff, noise

torch = pytest.importorskip("torch", reason="copies to a device need torch")

from realrun.cuda.upload import MEMORIES, CudaLane, Uploader  # noqa: E402 - it needs torch
from realrun.cuda.word import Word  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.quick, pytest.mark.timeout(300)]

N_BYTES = 8 << 20
BUSY_CYCLES = 200_000_000  # about 100 ms


@pytest.fixture(autouse=True)
def _context():
    torch.zeros(1, device="cuda")


@pytest.fixture
def registered(segment):
    registration = Registration(driver(), segment.memory)
    assert registration.is_registered, registration.reason
    yield registration
    torch.cuda.synchronize()
    registration.close()


def word(segment, at):
    return torch.frombuffer(segment.memory, dtype=torch.int64, count=1, offset=at)


def test_views_of_registered_memory_are_pinned_and_have_the_address_of_the_host(
    segment, registered
):
    at = segment.layout.ends[0].head_at
    view = word(segment, at)
    assert view.is_pinned()
    assert registered.device_pointer(at) == view.data_ptr()


def test_a_second_registration_has_a_reason_and_leaves_no_error_behind(segment, registered):
    again = Registration(driver(), segment.memory)
    assert not again.is_registered
    assert "712" in again.reason
    # A failed cudaHostRegister would surface here.
    assert torch.zeros(1 << 16).pin_memory().is_pinned()
    torch.cuda.synchronize()


def test_what_was_unregistered_can_be_registered_again_and_unmapped(segment):
    for _ in range(3):
        registration = Registration(driver(), segment.memory)
        assert registration.is_registered
        registration.close()
    with Segment.create(SegmentLayout(1)) as other:
        Registration(driver(), other.memory).close()


def test_the_stream_writes_a_word_behind_its_work_and_not_before(segment, registered):
    at = segment.layout.ends[0].head_at
    pointer = registered.device_pointer(at)
    stream = torch.cuda.Stream()
    for value in range(1, 6):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY_CYCLES // 10)
            driver().write_when_reached(stream.cuda_stream, pointer, value)
        assert segment.load(at) == value - 1, "the kernel takes milliseconds"
        stream.synchronize()
        assert segment.load(at) == value


def test_the_word_may_be_part_of_a_graph(segment, registered):
    at = segment.layout.ends[0].head_at
    pointer = registered.device_pointer(at)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    with torch.cuda.stream(stream):
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            counter.add_(1)
            driver().write_when_reached(stream.cuda_stream, pointer, 9)
        assert segment.load(at) == 0
        graph.replay()
    stream.synchronize()
    assert segment.load(at) == 9


def test_the_word_may_be_copied_by_a_graph_too(segment, registered):
    ring = segment.layout.ends[0]
    word = Word(segment, ring, registered, driver())
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            word.move("copy", stream, 1)
        assert segment.load(ring.head_at) == 0
        for n in range(1, 4):
            graph.replay()
            stream.synchronize()
            assert segment.load(ring.head_at) == n


@pytest.mark.parametrize("way", ["write", "copy"])
def test_outputs_are_there_when_the_word_is(segment, registered, way):
    ring = segment.layout.ends[0]
    payload_at = ring.slot_at(1) + 64
    n = ring.slot_bytes // 8
    payload = torch.frombuffer(segment.memory, dtype=torch.int64, count=n, offset=payload_at)
    numbers = np.frombuffer(segment.memory, np.int64, n, payload_at)
    source = torch.zeros(n, dtype=torch.int64, device="cuda")
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    head, pointer = word(segment, ring.head_at), registered.device_pointer(ring.head_at)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for value in range(1, 3000):
        with torch.cuda.stream(stream):
            source.add_(1)
            counter.add_(1)
            payload.copy_(source, non_blocking=True)
            if way == "write":
                driver().write_when_reached(stream.cuda_stream, pointer, value)
            else:
                head.copy_(counter, non_blocking=True)
        while segment.load(ring.head_at) < value:
            pass
        assert (numbers == value).all()
    del numbers


def arena(n_slots=2):
    return SegmentLayout(1, arena=ArenaPlan((SlotClass(N_BYTES, n_slots),), 1000))


def uploader_for(ends, memory, stream):
    mapping = ends.attached[0].memory
    start = address_of(mapping)
    lane = CudaLane(torch.device("cuda"), stream, N_BYTES)
    shared = range(start, start + len(mapping))
    return Uploader(lane, Uploads(memory, N_BYTES, 2), shared, pins=True)


@pytest.mark.parametrize("memory", MEMORIES)
def test_bulk_of_a_message_arrives_on_the_gpu(memory):
    with handoff(arena()) as ends:
        registration = None
        if memory == "registered":
            registration = Registration(driver(), ends.attached[0].memory)
            assert registration.is_registered
        uploader = uploader_for(ends, memory, torch.cuda.current_stream())
        digest = 0
        for n in range(6):
            sent = noise(N_BYTES - n)
            ends.sender.send(sent, n)
            received = ends.receivers[0].receive()
            uploaded = uploader.upload(Bulk(received.content, received.leases))
            del received
            assert uploaded.tensor.cpu().numpy().tobytes() == sent.tobytes()
            digest += weight_of(n) * int(sent.view("u1")[::STRIDE].sum())
            ends.receivers[0].learn()
        assert ends.sender.n_fallbacks == 0
        assert uploader.facts()["digest"] == digest
        torch.cuda.synchronize()
        if registration is not None:
            registration.close()


def test_a_slot_is_held_until_the_copy_behind_a_busy_stream_has_landed():
    with handoff(arena(1)) as ends:
        registration = Registration(driver(), ends.attached[0].memory)
        stream = torch.cuda.Stream()
        uploader = uploader_for(ends, "registered", stream)
        sent = noise(N_BYTES)
        ends.sender.send(sent, 0)
        received = ends.receivers[0].receive()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY_CYCLES)
        begun_ns = time.monotonic_ns()
        uploaded = uploader.upload(Bulk(received.content, received.leases))
        called_ns = time.monotonic_ns() - begun_ns
        is_landed = uploaded.landed.query()
        del received
        ends.receivers[0].learn()
        assert not is_landed, "the stream is busy for a tenth of a second"
        assert called_ns < 50_000_000, "the call returned before the kernel ended"
        assert ends.sender.arena.free() == [0]
        stream.synchronize()
        ends.receivers[0].learn()
        assert ends.sender.arena.free() == [1]
        assert uploaded.tensor.cpu().numpy().tobytes() == sent.tobytes()
        registration.close()
