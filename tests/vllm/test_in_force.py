"""What is to be in force must show in the counters of every process."""

import pytest

from realrun.vllm.control import Counters
from realrun.vllm.in_force import check_in_force, moved

SCHEDULER, WORKER = Counters(1, 0, 0), Counters(2, 1, 0)
OURS = {"sent": 600, "waits": 590, "at_once": 10, "rung": 80}
THEIRS = {"sent": 600, "vllm_waits": 590, "at_once": 10, "pinged": 600}
#: The second worker of two replies to nothing.
SILENT = {"sent": 0, "pinged": 0}


def went(counted, **of_last):
    return {
        "scheduler": SCHEDULER._replace(**counted),
        "worker0": WORKER._replace(**counted),
        "worker1": WORKER._replace(**{**counted, **SILENT, **of_last}),
    }


def test_it_is_how_far_counters_went_that_counts():
    before = Counters(7, 1, 3, waits=5, sent=9)
    assert moved(before, before._replace(waits=8)) == Counters(7, 1, 3, waits=3)


@pytest.mark.parametrize(("counted", "by_policy"), [(OURS, True), (THEIRS, False)])
def test_what_is_in_force_everywhere_is_fine(counted, by_policy):
    check_in_force("it", went(counted), 2, by_policy=by_policy)
    with pytest.raises(RuntimeError, match="not in force in scheduler"):
        check_in_force("it", went(counted), 2, by_policy=not by_policy)


def test_that_all_was_there_at_once_is_fine_too():
    busy = {"waits": 0, "at_once": 600}
    check_in_force("it", went({**OURS, **busy}), 2, by_policy=True)


@pytest.mark.parametrize(
    ("by_policy", "of_last", "fault"),
    [
        (True, {"waits": 0, "at_once": 0}, "nothing was read that way"),
        (False, {"vllm_waits": 0, "at_once": 0}, "nothing was read that way"),
        (True, {"vllm_waits": 590}, "it waited otherwise"),
        (False, {"waits": 590}, "it waited otherwise"),
        (False, {"slot_waits": 590}, "it waited otherwise"),
        (True, {"sent": 600, "pinged": 600}, "it pinged"),
        (False, {"sent": 600, "pinged": 0}, "it did not ping"),
        (True, {"overtaken": 300}, "not in step"),
    ],
)
def test_one_worker_for_which_it_is_not_in_force_is_named(by_policy, of_last, fault):
    counted = OURS if by_policy else THEIRS
    with pytest.raises(RuntimeError, match=rf"^it was not in force in worker1: .*{fault}"):
        check_in_force("it", went(counted, **of_last), 2, by_policy=by_policy)


def test_a_wait_or_two_from_before_the_switch_are_no_fault():
    check_in_force("it", went(OURS, vllm_waits=2), 2, by_policy=True)


def test_a_worker_that_counts_nothing_at_all_is_missed():
    counted = went(OURS)
    del counted["worker1"]
    with pytest.raises(RuntimeError, match="worker1 counts nothing"):
        check_in_force("it", counted, 2, by_policy=True)


def test_without_a_message_there_is_nothing_to_judge_by():
    counted = {name: went({})[name] for name in ("scheduler", "worker0")}
    with pytest.raises(RuntimeError, match="no message was counted"):
        check_in_force("it", counted, 1, by_policy=True)
