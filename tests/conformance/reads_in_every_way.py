"""Reads a ring to its end, waiting now in this way, now in that; says how it went as JSON.

``python reads_in_every_way.py native|fallback TICKET READER N_MESSAGES``
"""

import json
import random
import sys
from zlib import crc32

from realrun.ring import RingReader
from realrun.segment import Segment, Ticket
from shmsim.units import FOREVER_NS, US, S
from shmsim.wait import DOZE, NAP, PARK, POLL, SPIN, YIELD
from tests.conformance.carriers import carry_by

carry_by(sys.argv[1])
reader_index, n_messages = map(int, sys.argv[3:5])
rng = random.Random(reader_index)

# A park that lasts for 5 s slept through a message: the writer never pauses that long.
LOST_AFTER_NS = 5 * S
counts = ("lost_wakeups", "seen_before_published", "belled", "spurious", "rescued")
outcome = dict.fromkeys(counts, 0) | {"call_ids_in_order": True}
checksum = 0
kinds = set()


def random_plan() -> tuple[int, ...]:
    """Up to two short stages, then a park."""
    stages, until_ns = [], 0
    for kind in rng.choices([SPIN, YIELD, NAP, DOZE, POLL, PARK], k=2):
        until_ns += rng.choice([0, 1, 20, 200]) * US
        stages.append((kind, until_ns, 10 * US if kind == POLL else 0))
        kinds.add(kind)
    return (*stages[0], *stages[1], PARK, LOST_AFTER_NS, 0, PARK, FOREVER_NS, 0)


with Segment.attach(Ticket.from_json(sys.argv[2])) as segment:
    reader = RingReader(segment, segment.layout.request, reader_index)
    for expected in range(n_messages):
        raw = reader.wait(random_plan())
        message = reader.read()
        checksum = crc32(message.payload, checksum)
        outcome["call_ids_in_order"] &= message.call_id == expected
        outcome["seen_before_published"] += raw.seen_ns < message.published_ns
        outcome["lost_wakeups"] += raw.seen_ns - message.published_ns > LOST_AFTER_NS / 2
        for name in ("belled", "spurious", "rescued"):
            outcome[name] += getattr(raw, name)

json.dump(outcome | {"checksum": checksum, "kinds": sorted(kinds)}, sys.stdout)
