"""A sender wakes who sleeps before it pickles, where that helps."""

import os
import threading
import time

import pytest

from realrun.handoff import Receiver, Sender
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.policies import PRESETS
from shmsim.routing import ROUTE_PRESETS
from shmsim.wait import TYPICAL_COSTS

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]
N = 20
PARK, ROUTES = PRESETS["park"], ROUTE_PRESETS["vllm"]


def announced(message, n_workers=1, doorbell="futex"):
    """How many of some messages were announced to the parked reader of a ring."""
    layout = SegmentLayout(n_workers, slot_bytes=1 << 20)
    with Segment.create(layout, doorbell, with_folder=True) as segment:
        ring = layout.replies[0]  # one reader, however many processes there are
        sender = Sender(segment, ring, PARK, TYPICAL_COSTS, ROUTES)
        receiver = Receiver(segment, ring, 0, PARK, TYPICAL_COSTS)
        got = []

        def read() -> None:
            for _ in range(N):
                got.append(receiver.receive().content)
                receiver.learn()

        reader = threading.Thread(target=read)
        reader.start()
        for call_id in range(N):
            time.sleep(0.005)
            sender.send(message, call_id)
        reader.join()
        sender.close()
        receiver.close()
    assert got == [message] * N
    return sender.writer.n_announced


several_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="with one core nobody is woken ahead"
)


@several_cores
@pytest.mark.parametrize("doorbell", ["futex", "eventfd"])
def test_a_parked_reader_of_small_messages_is_woken_ahead(doorbell):
    assert announced("small", doorbell=doorbell) > 0


def test_nobody_is_woken_ahead_where_processes_outnumber_cores():
    assert announced("small", n_workers=min(64, len(os.sched_getaffinity(0)))) == 0


def test_nobody_is_woken_ahead_of_what_takes_long_to_pickle():
    assert announced([f"request {i}" for i in range(4000)]) <= 1, "the first may be small"


def test_a_socket_is_not_rung_ahead():
    assert announced("small", doorbell="zmq") == 0
