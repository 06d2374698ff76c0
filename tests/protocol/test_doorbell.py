"""The doorbell protocol of realrun/_native.c, over every interleaving of its atomic steps."""

from functools import partial
from typing import Literal, NamedTuple

import pytest

from tests.protocol.explore import Op, stuck_states


class Variant(NamedTuple):
    """The protocol, and what can be left out of it."""

    bell: Literal["futex", "blind futex", "eventfd"] = "futex"
    writer_fences: bool = True
    reader_fences: bool = True
    rechecks: bool = True
    arms_first: bool = True
    slot_first: bool = True


def writer(how: Variant, n_messages: int, n_readers: int):
    """`post`, then `wake`."""
    for sequence in range(1, n_messages + 1):
        if how.slot_first:
            yield Op("store", f"slot{sequence}", 1)
        yield Op("store", "head", sequence)
        if not how.slot_first:
            yield Op("store", f"slot{sequence}", 1)
        if how.writer_fences:
            yield Op("fence")
        armed = []
        for index in range(n_readers):
            if (yield Op("load", f"armed{index}")):
                armed.append(index)  # noqa: PERF401 - a comprehension cannot yield
        if how.bell == "eventfd":
            for index in armed:
                yield Op("ring", f"bell{index}")
        elif armed:
            yield Op("wake")


def reader(how: Variant, n_messages: int, index: int):
    """`sleep_on_bell`, behind the look with which `carry_out` begins a stage."""
    arm = Op("store", f"armed{index}", 1)
    for seen in range(n_messages):
        arrived = (yield Op("load", "head")) != seen
        while not arrived:
            if how.arms_first:
                yield arm
            if how.reader_fences:
                yield Op("fence")
            recheck = how.rechecks and (yield Op("load", "head")) != seen
            if not how.arms_first:
                yield arm
            if recheck:
                pass
            elif how.bell == "eventfd":
                yield Op("hear", f"bell{index}")
            else:
                yield Op("sleep", "head", seen if how.bell == "futex" else None)
            yield Op("store", f"armed{index}", 0)
            arrived = (yield Op("load", "head")) != seen
        assert (yield Op("load", f"slot{seen + 1}")), "the head moved before its slot was written"


def lost_wakeups(how: Variant, n_messages: int = 2, n_readers: int = 1) -> list:
    readers = [partial(reader, how, n_messages, index) for index in range(n_readers)]
    return list(stuck_states(partial(writer, how, n_messages, n_readers), *readers))


@pytest.mark.parametrize(("n_messages", "n_readers"), [(3, 1), (1, 2)])
@pytest.mark.parametrize("bell", ["futex", "eventfd"])
def test_no_interleaving_loses_a_wakeup(bell, n_messages, n_readers):
    assert lost_wakeups(Variant(bell), n_messages, n_readers) == []


@pytest.mark.parametrize("bell", ["futex", "eventfd"])
def test_without_the_fence_of_the_writer_some_interleaving_does(bell):
    assert lost_wakeups(Variant(bell, writer_fences=False))


def test_without_the_comparison_in_the_kernel_some_interleaving_does():
    assert lost_wakeups(Variant("blind futex"))


READER_GUARDS = [{"reader_fences": False}, {"rechecks": False}, {"arms_first": False}]


@pytest.mark.parametrize("left_out", READER_GUARDS)
def test_on_a_bell_that_compares_nothing_every_guard_of_the_reader_is_needed(left_out):
    assert lost_wakeups(Variant("eventfd", **left_out))


@pytest.mark.parametrize("left_out", READER_GUARDS)
def test_on_a_futex_the_comparison_in_the_kernel_stands_in_for_a_guard_of_the_reader(left_out):
    # So no stress test on a futex can show that such a guard is missing. They stay: they save a
    # system call, and the other bell needs them.
    assert lost_wakeups(Variant("futex", **left_out)) == []


def test_whoever_sees_the_head_finds_the_slot_written():
    assert lost_wakeups(Variant(slot_first=True)) == []
    with pytest.raises(AssertionError, match="head moved before its slot"):
        lost_wakeups(Variant(slot_first=False))


def launcher():
    """Asks everybody to leave, once."""
    yield Op("store", "stop", 1)
    yield Op("wake")


def waiter_for_stop():
    """`sleep_on_bell` with no message to come: the kernel compares the head, not the stop word."""
    while not (yield Op("load", "stop")):
        yield Op("sleep", "head", 0)


def test_one_wake_for_the_stop_word_can_be_lost_which_is_why_the_launcher_repeats_it():
    assert list(stuck_states(launcher, waiter_for_stop))
