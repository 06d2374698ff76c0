"""Ask the caches themselves how long lines survive while this core spins, or sleeps.

A pointer chase over a working set that fits the first-level cache is timed right after a rest. If a
spinner kept its caches, the chase would cost the same after any rest.

Usage: python experiments/01_calibration/cache_probe.py [--json FILE]
"""

import argparse
import json
import os
import time
from pathlib import Path

import numba
import numpy as np

from realrun.host import exact_timers, machine_facts, usable_cores
from shmsim.units import MS, US

LINE_WORDS = 16  # int32 words per cache line of 64 bytes
RESTS_NS = (0, 50 * US, 500 * US, 2 * MS, 10 * MS, 100 * MS)


@numba.njit
def chase(cycle: np.ndarray, n_lines: int) -> int:
    """Follow the cycle once round; each step waits for the line before."""
    at = 0
    for _ in range(n_lines):
        at = cycle[at]
    return at


def random_cycle(n_bytes: int) -> tuple[np.ndarray, int]:
    """One cycle through all lines in random order, so that no prefetcher helps."""
    n_lines = n_bytes // 64
    order = np.random.default_rng(1).permutation(n_lines)
    cycle = np.zeros(n_lines * LINE_WORDS, np.int32)
    cycle[order * LINE_WORDS] = np.roll(order, -1) * LINE_WORDS
    return cycle, n_lines


def ns_per_line(n_bytes: int, rest_ns: int, *, spin: bool, n: int) -> float:
    """Median time per line of the first chase after a rest."""
    cycle, n_lines = random_cycle(n_bytes)
    samples = []
    for _ in range(n):
        for _ in range(3):
            chase(cycle, n_lines)
        end_ns = time.monotonic_ns() + rest_ns
        if spin:
            while time.monotonic_ns() < end_ns:
                pass
        else:
            time.sleep(rest_ns / 1e9)
        started_ns = time.monotonic_ns()
        chase(cycle, n_lines)
        samples.append((time.monotonic_ns() - started_ns) / n_lines)
    return float(np.median(samples))


def main() -> None:
    """Probe three working sets after each rest."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parent / "results/cache_probe.json"
    parser.add_argument("--json", type=Path, default=default, help="where the table is written")
    arguments = parser.parse_args()
    exact_timers()
    os.sched_setaffinity(0, {usable_cores()[-1]})
    table = {}
    for kib in (16, 128, 512):
        for spin in (True, False):
            row = [
                ns_per_line(kib << 10, rest_ns, spin=spin, n=10 if rest_ns > 50 * MS else 40)
                for rest_ns in RESTS_NS
            ]
            name = f"{kib} KiB, {'spinning' if spin else 'sleeping'}"
            table[name] = dict(zip(map(str, RESTS_NS), row, strict=True))
            print(f"{name:20s}", "  ".join(f"{value:6.1f}" for value in row), "ns per line")
    content = {"machine": machine_facts(), "unit": "ns per line", "by_rest_ns": table}
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
