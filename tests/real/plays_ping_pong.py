"""One side of a ping-pong over both rings, spinning: ``TICKET serve|return ROUNDS CORE``."""

import os
import sys

from realrun.host import prepare_process
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment, Ticket
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK, SPIN

SPIN_PLAN = (SPIN, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)

prepare_process()
ticket, side, rounds, core = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
segment = Segment.attach(Ticket.from_json(ticket))
serves = side == "serve"
layout = segment.layout
out, back = (layout.request, layout.replies[0])[:: 1 if serves else -1]
writer, reader = RingWriter(segment, out), RingReader(segment, back, 0)
for turn in range(int(rounds)):
    if serves:
        writer.publish(turn, 0, [b""])
    reader.wait(SPIN_PLAN)
    assert reader.read().call_id == turn
    if not serves:
        writer.publish(turn, 0, [b""])
