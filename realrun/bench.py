"""Costs of single calls, measured hot, on the very objects a run uses.

Each sample is one call between two clock reads; the median cost of a clock read is taken off.
"""

import os
import pickle
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from realrun.layout import PAYLOAD
from realrun.native import IMPLEMENTATION
from realrun.partner import LAYOUT, SPIN_PLAN
from realrun.rehearsal import KNOWN, Rehearsal, endless_batcher
from realrun.ring import Message
from realrun.segment import Segment
from shmsim.message import (
    decode_batch,
    decode_reply,
    decode_request,
    decode_second_call,
    encode_reply,
    encode_request,
    encode_second_call,
)
from shmsim.policies import POLICIES, StepAhead
from shmsim.profile import AT_REST
from shmsim.units import MS, US

SEQUENCES: Final = (1, 4, 16, 64)
SIZES: Final = (1 << 10, 1 << 16, 1 << 20)
MESSAGE_BYTES: Final = (64, 1 << 10, 1 << 14)
#: Sleeps after which policies decide cold.
RESTS_NS: Final = (500 * US, 2 * MS, 10 * MS)
_WARM_UP: Final = 20
_AGAIN: Final = 8
_TYPICAL_NS: Final = 2 * MS
_N_ROUNDS: Final = 10_000

#: What one measurement yields: name, x, samples in nanoseconds.
Measured = tuple[str, float, list[int]]


class Undisturbed:
    """Tells whether this thread kept its core since the last look."""

    def __init__(self) -> None:
        """Look for the first time."""
        self._switches = self._count()

    @staticmethod
    def _count() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw

    def __call__(self) -> bool:
        """Whether nobody took the core; a sample that somebody cut into is about them."""
        before, self._switches = self._switches, self._count()
        return self._switches == before


def time_calls(call: Callable[[], object], n: int, clock_ns: float) -> list[int]:
    """Duration of each of ``n`` calls, after a warm-up; those cut into by others left out."""
    now = time.monotonic_ns
    for _ in range(_WARM_UP):
        call()
    samples = []
    undisturbed = Undisturbed()
    for _ in range(n):
        started_ns = now()
        call()
        taken_ns = now() - started_ns
        if undisturbed():
            samples.append(max(0, round(taken_ns - clock_ns)))
    return samples


def clock_read_ns(n: int) -> list[int]:
    """Cost of a clock read: the gap between two in a row."""
    now = time.monotonic_ns
    return [-now() + now() for _ in range(n)]


def round_ns() -> float | None:
    """How long a round of a bare spin takes, a pause and a look; None without the C extension.

    In such rounds llama.cpp and libgomp count how long they spin.
    """
    if IMPLEMENTATION != "native":
        return None
    from realrun._native import rounds

    return float(np.median([rounds(_N_ROUNDS) for _ in range(_WARM_UP)])) / _N_ROUNDS


def hot_costs(n: int) -> Iterator[Measured]:
    """Measure every cost of a single call once, ``n`` samples each."""
    clock = clock_read_ns(10 * n)
    yield "clock_read", 0, clock
    clock_ns = float(np.median(clock))

    def measured(name: str, x: float, call: Callable[[], object]) -> Measured:
        return name, x, time_calls(call, n, clock_ns)

    with Segment.private(LAYOUT) as segment:
        for size in SIZES:
            array = np.zeros(size, np.uint8)
            pickled = pickle.dumps(array, protocol=5)
            at = LAYOUT.request.slot_at(1) + PAYLOAD
            store = partial(segment.memory.__setitem__, slice(at, at + size), bytes(size))
            yield measured("pickle", size, partial(pickle.dumps, array, protocol=5))
            yield measured("unpickle", size, partial(pickle.loads, pickled))
            yield measured("memcpy", size, store)
        for n_sequences in SEQUENCES:
            yield from _message_costs(n_sequences, measured)
        second = encode_second_call(1000)
        yield measured("encode_request", 0, lambda: encode_second_call(1000))
        yield measured("decode_request", 0, lambda: decode_second_call(second))
        yield measured("encode_reply", 0, lambda: encode_second_call(1000))
        yield measured("decode_reply", 0, lambda: decode_second_call(second))
        yield measured("yield_look", 0, os.sched_yield)
        loop = Rehearsal(segment, POLICIES["BusySpin"]())
        for n_sequences in SEQUENCES:
            yield from _cycle_costs(loop, n_sequences, n)
        yield from _ring_costs(loop, n)
        yield from _device_costs(loop, n, clock_ns)


def _message_costs(
    n_sequences: int, measured: Callable[[str, float, Callable[[], object]], Measured]
) -> Iterator[Measured]:
    batch = decode_batch(n_sequences)
    request = encode_request(batch)
    call = decode_request(request)
    reply = encode_reply(call)
    yield measured("encode_request", n_sequences, lambda: encode_request(batch))
    yield measured("decode_request", n_sequences, lambda: decode_request(request))
    yield measured("encode_reply", n_sequences, lambda: encode_reply(call))
    yield measured("decode_reply", n_sequences, lambda: decode_reply(reply))


def _cycle_costs(loop: Rehearsal, n_sequences: int, n: int) -> Iterator[Measured]:
    """What a scheduler does with a reply and for a call, less the parts that are costs themselves.

    A part is taken off by its median.
    """
    now, cycle, writer = time.monotonic_ns, loop.scheduler, loop.requests
    batcher = endless_batcher(n_sequences)
    request = encode_request(decode_batch(n_sequences))
    reply = encode_reply(decode_request(request))
    alone: dict[str, list[int]] = {"encode": [], "publish": [], "decode": []}
    schedule: list[int] = []
    complete: list[int] = []
    undisturbed = Undisturbed()
    for i in range(_WARM_UP + n):
        started_ns = now()
        cycle.admit(batcher)
        sent = cycle.send(batcher)
        scheduled_ns = sent.published_ns - started_ns
        loop.request_reader.read()
        message = Message(0, 0, now(), reply)
        started_ns = now()
        cycle.take_in(batcher, sent, message, started_ns)
        completed_ns = now() - started_ns
        parts_ns = {}
        started_ns = now()
        encode_request(sent.batch)
        parts_ns["encode"] = now() - started_ns
        started_ns = now()
        parts_ns["publish"] = writer.publish(i, 0, [request]) - started_ns
        loop.request_reader.read()
        started_ns = now()
        decode_reply(reply)
        parts_ns["decode"] = now() - started_ns
        if undisturbed() and i >= _WARM_UP:
            schedule.append(scheduled_ns)
            complete.append(completed_ns)
            for name, taken_ns in parts_ns.items():
                alone[name].append(taken_ns)
    cycle.steps.clear()
    median = {name: round(float(np.median(values))) for name, values in alone.items()}
    known_ns = median["encode"] + median["publish"]
    yield "schedule", n_sequences, [max(0, ns - known_ns) for ns in schedule]
    yield "complete", n_sequences, [max(0, ns - median["decode"]) for ns in complete]


def _ring_costs(loop: Rehearsal, n: int) -> Iterator[Measured]:
    """Publish, read and the two ends of a wait, on messages that are there already."""
    now = time.monotonic_ns
    enter, leave, notify = [], [], []
    for size in MESSAGE_BYTES:
        payload = bytes(size)
        publish, read = [], []
        undisturbed = Undisturbed()
        for i in range(_WARM_UP + n):
            started_ns = now()
            published_ns = loop.replies.publish(i, 0, [payload])
            notified_ns = now()
            raw = loop.reply_reader.wait(SPIN_PLAN)
            returned_ns = now()
            loop.reply_reader.read()
            read_ns = now()
            if undisturbed() and i >= _WARM_UP:
                publish.append(published_ns - started_ns)
                notify.append(notified_ns - published_ns)
                enter.append(raw.started_ns - notified_ns)
                leave.append(returned_ns - raw.seen_ns)
                read.append(read_ns - returned_ns)
        yield "ring_publish", size, publish
        yield "ring_read", size, read
    yield "notify_unarmed", 0, notify
    yield "wait_enter", 0, enter
    yield "wait_exit", 0, leave


def _device_costs(loop: Rehearsal, n: int, clock_ns: float) -> Iterator[Measured]:
    call = decode_request(encode_request(decode_batch(4)))
    launched = []
    yield (
        "launch",
        0,
        time_calls(
            lambda: launched.append(loop.device.launch(call, is_warm_up=False)), n, clock_ns
        ),
    )
    late = []
    undisturbed = Undisturbed()
    for _ in range(n):
        step = loop.device.launch(call, is_warm_up=False)
        _, done_ns = loop.device.wait(step)
        late_ns = time.monotonic_ns() - done_ns
        if undisturbed():
            late.append(late_ns)
    yield "device_return", 0, late


def policy_costs(n: int, n_cold: int) -> Iterator[Measured]:
    """Cost of plan and after of every policy, named ``plan:CLASS`` and ``after:CLASS``.

    One that rests counts as a class of its own.

    Parameters
    ----------
    n
        Samples of each while it is hot.
    n_cold
        Samples after each of `RESTS_NS`, asleep; what comes between in a run is done between.
    """
    clock_ns = float(np.median(clock_read_ns(10 * n)))
    policies = {name: kind() for name, kind in POLICIES.items()}
    policies[AT_REST] = StepAhead(learnt_looks=0.0)
    for name, policy in policies.items():
        with Segment.private(LAYOUT) as segment:
            loop = Rehearsal(segment, policy)
            for _ in range(_WARM_UP):
                loop.wait_once(_TYPICAL_NS)
                loop.waiter.learn()
            plan = time_calls(partial(loop.waiter.begin, 0, KNOWN), n, clock_ns)
            after = []
            undisturbed = Undisturbed()
            for _ in range(n):
                loop.wait_once(_TYPICAL_NS)
                started_ns = time.monotonic_ns()
                loop.waiter.learn()
                taken_ns = time.monotonic_ns() - started_ns
                if undisturbed():
                    after.append(round(max(0.0, taken_ns - clock_ns)))
            yield f"plan:{name}", 0, plan
            yield f"after:{name}", 0, after
            for rest_ns in RESTS_NS:
                cold_plan, cold_after = _cold_decisions(loop, rest_ns, n_cold, clock_ns)
                yield f"plan:{name}", rest_ns, cold_plan
                yield f"after:{name}", rest_ns, cold_after


def _cold_decisions(
    loop: Rehearsal, rest_ns: int, n: int, clock_ns: float
) -> tuple[list[int], list[int]]:
    """A plan, and learning, each after a sleep and the work of a scheduler up to its call."""
    plan_ns: list[int] = []
    after_ns: list[int] = []
    plan, learn = partial(loop.waiter.begin, 0, KNOWN), loop.waiter.learn
    undisturbed = Undisturbed()
    for _ in range(n):
        for decide, samples in ((plan, plan_ns), (learn, after_ns)):
            for _ in range(_AGAIN):  # hot, but for the rest that follows
                loop.wait_once(rest_ns)
                learn()
            if decide is learn:
                loop.wait_once(rest_ns)  # so that there is something to learn from
            loop.prepare_scheduler_work()
            time.sleep(rest_ns / 1e9)
            loop.scheduler_work()
            started_ns = time.monotonic_ns()
            decide()
            taken_ns = time.monotonic_ns() - started_ns
            loop.request_reader.read()
            if undisturbed():
                samples.append(max(0, round(taken_ns - clock_ns)))
    return plan_ns, after_ns
