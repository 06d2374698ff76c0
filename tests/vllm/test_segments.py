"""What an engine leaves in /dev/shm is told by who has it mapped; no engine here."""

import subprocess
import sys
import uuid

import pytest

from realrun.vllm.beside import SHM
from realrun.vllm.segments import left_by

MAP = """
import mmap, sys
for path in sys.argv[1:]:
    with open(path, "xb+") as file:
        file.truncate(4096)
        mapped = mmap.mmap(file.fileno(), 4096)
        globals()[path] = mapped
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sessions():
    """Processes of sessions of their own, each with segments mapped."""
    started = []

    def start(*paths):
        process = subprocess.Popen(
            [sys.executable, "-c", MAP, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append((process, paths))
        assert process.stdout.readline() == b"mapped\n"
        return process

    yield start
    for process, paths in started:
        process.communicate()
        for path in paths:
            path.unlink(missing_ok=True)


def test_only_what_is_called_so_and_mapped_there_is_found(sessions):
    name = f"realrun-test-{uuid.uuid4().hex}"
    mine, yours = (SHM / f"{name}-{i}-tp:0-[0-1]-cpushm_{i}" for i in range(2))
    other = SHM / f"{name}-psm"
    session, foreign = sessions(mine, other), sessions(yours)
    assert left_by(session.pid) == {mine}
    assert left_by(foreign.pid) == {yours}


def test_who_is_no_more_has_nothing_mapped(sessions):
    session = sessions(SHM / f"realrun-test-{uuid.uuid4().hex}-cpushm_0")
    session.communicate()
    assert left_by(session.pid) == set()
