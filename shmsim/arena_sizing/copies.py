"""How many bytes are copied in memory for a payload, by the way it takes (docs/model.md)."""

from typing import NamedTuple

from shmsim.arena_sizing.replay import Usage


class Copies(NamedTuple):
    """Bytes copied between private and shared memory, or through a socket, of all payloads.

    Copies to a device come on top, the same for every route.

    Parameters
    ----------
    with_arena, without
        With the arena; and if everything took the other route.
    """

    with_arena: int
    without: int


def copies_of(usage: Usage, n_readers: int, *, by_socket: bool) -> Copies:
    """Count what a replay copied.

    Parameters
    ----------
    usage
        Of the replay.
    n_readers
        Who reads each payload.
    by_socket
        Whether what is not in the arena goes through a socket, into the kernel and out again for
        each reader; else in line, in once and out for each reader.
    """
    times = 2 * n_readers if by_socket else 1 + n_readers
    others = usage.fallback_bytes + usage.inline_bytes
    return Copies(usage.arena_bytes + times * others, times * (usage.arena_bytes + others))
