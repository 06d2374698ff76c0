"""Runs processes written as generators through every interleaving that an x86 machine allows.

A process yields one `Op` per atomic step and is sent its result. A store first goes into the store
buffer of its process, from where it reaches memory at any later moment, in order (TSO: what x86
does). Where a processor reorders more than that, the C code asks for release and acquire.

A state is what every process has seen so far, memory and the buffers; a generator is brought to it
by sending it what it saw. States met before are not explored again.
"""

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple


class Op(NamedTuple):
    """One atomic step.

    ``load`` a word; ``store`` a value; ``fence``. Of a futex: ``sleep`` if a word still holds the
    value (None: whatever it holds), ``wake`` whoever sleeps. Of an eventfd: ``ring`` it, ``hear``
    it, which waits until it was rung. All but the first two wait until the own buffer is empty: a
    system call takes locks.
    """

    name: str
    word: str = ""
    value: int | None = 0


Process = Callable[[], Generator[Op, int, None]]


class State(NamedTuple):
    seen: tuple[tuple[int, ...], ...]
    memory: tuple[tuple[str, int], ...]
    buffers: tuple[tuple[tuple[str, int], ...], ...]


def stuck_states(*processes: Process) -> Iterator[State]:
    """Every reachable state in which nothing can happen though somebody has not finished."""
    start = State(((),) * len(processes), (), ((),) * len(processes))
    todo, met = [start], {start}
    while todo:
        state = todo.pop()
        ops = [next_op(p, seen) for p, seen in zip(processes, state.seen, strict=True)]
        following = [new for i, op in enumerate(ops) for new in successors(state, i, op)]
        if not following and any(ops):
            yield state
        todo += (new := set(following) - met)
        met |= new


def next_op(process: Process, seen: tuple[int, ...]) -> Op | None:
    """What a process does next that has seen this; None once it has finished."""
    running = process()
    try:
        op = next(running)
        for result in seen:
            op = running.send(result)
    except StopIteration:
        return None
    return op


def successors(state: State, i: int, op: Op | None) -> Iterator[State]:
    """What can happen in process ``i``: its oldest store reaches memory, or its next step."""
    memory, buffer = dict(state.memory), state.buffers[i]

    def after(memory: dict, buffer: tuple, *results: int) -> State:
        seen, buffers = list(state.seen), list(state.buffers)
        seen[i] += results
        buffers[i] = buffer
        return State(tuple(seen), tuple(sorted(memory.items())), tuple(buffers))

    if buffer:
        yield after(memory | dict(buffer[:1]), buffer[1:])
    if op is None or memory.get(f"asleep{i}"):
        return
    if op.name == "store":
        yield after(memory, (*buffer, (op.word, op.value)), 0)
    elif op.name == "load":
        yield after(memory, buffer, (memory | dict(buffer)).get(op.word, 0))
    elif not buffer and (op.name != "hear" or memory.get(op.word)):
        if op.name == "sleep" and op.value in (None, memory.get(op.word, 0)):
            memory[f"asleep{i}"] = 1
        elif op.name == "wake":
            memory = {word: v for word, v in memory.items() if not word.startswith("asleep")}
        elif op.name in ("ring", "hear"):
            memory[op.word] = int(op.name == "ring")
        yield after(memory, buffer, 0)
