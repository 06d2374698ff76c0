"""Shared memory: reserved as a whole, private, and never left behind."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from realrun.layout import MAGIC_AT, OWNER_PID_AT, SegmentLayout
from realrun.segment import SHM, Segment, Ticket, owner_prefix, reap_abandoned
from tests.real.conftest import left_behind

pytestmark = [pytest.mark.real, pytest.mark.timeout(20)]

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
