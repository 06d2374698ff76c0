"""Runs processes written as generators through every interleaving that an x86 machine allows.

A process is a generator function with its arguments. It yields one `Op` per atomic step and is sent
its result. A store first goes into the store buffer of its process, from where it reaches memory at
any later moment, in order (TSO: what x86 does). Where a processor reorders more than that, the C
code asks for release and acquire.

A state is where every process stands, memory and the buffers; states met before are not explored
again. A process stands where its results since its start have brought it. It ends by returning
None, or goes on as the process that it returns and forgets those results: so a loop returns its own
next round, or there are as many states as histories.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

#: A generator function, then its arguments.
Process = tuple[Any, ...]
Steps = Generator["Op", int, Process | None]


class Op(NamedTuple):
    """One atomic step. Every word is 0 at first.

    ``load`` a word, or ``await``: load it once it differs from the value. ``store``; ``fence``.
    ``fetch_add`` and ``exchange`` answer with what the word was; ``take`` subtracts one unless that
    was 0 already, ``push`` adds one and, if it was 0, the value. Of a futex: ``sleep`` if a word
    still holds the value (None: whatever it holds), ``wake`` whoever sleeps on it.

    An eventfd is a word that is added to, awaited and exchanged for 0; a socket whose messages say
    nothing is a word that is added to and taken from. All but load, await and store wait until the
    own buffer is empty: they lock the bus, or the kernel takes locks.
    """

    name: str
    word: str = ""
    value: int | None = 0


def in_turn(*ops: Op) -> Steps:
    """For ``yield from``, which takes a generator where it is sent answers."""
    for op in ops:  # noqa: UP028
        yield op


@dataclass(frozen=True, eq=False)
class Place:
    """Where a process stands: one object per place, so that comparing is cheap."""

    process: Process | None
    results: tuple[int, ...]
    op: Op | None  #: what it does next; None: it has ended

    def after(self, result: int) -> "Place":
        """Where it stands once its next step has had this result."""
        return place(self.process, (*self.results, result))


@cache
def place(process: Process | None, results: tuple[int, ...] = ()) -> Place:
    """Replay a process up to here."""
    if process is None:
        return Place(None, (), None)
    function, *arguments = process
    steps: Steps = function(*arguments)
    try:
        op = next(steps)
        for result in results:
            op = steps.send(result)
    except StopIteration as end:
        return place(end.value)
    return Place(process, results, op)


class Thread(NamedTuple):
    at: Place
    buffer: tuple[tuple[str, int], ...] = ()
    asleep_on: str = ""

    def settled(self) -> "Thread":
        """After the steps that nobody else can see, help or prevent: one order is enough."""
        at, buffer, asleep_on = self
        while at.op and not asleep_on:
            name, word, value = at.op
            if name == "store":
                buffer = (*buffer, (word, value))
            elif name != "fence" or buffer:
                break
            at = at.after(0)
        return Thread(at, buffer, asleep_on)


class State(NamedTuple):
    threads: tuple[Thread, ...]
    memory: tuple[tuple[str, int], ...] = ()  #: words that are not 0

    def ends_well(self, n_helpers: int) -> bool:
        """Whether all have ended but the helpers, which are last."""
        return all(thread.at.op is None for thread in self.threads[: len(self.threads) - n_helpers])


def stuck_states(*processes: Process, helpers: Iterable[Process] = ()) -> Iterator[State]:
    """Every reachable state in which nothing can happen though somebody has not ended.

    Helpers stand for what serves the processes, such as a network. They need not end.
    """
    helpers = tuple(helpers)
    start = State(tuple(Thread(place(process)).settled() for process in processes + helpers))
    todo, met = [start], {start}
    while todo:
        state = todo.pop()
        following = set(successors(state))
        if not following and not state.ends_well(len(helpers)):
            yield state
        todo += (new := following - met)
        met |= new


def successors(state: State) -> Iterator[State]:
    """For each process: its oldest store reaches memory, or it takes its next step."""
    threads, memory = state
    words = dict(memory)

    def after(i: int, thread: Thread) -> tuple[Thread, ...]:
        return (*threads[:i], thread.settled(), *threads[i + 1 :])

    def holding(word: str, value: int) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(item for item in (words | {word: value}).items() if item[1]))

    for i, (at, buffer, asleep_on) in enumerate(threads):
        if buffer:
            yield State(after(i, Thread(at, buffer[1:], asleep_on)), holding(*buffer[0]))
        if at.op is None or asleep_on:
            continue
        name, word, value = at.op
        was = words.get(word, 0)
        if name in ("load", "await"):
            seen = dict(buffer).get(word, was)
            if name == "load" or seen != value:
                yield State(after(i, Thread(at.after(seen), buffer)), memory)
        elif buffer:
            continue
        elif name == "sleep":
            asleep_on = word if value in (None, was) else ""
            yield State(after(i, Thread(at.after(0), (), asleep_on)), memory)
        elif name == "wake":
            woken = [t._replace(asleep_on="") if t.asleep_on == word else t for t in threads]
            woken[i] = Thread(at.after(0))
            yield State(tuple(thread.settled() for thread in woken), memory)
        elif name != "fence":
            yield State(after(i, Thread(at.after(was))), holding(word, LOCKED[name](was, value)))


#: What a word becomes.
LOCKED: dict[str, Callable[[int, int], int]] = {
    "fetch_add": lambda was, value: was + value,
    "exchange": lambda was, value: value,
    "take": lambda was, value: max(was - 1, 0),
    "push": lambda was, value: was + 1 + (0 if was else value),
}
