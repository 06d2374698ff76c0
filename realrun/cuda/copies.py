"""What copies to and from a GPU cost, by size and by the memory of the host they begin or end in.

Two figures of each: how long the call lasts, and how long until the bytes are there, on a GPU
that was idle. That a copy is asynchronous is shown behind a kernel that is busy for longer: its
call has returned while the kernel still ran.
"""

import time
from typing import Any, Final

import torch

from realrun.cuda.driver import driver
from realrun.cuda.parts import Measured, Say, spread
from realrun.cuda.registration import Registration
from realrun.cuda.sleep import cycles_per_ns
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.routing import ArenaPlan, SlotClass
from shmsim.units import MS

SIZES: Final = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
_N_WARM_UP: Final = 5
_BUSY_NS: Final = 40 * MS  # longer than any copy of them takes, pageable memory included
_N_BUSY: Final = 3


def _n_of(n_bytes: int) -> int:
    """How often a copy is timed: the quick ones more often, as they spread more."""
    return 100 if n_bytes <= 1 << 20 else 25


def copies(say: Say) -> Measured:
    """Measure copies in both directions.

    Returns
    -------
    Measured
        Costs ``h2d_call_*``, ``h2d_*`` and ``d2h``; facts ``rows`` (memory, bytes, medians of call
        and end), ``busy`` (memory, bytes, longest call behind the busy kernel, in how many of how
        many it returned while that ran) and ``not_registered``, the reason if so.
    """
    plan = ArenaPlan((SlotClass(SIZES[-1], 1),), SIZES[-1])
    with Segment.create(SegmentLayout(1, arena=plan)) as segment:
        registration = Registration(driver(), segment.memory)
        try:
            return _measure(segment, registration, say)
        finally:
            torch.cuda.synchronize()
            registration.close()


def _measure(segment: Segment, registration: Registration, say: Say) -> Measured:
    _, at = segment.layout.arena_layout.slots[0]
    n_most = SIZES[-1]
    memories = {
        "pinned": torch.empty(n_most, dtype=torch.uint8, pin_memory=True),
        "pageable": torch.zeros(n_most, dtype=torch.uint8),
    }
    if registration.is_registered:
        arena = torch.frombuffer(segment.memory, dtype=torch.uint8, count=n_most, offset=at)
        memories = {"registered": arena, **memories}
    device = torch.empty(n_most, dtype=torch.uint8, device="cuda")
    cycles = round(_BUSY_NS * cycles_per_ns())
    samples, rows, busy = [], [], []
    for memory, host in memories.items():
        for n_bytes in SIZES:
            say(f"{n_bytes:,} bytes, {memory} memory")
            calls, ends = _copy_ns(device[:n_bytes], host[:n_bytes], _n_of(n_bytes))
            if memory != "pinned":  # which only realrun has, for what could not be registered
                samples.append((f"h2d_call_{memory}", float(n_bytes), calls))
                samples.append((f"h2d_{memory}", float(n_bytes), ends))
            rows.append((memory, n_bytes, spread(calls)["p50_ns"], spread(ends)["p50_ns"]))
            busy.append((memory, n_bytes, *_behind_busy(device[:n_bytes], host[:n_bytes], cycles)))
    host = next(iter(memories.values()))
    for n_bytes in SIZES:
        say(f"{n_bytes:,} bytes back")
        _, ends = _copy_ns(host[:n_bytes], device[:n_bytes], _n_of(n_bytes))
        samples.append(("d2h", float(n_bytes), ends))
    facts = {"rows": rows, "busy": busy, "not_registered": registration.reason}
    return Measured(samples, facts)


def _copy_ns(target: Any, source: Any, n: int) -> tuple[list[int], list[int]]:
    """Call of a copy to its return, and to its end."""
    calls, ends = [], []
    for i in range(n + _N_WARM_UP):
        torch.cuda.synchronize()
        begun_ns = time.monotonic_ns()
        target.copy_(source, non_blocking=True)
        called_ns = time.monotonic_ns()
        torch.cuda.synchronize()
        ended_ns = time.monotonic_ns()
        if i >= _N_WARM_UP:
            calls.append(called_ns - begun_ns)
            ends.append(ended_ns - begun_ns)
    return calls, ends


def _behind_busy(target: Any, source: Any, cycles: int) -> tuple[int, int, int]:
    """Longest call behind a busy kernel; how many calls of how many returned while that ran."""
    longest_ns, n_returned = 0, 0
    kernel_over = torch.cuda.Event()
    for _ in range(_N_BUSY):
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        kernel_over.record()
        begun_ns = time.monotonic_ns()
        target.copy_(source, non_blocking=True)
        longest_ns = max(longest_ns, time.monotonic_ns() - begun_ns)
        n_returned += not kernel_over.query()
    torch.cuda.synchronize()
    return longest_ns, n_returned, _N_BUSY
