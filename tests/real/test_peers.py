"""Whoever dies at whatever work, all others say who it was, and what they were at."""

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from realrun.doorbell import KINDS
from realrun.handoff import Receiver, Sender
from realrun.layout import LEFT, READY, STARTED, SegmentLayout
from realrun.peers import PeerDied, Watchdog
from realrun.ring import RingFull, RingReader, RingWriter, SlotWatch
from realrun.segment import Segment, start_time
from realrun.sockets import PayloadSender
from realrun.waiting import Stopped
from shmsim.policies import Park
from shmsim.routing import ROUTE_PRESETS
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import DOZE, PARK, POLL, SPIN, WaitCosts
from tests.real.conftest import eventually
from tests.real.runs import ROOT

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(30),
    # Children only use what they open themselves.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

LIMIT_S = 1.0
COSTS = WaitCosts(50 * US, 15 * US, 60 * US, 100 * US, 10.0)
PARK_FOR_EVER = (PARK, FOREVER_NS, 0) * 4
NAMES = ["the scheduler", "worker 0", "worker 1"]


def fork(work, *args) -> int:
    """A child that does this and ends, whatever comes of it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*args)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(1)


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


# The programs that show the same at length.

SHORT = """
import kills, soak
for claims, record in (soak.soak(soak.TINY), kills.kills(12)):
    print(record)
    assert all(claim.holds for claim in claims), claims
"""
BROKEN = """
import kills, soak
from realrun.peers import Watchdog
from realrun.ring import RingWriter

notify = RingWriter.notify

def drop_one(self):
    if self.n_notified == 5:
        self._owed, self.n_notified = 0, 6
    notify(self)

RingWriter.notify = drop_one
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
