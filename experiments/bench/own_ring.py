"""The wake-up of a parked reader by the bare ring: what a futex in C can be compared with."""

import struct
from typing import Any, Final

from system import System

from realrun.host import exact_timers
from realrun.layout import SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment, Ticket
from realrun.waiting import RawWait, Stopped
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK

_PARKED: Final = (PARK, FOREVER_NS, 0) * 4
_WAKE: Final = struct.Struct("<q")


class BareRing(System):
    """Eight bytes to each reader and back, with neither pickling nor policies; all park."""

    def start(self, n_readers: int) -> None:
        """Make the segment, spawn the readers, wait until everybody is there."""
        exact_timers()
        layout = SegmentLayout(n_readers)
        self._segment = Segment.create(layout)
        for reader in range(n_readers):
            self.spawn(_answer, self._segment.ticket, reader)
        self._writer = RingWriter(self._segment, layout.request)
        self._replies = [RingReader(self._segment, ring, 0) for ring in layout.replies]
        self.call(None)
        self._segment.unlink()

    def call(self, message: Any) -> None:
        """Publish to all at once, receive from each how long it took to see that."""
        del message
        self._writer.publish(0, 0, [_WAKE.pack(0)])
        replies = [reader.receive(_PARKED)[2] for reader in self._replies]
        self.wakes_ns.append(max(_WAKE.unpack(reply.payload)[0] for reply in replies))

    def close(self) -> None:
        """Stop the readers, and give the memory back once they have left."""
        self._segment.stop()
        self.join()
        self._segment.__exit__()


def _answer(ticket: Ticket, reader: int) -> None:
    exact_timers()
    with Segment.attach(ticket) as segment:
        requests = RingReader(segment, segment.layout.request, reader)
        replies = RingWriter(segment, segment.layout.replies[reader])
        try:
            while True:
                _, numbers, message = requests.receive(_PARKED)
                wake_ns = RawWait.of(numbers).seen_ns - message.published_ns
                replies.publish(0, 0, [_WAKE.pack(wake_ns)])
        except Stopped:
            return
