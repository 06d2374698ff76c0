"""A kernel that takes exactly so long, to study waits apart from arithmetic."""

import torch

_TRIAL_CYCLES = 20_000_000  # about 10 ms
_N_TRIALS = 5


def cycles_per_ns() -> float:
    """How many cycles of ``torch.cuda._sleep`` take a nanosecond at the clock it has now.

    The first trials bring the clock up; the fastest tells.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    shortest_ms = float("inf")
    for _ in range(_N_TRIALS):
        begin.record()
        torch.cuda._sleep(_TRIAL_CYCLES)
        end.record()
        end.synchronize()
        shortest_ms = min(shortest_ms, begin.elapsed_time(end))
    return _TRIAL_CYCLES / (shortest_ms * 1e6)
