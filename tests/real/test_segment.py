"""Shared memory: reserved as a whole, private, and never left behind."""

import errno
import fcntl
import itertools
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import realrun.segment as segment_module
from realrun.doorbell import KINDS
from realrun.layout import MAGIC_AT, OWNER_PID_AT, SegmentLayout
from realrun.segment import SHM, Segment, Ticket, owner_prefix, reap_abandoned, start_time
from tests.real.conftest import left_behind
from tests.real.runs import ROOT
from tests.real.scarce import exhaust, let_go, succeeds

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(20),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

LAYOUT = SegmentLayout(2)


def path_of(segment: Segment) -> Path:
    return Path(segment.ticket.path)


def ticket_for(path: Path) -> Ticket:
    return Ticket(str(path), LAYOUT, "futex", (), "")


def test_only_its_user_can_open_a_segment():
    with Segment.create(LAYOUT) as segment:
        assert path_of(segment).stat().st_mode & 0o777 == 0o600


def test_all_of_a_segment_is_reserved_before_anybody_writes():
    with Segment.create(SegmentLayout(1, slot_bytes=1 << 20)) as segment:
        stat = path_of(segment).stat()
        assert stat.st_size == segment.layout.size
        assert stat.st_blocks * 512 >= stat.st_size


def test_nothing_is_left_after_the_block_however_it_ends():
    with Segment.create(LAYOUT) as segment:
        assert left_behind() == {path_of(segment)}
    assert left_behind() == set()
    with suppress(ZeroDivisionError), Segment.create(LAYOUT):
        raise ZeroDivisionError
    assert left_behind() == set()


def test_a_segment_without_a_name_can_still_be_used_and_left():
    with Segment.create(LAYOUT) as segment, Segment.attach(segment.ticket) as other:
        segment.unlink()
        other.store(1024, 7)
        assert segment.load(1024) == 7


def test_whoever_attached_leaves_the_name_to_the_owner():
    with Segment.create(LAYOUT) as segment:
        code = "import sys; from realrun.segment import Segment, Ticket;"
        code += "Segment.attach(Ticket.from_json(sys.argv[1])).__exit__()"
        subprocess.run([sys.executable, "-c", code, segment.ticket.to_json()], check=True)
        assert path_of(segment).exists()


def test_a_file_of_another_size_is_refused_and_both_sizes_are_told():
    with Segment.create(LAYOUT) as segment:
        other = SegmentLayout(3)
        with pytest.raises(ValueError, match=f"{LAYOUT.size:,} bytes, expected {other.size:,}"):
            Segment.attach(replace(segment.ticket, layout=other))


def test_a_file_that_is_no_segment_is_refused(tmp_path):
    path = tmp_path / "zeros"
    path.write_bytes(bytes(LAYOUT.size))
    path.chmod(0o600)
    with pytest.raises(ValueError, match="zeros is not a segment of this version"):
        Segment.attach(ticket_for(path))


def test_a_segment_of_another_version_is_refused():
    with Segment.create(LAYOUT) as segment:
        segment.store(MAGIC_AT, segment.load(MAGIC_AT) + 1)
        with pytest.raises(ValueError, match="not a segment of this version"):
            Segment.attach(segment.ticket)


def abandon(create: str) -> Path:
    """Let a process create something and die; returns what it left."""
    code = "from realrun.layout import SegmentLayout;"
    code += f"import os; from realrun.segment import *; print({create}, flush=True); os._exit(1)"
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return Path(died.stdout.strip())


def test_what_a_killed_owner_left_is_reaped_by_the_next_start():
    left = abandon("Segment.create(SegmentLayout(1)).ticket.path")
    assert left.parent == SHM
    assert left.exists()
    with Segment.create(LAYOUT):
        assert not left.exists()


def test_a_temporary_folder_that_a_killed_owner_left_is_reaped_with_its_content():
    left = abandon("tempfile.mkdtemp(prefix=owner_prefix())")
    (left / "0.log").write_text("bytes")
    reap_abandoned()
    assert not left.exists()


def test_what_a_living_owner_holds_is_not_reaped():
    with (
        Segment.create(LAYOUT) as segment,
        tempfile.TemporaryDirectory(prefix=owner_prefix()) as folder,
    ):
        code = "from realrun.segment import reap_abandoned; reap_abandoned()"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert path_of(segment).exists()
        assert Path(folder).exists()


def test_an_owner_whose_pid_another_process_has_by_now_is_dead():
    pid, start_time = owner_prefix().split("-")[1:3]
    assert int(pid) == os.getpid()
    left = SHM / f"shmsim-{pid}-{int(start_time) - 1}-0"
    left.write_bytes(b"")
    reap_abandoned()
    assert not left.exists()


@pytest.mark.parametrize("name", ["shmsim-notes", "shmsim-1-x-0", "shmsim-a-b-c", "other-1-1-1"])
def test_files_with_another_name_are_left_alone(name):
    path = SHM / name
    path.write_bytes(b"")
    try:
        reap_abandoned()
        assert path.exists()
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("geometry", "name"),
    [((0, 8, 8), "n_workers"), ((1, 1, 8), "n_slots"), ((1, 8, 0), "slot_bytes")],
)
def test_geometry_that_cannot_work_is_refused_by_name(geometry, name):
    with pytest.raises(ValueError, match=f"{name} must be from"):
        SegmentLayout(*geometry)


def test_an_end_ring_has_room_for_what_is_in_flight():
    with pytest.raises(ValueError, match="n_end_slots must be from 2"):
        SegmentLayout(1, n_end_slots=1)
    assert SegmentLayout(2, n_devices=2, n_end_slots=6).ends[1].n_slots == 6


def test_a_segment_says_who_owns_it():
    with Segment.create(LAYOUT) as segment:
        assert segment.load(OWNER_PID_AT) == os.getpid()


def test_a_process_that_did_not_inherit_the_doorbells_is_told_so_when_it_attaches():
    code = "import sys; from realrun.segment import Segment, Ticket;"
    code += "Segment.attach(Ticket.from_json(sys.argv[1]))"
    with Segment.create(LAYOUT, "eventfd") as segment:
        command = [sys.executable, "-c", code, segment.ticket.to_json()]
        heard = subprocess.run(command, pass_fds=segment.ticket.fds, check=False)
        deaf = subprocess.run(command, capture_output=True, text=True, check=False)
    assert heard.returncode == 0
    assert "should be an eventfd, and is not open in this process; start it with" in deaf.stderr


def test_whoever_still_waits_when_the_owner_leaves_is_told_to_stop():
    with Segment.create(LAYOUT) as segment:
        other = Segment.attach(segment.ticket)
    assert other.stopped
    other.close()


@pytest.mark.parametrize("slot_bytes", ["1MiB", 1e6, True])
def test_a_size_that_is_no_whole_number_is_refused(slot_bytes):
    with pytest.raises(TypeError, match="slot_bytes must be a whole number"):
        SegmentLayout(1, slot_bytes=slot_bytes)


def test_a_pipe_that_is_named_like_ours_keeps_nobody_from_starting():
    path = Path(tempfile.gettempdir()) / "shmsim-999999999-1-x"
    os.mkfifo(path)
    try:
        with Segment.create(LAYOUT):
            assert path.exists(), "it is nobody's segment, and not ours to remove"
    finally:
        path.unlink()


# Whoever takes a living owner for dead, as another container that shares the folder may.


def is_whole(segment: Segment) -> bool:
    """Whether it can be attached to by its name, and has its folder."""
    Segment.attach(segment.ticket).close()
    return Path(segment.ticket.folder).is_dir()


def test_reaping_before_any_line_of_the_creation_leaves_a_whole_segment(monkeypatch):
    reaped, left = [], 0
    real, looks_dead = segment_module.start_time, False
    monkeypatch.setattr(segment_module, "start_time", lambda pid: real(pid) + looks_dead)

    def trace(frame, event, _):
        nonlocal left, looks_dead
        if frame.f_code.co_filename != segment_module.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                looks_dead = True
                reaped.extend(reap_abandoned())
                looks_dead = False
        return trace

    for line in itertools.count(1):
        left = line
        sys.settrace(trace)
        try:
            segment = Segment.create(LAYOUT, with_folder=True)
        finally:
            sys.settrace(None)
        with segment:
            assert is_whole(segment), f"reaped {reaped[-1:]} before line {line}"
        if left > 0:
            break
    assert {path.parent for path in reaped} == {SHM, Path(tempfile.gettempdir())}


REAPS = """
import sys
from realrun import segment

owner, shift, real = int(sys.argv[1]), int(sys.argv[2]), segment.start_time
segment.start_time = lambda pid: real(pid) + shift * (pid == owner)
print(segment.start_time(owner), flush=True)
while True:
    segment.reap_abandoned()
"""


@contextmanager
def reaper(*command: str, shift: int = 0):
    """A process that reaps all the time, and takes this one for dead."""
    code = [sys.executable, "-c", REAPS, str(os.getpid()), str(shift)]
    with subprocess.Popen([*command, *code], stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout.readline().split() != [str(start_time(os.getpid())).encode()]
            yield
            assert process.poll() is None, "it has reaped to the end"
        finally:
            process.kill()


def create_and_destroy(n: int) -> None:
    for i in range(n):
        with Segment.create(LAYOUT, with_folder=True) as segment:
            assert is_whole(segment), f"segment {i}"


@pytest.fixture
def _locks_late(monkeypatch):
    """Whoever creates is often descheduled just before it locks, so that it is found there."""
    lock, random = fcntl.flock, Random(1)

    def lock_late(fd: int, operation: int) -> None:
        if random.random() < 0.2:
            time.sleep(1e-4)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)


@pytest.mark.usefixtures("_locks_late")
def test_a_process_that_reaps_all_the_time_removes_nothing_that_lives():
    with reaper(shift=1):
        create_and_destroy(300)


@pytest.mark.usefixtures("_locks_late")
def test_neither_does_a_process_of_another_pid_namespace(monkeypatch, tmp_path):
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["--map-root-user"] * (os.geteuid() != 0)
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no PID namespace here: {getattr(error, 'stderr', None) or error}")
    # To it everybody looks dead, and other folders of this machine have no lock.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with reaper(*command):
        create_and_destroy(300)


def asks_without_descriptors(pid: int) -> None:
    held = exhaust()
    with pytest.raises(OSError, match="Too many open files"):
        start_time(pid)
    let_go(held)
    assert start_time(pid) > 0


def test_whoever_has_no_descriptor_to_look_with_takes_nobody_for_dead():
    succeeds(asks_without_descriptors, os.getpid())


def leaves_without_descriptors(doorbell: str) -> None:
    with Segment.create(LAYOUT, doorbell, with_folder=True):
        held = exhaust()
    let_go(held)
    assert left_behind() == set()


@pytest.mark.parametrize("doorbell", KINDS)
def test_an_owner_without_descriptors_leaves_nothing(doorbell):
    succeeds(leaves_without_descriptors, doorbell)


def makes_with_few_descriptors(doorbell: str) -> None:
    made = []
    for n_left in range(30):
        held = exhaust(n_left)
        try:
            Segment.create(LAYOUT, doorbell, with_folder=True).__exit__()
            made.append(n_left)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        let_go(held)
        assert left_behind() == set(), f"with {n_left} descriptors"
    assert made
    assert made[0] > 0


@pytest.mark.parametrize("doorbell", KINDS)
def test_with_too_few_descriptors_nothing_is_made_and_nothing_left(doorbell):
    succeeds(makes_with_few_descriptors, doorbell)
