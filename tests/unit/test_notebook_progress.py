"""Progress below a cell."""

import os

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from shmsim.notebook import Bar, run_apart


@pytest.fixture
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def texts_of(captured):
    return [output.data["text/plain"] for output in captured.outputs]


def test_one_line_is_made_then_rewritten_and_says_in_the_end_how_long_it_took(shell):
    with capture_output() as captured, Bar() as bar:
        bar.show("calibrating", 0.25)
    first, *others = captured.outputs
    assert [output.update for output in others] == [True] * len(others)
    assert {output.transient["display_id"] for output in captured.outputs} == {
        first.transient["display_id"]
    }
    assert texts_of(captured) == ["   0 %", "  25 % calibrating", "took 0 s"]


def test_what_follows_at_once_is_not_drawn(shell):
    with capture_output() as captured, Bar() as bar:
        for share in (0.1, 0.2, 0.3):
            bar.show("running", share)
    assert texts_of(captured) == ["   0 %", "  10 % running", "took 0 s"]


def test_work_runs_in_a_process_of_its_own_and_the_line_says_what_it_is(shell):
    with capture_output() as captured:
        other = run_apart(os.getpid, "looking", 10.0)
    assert other != os.getpid()
    assert texts_of(captured)[1].endswith("% of 10 s: looking")


def test_what_the_work_raises_is_raised_here(shell):
    with capture_output(), pytest.raises(FileNotFoundError):
        run_apart(os.stat, "looking", 1.0, path="/nowhere/at/all")
