"""Files that are there whole or not at all."""

import os
import resource
from contextlib import contextmanager

import pytest

from shmsim.claims import Claim, write_claims
from shmsim.inputs.step_table import write_step_table
from shmsim.profile import MachineProfile
from shmsim.steptime import TableStepTime
from shmsim.timeline import write_timeline
from shmsim.whole import whole, write_whole
from tests.report_folders import records_of


def test_what_fails_on_the_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("before")

    def fail():
        with whole(path) as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("content", ["µs", "µs".encode()])
def test_what_is_written_takes_its_place(tmp_path, content, synced):
    path = tmp_path / "result.txt"
    path.write_text("a longer text before")
    write_whole(path, content, synced=synced)
    assert path.read_text(encoding="utf-8") == "µs"
    assert [each.name for each in tmp_path.iterdir()] == ["result.txt"]


def test_a_link_goes_on_leading_to_the_file(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "new"


def test_what_is_no_file_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_whole(tmp_path / "none" / "file", "")
    assert error.value.filename == str(tmp_path / "none" / "file")


CLAIM = Claim("a/b", 1.0, 1.0, 1.0, "ratio", 2.0, "<=", 1, 0)
TABLE = TableStepTime(tuple(range(1, 200)), (0,), (0,), tuple(range(1, 200)))
WRITERS = {
    "profile.json": lambda path: MachineProfile.shipped("vm-2cpu").write(path),
    "claims.json": lambda path: write_claims(path, {}, [CLAIM] * 10),
    "steps.csv": lambda path: write_step_table(TABLE, path),
    "trace.json": lambda path: write_timeline(records_of(), path),
    "trace.json.gz": lambda path: write_timeline(records_of(), path),
    "steps.parquet": lambda path: records_of().write(path.parent),
}


@pytest.fixture
def full_disk():
    """A limit on the size of files stands in for it; Python ignores the signal, so writes fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full


@pytest.mark.parametrize("name", WRITERS)
def test_where_there_is_no_room_nothing_is_left_that_looks_like_a_result(tmp_path, full_disk, name):
    path = tmp_path / "new" / name
    path.parent.mkdir()
    with pytest.raises(OSError, match="too large"), full_disk():
        WRITERS[name](path)
    assert list(path.parent.iterdir()) == []
