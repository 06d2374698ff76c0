"""What single calls to a GPU cost: launches, replays, events, and the word that a stream writes."""

import time
from functools import partial
from typing import Final

import numpy as np
import torch

from realrun.bench import clock_read_ns, time_calls
from realrun.cuda.driver import driver
from realrun.cuda.parts import Measured, Say, spread
from realrun.cuda.registration import Registration
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from realrun.waiting import carry_out
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK, SPIN

_N: Final = 200
_N_NODES: Final = 32
_SPIN: Final = (SPIN, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)


def single_calls(say: Say) -> Measured:
    """Time calls on a stream that is idle, or has but short work in it.

    Returns
    -------
    Measured
        Facts: spreads by name. ``graph_replay_ns`` is the call for a graph of 32 short kernels,
        ``graph_end_ns`` from the call to their end; ``write_seen_ns`` is from the call that has a
        stream write a word to the host's sight of it, ``write_failed`` why there is none.
    """
    clock_ns = float(np.median(clock_read_ns(10 * _N)))
    facts: dict[str, object] = {}
    x = torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()
    event = torch.cuda.Event()
    blocking = torch.cuda.Event(blocking=True)
    with torch.cuda.stream(stream):
        event.record()
        blocking.record()
        stream.synchronize()
        say("launches and events")
        calls = {
            "kernel_launch_ns": partial(x.add_, 1),
            "event_record_ns": event.record,
            "event_query_ns": event.query,
            "event_synchronize_ns": event.synchronize,
            "blocking_synchronize_ns": blocking.synchronize,
        }
        for name, call in calls.items():
            facts[name] = spread(time_calls(call, _N, clock_ns))
            stream.synchronize()
        say("graphs")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(_N_NODES):
                x.add_(1)
        replays, ends = [], []
        for _ in range(_N):
            stream.synchronize()
            begun_ns = time.monotonic_ns()
            graph.replay()
            replays.append(time.monotonic_ns() - begun_ns)
            stream.synchronize()
            ends.append(time.monotonic_ns() - begun_ns)
        facts["graph_replay_ns"], facts["graph_end_ns"] = spread(replays), spread(ends)
    say("words")
    try:
        facts["write_call_ns"], facts["write_seen_ns"] = _written_words(stream)
    except RuntimeError as error:
        facts["write_failed"] = str(error)
    return Measured([], facts)


def _written_words(stream: torch.cuda.Stream) -> tuple[dict[str, float], dict[str, float]]:
    """Calls that have a stream write a word, and how long until it is seen."""
    calls, seen = [], []
    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        registration = Registration(driver(), segment.memory)
        if not registration.is_registered:
            raise RuntimeError(registration.reason)
        ring = segment.layout.ends[0]
        pointer = registration.device_pointer(ring.head_at)
        try:
            for value in range(1, _N + 1):
                stream.synchronize()
                begun_ns = time.monotonic_ns()
                driver().write_when_reached(stream.cuda_stream, pointer, value)
                calls.append(time.monotonic_ns() - begun_ns)
                raw = carry_out(segment, ring.reader_words(0), value - 1, _SPIN)
                seen.append(raw.seen_ns - begun_ns)
        finally:
            stream.synchronize()
            registration.close()
    return spread(calls), spread(seen)
