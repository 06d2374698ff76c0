"""What a process of an engine leaves, whatever becomes of it."""

import os
import signal

import pytest

from realrun.vllm.trace import HEADER_BYTES, ROW, SAMPLE, WAIT, Row, Trace
from realrun.vllm.traces import read_trace

ABOUT = {"vllm": "vllm 0", "arms": ["vllm"]}


def test_rows_come_back_as_they_were_written_in_the_order_of_time(tmp_path):
    trace = Trace(tmp_path, ABOUT, n_rows=8)
    rows = [Row(*range(n, n + len(Row._fields) - 1), kind=WAIT) for n in (1, 2, 3)]
    for row in reversed(rows):
        trace.write(row)
    back = read_trace(trace.path)
    assert [tuple(int(x) for x in row) for row in back.rows] == rows
    assert back.about["vllm"] == "vllm 0"


def test_the_file_is_bounded_and_keeps_the_newest_rows(tmp_path):
    trace = Trace(tmp_path, ABOUT, n_rows=4)
    for n in range(11):
        trace.write(Row(started_ns=n + 1, kind=SAMPLE))
    assert list(read_trace(trace.path).rows["started_ns"]) == [8, 9, 10, 11]
    assert trace.path.stat().st_size == HEADER_BYTES + 4 * ROW.size


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_every_row_it_wrote(tmp_path, signum):
    pid = os.fork()
    if pid == 0:
        trace = Trace(tmp_path, ABOUT, n_rows=100)
        for n in range(50):
            trace.write(Row(started_ns=n + 1, kind=WAIT))
        os.kill(os.getpid(), signum)
        signal.pause()
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signum
    (path,) = tmp_path.iterdir()
    assert list(read_trace(path).rows["started_ns"]) == list(range(1, 51))


def test_a_row_that_was_torn_does_not_count(tmp_path):
    trace = Trace(tmp_path, ABOUT, n_rows=4)
    trace.write(Row(started_ns=1, kind=WAIT))
    trace.write(Row(started_ns=2, kind=0))  # killed before its last field
    assert list(read_trace(trace.path).rows["started_ns"]) == [1]


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    trace = Trace(tmp_path, ABOUT, n_rows=4)
    for n in range(4):
        trace.write(Row(started_ns=n + 1, kind=WAIT))
    os.truncate(trace.path, HEADER_BYTES + 2 * ROW.size + 7)
    assert list(read_trace(trace.path).rows["started_ns"]) == [1, 2]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "x.trace"
    path.write_bytes(b"\x80\x04nonsense")
    with pytest.raises(ValueError, match="no trace"):
        read_trace(path)
