"""System calls of a ping-pong between two processes that spin: it should need none.

Usage: python experiments/bench/syscalls.py

Two runs of different length are counted under strace; starting and ending cost both the same, so
what one has more belongs to its messages. A run counts only if no doorbell was rung in it: else
somebody did not spin, because the machine took a core away for longer than a time slice.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from message import CALL, LEAVE, REPLY

from realrun.handoff import Receiver, Sender
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.claims import Claim
from shmsim.policies import PRESETS
from shmsim.routing import ROUTE_PRESETS
from shmsim.wait import TYPICAL_COSTS

FEW: Final = 500
MANY: Final = 2500
_MESSAGES_PER_TRIP: Final = 2
_ATTEMPTS: Final = 6
_LIMIT_S: Final = 40
#: A spinner that lost its core, to strace at the start, waits on the doorbell for 100 ms.
_CALM_S: Final = 0.3
#: strace prints share of the time, seconds, us per call, calls, errors if any, name.
_ROW: Final = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", re.MULTILINE)


class Counted(NamedTuple):
    """How often both processes together made each system call, and who was there."""

    calls: dict[str, int]
    threads: list[str]
    rings: int


class NotCountedError(Exception):
    """System calls cannot be counted here; the message says why."""


def count(n_trips: int) -> Counted:
    """Count the system calls of one run of a ping-pong.

    Raises
    ------
    NotCountedError
        If strace is missing or may not attach.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise NotCountedError("strace is not installed")
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary"
        command = [strace, "-f", "-c", "-o", str(summary), sys.executable, __file__, str(n_trips)]
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "OPENBLAS_NUM_THREADS": "1",  # numpy's pool, which has no part in this
            "PYTHONHASHSEED": "0",  # else some starts map and unmap memory 95 times more
        }
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise NotCountedError(f"{n_trips} round trips took over {_LIMIT_S} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise NotCountedError(f"strace ended with {done.returncode}; it last said: {last}")
        rows = _ROW.findall(summary.read_text())
    calls = {name: int(n) for n, name in rows if name != "total"}
    return Counted(calls, **json.loads(done.stdout))


def difference() -> tuple[dict[str, int], list[str]]:
    """System calls that `MANY` round trips have more than `FEW`, and the threads of both processes.

    Raises
    ------
    NotCountedError
        Also if in all attempts somebody was kept from spinning.
    """
    for _ in range(_ATTEMPTS):
        few, many = count(FEW), count(MANY)
        if few.rings == many.rings == 0:
            names = sorted(few.calls.keys() | many.calls.keys())
            more = {name: many.calls.get(name, 0) - few.calls.get(name, 0) for name in names}
            return {name: n for name, n in more.items() if n}, many.threads
    raise NotCountedError(f"somebody lost a core in each of {_ATTEMPTS} attempts: a busy machine")


def claims() -> list[Claim]:
    """System calls per message, of three differences; nothing, and why, where none was found."""
    try:
        found = [difference()[0] for _ in range(3)]
    except NotCountedError as error:
        print(f"not measured: system calls: {error}")
        return []
    print(f"\nsystem calls that {MANY - FEW} more round trips make: {found}")
    n_messages = _MESSAGES_PER_TRIP * (MANY - FEW)
    low, value, high = sorted(sum(more.values()) / n_messages for more in found)
    name = "handoff/syscalls_per_message"
    return [Claim(name, value, low, high, "calls", 0.05, "<=", n_messages, 0)]


def _ends(segment: Segment, is_writer: bool) -> tuple[Sender, Receiver]:
    layout = segment.layout
    rings = layout.request, layout.replies[0]
    out, back = rings if is_writer else rings[::-1]
    policy = PRESETS["spin"]
    sender = Sender(segment, out, policy, TYPICAL_COSTS, ROUTE_PRESETS["vllm"])
    return sender, Receiver(segment, back, 0, policy, TYPICAL_COSTS)


def _facts(sender: Sender) -> tuple[list[str], int]:
    """Names of the threads of this process, and how often it rang."""
    tasks = Path("/proc/self/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks], sender.writer.n_notified


def _read(segment: Segment) -> None:
    sender, receiver = _ends(segment, is_writer=False)
    while (received := receiver.receive()).content is not LEAVE:
        sender.send(REPLY, received.call_id)
        receiver.learn()
    sender.send(_facts(sender), received.call_id)


def _play(n_trips: int) -> dict[str, Any]:
    """The writer's part; the reader is forked, so that both start with the same imports."""
    cores = sorted(os.sched_getaffinity(0))
    with Segment.create(SegmentLayout(1)) as segment:
        child = os.fork()
        os.sched_setaffinity(0, {cores[0 if child else -1]})
        if not child:
            try:
                with Segment.attach(segment.ticket) as own:
                    _read(own)
            finally:
                os._exit(0)
        sender, receiver = _ends(segment, is_writer=True)
        time.sleep(_CALM_S)
        for content in [*[CALL] * n_trips, LEAVE]:
            sender.send(content, 1)
            reply = receiver.receive().content
            receiver.learn()
        os.waitpid(child, 0)
        (threads, rings), (other_threads, other_rings) = _facts(sender), reply
    return {"threads": [*threads, *other_threads], "rings": rings + other_rings}


if __name__ == "__main__":
    if sys.argv[1:]:
        json.dump(_play(int(sys.argv[1])), sys.stdout)
    else:
        try:
            json.dump(dict(zip(("calls", "threads"), difference(), strict=True)), sys.stdout)
        except NotCountedError as why:
            json.dump({"not_counted": str(why)}, sys.stdout)
