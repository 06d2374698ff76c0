"""A reader of a calibration that sleeps on the bell, or deaf to it, as it is told.

``python -m realrun.calibrate_reader TICKET READER CORE``
"""

import os
import sys
from typing import Final

from realrun.host import prepare_process, settled_heap
from realrun.layout import OWNER_PID_AT
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment, Ticket
from realrun.waiting import Stopped
from shmsim.units import FOREVER_NS
from shmsim.wait import NAP, PARK, SPIN

_REST: Final = (PARK, FOREVER_NS, 0)


def encode_order(n_armed: int, deaf_ns: int) -> bytes:
    """Let the first so many readers await the next message on the bell, the others deaf to it."""
    return deaf_ns.to_bytes(8, "little") + bytes([n_armed])


def serve(segment: Segment, reader: int) -> None:
    """Answer every message, until stopped: a byte, 1 if the bell ended the wait for it, else 0."""
    requests = RingReader(segment, segment.layout.request, reader)
    replies = RingWriter(segment, segment.layout.replies[reader])
    plan = _REST * 4
    while True:
        raw = requests.wait(plan)
        message = requests.read()
        deaf_ns, n_armed = int.from_bytes(message.payload[:8], "little"), message.payload[8]
        plan = _REST * 4
        if reader >= n_armed:
            plan = (NAP, deaf_ns, 0, SPIN, FOREVER_NS, 0, *_REST * 2)
        replies.publish(message.call_id, 0, [bytes([raw.belled])])


def main() -> None:
    """Attach and serve until stopped."""
    prepare_process()
    reader, core = int(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, {core})
    with Segment.attach(Ticket.from_json(sys.argv[1])) as segment, settled_heap():
        if segment.load(OWNER_PID_AT) != os.getppid():
            sys.exit("the calibration died before this process could ask to die with it")
        segment.attend(1 + reader)
        try:
            serve(segment, reader)
        except Stopped:
            return


if __name__ == "__main__":
    main()
