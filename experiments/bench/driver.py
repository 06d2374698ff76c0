"""Run one system in a process of its own and measure it on request.

Usage: python driver.py MODULE CLASS N_READERS OPTIONS PIN

OPTIONS is a JSON object of keyword arguments for the class; PIN is 1 to give writer and reader
a core each, if there is one reader. One JSON command a line comes in on stdin, one JSON answer a
line goes out on stdout:

    {"measure": "back_to_back", "n": 200, "discard": 20, "limit_s": 5, "payload": "call"}
    {"measure": "pickle", "n": 200}
    {"measure": "own", "n": 1}
    {"leave": true}

The clock stands around `System.call`: from the object in the writer's hands until the reply of
every reader is an object there too.
"""

import importlib
import json
import os
import platform
import signal
import sys
import time
from typing import Any, Final, TextIO

from message import payload, pickle_once
from system import System, UnavailableError
from usage import usage

#: Sleep before each call. Whether the readers spin or park in it is a matter of the system.
GAPS_NS: Final = {
    "back_to_back": 0,
    "gap_2ms": 2_000_000,
    "parked": 2_000_000,
    "idle_5s": 0,
    "payload": 0,
}


def measure(system: System, command: dict[str, Any]) -> dict[str, Any]:
    """Round trips of one burst, and what the processes consumed meanwhile."""
    n, gap_ns = command["n"], GAPS_NS[command["measure"]]
    limit_ns = int(command.get("limit_s", 10) * 1e9)
    try:
        message = payload(command.get("payload", "call"))
    except ImportError as error:
        return {"unavailable": str(error)}
    discard = command.get("discard", 0)
    if discard:
        system.time_calls(discard, gap_ns, limit_ns, message)
    counted = system.counts()
    readers = [process.pid or 0 for process in system.readers]
    # The writer last before and first after the burst: reading the others is its work as well.
    readers_before = [usage(pid) for pid in readers]
    writer_before = usage(os.getpid())
    system.wakes_ns.clear()
    start_ns = time.monotonic_ns()
    samples = system.time_calls(n, gap_ns, limit_ns, message)
    wall_ns = time.monotonic_ns() - start_ns
    writer = usage(os.getpid()).since(writer_before)
    spent = [usage(pid).since(b) for pid, b in zip(readers, readers_before, strict=True)]
    return {
        "samples_ns": samples,
        "wakes_ns": list(system.wakes_ns),
        "wall_ns": wall_ns,
        "writer": writer,
        "readers": spent,
        "counts": {name: count - counted[name] for name, count in system.counts().items()},
    }


def measure_pickle(n: int) -> dict[str, Any]:
    """What pickling and unpickling call and reply costs in this process, hot."""
    samples = []
    for _ in range(n):
        before_ns = time.monotonic_ns()
        pickle_once()
        samples.append(time.monotonic_ns() - before_ns)
    return {"samples_ns": samples}


def place(n_readers: int, pin: bool) -> tuple[int | None, str]:
    """Give writer and reader a core each; two readers float, as a serving engine leaves them.

    Returns
    -------
    reader_core
        None where readers float.
    placement
        A sentence for the record.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not pin or n_readers > 1 or len(cores) < 2:
        return None, f"unpinned: {n_readers + 1} processes on {len(cores)} cores"
    os.sched_setaffinity(0, {cores[0]})
    return cores[1], f"writer on core {cores[0]}, reader on core {cores[1]}"


def obey(system: System, answers: TextIO) -> None:
    """Answer commands until told to leave, or until nobody is there to tell."""
    for line in sys.stdin:
        command = json.loads(line)
        if "leave" in command:
            return
        if command["measure"] == "pickle":
            answer = measure_pickle(command["n"])
        elif command["measure"] == "own":
            answer = system.own()
        else:
            answer = measure(system, command)
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Start the system, say so, obey, close."""
    module, name, n_readers, options, pin = sys.argv[1:]
    # The harness alone decides when to end; if it dies, stdin ends, also for a stopped process:
    # the kernel continues it with a SIGHUP.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries log to stdout
    # Before the import: the threads that a library makes there stay on the writer's core.
    reader_core, placement = place(int(n_readers), pin == "1")
    try:
        system: System = getattr(importlib.import_module(module), name)(**json.loads(options))
        system.reader_core = reader_core
        system.start(int(n_readers))
    except (ImportError, UnavailableError) as error:
        print(json.dumps({"unavailable": str(error)}), file=answers, flush=True)
        return
    ready = {
        "placement": placement,
        "python": platform.python_version(),
        "pids": [os.getpid(), *(process.pid for process in system.readers)],
        **system.about(),
    }
    try:
        print(json.dumps({"ready": ready}), file=answers, flush=True)
        obey(system, answers)
    finally:
        system.close()
        system.join()


if __name__ == "__main__":
    main()
