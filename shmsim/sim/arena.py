"""The arena of the model: slots in classes, each held until its last reader has let go."""

from shmsim.routing import ArenaPlan, class_for


class Hold:
    """A slot in use.

    Parameters
    ----------
    index
        Its class.
    n_readers
        How many readers have not let go of it.
    """

    __slots__ = ("index", "n_readers")

    def __init__(self, index: int, n_readers: int) -> None:
        """All readers hold it."""
        self.index = index
        self.n_readers = n_readers


class VirtualArena:
    """Which slots are free; a loss system, since nobody waits for one.

    Parameters
    ----------
    plan
        The slots.
    n_readers
        Who reads each payload.

    Attributes
    ----------
    n_slots
        How many slots there are.
    n_held, n_most_held
        How many are in use, and were at most.
    n_released
        How often a slot came back.
    """

    def __init__(self, plan: ArenaPlan, n_readers: int) -> None:
        """All are free."""
        self._plan = plan
        self._n_readers = n_readers
        self._free = [slot_class.n_slots for slot_class in plan.classes]
        self.n_slots = sum(self._free)
        self.n_held = self.n_most_held = self.n_released = 0

    def n_free_for(self, n_bytes: int) -> int:
        """Free slots that a payload fits into."""
        pairs = zip(self._plan.classes, self._free, strict=True)
        return sum(n_free for slot_class, n_free in pairs if n_bytes <= slot_class.slot_bytes)

    def take(self, n_bytes: int) -> Hold:
        """Fill a slot, of the class that `class_for` names; `n_free_for` says if there is one."""
        index = class_for(self._plan, n_bytes, tuple(self._free))
        assert index >= 0, "a route is settled for the arena only where a slot is free"
        self._free[index] -= 1
        self.n_held += 1
        self.n_most_held = max(self.n_most_held, self.n_held)
        return Hold(index, self._n_readers)

    def let_go(self, hold: Hold) -> None:
        """One reader no longer needs what a slot holds; the last one frees it."""
        hold.n_readers -= 1
        assert hold.n_readers >= 0, "each reader lets go once"
        if hold.n_readers == 0:
            self._free[hold.index] += 1
            self.n_held -= 1
            self.n_released += 1
