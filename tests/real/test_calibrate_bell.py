"""What a further reader costs, measured with processes that sleep on a real ring."""

import os
import signal
import time
from pathlib import Path

import pytest

from realrun import calibrate_bell
from realrun.calibrate_bell import FURTHER, further_costs, further_source, reader_cores
from realrun.calibrate_children import children
from realrun.doorbell import KINDS
from realrun.host import usable_cores
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from shmsim.units import US

needs_two_cores = pytest.mark.skipif(
    len(usable_cores()) < 2, reason="whoever rings needs a core beside the readers'"
)


@pytest.fixture
def second_core():
    """This process on its second core, as in a calibration; the cores."""
    affinity, cores = os.sched_getaffinity(0), usable_cores()
    os.sched_setaffinity(0, {cores[1]})
    yield cores
    os.sched_setaffinity(0, affinity)


@needs_two_cores
@pytest.mark.parametrize("doorbell", KINDS)
def test_one_value_comes_for_each_rest(second_core, doorbell, monkeypatch):
    monkeypatch.setattr(calibrate_bell, "_RESTS", ((300 * US, 4), (600 * US, 4)))
    for _ in range(20):  # where others take the core every time a rest has no sample
        found = list(further_costs(doorbell, second_core))
        if len(found) == 2:
            break
    rests = [(name, rest_ns) for name, rest_ns, _ in found]
    wanted = [(FURTHER, 300 * US), (FURTHER, 600 * US)]
    if doorbell == "zmq":  # its own I/O thread takes the core of whoever rings, at any time
        assert set(rests) <= set(wanted)
    else:
        assert rests == wanted
    assert all(value >= 0 for _, _, (value,) in found)


@needs_two_cores
def test_readers_sleep_on_the_bell_as_they_are_told(second_core):
    with (
        Segment.create(SegmentLayout(2, slot_bytes=64)) as segment,
        children(segment, "realrun.calibrate_reader", [["0", "0"], ["1", "0"]]),
    ):
        bell = calibrate_bell._Bell(segment)
        for n_armed in (2, 1, 0, 2):
            bell._publish(n_armed, 20_000 * US)
            bell._answers()
            time.sleep(0.005)
            bell._publish(2, 0)
            assert bell._answers() == [n_armed > 0, n_armed > 1]
            time.sleep(0.002)


def test_each_reader_has_a_core_of_its_own_if_there_are_enough():
    assert reader_cores([4, 5]) == [4, 4]
    assert reader_cores([4, 5, 6, 9]) == [4, 6, 9]
    assert reader_cores(list(range(40))) == [0, *range(2, 9)]


def test_what_was_measured_on_one_core_is_marked_as_assumed():
    assert further_source(2).mark == "assumed"
    assert "two readers on one core" in further_source(2).text
    assert further_source(3).mark == "measured"


# Its processes.


def test_a_child_that_does_not_come_up_is_said():
    with (
        Segment.create(SegmentLayout(1, slot_bytes=64)) as segment,
        pytest.raises(RuntimeError, match=r"did not come up|died"),
        children(segment, "realrun.calibrate_reader", [["0", "1000000"]]),
    ):
        pass


def test_a_child_that_dies_ends_what_waits_for_it():
    before = signal.getsignal(signal.SIGCHLD)

    def outlives_its_child():
        with (
            Segment.create(SegmentLayout(1, slot_bytes=64)) as segment,
            children(segment, "realrun.calibrate_reader", [["0", str(usable_cores()[0])]]),
        ):
            assert not Path(segment.ticket.path).exists()
            os.kill(segment.attendance()[1][0], signal.SIGKILL)
            time.sleep(30)

    with pytest.raises(RuntimeError, match="died"):
        outlives_its_child()
    assert signal.getsignal(signal.SIGCHLD) == before
