"""Which way the parts of a message take, and what the arena for the large ones looks like.

A message is a pickle stream and the buffers that were kept out of it. A policy is asked once per
part and answers with a route; `settle` says what becomes of an answer that cannot be followed. The
model and the machine both use it, and `class_for`, as they stand.

Everything stays within what numba compiles (`shmsim.policies` says what that is).
"""

from typing import Final, NamedTuple, Protocol

MIB: Final = 1 << 20
#: A threshold that no buffer reaches.
NEVER_BYTES: Final = 1 << 62

# Routes. Plain ints, as the kinds of a stage are.
INLINE: Final = 0  #: copied into the slot of the ring
ARENA: Final = 1  #: copied into a slot of the arena, and read there in place
SOCKET: Final = 2  #: sent through a socket, once per reader

ROUTE_NAMES: Final = ("inline", "arena", "socket")


class RouteContext(NamedTuple):
    """What is known when a part of a message is about to be placed.

    The parts are asked for from the largest to the smallest, so that a policy which moves bulk to
    the arena can judge the rest of the message by itself.

    Parameters
    ----------
    n_bytes
        Of this part.
    is_stream
        Whether it is the pickle stream itself rather than a buffer kept out of it.
    message_bytes
        Of all parts of the message together, without those already placed in the arena.
    slot_bytes
        What a slot of the ring can hold.
    arena_free
        Free slots of the arena that this part would fit into.
    """

    n_bytes: int
    is_stream: bool
    message_bytes: int
    slot_bytes: int
    arena_free: int


class RoutePolicy(Protocol):
    """What decides on a route: an immutable value of numbers."""

    def route(self, ctx: RouteContext) -> int:
        """Say which way this part should take: `INLINE`, `ARENA` or `SOCKET`.

        An answer that cannot be followed is not an error, see `settle`.
        """
        ...


def settle(wanted: int, fits_inline: bool, arena_free: int) -> int:
    """Route that a part really takes.

    What does not fit into the slot goes to the arena, what finds no free slot in the arena goes
    into the ring, and the socket takes whatever is left. The writer never waits for the arena. A
    caller that counts fallbacks compares the result with ``wanted``.

    Parameters
    ----------
    wanted
        What the policy answered.
    fits_inline
        Whether this part fits into what is still free of the slot.
    arena_free
        Free slots of the arena that this part would fit into.
    """
    if wanted == SOCKET:
        return SOCKET
    if wanted == ARENA and arena_free > 0:
        return ARENA
    if fits_inline:
        return INLINE
    if arena_free > 0:
        return ARENA
    return SOCKET


class SlotFirst(NamedTuple):
    """Keep the message in the slot if it fits as a whole; very large buffers go to the arena.

    With ``overflow=SOCKET`` this is vLLM 0.33 (``shm_broadcast.py``): a message at least as large
    as a chunk goes through a ZMQ socket as a whole. Its opt-in tensor arena (#51207) first takes
    out the tensors of at least 8 MiB for which a slot is free.

    Parameters
    ----------
    overflow
        Where the parts of a message go that the slot does not hold.
    headroom_bytes
        What of the slot must stay free; vLLM compares with ``<``, which leaves one byte.
    arena_from_bytes
        Size from which a buffer (not the stream) goes to the arena if a slot is free.
    """

    overflow: int
    headroom_bytes: int
    arena_from_bytes: int

    def route(self, ctx: RouteContext) -> int:
        """Try the arena for what is very large, then the slot, then the overflow."""
        if not ctx.is_stream and ctx.n_bytes >= self.arena_from_bytes and ctx.arena_free > 0:
            return ARENA
        if ctx.message_bytes + self.headroom_bytes <= ctx.slot_bytes:
            return INLINE
        return self.overflow


class BySize(NamedTuple):
    """Two routes and a size between them, whatever the rest of the message is.

    With ``small=SOCKET`` and ``large=ARENA`` this is the proposal of the seed discussion, which
    calls the order of vLLM of that day inverted (vLLM #24618: "small items use ZMQ and large
    payloads use SHM"). It names no size; the preset takes 1 MiB, where vLLM starts to keep buffers
    out of the stream.

    Parameters
    ----------
    small, large
        Routes below and from the threshold on.
    from_bytes
        Smallest size that is large.
    """

    small: int
    large: int
    from_bytes: int

    def route(self, ctx: RouteContext) -> int:
        """Compare the part with the threshold."""
        return self.large if ctx.n_bytes >= self.from_bytes else self.small


#: Routings as people ship or propose them, by the name they are known by.
ROUTE_PRESETS: Final[dict[str, RoutePolicy]] = {
    "vllm": SlotFirst(SOCKET, 1, NEVER_BYTES),
    "vllm-arena": SlotFirst(SOCKET, 1, 8 * MIB),
    "flipped": BySize(SOCKET, ARENA, 1 * MIB),
    "all-socket": BySize(SOCKET, SOCKET, 0),
    "all-shm": SlotFirst(ARENA, 0, NEVER_BYTES),
}


# The arena.


class SlotClass(NamedTuple):
    """Slots of one size.

    Parameters
    ----------
    slot_bytes
        What one of them holds.
    n_slots
        How many there are.
    """

    slot_bytes: int
    n_slots: int


class ArenaPlan(NamedTuple):
    """Geometry of an arena; `check_arena` says what is allowed.

    Parameters
    ----------
    classes
        Slot classes from the smallest to the largest slot; empty for no arena.
    divert_bytes
        Size from which a buffer is kept out of the pickle stream and becomes a part of its own.
        Smaller ones stay in the stream and are never offered to the arena.
    """

    classes: tuple[SlotClass, ...]
    divert_bytes: int


#: vLLM without its arena: buffers of at least 1 MiB are parts of their own.
NO_ARENA: Final = ArenaPlan((), 1 * MIB)
#: vLLM's tensor arena (#51207), 2 GiB.
VLLM_ARENA: Final = ArenaPlan((SlotClass(256 * MIB, 8),), 8 * MIB)


def check_arena(plan: ArenaPlan) -> None:
    """Refuse a geometry that cannot be built or whose arena could never be used.

    Raises
    ------
    ValueError
        If a slot holds less than a byte, a class has no slot, the classes do not grow, or the
        smallest buffer that is kept out of the stream fits into no slot.
    """
    if plan.divert_bytes < 1:
        raise ValueError(
            f"ArenaPlan.divert_bytes must be at least 1 byte, got {plan.divert_bytes}; an empty "
            f"buffer needs no slot, and {NO_ARENA.divert_bytes} ({_mib(NO_ARENA.divert_bytes)}) is "
            "what vLLM takes"
        )
    for index, (slot_bytes, n_slots) in enumerate(plan.classes):
        where = f"ArenaPlan.classes[{index}]"
        if slot_bytes < 1:
            raise ValueError(f"{where}.slot_bytes must be at least 1 byte, got {slot_bytes}")
        if n_slots < 1:
            raise ValueError(
                f"{where}.n_slots must be at least 1, got {n_slots}; leave the class out to have "
                f"no slots of {slot_bytes} bytes ({_mib(slot_bytes)})"
            )
    for index, (smaller, larger) in enumerate(zip(plan.classes, plan.classes[1:], strict=False)):
        if smaller.slot_bytes >= larger.slot_bytes:
            raise ValueError(
                f"ArenaPlan.classes must grow, but class {index + 1} has slots of "
                f"{larger.slot_bytes} bytes after slots of {smaller.slot_bytes} bytes; sort the "
                "classes by slot_bytes and join those of one size"
            )
    if plan.classes and plan.divert_bytes > plan.classes[-1].slot_bytes:
        largest_bytes = plan.classes[-1].slot_bytes
        raise ValueError(
            f"no buffer would ever fit: ArenaPlan.divert_bytes is {plan.divert_bytes} bytes "
            f"({_mib(plan.divert_bytes)}), and the largest slot holds {largest_bytes} bytes "
            f"({_mib(largest_bytes)}); lower divert_bytes, or add a class of larger slots"
        )


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:.4g} MiB"


#: Lets `class_for` index its tuples also where they are empty, which numba otherwise refuses.
_END: Final = SlotClass(0, 0)


def class_for(plan: ArenaPlan, n_bytes: int, free: tuple[int, ...]) -> int:
    """Index of the class that a buffer goes to: the smallest that fits and has a free slot.

    A larger class takes what a smaller one has no room for, so a burst of small buffers can fill
    the slots that large ones need; size the classes with the model.

    Parameters
    ----------
    plan
        The geometry.
    n_bytes
        Of the buffer.
    free
        Free slots of each class.

    Returns
    -------
    int
        -1 if no slot is free that would hold the buffer.
    """
    classes = (*plan.classes, _END)
    slots = (*free, 0)
    for index in range(len(plan.classes)):
        if slots[index] > 0 and n_bytes <= classes[index].slot_bytes:
            return index
    return -1
