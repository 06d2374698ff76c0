"""What is kept of a queue whose waits are vLLM's own; no vLLM here."""

import os
import signal
from types import SimpleNamespace

import pytest

from realrun.vllm.arms import Arm
from realrun.vllm.beside import Beside
from realrun.vllm.calls import EXECUTE
from realrun.vllm.control import Control
from realrun.vllm.process import Process
from realrun.vllm.recording import ReadRecorder, WriteRecorder
from realrun.vllm.trace import INLINE, OUT_OF_BAND, SEND, SOCKET, WAIT, Trace
from realrun.vllm.traces import read_trace
from shmsim.wait import PARK, SCHEDULER_SLOT, TYPICAL_COSTS, WORKER_RECV, YIELD

BATCH = SimpleNamespace(
    total_num_scheduled_tokens=3,
    num_scheduled_tokens={"a": 1, "b": 2},
    scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=[5]),
)
MESSAGE = ("execute_model", (BATCH,), {}, 0)


class Way:
    """A queue from an engine to its worker, without the queue."""

    def __init__(self, folder, window_s=1.0):
        self.trace = Trace(folder / "trace", {"vllm": "", "arms": []}, n_rows=100)
        process = Process((Arm("vllm"),), TYPICAL_COSTS, Control.private(0), None, self.trace)
        self.ring = Beside.open(folder / "ring", 1, 4)
        self.process = process
        self.writer = WriteRecorder(process, self.ring, SCHEDULER_SLOT, 0, [0])
        self.reader = ReadRecorder(process, self.ring, WORKER_RECV, 0, window_s)

    def write(self, slot=b"\0\0\1\0\0\0\5hello"):
        self.writer.begin(MESSAGE)
        self.writer.publish(memoryview(slot))
        self.writer.finish()

    def read(self):
        self.reader.seen()
        self.reader.finish(MESSAGE)

    def rows(self, kind):
        rows = read_trace(self.trace.path).rows
        return rows[rows["kind"] == kind]


def test_a_message_is_kept_by_who_writes_and_by_who_reads_it(tmp_path):
    way = Way(tmp_path)
    way.ring.go()
    for _ in range(7):  # the ring has six slots
        way.reader.begin()
        way.write()
        way.read()
    way.reader.settle()
    sends, waits = way.rows(SEND), way.rows(WAIT)
    assert list(sends["sequence"]) == list(waits["sequence"]) == [1, 2, 3, 4, 5, 6, 7]
    assert list(sends["published_ns"]) == list(waits["published_ns"])
    assert (waits["started_ns"] < waits["published_ns"]).all()
    assert (waits["published_ns"] <= waits["seen_ns"]).all()
    assert (waits["seen_ns"] <= waits["ended_ns"]).all()
    assert set(sends["call"]) == set(waits["call"]) == {EXECUTE}
    assert (sends["n_decode"][0], sends["n_prefill_tokens"][0], sends["n_kv_tokens"][0]) == (
        1,
        2,
        5,
    )
    assert way.process.counters().sent == way.process.counters().vllm_waits == 7


@pytest.mark.parametrize(
    ("slot", "n_bytes", "route"),
    [
        (b"\0\0\1\0\0\0\5hello", 12, INLINE),
        (b"\0\0\2\0\0\0\5hello\0\0\0\3big", 19, OUT_OF_BAND),
        (b"\1\0\2\0\0\0\5hello\0\0\0\3big", 0, SOCKET),
    ],
)
def test_length_and_route_are_read_off_the_slot(slot, n_bytes, route, tmp_path):
    way = Way(tmp_path)
    way.ring.go()
    way.write(slot)
    (row,) = way.rows(SEND)
    assert (row["n_bytes"], row["route"]) == (n_bytes, route)


def test_a_message_from_before_everybody_took_part_is_not_kept(tmp_path):
    way = Way(tmp_path)
    way.reader.begin()
    way.write()
    way.read()
    way.ring.go()
    way.reader.begin()
    way.write()
    way.read()
    way.reader.settle()
    assert list(way.rows(SEND)["sequence"]) == list(way.rows(WAIT)["sequence"]) == [1]


@pytest.mark.parametrize(("window_s", "kind"), [(0.0, PARK), (60.0, YIELD)])
def test_who_waits_for_longer_than_the_window_slept(window_s, kind, tmp_path):
    way = Way(tmp_path, window_s)
    way.ring.go()
    way.reader.begin()
    way.write()
    way.read()
    way.reader.settle()
    assert list(way.rows(WAIT)["stage_kind"]) == [kind]


def test_while_records_pause_nothing_is_kept_and_messages_are_counted_all_the_same(tmp_path):
    way = Way(tmp_path)
    way.ring.go()
    way.process.control.muted = True
    for muted in (True, True, False):
        way.process.control.muted = muted
        way.reader.begin()
        way.write()
        way.read()
    way.reader.settle()
    assert list(way.rows(SEND)["sequence"]) == list(way.rows(WAIT)["sequence"]) == [3]
    assert list(way.rows(WAIT)["between_cpu_ns"]) == [0]  # what came before is nobody's


def test_what_was_written_before_a_kill_is_on_file(tmp_path):
    pid = os.fork()
    if pid == 0:
        way = Way(tmp_path)
        way.ring.go()
        way.write()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (path,) = (tmp_path / "trace").iterdir()
    assert list(read_trace(path).rows["kind"]) == [SEND]
