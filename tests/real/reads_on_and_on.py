"""Reads a ring to its end, and says as JSON how much of what it held when.

``python reads_on_and_on.py TICKET N_MESSAGES N_WARM_UP``
"""

import json
import random
import sys
import time
from zlib import crc32

from realrun.handoff import Receiver
from realrun.segment import Segment, Ticket
from shmsim.policies import PRESETS
from shmsim.units import S
from tests.real.handoffs import COSTS
from tests.real.held import held

n_messages, n_warm_up = int(sys.argv[2]), int(sys.argv[3])
outcome = {"is_in_order": True}
rng = random.Random(1)
checksum = 0

with Segment.attach(Ticket.from_json(sys.argv[1])) as segment:
    receiver = Receiver(segment, segment.layout.request, 0, PRESETS["competitive"], COSTS)
    for call_id in range(n_messages):
        if call_id == n_warm_up:
            outcome["before"] = held()
        received = receiver.receive(timeout_ns=20 * S)
        number, array = received.content
        outcome["is_in_order"] &= received.call_id == number == call_id
        checksum = crc32(array, checksum)
        del received, array
        receiver.learn()
        if rng.random() < 1 / 500:  # let the sender meet a full ring
            time.sleep(rng.random() * 1e-3)
    outcome["after"] = held()
    outcome["checksum"] = checksum
    outcome["rescued"] = receiver.waiter.n_rescued
    outcome["late"] = receiver.n_late_payloads
    receiver.close()

json.dump(outcome, sys.stdout)
