"""The doorbell of realrun/_native.c as generators, and every guard that can be left out of it.

The bell counts rings. A sleeper reads the count, arms and looks once more; the kernel lets it sleep
only if the count is still that. So what it missed after its look has moved the count, and so has
whoever disarmed it. An eventfd or a socket keeps its count itself. Whoever rings disarms first: one
ring an arming.
"""

from typing import Literal, NamedTuple

from tests.protocol.explore import Op

MOVED, STOPPED, WOKEN = "moved", "stopped", "woken"


#: One bell for each sleeper. A "far" socket is one whose pings take any time on their way. A
#: "listening" one is slept on by its descriptor, which tells of a ping only if the sleeper has
#: looked since into an empty queue: what ZMQ_FD does.
PER_SLEEPER = ("eventfd", "socket", "far socket", "listening socket")


class Guards(NamedTuple):
    """The protocol, and what can be left out of it."""

    #: One of those, or "futex", which all sleepers of a ring share; "blind futex": the kernel
    #: compares nothing; "word": the form without a bell, which sleeps on the watched word itself.
    bell: str = "futex"
    reader_fences: bool = True
    rechecks: bool = True
    arms_first: bool = True
    counts: Literal["unarmed", "armed", "rechecked"] = "unarmed"  #: when the sleeper does it
    writer_fences: bool = True
    adds_locked: bool = True
    disarms: Literal["exchange", "store", "never"] = "exchange"  #: how the ringer does it
    #: When the sleeper empties an eventfd or a socket; "once": it takes one ping, when woken.
    drains: Literal["unarmed", "armed", "woken", "once", "never"] = "woken"
    collects: bool = False  #: whether a sleeper that leaves awake waits for a ping on its way
    announces: bool = False  #: whether a writer also rings before it makes a message
    n_pings: int | None = None  #: what the queue of a socket may hold


ALL = Guards()


def bell_of(sleeper: str, how: Guards) -> str:
    """The word that a sleeper sleeps on, on the ring whose head is watched."""
    if how.bell in PER_SLEEPER:
        return f"{sleeper} {how.bell}"
    return "head" if how.bell == "word" else "bell"


def rest(word: str, seen: int, me: str, bell: str, how: Guards = ALL):
    """Look at a word and, if it still is what was seen, sleep once: a round of `sleep_on_bell`."""
    if (yield Op("load", word)) != seen:
        return MOVED
    if how.drains == "unarmed":
        yield from drain(bell, how)
    counts = how.counts if how.bell == "futex" else ""  # nobody compares what other bells count
    count = None
    if counts == "unarmed":
        count = yield Op("load", bell)
    if how.arms_first:
        yield Op("store", f"{me} armed", 1)
    if how.reader_fences:
        yield Op("fence")
    if counts == "armed":
        count = yield Op("load", bell)
    result = WOKEN
    if how.rechecks:
        if (yield Op("load", word)) != seen:
            result = MOVED
        elif (yield Op("load", f"{me} stop")):
            result = STOPPED
    if not how.arms_first:
        yield Op("store", f"{me} armed", 1)
        yield Op("fence")
    if counts == "rechecked":
        count = yield Op("load", bell)
    leaves = result != WOKEN
    if leaves and how.collects:
        leaves = bool((yield Op("exchange", f"{me} armed", 0)))
    if not leaves:
        yield from sleep(word, seen, bell, count, how)
    yield Op("store", f"{me} armed", 0)
    return result


def sleep(word: str, seen: int, bell: str, count: int | None, how: Guards):
    if how.bell == "word":
        yield Op("sleep", word, seen)
    elif how.bell in PER_SLEEPER:
        if how.drains == "armed":
            yield from drain(bell, how)
        yield Op("await", bell)
        if how.drains in ("woken", "once"):
            yield from drain(bell, how)
    else:
        yield Op("sleep", bell, count)


def drain(bell: str, how: Guards):
    """A read empties an eventfd; a socket gives its pings away one by one."""
    if how.bell in ("eventfd", "listening socket"):
        yield Op("exchange", bell, 0)
    if how.bell == "listening socket":
        # 0: it has looked in vain and will be told; otherwise one more than there are pings.
        while (yield Op("take", f"queue of {bell}")) > 1 and how.drains != "once":
            pass
    elif how.bell != "eventfd":
        while (yield Op("take", bell)):
            pass


def ring(sleepers: tuple[str, ...], bell: str, how: Guards = ALL):
    """Wake those of the sleepers who are armed, after a word they watch was stored."""
    if how.writer_fences:
        yield Op("fence")
    taken = []
    for sleeper in sleepers:
        if not (yield Op("load", f"{sleeper} armed")):
            continue
        if how.disarms == "store":
            yield Op("store", f"{sleeper} armed", 0)
        if how.disarms == "exchange" and not (yield Op("exchange", f"{sleeper} armed", 0)):
            continue
        taken.append(sleeper)
    # One system call wakes all who share a bell.
    for bell_to_ring in dict.fromkeys(
        bell_of(sleeper, how) if how.bell in PER_SLEEPER else bell for sleeper in taken
    ):
        yield from bump(bell_to_ring, how)


def bump(bell: str, how: Guards = ALL):
    """Count an event and wake everybody."""
    if how.bell == "listening socket":
        if not (yield Op("push", f"queue of {bell}", 1)):
            yield Op("fetch_add", bell, 1)
        return
    if how.bell in PER_SLEEPER:
        n_pings = yield Op("fetch_add", f"way to {bell}" if how.bell == "far socket" else bell, 1)
        assert how.n_pings is None or n_pings < how.n_pings, "the queue holds too many pings"
        return
    if how.bell != "word":
        if how.adds_locked:
            yield Op("fetch_add", bell, 1)
        else:
            count = yield Op("load", bell)
            yield Op("store", bell, count + 1)
    yield Op("wake", bell)


def stop(sleeper: str, bells: tuple[str, ...], how: Guards = ALL):
    """Ask a sleeper to leave, once, armed or not."""
    yield Op("store", f"{sleeper} stop", 1)
    for bell in bells:
        yield from bump(bell, how)


def network(bell: str):
    """Carries the pings for a far socket, each whenever it likes."""
    yield Op("await", f"way to {bell}")
    yield Op("take", f"way to {bell}")
    yield Op("fetch_add", bell, 1)
    return (network, bell)
