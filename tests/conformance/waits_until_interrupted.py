"""Waits in one way after the other for ever; Ctrl-C is to end each.

``python waits_until_interrupted.py native|fallback``
"""

import sys
from functools import partial
from importlib import import_module

from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.units import FOREVER_NS, S
from shmsim.wait import KIND_NAMES, PARK, POLL, REHEARSE

wait = import_module(f"realrun._{sys.argv[1]}").wait

with Segment.create(SegmentLayout(1)) as segment:
    words = segment.layout.request.reader_words(0)
    for kind, name in enumerate(KIND_NAMES[:REHEARSE]):  # a rehearsal is no wait
        period_ns = 1000 * S if kind == POLL else 0
        plan = (kind, FOREVER_NS, period_ns, *(PARK, FOREVER_NS, 0) * 3)
        say = partial(print, name, flush=True)
        try:
            say("begins")
            wait(segment.memory, words, 0, plan)
            say("ended by itself")
        except KeyboardInterrupt:
            say("interrupted")
