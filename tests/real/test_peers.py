"""Whoever dies at whatever work, all others say who it was, and what they were at."""

import contextlib
import errno
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from realrun.doorbell import KINDS
from realrun.handoff import Receiver, Sender
from realrun.layout import LEFT, READY, STARTED, SegmentLayout
from realrun.peers import PeerDied, Watchdog, _Deaths, _Peer
from realrun.ring import RingFull, RingReader, RingWriter, SlotWatch
from realrun.segment import Segment, start_time
from realrun.sockets import PayloadSender
from realrun.waiting import Stopped, TimedOut
from shmsim.policies import Park
from shmsim.routing import ROUTE_PRESETS
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import DOZE, PARK, POLL, SPIN, WaitCosts
from tests.real.conftest import eventually
from tests.real.runs import ROOT
from tests.real.scarce import LIMIT, exhaust, fork, let_go, n_open, set_limit, succeeds

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(30),
    # Children only use what they open themselves.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

LIMIT_S = 1.0
COSTS = WaitCosts(50 * US, 15 * US, 60 * US, 100 * US, 30 * US, 10.0)
PARK_FOR_EVER = (PARK, FOREVER_NS, 0) * 4
NAMES = ["the scheduler", "worker 0", "worker 1"]


def end(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


# What a process is at when somebody else dies; 0 is the writer.


def waits_by(stage):
    def work(segment: Segment, process: int) -> None:
        ring = segment.layout.request if process else segment.layout.replies[0]
        RingReader(segment, ring, max(process - 1, 0)).wait(stage * 4)

    return work


def waits_for_a_slot(segment: Segment, process: int) -> None:
    layout = segment.layout
    writer = RingWriter(segment, layout.replies[process - 1] if process else layout.request)
    watch = SlotWatch(writer, segment)
    while True:
        try:
            writer.publish(0, 0, [b""])
        except RingFull:
            watch.receive(PARK_FOR_EVER)


def is_owed_a_payload(segment: Segment, process: int) -> None:
    ring = segment.layout.request
    if process:
        Receiver(segment, ring, process - 1, Park(), COSTS).receive()
    else:
        PayloadSender.send = lambda self, pieces: 1
        Sender(segment, ring, Park(), COSTS, ROUTE_PRESETS["all-socket"]).send(b"", 1)
        waits_by((PARK, FOREVER_NS, 0))(segment, 0)


def sends_what_nobody_takes(segment: Segment, process: int) -> None:
    if process:  # and be no reader of the ring that is written to
        RingReader(segment, segment.layout.replies[process - 1], 0).wait(PARK_FOR_EVER)
    else:
        ring, routes = segment.layout.request, ROUTE_PRESETS["all-socket"]
        sender = Sender(segment, ring, Park(), COSTS, routes, copies=False)
        sender.send(np.zeros(1 << 24, np.uint8), 1)


WORK = {
    "spinning": waits_by((SPIN, FOREVER_NS, 0)),
    "parked": waits_by((PARK, FOREVER_NS, 0)),
    "dozing": waits_by((DOZE, FOREVER_NS, 0)),
    "polling": waits_by((POLL, FOREVER_NS, 10 * MS)),
    "waiting for a slot": waits_for_a_slot,
    "owed a payload": is_owed_a_payload,
    "sending a payload": sends_what_nobody_takes,
}


def take_part(segment: Segment, process: int, work, pipe: int) -> None:
    """Attach, work, and tell what ended it."""
    with Segment.attach(segment.ticket) as mine:
        mine.attend(process)
        with Watchdog(mine, process) as watchdog:
            watchdog.await_all(10.0)
            os.write(pipe, json.dumps([process, "is ready"]).encode() + b"\n")
            try:
                with watchdog.explains(f"call {process}"):
                    work(mine, process)
                ended = "ended by itself"
            except (PeerDied, Stopped) as error:
                ended = f"{type(error).__name__}: {error}"
    os.write(pipe, json.dumps([process, ended]).encode() + b"\n")  # in one piece


class Party:
    """Three processes at the same kind of work."""

    def __init__(self, segment: Segment, work) -> None:
        self.pipe, pipe = os.pipe()
        self.pids = [fork(take_part, segment, process, work, pipe) for process in range(3)]
        os.close(pipe)
        self.rest = b""

    def listen(self, until_s: float, whom: set[int]) -> dict[int, str]:
        """What each process says next, once all of these have said something, or time is up."""
        said: dict[int, str] = {}
        while not whom <= said.keys():
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self.pipe], [], [], left_s)[0]:
                return said
            *lines, self.rest = (self.rest + os.read(self.pipe, 1 << 16)).split(b"\n")
            said |= dict(map(json.loads, lines))
        return said

    def close(self) -> None:
        end(*self.pids)
        os.close(self.pipe)


@pytest.mark.parametrize("victims", [[0], [1], [2], [0, 1], [1, 2]], ids=str)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("doorbell", KINDS)
def test_everybody_who_survives_names_the_dead_within_a_second(doorbell, work, victims):
    layout = SegmentLayout(2, n_slots=2, slot_bytes=1024)
    with Segment.create(layout, doorbell, with_folder=True) as segment:
        party = Party(segment, WORK[work])
        try:
            ready = party.listen(time.monotonic() + 10.0, {0, 1, 2})
            assert set(ready.values()) == {"is ready"}
            time.sleep(0.02)  # into the middle of it; the law holds at any moment
            killed_at = time.monotonic()
            for victim in victims:
                os.kill(party.pids[victim], signal.SIGKILL)
            survivors = {0, 1, 2} - set(victims)
            ends = party.listen(killed_at + LIMIT_S, survivors)
        finally:
            party.close()
    dead = [f"{NAMES[victim]} (pid {party.pids[victim]})" for victim in victims]
    assert survivors <= ends.keys()  # the second victim may have heard of the first
    for process in survivors:
        named, _, in_flight = ends[process].partition(" ended; in flight: ")
        kind, _, named = named.partition(": ")
        assert kind == "PeerDied"
        assert set(named.split(" and ")) <= set(dead)
        assert in_flight == f"call {process}"


@pytest.fixture
def segment():
    with Segment.create(SegmentLayout(1)) as segment:
        segment.attend(0)
        yield segment


def attends(segment: Segment) -> None:
    segment.attend(1)
    time.sleep(60)


def await_worker(segment: Segment) -> None:
    eventually(lambda: segment.attendance()[1][0])


def wait_for_ever(segment: Segment) -> None:
    RingReader(segment, segment.layout.replies[0], 0).wait(PARK_FOR_EVER)


@pytest.mark.parametrize("is_reaped", [False, True])
def test_who_died_before_anybody_watched_is_noticed_too(segment, is_reaped):
    pid = fork(attends, segment)
    await_worker(segment)
    os.kill(pid, signal.SIGKILL)
    if is_reaped:
        os.waitpid(pid, 0)
    try:
        with (
            Watchdog(segment, 0) as watchdog,
            pytest.raises(PeerDied) as died,
            watchdog.explains("message 7 (call 3)"),
        ):
            wait_for_ever(segment)
        assert str(died.value) == f"worker 0 (pid {pid}) ended; in flight: message 7 (call 3)"
    finally:
        if not is_reaped:
            os.waitpid(pid, 0)


def test_who_was_stopped_by_anothers_watchdog_knows_the_reason_as_well(segment):
    pid = fork(attends, segment)
    await_worker(segment)
    end(pid)
    watchdog = Watchdog(segment, 0)  # whose thread has seen nothing
    segment.stop()
    with pytest.raises(PeerDied, match="worker 0"), watchdog.explains("nothing"):
        wait_for_ever(segment)


@pytest.fixture
def many_descriptors():
    """How many this process may have meanwhile."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    set_limit(min(hard, 20_000))
    yield min(hard, 20_000)
    set_limit(before)


def test_whom_the_kernel_tells_last_knows_of_a_death_when_the_first_one_does(many_descriptors):
    """It tells one sleeper after the other, and the first may stop the run before the last."""
    for _ in range(5):
        pid = fork(time.sleep, 60)
        peer = _Peer(pid, start_time(pid))
        with contextlib.ExitStack() as stack:

            def watcher(stack=stack):
                return stack.enter_context(contextlib.closing(_Deaths(1)))

            ends = [watcher(), watcher()]
            assert ends[0].among([peer]) == (set(), None)
            between = stack.enter_context(select.epoll())  # takes the kernel a millisecond
            pidfd = os.pidfd_open(pid)
            stack.callback(os.close, pidfd)
            for _ in range(many_descriptors - n_open() - 50):
                sleeper = os.dup(pidfd)
                stack.callback(os.close, sleeper)
                between.register(sleeper, select.EPOLLIN)
            assert ends[1].among([peer]) == (set(), None)
            os.kill(pid, signal.SIGKILL)
            while not any(end._epoll.poll(0) for end in ends):
                pass
            assert [end.among([peer])[0] for end in ends] == [{peer}, {peer}]
        os.waitpid(pid, 0)


def test_a_process_with_the_number_of_a_dead_one_does_not_hide_its_death(segment):
    at = segment.layout.ready_at(1)
    segment.store(at + STARTED, start_time(os.getppid()) - 1)
    segment.store(at + READY, os.getppid())
    with (
        Watchdog(segment, 0) as watchdog,
        pytest.raises(PeerDied, match="worker 0"),
        watchdog.explains("nothing"),
    ):
        wait_for_ever(segment)


def leaves(segment: Segment, error: Exception | None) -> None:
    segment.attend(1)
    with Watchdog(segment, 1):
        if error is not None:
            raise error


def test_who_has_left_may_end(segment):
    pid = fork(leaves, segment, None)
    with Watchdog(segment, 0) as watchdog:
        os.waitpid(pid, 0)
        watchdog.await_all(1.0)
        time.sleep(0.1)
        assert not segment.stopped
        segment.stop()
        with pytest.raises(Stopped), watchdog.explains("nothing"):
            wait_for_ever(segment)


def test_who_ends_by_an_error_has_not_left(segment):
    pid = fork(leaves, segment, LookupError("ours, in the captured output"))
    with (
        Watchdog(segment, 0) as watchdog,
        pytest.raises(PeerDied, match=f"pid {pid}"),
        watchdog.explains("nothing"),
    ):
        wait_for_ever(segment)
    os.waitpid(pid, 0)


def hears_of_a_death(segment: Segment) -> None:
    segment.attend(2)
    with Watchdog(segment, 2) as watchdog, watchdog.explains("nothing, in the captured output"):
        RingReader(segment, segment.layout.request, 1).wait(PARK_FOR_EVER)


def test_who_ends_because_somebody_died_is_not_taken_for_the_dead():
    with Segment.create(SegmentLayout(2)) as segment:
        segment.attend(0)
        late = Watchdog(segment, 0)  # hears of both at once
        first = fork(attends, segment)
        second = fork(hears_of_a_death, segment)
        eventually(lambda: all(pid for pid, _ in segment.attendance()))
        end(first)
        assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 1
        named = rf"^worker 0 \(pid {first}\) ended"
        with pytest.raises(PeerDied, match=named), late.explains("nothing"):
            wait_for_ever(segment)


def test_a_stop_without_a_death_stays_a_stop(segment):
    pid = fork(attends, segment)
    await_worker(segment)
    try:
        with Watchdog(segment, 0) as watchdog:
            segment.stop()
            with pytest.raises(Stopped), watchdog.explains("nothing"):
                wait_for_ever(segment)
            with pytest.raises(Stopped), watchdog.explains("nothing"):
                raise Stopped
    finally:
        end(pid)


def test_a_reader_that_never_attaches_is_named_by_its_rank():
    with Segment.create(SegmentLayout(2)) as segment:
        segment.attend(0)
        segment.attend(1)
        with (
            Watchdog(segment, 0) as watchdog,
            pytest.raises(TimeoutError, match=r"^worker 1 did not attach within 0\.1 s"),
        ):
            watchdog.await_all(0.1)


def test_a_death_or_a_stop_ends_the_wait_for_those_who_are_not_there_yet():
    with Segment.create(SegmentLayout(2)) as segment:
        segment.attend(0)
        pid = fork(attends, segment)
        await_worker(segment)
        with Watchdog(segment, 0) as watchdog:
            end(pid)
            with pytest.raises(PeerDied, match=rf"pid {pid}\) ended; .* the start of worker 1"):
                watchdog.await_all(20.0)
    with Segment.create(SegmentLayout(2)) as segment, Watchdog(segment, 0) as watchdog:
        segment.stop()
        with pytest.raises(Stopped):
            watchdog.await_all(20.0)


def test_a_fork_speaks_for_nobody(segment):
    worker = fork(attends, segment)
    await_worker(segment)
    with Watchdog(segment, 0) as watchdog:
        copy = fork(watchdog.__exit__, None, None, None)
        assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
        assert segment.load(segment.layout.ready_at(0) + LEFT) == 0
        end(worker)
        with pytest.raises(PeerDied), watchdog.explains("nothing"):
            wait_for_ever(segment)


def test_nobody_watches_a_segment_that_is_closed(segment):
    pid = fork(attends, segment)
    await_worker(segment)
    with Watchdog(segment, 0):
        pass
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]
    end(pid)
    assert not segment.stopped


def test_watching_costs_nothing_until_somebody_dies(segment):
    pid = fork(attends, segment)
    await_worker(segment)
    with Watchdog(segment, 0):
        [thread] = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
        status = Path(f"/proc/self/task/{thread.native_id}/status")

        def switches() -> list[str]:
            return [line for line in status.read_text().splitlines() if "switches" in line]

        def is_asleep() -> bool:
            before = switches()
            time.sleep(0.3)
            return switches() == before

        assert eventually(is_asleep)
    end(pid)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_cannot_watch_is_named_at_once(segment, monkeypatch, code):
    def refuse(pid: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(RuntimeError, match=r"pidfd_open failed .* Linux 5\.3"):
        Watchdog(segment, 0)


# Descriptors: each process may have a limited number of them.

NAMES_THE_LIMIT = re.escape("no file descriptor is left to watch processes with: 2 take 5, and")
N_TAKEN = 5


def needs(segment: Segment, n_left: int) -> None:
    before = n_open()
    held = exhaust(n_left)
    if n_left < N_TAKEN:
        says = NAMES_THE_LIMIT + f" this one may have {LIMIT} in all; raise `ulimit -n`"
        with pytest.raises(OSError, match=says), Watchdog(segment, 1):
            pass
        assert not segment.attendance()[1][0], "who cannot watch does not take part"
    else:
        with Watchdog(segment, 1):
            assert segment.attendance()[1][0] == os.getpid()
    let_go(held)
    assert n_open() == before


@pytest.mark.parametrize("n_left", range(N_TAKEN + 2))
def test_watching_begins_or_says_how_many_descriptors_it_takes(segment, n_left):
    succeeds(needs, segment, n_left)


def asks_without(segment: Segment, dead: int) -> None:
    late = Watchdog(segment, 0)
    held = exhaust()
    with pytest.raises(OSError, match=NAMES_THE_LIMIT), late.explains("nothing"):
        raise Stopped
    let_go(held)
    with pytest.raises(PeerDied, match=f"pid {dead}"), late.explains("nothing"):
        raise Stopped


def test_who_has_no_descriptor_to_ask_with_takes_nobody_for_dead(segment):
    pid = fork(attends, segment)
    await_worker(segment)
    end(pid)
    succeeds(asks_without, segment, pid)


def watches_without(segment: Segment, pipe: int, limit: int | None) -> None:
    with Segment.attach(segment.ticket) as mine, Watchdog(mine, 0) as watchdog:
        reader = RingReader(mine, mine.layout.replies[0], 0)
        with contextlib.suppress(TimedOut):
            reader.wait(PARK_FOR_EVER, timeout_ns=1 * MS)  # what it sleeps on is open then
        held = exhaust()
        if limit is not None:  # which poll, but not epoll, applies to what is open already
            set_limit(limit)
        os.write(pipe, b"ready\n")
        try:
            with watchdog.explains("call 3"):
                reader.wait(PARK_FOR_EVER)
        except (PeerDied, OSError) as error:
            let_go(held)
            os.write(pipe, f"{error}\n".encode())


@pytest.mark.parametrize(
    ("doorbell", "limit"),
    # To listen to anything but a futex takes poll, which such a limit forbids; libzmq then aborts.
    [*((kind, None) for kind in KINDS), ("futex", 0)],
)
@pytest.mark.parametrize("attaches", ["before", "after"])
def test_who_watches_notices_deaths_without_any_descriptor_left(doorbell, attaches, limit):
    here, there = os.pipe()
    with Segment.create(SegmentLayout(1), doorbell) as segment, os.fdopen(here) as said:
        worker = fork(attends, segment) if attaches == "before" else 0
        if worker:
            await_worker(segment)
        watcher = fork(watches_without, segment, there, limit)
        os.close(there)
        try:
            assert said.readline() == "ready\n"
            worker = worker or fork(attends, segment)
            await_worker(segment)
            if attaches == "after" and limit == 0:  # what is set aside is of no use either
                assert "take 5, and this one may have 0 in all" in said.readline()
                return
            time.sleep(0.15)  # watched by then, whenever it came
            assert not segment.stopped
            os.kill(worker, signal.SIGKILL)
            killed_s = time.monotonic()
            assert said.readline() == f"worker 0 (pid {worker}) ended; in flight: call 3\n"
            assert time.monotonic() - killed_s < LIMIT_S
        finally:
            end(*filter(None, (worker, watcher)))


def test_who_cannot_be_watched_at_once_is_watched_as_soon_as_there_is_a_descriptor(
    segment, monkeypatch
):
    def refuse(pid: int) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    with Watchdog(segment, 0) as watchdog:
        with monkeypatch.context() as another_was_quicker:
            another_was_quicker.setattr(os, "pidfd_open", refuse)
            pid = fork(attends, segment)
            with pytest.raises(OSError, match=r"the whole machine has none; raise .* fs\.file-max"):
                watchdog.await_all(5.0)
            assert not segment.stopped
        end(pid)
        with pytest.raises(PeerDied, match=f"pid {pid}"), watchdog.explains("nothing"):
            wait_for_ever(segment)


# The programs that show the same at length.

SHORT = """
from collections import Counter
import kills, soak
full = list(soak.cells(soak.FULL))
assert sum(cell.hand_offs for cell in full) == 10_000_000
around = Counter()
for cell in full:
    if cell.awaited == 1.0:
        around[cell.doorbell, cell.window_ns] += cell.hand_offs
assert len(around) == 15 and min(around.values()) >= 100_000, around
for claims, record in (soak.soak(soak.TINY), kills.kills(12)):
    print(record)
    assert all(claim.holds for claim in claims), claims
"""
BROKEN = """
import kills, soak
import realrun.ring
from realrun.layout import BELL
from realrun.native import publish, wake
from realrun.peers import Watchdog

n_rung = 0

def drop_one(memory, ring, bells, *message):
    global n_rung
    published_ns, armed = publish(memory, ring, None, *message)
    if published_ns and armed:
        n_rung += 1
        if n_rung != 5:
            wake(memory, ring[0] + BELL)
    return published_ns, armed

realrun.ring.publish = drop_one
row = soak.run_cell(soak.Cell("futex", 0, 1, 50, (100_000, 200_000), 1, 1.0), 1)
assert (row["lost"], row["finished"]) == (1, True), row

Watchdog._watch = lambda self: None
claims, record = kills.kills(4)
assert record["failures"], record
assert not claims[0].holds
"""


@pytest.mark.parametrize("program", [SHORT, BROKEN], ids=["holds", "a-defect-is-found"])
def test_a_short_soak_and_a_few_kills(program):
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "experiments/bench",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
