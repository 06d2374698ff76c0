"""The other side of a calibration: publishes a given time after it was asked to.

``python -m realrun.partner TICKET CORE``; CORE -1 leaves the process unpinned.
"""

import os
import sys
import time
from typing import Final

from realrun.host import prepare_process, run_queue_wait_ns, settled_heap
from realrun.layout import OWNER_PID_AT, SegmentLayout
from realrun.ring import LEAVE, RingReader, RingWriter
from realrun.segment import Segment, Ticket
from realrun.waiting import Stopped
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK, SPIN

LAYOUT: Final = SegmentLayout(n_workers=1, slot_bytes=1 << 21)
SPIN_PLAN: Final = (SPIN, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)


def serve(segment: Segment) -> None:
    """Answer every request after the delay it asks for.

    A reply tells about the one before it: what its notify cost, and how long this process had to
    wait for a core meanwhile; 8 bytes each.
    """
    requests = RingReader(segment, segment.layout.request, 0)
    replies = RingWriter(segment, segment.layout.replies[0])
    notify_ns = stolen_ns = 0
    queued_ns = run_queue_wait_ns()
    while True:
        requests.wait(SPIN_PLAN)
        message = requests.read()
        if message.flags & LEAVE:
            return
        publish_at_ns = message.published_ns + int.from_bytes(message.payload, "little")
        payload = notify_ns.to_bytes(8, "little") + stolen_ns.to_bytes(8, "little")
        while time.monotonic_ns() < publish_at_ns:
            pass
        published_ns = replies.publish(message.call_id, 0, [payload])
        notify_ns = time.monotonic_ns() - published_ns
        before_ns, queued_ns = queued_ns, run_queue_wait_ns()
        stolen_ns = queued_ns - before_ns


def main() -> None:
    """Attach and serve until told to leave."""
    prepare_process()
    core = int(sys.argv[2])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    with Segment.attach(Ticket.from_json(sys.argv[1])) as segment, settled_heap():
        if segment.load(OWNER_PID_AT) != os.getppid():
            sys.exit("the calibration died before this process could ask to die with it")
        segment.attend(1)
        try:
            serve(segment)
        except Stopped:
            return


if __name__ == "__main__":
    main()
