"""CPU time of an engine by process and thread; no engine here."""

import os
import threading
import time
from pathlib import Path

from realrun.vllm.engine import MAIN, Usage, _cpu_time

NAME = "realrun-probe"  # the kernel keeps 15 letters


def test_threads_are_told_apart_by_their_names_and_those_of_one_name_summed():
    used, done = threading.Barrier(3), threading.Event()
    alone_ns = []

    def work():
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        comm.write_text(NAME)
        while time.thread_time_ns() < 20_000_000:
            pass
        alone_ns.append(time.thread_time_ns())
        used.wait(20)
        done.wait(20)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    used.wait(20)
    found = _cpu_time(os.getpid())
    done.set()
    for thread in threads:
        thread.join()
    assert found[NAME] >= sum(alone_ns)
    assert found[MAIN] > 0


def test_what_was_spent_is_that_of_each_thread_and_the_rest_is_of_others():
    before = Usage({"scheduler": {MAIN: 100, "gone": 50}, "worker0": {MAIN: 10}}, 1000, 7)
    after = Usage({"scheduler": {MAIN: 400, "new": 7}, "worker0": {MAIN: 30}}, 2000, 8)
    assert after.spent_ns(before) == {"scheduler": {MAIN: 300, "new": 7}, "worker0": {MAIN: 20}}
    assert after.foreign_ns(before) == 1000 - 327
