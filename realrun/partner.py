"""The other side of a calibration: publishes a given time after it was asked to.

``python -m realrun.partner TICKET CORE``; CORE -1 leaves the process unpinned.
"""

import os
import sys
import time
from functools import partial
from typing import Final

from realrun.host import prepare_process, settled_heap
from realrun.layout import OWNER_PID_AT, SegmentLayout
from realrun.rehearsal import Rehearsal
from realrun.ring import LEAVE, RingReader, RingWriter
from realrun.run_queue import run_queue_wait_ns
from realrun.segment import Segment, Ticket
from realrun.waiting import Stopped
from shmsim.policies import WakeAhead
from shmsim.units import FOREVER_NS, US
from shmsim.wait import PARK, SPIN

LAYOUT: Final = SegmentLayout(n_workers=1, slot_bytes=1 << 21)
SPIN_PLAN: Final = (SPIN, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)

#: What the partner does until it publishes: count what it lost, or the work of one side of a loop.
TELL, PLAY_SCHEDULER, PLAY_WORKER = range(3)
_LEAD_NS: Final = 300 * US


def encode_order(delay_ns: int, part: int) -> bytes:
    """Ask to publish after a delay, and to play a part meanwhile."""
    return delay_ns.to_bytes(8, "little") + bytes([part])


def serve(segment: Segment, as_scheduler: Segment, as_worker: Segment) -> None:
    """Answer every request after the delay it asks for.

    Who waits in a loop has another process beside it that works before it publishes, and shares
    caches with it, or even a core's two threads. So the partner works too: when it has the request,
    as a worker that launches, and once more shortly before it publishes.

    A reply says what the notify of the one before it cost and, to `TELL`, how long this process had
    to wait for a core since it told last; 8 bytes each.

    Parameters
    ----------
    segment
        Shared with the calibration.
    as_scheduler, as_worker
        Private ones, where the parts are played.
    """
    requests = RingReader(segment, segment.layout.request, 0)
    replies = RingWriter(segment, segment.layout.replies[0])
    scheduler, worker = Rehearsal(as_scheduler, WakeAhead()), Rehearsal(as_worker, WakeAhead())
    for loop in (scheduler, worker):
        loop.wait_once()
    scheduler.prepare_scheduler_work()
    worker.prepare_worker_work()
    plays = {
        PLAY_SCHEDULER: partial(scheduler.rehearse_scheduler, scheduler.waiter),
        PLAY_WORKER: partial(worker.rehearse_worker, worker.waiter),
    }
    notify_ns = stolen_ns = 0
    queued_ns = run_queue_wait_ns()
    while True:
        requests.wait(SPIN_PLAN)
        message = requests.read()
        if message.flags & LEAVE:
            return
        delay_ns, part = int.from_bytes(message.payload[:8], "little"), message.payload[8]
        publish_at_ns = message.published_ns + delay_ns
        if part == TELL:
            before_ns, queued_ns = queued_ns, run_queue_wait_ns()
            stolen_ns = queued_ns - before_ns
        else:
            plays[part]()
            _spin_until(publish_at_ns - min(_LEAD_NS, delay_ns // 2))
            if delay_ns > _LEAD_NS:
                plays[part]()
        payload = notify_ns.to_bytes(8, "little") + stolen_ns.to_bytes(8, "little")
        _spin_until(publish_at_ns)
        published_ns = replies.publish(message.call_id, 0, [payload])
        notify_ns = time.monotonic_ns() - published_ns


def _spin_until(at_ns: int) -> None:
    while time.monotonic_ns() < at_ns:
        pass


def main() -> None:
    """Attach and serve until told to leave."""
    prepare_process()
    core = int(sys.argv[2])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    with (
        Segment.attach(Ticket.from_json(sys.argv[1])) as segment,
        Segment.private(LAYOUT) as as_scheduler,
        Segment.private(LAYOUT) as as_worker,
        settled_heap(),
    ):
        if segment.load(OWNER_PID_AT) != os.getppid():
            sys.exit("the calibration died before this process could ask to die with it")
        segment.attend(1)
        try:
            serve(segment, as_scheduler, as_worker)
        except Stopped:
            return


if __name__ == "__main__":
    main()
