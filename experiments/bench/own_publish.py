"""What publishing and seeing a small message costs in Python, with nobody to wait for."""

import pickle
import time
from typing import Any, Final

from message import REPLY
from system import System

from realrun.handoff import Receiver, Sender
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.policies import PRESETS
from shmsim.routing import ROUTE_PRESETS
from shmsim.wait import TYPICAL_COSTS

_N: Final = 500


class PublishAndSee(System):
    """Both ends of a ring in one process, and no readers."""

    def start(self, n_readers: int) -> None:
        """Make the ends; once around, so that all is warm."""
        del n_readers
        layout = SegmentLayout(1)
        self._segment = Segment.private(layout)
        policy = PRESETS["spin"]
        ring = layout.request
        self._sender = Sender(self._segment, ring, policy, TYPICAL_COSTS, ROUTE_PRESETS["vllm"])
        self._receiver = Receiver(self._segment, ring, 0, policy, TYPICAL_COSTS)
        self.own()

    def call(self, message: Any) -> None:
        """Send and receive: whoever receives finds the message there."""
        self._sender.send(message, 1)
        self._receiver.receive()

    def own(self) -> dict[str, list[int]]:
        """The reply through the ring, and through pickle alone, in turns."""
        through_ring, through_pickle = [], []
        for _ in range(_N):
            start_ns = time.perf_counter_ns()
            self.call(REPLY)
            seen_ns = time.perf_counter_ns()
            pickle.loads(pickle.dumps(REPLY, pickle.HIGHEST_PROTOCOL))
            through_pickle.append(time.perf_counter_ns() - seen_ns)
            through_ring.append(seen_ns - start_ns)
            self._receiver.learn()  # the policy's own, and off the path of the message
        return {"publish_and_see": through_ring, "pickle_reply": through_pickle}

    def close(self) -> None:
        """Unmap."""
        self._sender.close()
        self._receiver.close()
        self._segment.close()
