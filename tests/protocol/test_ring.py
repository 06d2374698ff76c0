"""A ring hands over every message once, whole and in order, and nobody gets stuck.

==============================================  ===================================================
broken                                          found by
==============================================  ===================================================
cursor released before the copy is done         `test_what_is_broken_shows_as_a_message_...`
only one reader asked before overwriting        `test_what_is_broken_shows_as_a_message_...`
one slot more than there is                     `test_what_is_broken_shows_as_a_message_...`
another slot taken while the next one is held   `test_what_is_broken_shows_as_a_message_...`
head published before the slot is written       `test_what_is_broken_shows_as_a_message_...`
reader releases without looking at the writer   `test_a_reader_that_releases_in_silence_...`
writer stopped on one of its bells only         `test_a_stop_must_ring_every_bell_that_...`
==============================================  ===================================================

Where the waits are not the subject they are single steps: `test_doorbell` is about them.
"""

from typing import Literal, NamedTuple

import pytest

from tests.protocol.bell import MOVED, STOPPED, rest, ring, stop
from tests.protocol.explore import Op, in_turn, stuck_states


class Ring(NamedTuple):
    n_readers: int
    n_messages: int
    n_slots: int = 2
    #: What is broken.
    fault: Literal[
        "", "early release", "one reader asked", "one slot more", "skips", "head first", "silent"
    ] = ""
    sleeps: Literal["nobody", "writer", "everybody"] = "nobody"


def wait(how: Ring, word: str, seen: int, me: str, bell: str):
    """Sleep at most once, or in one step until the word moves."""
    if how.sleeps == "nobody" or (how.sleeps == "writer" and me.startswith("reader")):
        yield Op("await", word, seen)
        return MOVED
    return (yield from rest(word, seen, me, bell))


def writer(how: Ring, sequence: int = 1):
    """Publish once every reader has released the slot."""
    slot = (sequence - 1) % how.n_slots
    full = sequence - 1 - how.n_slots - (how.fault == "one slot more")
    for r in range(1 if how.fault == "one reader asked" else how.n_readers):
        if how.fault == "skips":
            slot = (slot + ((yield Op("load", f"cursor{r}")) == full)) % how.n_slots
            continue
        result = yield from wait(how, f"cursor{r}", full, f"writer for {r}", f"bell of {r}")
        if result != MOVED:
            return None if result == STOPPED else (writer, how, sequence)
    halves = [Op("store", f"{half}{slot}", sequence) for half in ("left", "right")]
    head = Op("store", "head", sequence)
    yield from in_turn(*((head, *halves) if how.fault == "head first" else (*halves, head)))
    if how.sleeps == "everybody":
        yield from ring(tuple(f"reader{r}" for r in range(how.n_readers)), "bell")
    return (writer, how, sequence + 1) if sequence < how.n_messages else None


def reader(how: Ring, r: int, seen: int = 0):
    """Copy the next message, then release its slot."""
    if (yield from wait(how, "head", seen, f"reader{r}", "bell")) != MOVED:
        return (reader, how, r, seen)
    slot, seen = seen % how.n_slots, seen + 1
    release = Op("store", f"cursor{r}", seen)
    if how.fault == "early release":
        yield release
    left = yield Op("load", f"left{slot}")
    right = yield Op("load", f"right{slot}")
    assert left == right == seen, f"message {seen} reads {left}, {right}"
    yield release
    if how.sleeps != "nobody" and how.fault != "silent":
        yield from ring((f"writer for {r}",), f"bell of {r}")
    return (reader, how, r, seen) if seen < how.n_messages else None


def stuck(how: Ring):
    readers = [(reader, how, r) for r in range(how.n_readers)]
    return any(stuck_states((writer, how), *readers))


@pytest.mark.parametrize(("n_readers", "n_messages"), [(1, 6), (2, 4), (3, 4)])
def test_every_reader_gets_every_message_once_whole_and_in_order(n_readers, n_messages):
    assert not stuck(Ring(n_readers, n_messages))


FAULTS = ["early release", "one reader asked", "one slot more", "skips", "head first"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_broken_shows_as_a_message_that_is_torn_or_not_the_next(fault):
    with pytest.raises(AssertionError, match="reads"):
        stuck(Ring(2, 4, fault=fault))


@pytest.mark.parametrize("n_slots", [1, 2])
def test_a_writer_and_a_reader_who_both_sleep_are_never_stuck(n_slots):
    assert not stuck(Ring(1, 4, n_slots, sleeps="everybody"))


def test_a_writer_who_sleeps_for_the_slowest_of_two_readers_is_never_stuck():
    assert not stuck(Ring(2, 3, sleeps="writer"))


def test_a_reader_that_releases_in_silence_leaves_the_writer_asleep():
    assert stuck(Ring(1, 3, fault="silent", sleeps="writer"))


def test_a_stop_must_ring_every_bell_that_the_writer_may_sleep_on():
    # Both readers are dead. Whoever stops the writer cannot know for which of them it waits.
    how = Ring(2, 3, sleeps="everybody")
    bells = ("bell of 0", "bell of 1")
    assert not any(stuck_states((writer, how), (stop_writer, bells)))
    assert any(stuck_states((writer, how), (stop_writer, bells[1:])))


def stop_writer(bells: tuple[str, ...]):
    yield Op("store", "writer for 1 stop", 1)
    yield from stop("writer for 0", bells)
