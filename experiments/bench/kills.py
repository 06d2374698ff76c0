"""Kills processes at random moments, to find whoever does not notice and whatever stays behind.

A round is a launcher, which owns the segment, with a writer and one or two readers, in a process
group of its own. All are forked from this process, which has everything imported. One of them, or
the whole group, is killed at a random moment of the first 30 ms: after the launcher was started, or
after everybody was there.
"""

import contextlib
import json
import os
import random
import select
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from realrun.doorbell import KINDS
from realrun.handoff import Receiver, Sender
from realrun.host import prepare_process
from realrun.layout import SegmentLayout
from realrun.peers import PeerDied, Watchdog
from realrun.segment import SHM, Segment, Ticket, reap_abandoned
from realrun.waiting import Stopped
from shmsim.claims import Claim
from shmsim.policies import PRESETS
from shmsim.routing import ROUTE_PRESETS, SOCKET, ArenaPlan, RoutePolicy, SlotClass, SlotFirst
from shmsim.units import MS, S
from shmsim.wait import TYPICAL_COSTS

SEED: Final = 20_260_311
FULL: Final = 1000
QUICK: Final = 30
LIMIT_S: Final = 1.0
_LATEST_S: Final = 0.03
_KIB: Final = 1 << 10
_ARENA: Final = ArenaPlan((SlotClass(256 * _KIB, 2),), 32 * _KIB)
#: Inline, the arena, the socket because it is too large for both, and a mixture by what is free.
_SIZES: Final = (100, 20 * _KIB, 200 * _KIB, 1000 * _KIB)
_ROUTES: Final[dict[str, RoutePolicy]] = {
    "arena from 64 KiB": SlotFirst(SOCKET, 1, 64 * _KIB),
    "all-socket": ROUTE_PRESETS["all-socket"],
}
_POLICIES: Final = ("spin", "park", "forks-2ms", "wake-ahead")
_VICTIMS: Final = {"writer": 3, "reader": 3, "launcher": 2, "group": 2}


class Round(NamedTuple):
    """What one round is like.

    Parameters
    ----------
    doorbell, policy, routes, n_readers
        Of the hand-off.
    replies
        Whether the writer waits for a reply to each message; else it writes until the ring is full.
    victim, process
        Who is killed; which process that is, if it is one of the hand-off.
    at_work, delay_s
        When: so long after everybody was there, or after the launcher was started.
    seed
        Of the sizes.
    """

    doorbell: str
    policy: str
    routes: str
    n_readers: int
    replies: bool
    victim: str
    process: int
    at_work: bool
    delay_s: float
    seed: int


def draw(rng: random.Random) -> Round:
    """Some round."""
    n_readers = rng.choice((1, 2))
    [victim] = rng.choices(list(_VICTIMS), list(_VICTIMS.values()))
    return Round(
        rng.choice(KINDS),
        rng.choice(_POLICIES),
        rng.choice(list(_ROUTES)),
        n_readers,
        rng.random() < 0.7,
        victim,
        {"writer": 0, "reader": 1 + rng.randrange(n_readers)}.get(victim, -1),
        rng.random() < 0.6,
        rng.random() * _LATEST_S,
        rng.randrange(1 << 30),
    )


def _fork(target: Callable[..., None], *args: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        target(*args)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _tell(pipe: int, **said: Any) -> None:
    os.write(pipe, json.dumps({**said, "at_ns": time.monotonic_ns()}).encode() + b"\n")


def _launch(chosen: Round, pipe: int) -> None:
    """Own the segment of a round until everybody has ended."""
    os.setpgid(0, 0)
    prepare_process()
    layout = SegmentLayout(chosen.n_readers, slot_bytes=64 * _KIB, arena=_ARENA)
    with Segment.create(layout, chosen.doorbell, with_folder=True) as segment:
        running = {}
        for process in range(1 + chosen.n_readers):
            pid = _fork(_take_part, chosen, segment.ticket, process, os.getpid(), pipe)
            running[pid] = process
            _tell(pipe, process=process, pid=pid)
        named = True
        while running:
            pid, _ = os.waitpid(-1, os.WNOHANG if named else 0)
            if pid:
                # Nobody can watch who has not attended yet but its parent.
                if not segment.attendance()[running.pop(pid)][0]:
                    segment.stop()
            elif named and all(pid for pid, _ in segment.attendance()):
                segment.unlink()
                named = False
            else:
                time.sleep(0.001)


def _take_part(chosen: Round, ticket: Ticket, process: int, launcher: int, pipe: int) -> None:
    """Be the writer or a reader, until somebody dies."""
    prepare_process()
    if os.getppid() != launcher:
        return
    how, said = "returned", ""
    try:
        with Segment.attach(ticket) as segment:
            segment.attend(process)
            with Watchdog(segment, process) as watchdog:
                watchdog.await_all(10.0)
                _tell(pipe, process=process, ready=True)
                work = _read if process else _write
                work(chosen, segment, process, watchdog)
    except (PeerDied, Stopped) as error:
        how, said = type(error).__name__, str(error)
    except Exception:  # noqa: BLE001 - the round shall be judged by it
        how, said = "error", traceback.format_exc()[-2000:]
    _tell(pipe, process=process, how=how, said=said)


def _write(chosen: Round, segment: Segment, _: int, watchdog: Watchdog) -> None:
    rng = random.Random(chosen.seed)
    layout, policy = segment.layout, PRESETS[chosen.policy]
    payloads = [np.frombuffer(rng.randbytes(size), np.uint8) for size in _SIZES]
    checked = [(payload, crc32(payload)) for payload in payloads]
    sender = Sender(segment, layout.request, policy, TYPICAL_COSTS, _ROUTES[chosen.routes])
    receivers = [Receiver(segment, ring, 0, policy, TYPICAL_COSTS) for ring in layout.replies]
    call_id = 0
    while True:
        call_id += 1
        with watchdog.explains(f"call {call_id}"):
            sender.send(rng.choice(checked), call_id)
            for receiver in receivers if chosen.replies else ():
                received = receiver.receive()
                receiver.learn()
                if received.content != call_id:
                    raise AssertionError(f"reply {received.content} to call {call_id}")


def _read(chosen: Round, segment: Segment, process: int, watchdog: Watchdog) -> None:
    layout, policy, reader = segment.layout, PRESETS[chosen.policy], process - 1
    receiver = Receiver(segment, layout.request, reader, policy, TYPICAL_COSTS)
    sender = Sender(segment, layout.replies[reader], policy, TYPICAL_COSTS, ROUTE_PRESETS["vllm"])
    expected = 0
    while True:
        expected += 1
        with watchdog.explains(f"message {expected}"):
            received = receiver.receive()
            receiver.learn()
            call_id, (payload, checksum) = received.call_id, received.content
            if call_id != expected or crc32(payload) != checksum:
                raise AssertionError(f"call {call_id} for {expected}, or its payload, is garbled")
            del received, payload
            if chosen.replies:
                sender.send(call_id, call_id)


class _Pipe:
    """What the processes of a round say; its end is theirs."""

    def __init__(self, fd: int) -> None:
        self.lines: list[dict[str, Any]] = []
        self.ended = False
        self._fd = fd
        self._rest = b""

    def read(self, until: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Listen until some instant, or enough was said, or everybody has ended."""
        while not self.ended and not enough():
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                return
            said = os.read(self._fd, 1 << 16)
            self.ended = not said
            *lines, self._rest = (self._rest + said).split(b"\n")
            self.lines += map(json.loads, lines)

    def pid_of(self, process: int) -> int:
        """Its process id once it is known, else 0."""
        return next((x["pid"] for x in self.lines if "pid" in x and x["process"] == process), 0)


def left_by(pid: int) -> list[Path]:
    """Segments and folders of a launcher."""
    folders = (SHM, Path(tempfile.gettempdir()))
    return [path for folder in folders for path in folder.glob(f"shmsim-{pid}-*")]


def run_round(chosen: Round) -> dict[str, Any]:
    """Start, kill, judge."""
    here, there = os.pipe()
    started = time.monotonic()
    launcher = _fork(_launch, chosen, there)
    os.close(there)
    with contextlib.suppress(ProcessLookupError):
        os.setpgid(launcher, launcher)
    pipe = _Pipe(here)
    victim, kill = launcher, os.kill
    try:
        if chosen.at_work:
            n = 1 + chosen.n_readers
            pipe.read(started + 10.0, lambda: sum("ready" in line for line in pipe.lines) == n)
        pipe.read((time.monotonic() if chosen.at_work else started) + chosen.delay_s)
        if chosen.victim == "group":
            kill = os.killpg
        elif chosen.process >= 0:
            pipe.read(started + 10.0, lambda: pipe.pid_of(chosen.process) != 0)
            victim = pipe.pid_of(chosen.process)
        early = any("how" in line for line in pipe.lines)  # ended before anybody was killed
        killed_ns = time.monotonic_ns()
        if victim and not pipe.ended:
            kill(victim, signal.SIGKILL)
        pipe.read(killed_ns / S + LIMIT_S)
        hung = not pipe.ended
        took_ns = time.monotonic_ns() - killed_ns
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)
        os.close(here)
    left = left_by(launcher)
    # Who was killed last may hold the lock for another moment.
    deadline = time.monotonic() + LIMIT_S
    while left_by(launcher) and time.monotonic() < deadline:
        reap_abandoned()
    ends = [line for line in pipe.lines if "how" in line]
    return {
        "hung": hung,
        "wrong": [] if hung else _wrong(chosen, victim, ends, early),
        "stopped": sum(line["how"] == "Stopped" for line in ends),
        "left": [path.name for path in left],
        "leftovers": [path.name for path in left_by(launcher)],
        "noticed_ns": max((line["at_ns"] - killed_ns for line in ends), default=0),
        "took_ns": took_ns,
        "at_work": any("flight: call" in x["said"] or "message" in x["said"] for x in ends),
    }


def _wrong(chosen: Round, victim: int, ends: list[dict[str, Any]], early: bool) -> list[str]:
    """What survivors should not have said, and who should have said something."""
    wrong = ["somebody ended before the kill"] if early else []
    if chosen.process < 0:  # those who are killed along may or may not have noticed the others'
        return wrong + [line["said"] for line in ends if line["how"] not in ("PeerDied", "Stopped")]
    survivors = set(range(1 + chosen.n_readers)) - {chosen.process}
    wrong += [f"process {p} said nothing" for p in survivors - {x["process"] for x in ends}]
    for line in ends:
        names_it = line["how"] == "PeerDied" and f"(pid {victim}) ended" in line["said"]
        # Of who was killed before it attended, nobody knows the number.
        if not names_it and line["how"] != "Stopped":
            wrong.append(f"{line['how']}: {line['said']}")
    return wrong


def kills(n_rounds: int) -> tuple[list[Claim], dict[str, Any]]:
    """Run all rounds; returns the claims, and the record to go beside them."""
    rng = random.Random(SEED)
    started = time.monotonic()
    victims: Counter[str] = Counter()
    total: Counter[str] = Counter()
    slowest: dict[str, dict[str, float]] = {}
    failures = []
    for i in range(n_rounds):
        chosen = draw(rng)
        row = run_round(chosen)
        victims[chosen.victim] += 1
        total.update(
            hung=bool(row["hung"] or row["wrong"]),
            leftovers=len(row["leftovers"]),
            # Whose launcher lives on must not need the next start.
            uncleaned=len(row["left"]) if chosen.process >= 0 else 0,
            reaped=len(row["left"]) - len(row["leftovers"]),
            before_attending=row["stopped"] > 0,
            at_work=row["at_work"],
        )
        mine = slowest.setdefault(chosen.victim, {"noticed_ms": 0.0, "all_ended_ms": 0.0})
        mine["noticed_ms"] = max(mine["noticed_ms"], row["noticed_ns"] / MS)
        mine["all_ended_ms"] = max(mine["all_ended_ms"], row["took_ns"] / MS)
        if row["hung"] or row["wrong"] or row["leftovers"]:
            failures.append({"round": i, **chosen._asdict(), **row})
            print(f"  round {i + 1} failed: {failures[-1]}", flush=True)
        if (i + 1) % 50 == 0:
            took_s = time.monotonic() - started
            print(f"  {i + 1} of {n_rounds} kills, {took_s:.0f} s: {dict(total)}", flush=True)
    found = []
    for name, value in {
        "kills_hung": total["hung"],
        "leftovers": total["leftovers"] + total["uncleaned"],
    }.items():
        counted = float(value)
        numbers = counted, counted, counted, "count", 0.0, "<=", n_rounds, SEED
        found.append(Claim(f"handoff/{name}", *numbers))
    return found, {
        "seed": SEED,
        "limit_s": LIMIT_S,
        "seconds": round(time.monotonic() - started, 1),
        "victims": dict(victims),
        "in_all": dict(total),
        "slowest": slowest,
        "failures": failures,
    }
