"""Parts of a calibration run while there is time, and none takes another with it."""

import json

import pytest

from realrun.cuda.parts import Measured, Part, Reports, run_parts, spread


class Clock:
    """A clock that tests turn."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def part(name, clock, takes_s, expected_s=10.0, error=None):
    def measure(say):
        say("something")
        clock.now_s += takes_s
        if error is not None:
            raise error
        return Measured([("d2h", 8.0, [1, 2])], {"name": name})

    return Part(name, expected_s, measure)


def reports_of(parts, limit_s, clock):
    doing = []
    reports = Reports(lambda label, share: doing.append((label, share)))
    run_parts(parts, limit_s, reports.take, clock)
    return reports.reported, doing


def test_what_a_part_found_arrives_as_it_was():
    clock = Clock()
    (found,), doing = reports_of([part("copies", clock, 3.0)], 60.0, clock)
    assert found.name == "copies"
    assert found.seconds == pytest.approx(3.0)
    assert found.measured == Measured([("d2h", 8.0, [1, 2])], {"name": "copies"})
    assert doing == [("copies: begins", 0.0), ("copies: something", 0.0)]


def test_a_part_that_fails_says_why_and_the_others_run():
    clock = Clock()
    parts = [
        part("copies", clock, 1.0, error=RuntimeError("CUDA error: out of memory")),
        part("rests", clock, 1.0, error=BufferError("a view is left")),
        part("steps", clock, 1.0),
    ]
    (copies, rests, steps), _ = reports_of(parts, 60.0, clock)
    assert (copies.measured, copies.reason) == (None, "RuntimeError: CUDA error: out of memory")
    assert rests.reason == "BufferError: a view is left"
    assert steps.measured is not None


def test_a_part_that_there_is_no_time_for_is_left_out_and_a_shorter_one_behind_it_is_not():
    clock = Clock()
    parts = [
        part("copies", clock, 12.0),
        part("rooms", clock, 1.0, expected_s=30.0),
        part("calls", clock, 1.0, expected_s=2.0),
    ]
    (_, rooms, calls), _ = reports_of(parts, 20.0, clock)
    assert rooms.reason == "no time: 8 s were left and it may take 30"
    assert rooms.measured is None
    assert calls.measured is not None


def test_what_a_process_that_died_did_not_report_is_told():
    reports = Reports(lambda *_: None)
    reports.take(json.dumps({"plan": ["facts", "copies"]}))
    reports.take(json.dumps({"part": "facts", "seconds": 1, "samples": [], "facts": {}}))
    reports.give_up("it ended with -9: nothing")
    assert [(each.name, each.reason) for each in reports.reported] == [
        ("facts", ""),
        ("copies", "it ended with -9: nothing"),
    ]


@pytest.mark.parametrize("line", ["", "NCCL INFO hello\n", "[1, 2]", '"text"', '{"other": 1}'])
def test_what_a_library_prints_is_no_report(line):
    reports = Reports(lambda *_: pytest.fail("no progress"))
    reports.take(line)
    assert reports.reported == []


def test_a_spread_is_of_what_there_is():
    assert spread([2, 2, 2]) == {"n": 3, "p50_ns": 2.0, "p99_ns": 2.0, "cv": 0.0}
    found = spread([1.0, 3.0])
    assert (found["p50_ns"], found["cv"]) == (2.0, 0.5)
    assert spread([0, 0])["cv"] == 0.0
    with pytest.raises(ValueError, match="at least one value"):
        spread([])
