"""What happens next: a binary heap of events in SimPy's order, see `shmsim.sim.clock`.

An event of SimPy that nobody waits for is left out, since it changes nothing. So is one that a
newer one of its kind has made void: the timer of a core, of the quota, or of a sleep is one entry,
which its owner moves, and not one entry for each time it was set.

Where nothing else is due before a process goes on, no event is made at all: the clock moves, and
the process goes on at once (`go_on_after`).
"""

from shmsim.sim.events import words as w
from shmsim.sim.events.compiling import compiled, inlined
from shmsim.sim.events.memory import Words

# An order is one word: urgent first, then work before timers, then by entity, then by number.
_URGENCY_BIT = 62
_KIND_BIT = 61
_ENTITY_BIT = 46
#: Entries that one event may add, and then some.
_SPARE = 256


@compiled
def _put(s: Words, i: int, at_ns: int, order: int, event: int, about: int) -> None:
    e = s[w.HEAP] + w.ENTRY * i
    s[e] = at_ns
    s[e + 1] = order
    s[e + 2] = event
    s[e + 3] = about
    if event >= w.TIMERS:
        s[about] = i + 1


@compiled
def _sift(s: Words, i: int, at_ns: int, order: int, event: int, about: int) -> None:
    """Let an event take its place, from a hole in the heap on."""
    heap, n = s[w.HEAP], s[w.N_HEAP]
    start = i
    while i > 0:
        parent = (i - 1) >> 1
        e = heap + w.ENTRY * parent
        if s[e] < at_ns or (s[e] == at_ns and s[e + 1] < order):
            break
        _put(s, i, s[e], s[e + 1], s[e + 2], s[e + 3])
        i = parent
    if i == start:
        while True:
            child = 2 * i + 1
            if child >= n:
                break
            e = heap + w.ENTRY * child
            if child + 1 < n:
                other = e + w.ENTRY
                if s[other] < s[e] or (s[other] == s[e] and s[other + 1] < s[e + 1]):
                    child += 1
                    e = other
            if at_ns < s[e] or (at_ns == s[e] and order < s[e + 1]):
                break
            _put(s, i, s[e], s[e + 1], s[e + 2], s[e + 3])
            i = child
    _put(s, i, at_ns, order, event, about)


@inlined
def entity(s: Words) -> int:
    """Number of the process that runs now, given when it first schedules something."""
    process = s[w.ACTIVE]
    if process == 0:
        return 0
    number = s[process + w.P_ENTITY]
    if number == 0:
        number = s[w.N_ENTITIES]
        s[w.N_ENTITIES] = number + 1
        s[process + w.P_ENTITY] = number
    return number


@inlined
def _order(s: Words, kind: int, priority: int) -> int:
    number = s[w.NEXT_ID]
    s[w.NEXT_ID] = number + 1
    return (priority << _URGENCY_BIT) | (kind << _KIND_BIT) | (entity(s) << _ENTITY_BIT) | number


@compiled
def _room(s: Words) -> int:
    """Make the heap longer by one entry; returns which."""
    n = s[w.N_HEAP]
    s[w.N_HEAP] = n + 1
    if n + _SPARE > s[w.HEAP_ROOM]:
        s[w.STATUS] = w.REFUSED  # after this event, which may add some more
    return n


@compiled
def _push(s: Words, at_ns: int, order: int, event: int, about: int) -> None:
    n = _room(s)
    _sift(s, n, at_ns, order, event, about)


@compiled
def schedule(s: Words, delay_ns: int, event: int, about: int) -> None:
    """Let something happen after a delay.

    What happens before all else stays out of the heap: every second event is one at once.
    """
    if delay_ns < 0:  # a cost below 0, which SimPy refuses too
        s[w.STATUS] = w.REFUSED
    at_ns = s[w.NOW] + delay_ns
    order = _order(s, w.WORK, w.NORMAL)
    if s[w.HAS_FIRST] != 0:
        if at_ns > s[w.FIRST] or (at_ns == s[w.FIRST] and order > s[w.FIRST + 1]):
            _push(s, at_ns, order, event, about)
            return
        _push(s, s[w.FIRST], s[w.FIRST + 1], s[w.FIRST + 2], s[w.FIRST + 3])
    elif s[w.N_HEAP] != 0:
        top = s[w.HEAP]
        if at_ns > s[top] or (at_ns == s[top] and order > s[top + 1]):
            _push(s, at_ns, order, event, about)
            return
    s[w.HAS_FIRST] = 1
    s[w.FIRST] = at_ns
    s[w.FIRST + 1] = order
    s[w.FIRST + 2] = event
    s[w.FIRST + 3] = about


@compiled
def is_free_until(s: Words, at_ns: int) -> bool:
    """Whether nothing else is due up to an instant, so that the clock may move there at once."""
    return (
        (s[w.HAS_FIRST] == 0 or at_ns < s[w.FIRST])
        and (s[w.N_HEAP] == 0 or at_ns < s[s[w.HEAP]])
        and s[w.STATUS] == w.RUNNING
        and s[w.IS_HELD] == 0
    )


@compiled
def go_on_after(s: Words, process: int, delay_ns: int) -> bool:
    """Let the process that runs now go on after a delay; returns whether it does so at once."""
    at_ns = s[w.NOW] + delay_ns
    if delay_ns >= 0 and is_free_until(s, at_ns):
        entity(s)  # which the event would have given it
        s[w.NOW] = at_ns
        return True
    schedule(s, delay_ns, w.RESUME, process)
    return False


@compiled
def go_on_now(s: Words, process: int) -> int:
    """Let a process go on at this instant; returns it if it is next, 0 if it has to wait."""
    if is_free_until(s, s[w.NOW]):
        return process
    schedule(s, 0, w.RESUME, process)
    return 0


@compiled
def start(s: Words, process: int) -> None:
    """Let a process begin, before anything else of this instant."""
    _push(s, s[w.NOW], _order(s, w.WORK, w.URGENT), w.RESUME, process)


@inlined
def cancel(s: Words, owner: int) -> None:
    """Take a timer back, if it is set."""
    i = s[owner] - 1
    if i < 0:
        return
    s[owner] = 0
    last = s[w.N_HEAP] - 1
    s[w.N_HEAP] = last
    if i < last:
        e = s[w.HEAP] + w.ENTRY * last
        _sift(s, i, s[e], s[e + 1], s[e + 2], s[e + 3])


@compiled
def set_timer(s: Words, owner: int, delay_ns: int, event: int, kind: int) -> None:
    """Set a timer, in place of the one that its owner had set before."""
    if delay_ns < 0:
        s[w.STATUS] = w.REFUSED
    order = _order(s, kind, w.NORMAL)
    i = s[owner] - 1
    if i < 0:
        i = _room(s)
    _sift(s, i, s[w.NOW] + delay_ns, order, event, owner)


@inlined
def take_next(s: Words) -> int:
    """Take the next event out and set the clock; returns where it lies until the next change."""
    heap = s[w.HEAP]
    if s[w.HAS_FIRST] != 0:
        at_ns = s[w.FIRST]
        # A timer may have been set before it meanwhile.
        if (
            s[w.N_HEAP] == 0
            or at_ns < s[heap]
            or (at_ns == s[heap] and s[w.FIRST + 1] < s[heap + 1])
        ):
            s[w.HAS_FIRST] = 0
            s[w.NOW] = at_ns
            return w.FIRST
    last = s[w.N_HEAP] - 1
    s[w.N_HEAP] = last
    taken = heap + w.ENTRY * s[w.HEAP_ROOM]  # one entry beyond the heap
    for k in range(w.ENTRY):
        s[taken + k] = s[heap + k]
    if last > 0:
        e = heap + w.ENTRY * last
        _sift(s, 0, s[e], s[e + 1], s[e + 2], s[e + 3])
    if s[taken + 2] >= w.TIMERS:
        s[s[taken + 3]] = 0
    s[w.NOW] = s[taken]
    return taken
