"""Several traces become one run."""

import json

import pytest

from realrun.vllm.importer import shares, to_records
from realrun.vllm.traces import read_traces
from shmsim.records import RunRecords
from shmsim.timeline import write_timeline
from shmsim.units import MS
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV
from tests.vllm.traces import (
    READ_CPU_NS,
    STEP_NS,
    WAIT_CPU_NS,
    WORK_CPU_NS,
    WRITE_CPU_NS,
    write_engine,
)

N = 20


@pytest.fixture
def folder(tmp_path):
    write_engine(tmp_path / "trace", N)
    return tmp_path / "trace"


def test_steps_and_waits_are_those_of_both_processes(folder):
    records = to_records(read_traces(folder))
    assert [row.process for row in records.processes] == ["scheduler", "worker0"]
    assert [step.step for step in records.steps] == list(range(N))
    assert len([w for w in records.waits if w.site == WORKER_RECV]) == 2 * N
    assert len([w for w in records.waits if w.site == SCHEDULER_RECV]) == N


def test_a_step_happens_in_order(folder):
    for step in to_records(read_traces(folder)).steps:
        assert step.scheduled_ns <= step.published_ns <= step.launched_ns
        assert step.launched_ns <= step.done_ns <= step.replied_ns <= step.seen_ns


def test_records_survive_their_files_and_make_a_timeline(folder, tmp_path):
    records = to_records(read_traces(folder))
    records.write(tmp_path / "run")
    assert RunRecords.read(tmp_path / "run") == records
    assert write_timeline(records, tmp_path / "timeline.json") > 10 * N
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


def test_the_shares_of_a_process_add_up_to_its_cores(folder):
    for share in shares(read_traces(folder)):
        parts = sum(share[3:])
        assert parts == pytest.approx(share.total)
        assert share.total == pytest.approx(N * 3 * MS / (share.seconds * 1e9))


def test_cpu_is_booked_where_it_was_used(folder):
    scheduler, worker = shares(read_traces(folder))
    per_step = N * STEP_NS / (scheduler.seconds * 1e9) / STEP_NS
    assert scheduler.reply_wait == pytest.approx(WAIT_CPU_NS * per_step)
    assert scheduler.write == pytest.approx(2 * WRITE_CPU_NS * per_step)
    assert worker.ring_wait == pytest.approx(2 * WAIT_CPU_NS * per_step)
    assert worker.ring_read == pytest.approx(2 * READ_CPU_NS * per_step)
    # What the thread wrote between two reads is not booked a second time; behind its last it read
    # nothing.
    work_ns = 2 * N * WORK_CPU_NS - (N - 1) * WRITE_CPU_NS
    assert worker.work == pytest.approx(work_ns * per_step / N)
    assert worker.write == pytest.approx(WRITE_CPU_NS * per_step)
    assert scheduler.ring_wait == worker.reply_wait == 0.0


def test_a_write_that_lost_its_core_is_booked_with_no_more_cpu_than_its_thread_used(tmp_path):
    write_engine(tmp_path / "trace", N, write_ns=50 * WORK_CPU_NS)
    scheduler, worker = shares(read_traces(tmp_path / "trace"))
    per_step = N / (scheduler.seconds * 1e9)
    assert scheduler.write == pytest.approx(WORK_CPU_NS * per_step)
    assert scheduler.work == 0.0
    assert worker.ring_wait == pytest.approx(2 * WAIT_CPU_NS * per_step)


def test_two_starts_in_one_folder_are_refused(folder):
    write_engine(folder, N)
    with pytest.raises(ValueError, match="several starts"):
        read_traces(folder)


def test_an_empty_folder_says_what_to_look_for(tmp_path):
    with pytest.raises(ValueError, match="REALRUN_VLLM_TRACE"):
        read_traces(tmp_path)
