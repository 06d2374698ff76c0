"""One side of a ping-pong over both rings, spinning: ``SEGMENT serve|return ROUNDS CORE``."""

import os
import sys
from pathlib import Path

from realrun.host import prepare_process
from realrun.layout import SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK, SPIN

SPIN_PLAN = (SPIN, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)

prepare_process()
path, side, rounds, core = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
segment = Segment.attach(Path(path), SegmentLayout(1))
serves = side == "serve"
layout = segment.layout
out, back = (layout.request, layout.reply) if serves else (layout.reply, layout.request)
writer, reader = RingWriter(segment, out), RingReader(segment, back, 0)
for turn in range(int(rounds)):
    if serves:
        writer.notify(writer.publish(turn, 0, b"")[1])
    reader.wait(SPIN_PLAN)
    assert reader.read().call_id == turn
    if not serves:
        writer.notify(writer.publish(turn, 0, b"")[1])
