"""A writer who rings after each message, and a reader who rests until the next one."""

from tests.protocol.bell import MOVED, STOPPED, bell_of, rest, ring
from tests.protocol.explore import Op, in_turn


def writer(how, readers, n_messages, sequence=1, slot_first=True):
    """Publish all messages."""
    if how.announces:
        yield from ring(readers, bell_of("", how), how._replace(writer_fences=False))
    slot, head = Op("store", f"slot{sequence}", 1), Op("store", "head", sequence)
    yield from in_turn(*((slot, head) if slot_first else (head, slot)))
    yield from ring(readers, bell_of("", how), how)
    if sequence < n_messages:
        return (writer, how, readers, n_messages, sequence + 1, slot_first)
    return None


def reader(how, me, n_messages, seen=0, n_naps=None):
    """See all messages, or leave when it is stopped; sleep at most ``n_naps`` times."""
    result = yield from rest("head", seen, me, bell_of(me, how), how)
    if result == MOVED:
        seen += 1
        assert (yield Op("load", f"slot{seen}")), "the head moved before its slot was written"
    elif n_naps is not None:
        assert n_naps, "woke more often than it was rung for"
        n_naps -= 1
    if result == STOPPED or seen == n_messages:
        return None
    return (reader, how, me, n_messages, seen, n_naps)
