"""Measures copies to the GPU by size and by what they are copied from: ``python -m`` prints JSON.

A process of its own, so that whoever asks needs no CUDA context. The clock stands between the call
of the copy and its return, and between the call and the end of the stream; warmed up, medians.
"""

import json
import statistics
import sys
import time
from typing import Final

import torch

from realrun.cuda.checks import choose_gpu
from realrun.cuda.driver import driver
from realrun.cuda.registration import Registration
from realrun.cuda.upload import MEMORIES
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.routing import ArenaPlan, SlotClass

SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
_N: Final = 30
_N_WARM_UP: Final = 5


def copies_to_the_gpu() -> dict[str, object]:
    """Time of the registration, and of copies: rows of ``(memory, bytes, call_ns, end_ns)``."""
    torch.cuda.set_device(choose_gpu(0, 1, shares=False))
    torch.zeros(1, device="cuda")
    plan = ArenaPlan((SlotClass(SIZES[-1], 1),), 1 << 16)
    with Segment.create(SegmentLayout(1, arena=plan)) as segment:
        _, at = segment.layout.arena_layout.slots[0]
        arena = torch.frombuffer(segment.memory, dtype=torch.uint8, count=SIZES[-1], offset=at)
        sources = {
            "registered": arena,
            "pinned": torch.empty(SIZES[-1], dtype=torch.uint8, pin_memory=True),
            "pageable": torch.empty(SIZES[-1], dtype=torch.uint8),
        }
        begun_ns = time.monotonic_ns()
        registration = Registration(driver(), segment.memory)
        registered_ns = time.monotonic_ns() - begun_ns
        target = torch.empty(SIZES[-1], dtype=torch.uint8, device="cuda")
        rows = [
            (memory, n_bytes, *_copy_ns(target[:n_bytes], sources[memory][:n_bytes]))
            for memory in MEMORIES
            for n_bytes in SIZES
        ]
        torch.cuda.synchronize()
        registration.close()
        del arena, sources
    return {
        "registration_ns": registered_ns,
        "registered_bytes": segment.layout.size,
        "not_registered": registration.reason,
        "copies": rows,
    }


def _copy_ns(target: torch.Tensor, source: torch.Tensor) -> tuple[float, float]:
    calls, ends = [], []
    for n in range(_N + _N_WARM_UP):
        torch.cuda.synchronize()
        begun_ns = time.monotonic_ns()
        target.copy_(source, non_blocking=True)
        called_ns = time.monotonic_ns()
        torch.cuda.synchronize()
        if n >= _N_WARM_UP:
            calls.append(called_ns - begun_ns)
            ends.append(time.monotonic_ns() - begun_ns)
    return statistics.median(calls), statistics.median(ends)


if __name__ == "__main__":
    json.dump(copies_to_the_gpu(), sys.stdout)
