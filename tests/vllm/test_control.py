"""The file by which an engine is told how to wait."""

import os

import pytest

from realrun.vllm.control import Control, Counters


def test_a_switch_is_seen_by_whoever_has_the_file_mapped(tmp_path):
    path = tmp_path / "control"
    engine, operator = Control.open(path, 1), Control.open(path, 5)
    assert (engine.arm, operator.arm) == (1, 1)
    operator.arm = 2
    assert engine.arm == 2


def test_opening_it_does_not_keep_others_from_it(tmp_path):
    path = tmp_path / "control"
    first = Control.open(path, 0)
    pid = os.fork()
    if pid == 0:
        Control.open(path, 0).arm = 3
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert first.arm == 3


def test_each_process_has_a_line_and_one_that_is_gone_gives_its_up(tmp_path):
    path = tmp_path / "control"
    control = Control.open(path, 0)
    pid = os.fork()
    if pid == 0:
        line = control.claim(path)
        control.write(line, Counters(os.getpid(), 1, 0, waits=7))
        os._exit(line)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert control.read()[0].waits == 7
    assert control.claim(path) == 0
    control.write(0, Counters(os.getpid(), 0, 0, pinged=3))
    assert control.read() == [Counters(os.getpid(), 0, 0, pinged=3)]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "something"
    path.write_text("something")
    with pytest.raises(ValueError, match="no control file"):
        Control.open(path, 0)
