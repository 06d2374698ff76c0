"""A payload stays whole in its arena slot until every reader's copy of it is complete.

==============================================  ===================================================
broken                                          found by
==============================================  ===================================================
released before the copy is complete            `test_what_is_broken_shows_as_a_torn_copy`
only one reader asked before claiming           `test_what_is_broken_shows_as_a_torn_copy`
any generation counts as released, not the last `test_what_is_broken_shows_as_a_torn_copy`
message published before its payload            `test_what_is_broken_shows_as_a_torn_copy`
ring slot released before the message is read   `test_what_is_broken_shows_as_a_torn_copy`
arena slot kept by who does not want it         `test_who_does_not_want_a_payload_must_release_...`
==============================================  ===================================================

The copy is asynchronous: an engine reads the payload when the reader has long released the slot of
the ring, which holds one message, and gone on to the next. The waits are single steps.
"""

from typing import Literal, NamedTuple

import pytest

from tests.protocol.explore import Op, in_turn, stuck_states


class Arena(NamedTuple):
    n_readers: int
    n_messages: int
    n_slots: int = 1
    #: What is broken.
    fault: Literal[
        "",
        "early release",
        "one reader asked",
        "any generation",
        "message first",
        "ring released first",
        "unwanted",
    ] = ""

    def place(self, sequence: int) -> tuple[int, int]:
        """The slot of a message, and which generation of the slot it is."""
        generation, slot = divmod(sequence - 1, self.n_slots)
        return slot, generation + 1


def writer(how: Arena, sequence: int = 1):
    """Claim the slot once the generation before is released; write both halves; publish."""
    slot, generation = how.place(sequence)
    if generation > 1:
        before = 0 if how.fault == "any generation" else generation - 2
        for r in range(1 if how.fault == "one reader asked" else how.n_readers):
            yield Op("await", f"released{slot} by {r}", before)
    for r in range(how.n_readers):
        yield Op("await", f"cursor{r}", sequence - 2)
    halves = [Op("store", f"{half}{slot}", generation) for half in ("left", "right")]
    message = [Op("store", "message", sequence), Op("store", "head", sequence)]
    yield from in_turn(
        *((*message, *halves) if how.fault == "message first" else (*halves, *message))
    )
    return (writer, how, sequence + 1) if sequence < how.n_messages else (owner, how)


def owner(how: Arena):
    """Get every slot back."""
    for sequence in range(max(1, how.n_messages - how.n_slots + 1), how.n_messages + 1):
        slot, generation = how.place(sequence)
        for r in range(how.n_readers):
            yield Op("await", f"released{slot} by {r}", generation - 1)


def reader(how: Arena, r: int, seen: int = 0):
    """Read which slot a message names, release the message, start the copy and go on."""
    yield Op("await", "head", seen)
    seen += 1
    release = Op("store", f"cursor{r}", seen)
    if how.fault == "ring released first":
        yield release
    named = yield Op("load", "message")
    yield release
    if how.fault == "early release":
        yield released(how, r, named)
    yield Op("store", f"copy {seen} by {r}", named)
    yield Op("store", f"started by {r}", seen)
    return (reader, how, r, seen) if seen < how.n_messages else None


def engine(how: Arena, r: int, copied: int = 0):
    """Carry out the copies of a reader, in order."""
    yield Op("await", f"started by {r}", copied)
    copied += 1
    slot, _ = how.place((yield Op("load", f"copy {copied} by {r}")))
    _, generation = how.place(copied)
    left = yield Op("load", f"left{slot}")
    right = yield Op("load", f"right{slot}")
    assert left == right == generation, f"generation {generation} copies {left}, {right}"
    yield Op("store", f"copied by {r}", copied)
    return (engine, how, r, copied) if copied < how.n_messages else None


def releaser(how: Arena, r: int, seen: int = 0):
    """The part of a reader that looks after its copies."""
    yield Op("await", f"copied by {r}", seen)
    seen += 1
    if how.fault not in ("early release", "unwanted"):
        yield released(how, r, (yield Op("load", f"copy {seen} by {r}")))
    return (releaser, how, r, seen) if seen < how.n_messages else None


def released(how: Arena, r: int, sequence: int) -> Op:
    slot, generation = how.place(sequence)
    return Op("store", f"released{slot} by {r}", generation)


def stuck(how: Arena):
    parts = [(part, how, r) for r in range(how.n_readers) for part in (reader, engine, releaser)]
    return any(stuck_states((writer, how), *parts))


@pytest.mark.parametrize(
    ("n_readers", "n_messages", "n_slots"), [(1, 4, 1), (1, 5, 2), (2, 3, 1), (2, 4, 2), (3, 2, 1)]
)
def test_no_copy_is_torn_and_every_slot_comes_back(n_readers, n_messages, n_slots):
    assert not stuck(Arena(n_readers, n_messages, n_slots))


@pytest.mark.parametrize(
    ("fault", "n_slots"),
    [
        ("early release", 1),
        ("one reader asked", 1),
        ("any generation", 1),
        ("message first", 1),
        ("ring released first", 2),
    ],
)
def test_what_is_broken_shows_as_a_torn_copy(fault, n_slots):
    with pytest.raises(AssertionError, match="copies"):
        stuck(Arena(2, 3, n_slots, fault))


def test_who_does_not_want_a_payload_must_release_its_slot_all_the_same():
    assert stuck(Arena(1, 2, fault="unwanted"))
