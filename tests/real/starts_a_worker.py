"""Starts a worker by multiprocessing, hands it the ticket, and says what came back as JSON.

``python starts_a_worker.py fork|spawn|forkserver DOORBELL N_MESSAGES``
"""

import json
import multiprocessing
import os
import sys

import numpy as np

from realrun.handoff import Receiver, Sender
from realrun.layout import SegmentLayout
from realrun.segment import SHM, Segment, Ticket
from shmsim.routing import ARENA, INLINE, ArenaPlan, BySize, SlotClass
from shmsim.units import S
from tests.real.handoffs import COSTS, PARK

ROUTES = BySize(INLINE, ARENA, 1000)
LAYOUT = SegmentLayout(2, n_slots=4, arena=ArenaPlan((SlotClass(4000, 4),), 1000))


def answer(ticket: Ticket, rank: int, n_messages: int) -> None:
    """What a worker does: reply with its process id, and what the payload adds up to."""
    with Segment.attach(ticket) as segment:
        receiver = Receiver(segment, segment.layout.request, rank, PARK, COSTS)
        sender = Sender(segment, segment.layout.replies[rank], PARK, COSTS, ROUTES)
        for _ in range(n_messages):
            received = receiver.receive(timeout_ns=10 * S)
            total = int(received.content.sum())
            sender.send((os.getpid(), received.content.nbytes, total), received.call_id)
            receiver.learn()
            del received
        for end in (receiver, sender):
            end.close()


def main() -> None:
    method, doorbell, n_messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
    context = multiprocessing.get_context(method)
    with Segment.create(LAYOUT, doorbell, with_folder=True) as segment:
        workers = [
            context.Process(target=answer, args=(segment.ticket, rank, n_messages))
            for rank in range(2)
        ]
        for worker in workers:
            worker.start()
        sender = Sender(segment, LAYOUT.request, PARK, COSTS, ROUTES)
        receivers = [Receiver(segment, ring, 0, PARK, COSTS) for ring in LAYOUT.replies]
        is_right = True
        for call_id in range(n_messages):
            content = np.arange(call_id % 900, dtype=np.int32)  # of both routes
            sender.send(content, call_id)
            for worker, receiver in zip(workers, receivers, strict=True):
                reply = receiver.receive(timeout_ns=10 * S)
                receiver.learn()
                is_right &= reply.call_id == call_id
                expected = (worker.pid, content.nbytes, int(content.sum()))
                is_right &= reply.content == expected
        for worker in workers:
            worker.join(10)
        outcome = {
            "is_right": is_right,
            "exit_codes": [worker.exitcode for worker in workers],
            "rescued": [receiver.waiter.n_rescued for receiver in receivers],
            "rung": sender.writer.n_notified,
            "routes": sender.parts_by_route,
        }
        for end in (sender, *receivers):
            end.close()
    outcome["left"] = [str(path) for path in SHM.glob(f"shmsim-{os.getpid()}-*")]
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
