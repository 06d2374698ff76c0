"""Waiting for a core is counted of threads that have ended, too."""

import os
import threading
import time
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest

from realrun.run_queue import counted, run_queue_wait_ns
from shmsim.units import MS, S

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not Path("/proc/self/schedstat").exists(), reason="this kernel does not count it"
    ),
]
WORK_NS = 60 * MS
CORE = min(os.sched_getaffinity(0))


def waited_ns():
    """What the kernel says of the thread that asks."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def compete(told=None):
    """Compute on one core, without the interpreter's lock, until this thread has had its share."""
    os.sched_setaffinity(0, {CORE})
    block = bytes(1 << 20)
    while time.thread_time_ns() < WORK_NS:
        crc32(block)
    if told is not None:
        told.append(waited_ns())


def test_what_a_thread_waited_for_counts_when_it_has_ended():
    told = []
    threads = [threading.Thread(target=counted(partial(compete, told))) for _ in range(2)]
    before_ns, mine_ns = run_queue_wait_ns(), waited_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mine_ns = waited_ns() - mine_ns
    # While one computes the other waits; a core that others take makes both wait longer.
    assert run_queue_wait_ns() - before_ns - mine_ns >= sum(told) > WORK_NS // 2


def test_the_sum_never_falls_whoever_ends():
    seen = [run_queue_wait_ns()]
    for _ in range(3):
        threads = [threading.Thread(target=compete) for _ in range(2)]  # which tell nobody
        for thread in threads:
            thread.start()
        time.sleep(WORK_NS / S)
        seen.append(run_queue_wait_ns())  # sees them half-way
        for thread in threads:
            thread.join()
        seen.append(run_queue_wait_ns())
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
