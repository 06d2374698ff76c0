"""How much longer a policy thinks right after a rest: its code and state are cold then too.

Usage: python experiments/01_calibration/cold_deciding.py

A profile holds what that takes after a sleep and the work behind it; this probe decides at once,
and after spinning too, which leaves it nearly warm. Stored in results/cold_deciding.json:
microseconds, medians, policies in turns.
"""

import gc
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from cache_probe import spin_for

from realrun.bench import KNOWN, LAYOUT
from realrun.host import exact_timers, machine_facts, usable_cores
from realrun.rehearsal import Rehearsal
from realrun.segment import Segment
from shmsim.policies import PRESETS
from shmsim.units import MS
from shmsim.whole import write_whole

POLICIES: Final = ("spin", "park", "wake-ahead", "quantile-doze", "step-ahead")
RESTS_NS: Final = (0, 2 * MS, 10 * MS)
N: Final = 60
_WARM_UP: Final = 300
_RESULT: Final = Path(__file__).with_name("results") / "cold_deciding.json"


def measure() -> dict[str, dict[str, list[float]]]:
    """Median of plan and after, by kind and length of rest, then by policy."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with ExitStack() as stack:
        loops = {}
        for name in POLICIES:
            loops[name] = loop = Rehearsal(
                stack.enter_context(Segment.private(LAYOUT)), PRESETS[name]
            )
            for _ in range(_WARM_UP):
                _think(loop)
        for _ in range(N):
            for how, rest in (("spinning", spin_for), ("asleep", _sleep)):
                for rest_ns in RESTS_NS:
                    for name, loop in loops.items():
                        for _ in range(3):  # hot, but for the rest that follows
                            _think(loop)
                        rest(rest_ns)
                        plan_ns = _timed(partial(loop.waiter.begin, 0, KNOWN))
                        loop.wait_once()
                        rest(rest_ns)
                        after_ns = _timed(loop.waiter.learn)
                        key = f"{how}, {rest_ns // MS} ms", name
                        found.setdefault(key, []).append((plan_ns, after_ns))
    table: dict[str, dict[str, list[float]]] = {}
    for (rest_name, policy), values in found.items():
        medians = np.median(np.array(values), axis=0) / 1000
        table.setdefault(rest_name, {})[policy] = [round(float(us), 1) for us in medians]
    return table


def _think(loop: Rehearsal) -> None:
    loop.wait_once()
    loop.waiter.learn()


def _timed(work: Callable[[], object]) -> int:
    started_ns = time.monotonic_ns()
    work()
    return time.monotonic_ns() - started_ns


def _sleep(rest_ns: int) -> None:
    if rest_ns:
        time.sleep(rest_ns / 1e9)


if __name__ == "__main__":
    exact_timers()
    os.sched_setaffinity(0, usable_cores()[-1:])
    gc.disable()
    table = measure()
    content = {"machine": machine_facts(), "n": N, "unit": "us, [plan, after]", "by_rest": table}
    write_whole(_RESULT, json.dumps(content, indent=1) + "\n")
    for rest_name, by_policy in table.items():
        print(rest_name, by_policy)
