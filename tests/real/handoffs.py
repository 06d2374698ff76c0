"""Both ends of a hand-off, as the tests of this folder need them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np

from realrun.handoff import Receiver, Sender
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.policies import Park
from shmsim.routing import ARENA, ROUTE_PRESETS, BySize, RoutePolicy
from shmsim.units import US, S
from shmsim.wait import WaitCosts, WaitPolicy

COSTS = WaitCosts(50 * US, 15 * US, 60 * US, 100 * US, 30 * US, 10.0)
PARK = Park()
ALL_SOCKET = ROUTE_PRESETS["all-socket"]
TO_ARENA = BySize(ARENA, ARENA, 0)
#: A watchdog, no measure: what is awaited is there already, or was lost.
SOON_NS = 20 * S


class Ends(NamedTuple):
    """One sender, its readers, and the mapping that each end has of the segment."""

    segment: Segment
    sender: Sender
    receivers: list[Receiver]
    attached: list[Segment]


@contextmanager
def handoff(
    layout: SegmentLayout,
    routes: RoutePolicy = TO_ARENA,
    doorbell: str = "futex",
    *,
    with_folder: bool = True,
    copies: bool = True,
    policy: WaitPolicy = PARK,
) -> Iterator[Ends]:
    """Open both ends of the request ring, and close them."""
    with ExitStack() as stack:
        segment = stack.enter_context(Segment.create(layout, doorbell, with_folder=with_folder))
        receivers, attached = [], []
        for reader in range(layout.n_workers):
            other = stack.enter_context(Segment.attach(segment.ticket))
            receivers.append(Receiver(other, layout.request, reader, policy, COSTS))
            stack.callback(receivers[-1].close)
            attached.append(other)
        sender = Sender(segment, layout.request, policy, COSTS, routes, copies=copies)
        stack.callback(sender.close)
        yield Ends(segment, sender, receivers, attached)


def receive(receiver: Receiver) -> Any:
    """The object of the next message, which is there already."""
    received = receiver.receive(timeout_ns=SOON_NS)
    receiver.learn()
    return received.content


def same(sent: Any, got: Any) -> bool:
    """Whether what arrived is what was sent, to the byte, the dtype and the order of axes."""
    if isinstance(sent, PickleBuffer):
        return bytes(got) == bytes(sent.raw())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(sent, torch.Tensor):
        return type(got) is torch.Tensor and got.dtype == sent.dtype and torch.equal(sent, got)
    if type(got) is not type(sent):
        return False
    if isinstance(sent, np.ndarray):
        order = not sent.flags.forc or sent.flags.f_contiguous == got.flags.f_contiguous
        is_alike = (sent.dtype, sent.shape) == (got.dtype, got.shape)
        return order and is_alike and sent.tobytes() == got.tobytes()
    if isinstance(sent, list | tuple):
        return len(sent) == len(got) and all(map(same, sent, got))
    if isinstance(sent, dict):
        return list(sent) == list(got) and all(same(sent[key], got[key]) for key in sent)
    return bool(sent == got)


def noise(n_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that no other length begins with."""
    return np.random.default_rng(n_bytes).integers(0, 256, n_bytes, np.uint8)


def each_kind(n_bytes: int) -> list[Any]:
    """Payloads of every kind that has about so many bytes; arrays of one axis have exactly."""
    array = noise(n_bytes)
    return [
        array.tobytes(),
        bytearray(array),
        array,
        np.asfortranarray(array[: n_bytes // 2 * 2].reshape(2, -1)),
        np.repeat(array, 2)[::2],
        PickleBuffer(array),
        {"nested": [array, (array[: n_bytes // 3], "text"), {7: array[::-1].tobytes()}]},
    ]


def bytes_with_stream_of(stream_bytes: int, encode: Callable[[Any], Any]) -> bytes:
    """Bytes whose pickle stream is exactly so long."""
    content = noise(stream_bytes).tobytes()
    for _ in range(3):
        content = content[: len(content) + stream_bytes - encode(content).stream_bytes]
    assert encode(content).stream_bytes == stream_bytes
    return content
