"""The garbage collector stays out of the loop, and has nothing to find there."""

import gc

import pytest

from realrun.host import settled_heap
from realrun.partner import LAYOUT
from realrun.rehearsal import Rehearsal
from realrun.segment import Segment
from shmsim.policies import Park, StepAhead, WakeAhead
from shmsim.wait import WaitPolicy

_STEPS = 2000


@pytest.mark.parametrize("policy", [Park(), WakeAhead(), StepAhead(rehearse=True)], ids=repr)
def test_a_step_leaves_no_cycles_behind(policy: WaitPolicy) -> None:
    with Segment.private(LAYOUT) as segment:
        rehearsal = Rehearsal(segment, policy)
        rehearsal.prepare_scheduler_work()
        rehearsal.prepare_worker_work()
        with settled_heap():
            for _ in range(_STEPS):
                rehearsal.rehearse_scheduler(rehearsal.waiter)
            assert gc.collect() == 0


def test_the_collector_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    n_before = gc.get_freeze_count()
    with settled_heap():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > n_before
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_an_error_restores_it_too() -> None:
    with pytest.raises(KeyError), settled_heap():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with settled_heap():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
