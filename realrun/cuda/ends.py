"""How a worker learns that its GPU has finished a step: five ways, one kind of message.

Either way the end of a step is a message in the worker's end ring, and the worker waits for it by
the plans of its policy. The ways differ in who publishes it:

write
    The GPU: its stream writes the ring's head (``cuStreamWriteValue32``) behind the outputs.
copy
    The GPU: a copy of a number from its memory to the ring's head.
query
    The waiter itself, which asks the driver about the event at every look.
blocking, sync
    A thread that waits for the event in the driver, asleep or spinning, and then publishes.

A GPU rings no bell. So who parks for an end that the GPU writes has a thread of this process sleep
in the driver, which rings; until it comes to that, a doze is as deaf as a nap, and costs no more.
"""

import struct
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol

from realrun.cores import stay_on
from realrun.doorbell import Ear
from realrun.host import exact_timers
from realrun.layout import SEQUENCE, RingLayout
from realrun.native import ENDED, SEEN, STOPPED, wait
from realrun.ring import Message, RingReader, RingWriter
from realrun.segment import Segment
from realrun.waiting import RawWait, Stopped, both, carry_through
from shmsim.units import FOREVER_NS, US
from shmsim.wait import DOZE, MAX_STAGES, NAP, PARK, POLL, REHEARSE, SPIN, YIELD

BY_GPU: Final = ("write", "copy")
BY_THREAD: Final = ("blocking", "sync")
KINDS: Final = (*BY_GPU, "query", *BY_THREAD)
_HEADER: Final = struct.Struct("<QQQQQ")
_N_NUMBERS: Final = 3  # of a stage
_UNREACHED: Final = (PARK, 0, 0)
#: Asking the driver keeps the GIL, and a thread that launches wants it back after each call to
#: torch; without a gap it gets it after a switch interval, of 5 ms. Who comes for it in a gap
#: has it at once. On two cores of a virtual machine, with a stand-in that keeps the GIL for 0.3 us,
#: ten calls in a row were made 836 times in 30 waits of 12 ms beside nobody, 26 times beside a
#: waiter without gaps, 631 times with these; 1 and 5 us made no difference to that. An end was seen
#: 1.9 us later in the median: a gap and the way in and out of it.
_BETWEEN_LOOKS_NS: Final = 2 * US
_GOODBYE_S: Final = 5.0
_WORD_IS_LATE_S: Final = 20e-6


class Event(Protocol):
    """Something in a stream that comes to pass, such as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether it has."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class Ended(NamedTuple):
    """An end that was seen."""

    serial: int
    seen_ns: int


class Bell:
    """A thread that waits for events in the driver and then publishes, or only rings.

    Parameters
    ----------
    segment, ring
        Whose ring it is.
    publishes
        Whether it publishes the ends; else somebody else does, and it rings.
    prepare
        What the thread does first, such as choosing its device.
    core
        Where it stays; `realrun.cores.ANY`: where who makes it may be.
    """

    def __init__(
        self,
        segment: Segment,
        ring: RingLayout,
        prepare: Callable[[], None],
        core: int,
        *,
        publishes: bool,
    ) -> None:
        """Start the thread."""
        self._segment = segment
        self._head_at = ring.head_at
        self._prepare = prepare
        self._core = core
        self._writer = RingWriter(segment, ring)
        self._doorbell = segment.doorbell(ring)
        self._publishes = publishes
        self._asked = 0
        self._jobs: SimpleQueue[tuple[int, Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="device bell", daemon=True)
        self._thread.start()

    def ask(self, serial: int, event: Event) -> None:
        """Publish, or ring, once the event of a step has come to pass; once for each step."""
        if serial > self._asked:
            self._asked = serial
            self._jobs.put((serial, event))

    def _run(self) -> None:
        exact_timers()
        # On that of a worker who spins, what it publishes would wait for who waits for it.
        stay_on(self._core)
        self._prepare()
        while (job := self._jobs.get()) is not None:
            serial, event = job
            event.synchronize()
            if self._segment.stopped:
                return
            if self._publishes:
                self._writer.publish(serial, 0, [])
                continue
            # A ring before the word would be the last one: nobody rings when the word comes.
            while self._segment.load(self._head_at) < serial and not self._segment.stopped:
                time.sleep(_WORD_IS_LATE_S)
            self._doorbell.ring_readers(1)

    def close(self) -> None:
        """End the thread, behind what it was asked."""
        self._jobs.put(None)
        self._thread.join(_GOODBYE_S)


class Ends:
    """Where a waiter waits for the ends of steps; a `realrun.waiter.Source`.

    Parameters
    ----------
    segment, ring
        Whose ring it is.
    kind
        One of `KINDS`.
    stamp
        Says when an end that was seen came to pass, by the host's clock.
    prepare, core
        See `Bell`.
    """

    def __init__(
        self,
        segment: Segment,
        ring: RingLayout,
        kind: str,
        stamp: Callable[[Ended], int],
        prepare: Callable[[], None],
        core: int,
    ) -> None:
        """Nothing has ended."""
        self._segment = segment
        self._ring = ring
        self._kind = kind
        self._stamp = stamp
        self._words = ring.reader_words(0)
        self._reader = RingReader(segment, ring, 0)
        self._ear: Ear | None = None
        self._bell = Bell(segment, ring, prepare, core, publishes=kind in BY_THREAD)
        self._events: dict[int, Event] = {}

    def expect(self, serial: int, event: Event) -> None:
        """A step was launched; its event lies behind everything that it does."""
        self._events[serial] = event
        if self._kind in BY_THREAD:
            self._bell.ask(serial, event)

    def prepare(self, serial: int) -> None:
        """Fill in the header of an end that no thread will publish; before the step is launched."""
        if self._kind not in BY_THREAD:
            at = self._ring.slot_at(serial) + SEQUENCE
            _HEADER.pack_into(self._segment.memory, at, serial, serial, 0, 0, 0)

    def receive(
        self, plan: tuple[int, ...], rehearse: Callable[[], None], timeout_ns: int | None
    ) -> tuple[int, bytes, Message]:
        """Carry out a flat plan until the next step has ended.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        """
        assert timeout_ns is None, "a worker waits for its device until it is stopped"
        if self._ear is None:
            self._ear = self._segment.doorbell(self._ring).reader_ear(0)
        seen = self._reader.released
        if self._kind in BY_THREAD:
            raw = self._carry_through(plan, seen, 0, 0, rehearse)
        elif self._kind == "query":
            raw = self._ask_and_sleep(plan, seen, rehearse)
        else:
            raw = self._look_and_sleep(plan, seen, rehearse)
        if raw.over == STOPPED:
            raise Stopped
        serial = seen + 1
        message = self._reader.read()
        del self._events[serial]
        ended_ns = self._stamp(Ended(serial, raw.seen_ns))
        return raw.seen_ns, raw.numbers, message._replace(published_ns=ended_ns)

    def _carry_through(
        self,
        plan: tuple[int, ...],
        seen: int,
        stage: int,
        started_ns: int,
        rehearse: Callable[[], None],
    ) -> RawWait:
        """Carry out a plan from a stage on."""
        ear = self._ear or Ear()
        segment, words, drains = self._segment, self._words, ear.drain is not None
        raw = RawWait(*wait(segment.memory, words, seen, plan, stage, started_ns, ear.fd, drains))
        return carry_through(raw, segment, words, seen, plan, ear, rehearse)

    def _look_and_sleep(
        self, plan: tuple[int, ...], seen: int, rehearse: Callable[[], None]
    ) -> RawWait:
        """Wait for a word that the GPU writes."""
        deaf, before, bell_stage = deafened(plan)
        raw = self._carry_through(before, seen, 0, 0, rehearse)
        if raw.over != ENDED:
            return raw
        self._bell.ask(seen + 1, self._events[seen + 1])
        rest = self._carry_through(deaf, seen, bell_stage, raw.started_ns, rehearse)
        return both(raw._replace(stage=bell_stage), rest, 0)

    def _ask_and_sleep(
        self, plan: tuple[int, ...], seen: int, rehearse: Callable[[], None]
    ) -> RawWait:
        """Wait for an event that this thread asks about; then publish on its behalf."""
        serial = seen + 1
        event = self._events[serial]
        started_ns = time.monotonic_ns()
        cpus_ns = [0] * MAX_STAGES
        overshoot_ns = 0
        for stage in range(MAX_STAGES):
            kind, until_ns, period_ns = plan[_N_NUMBERS * stage : _N_NUMBERS * (stage + 1)]
            cpu_ns = time.thread_time_ns()
            end_ns = started_ns + until_ns
            if kind == REHEARSE:
                rehearse()
            elif kind in (SPIN, YIELD):
                self._ask(event, seen, kind, end_ns)
            elif kind in (NAP, DOZE, POLL) and until_ns < FOREVER_NS:
                overshoot_ns = self._nap(event, end_ns, period_ns if kind == POLL else until_ns)
            else:
                # Asleep in the driver as long as it takes; the stop of a run ends the process.
                event.synchronize()
            cpus_ns[stage] = time.thread_time_ns() - cpu_ns
            if self._segment.load(self._words.stop):
                return _raw(STOPPED, started_ns, stage, cpus_ns, overshoot_ns)
            if event.query():
                raw = _raw(SEEN, started_ns, stage, cpus_ns, overshoot_ns)
                self._segment.store(self._ring.head_at, serial)
                return raw
        raise ValueError(f"the plan {plan} ended; its last stage must last for ever")

    def _ask(self, event: Event, seen: int, kind: int, end_ns: int) -> None:
        """Ask again and again, and spin or yield for `_BETWEEN_LOOKS_NS` in between."""
        between = (kind, _BETWEEN_LOOKS_NS, 0, *_UNREACHED * 3)
        memory, words = self._segment.memory, self._words
        while time.monotonic_ns() < end_ns and not event.query():
            if wait(memory, words, seen, between)[0] == STOPPED:
                return

    def _nap(self, event: Event, end_ns: int, period_ns: int) -> int:
        """Sleep until an instant, looking once a period; returns how late the last sleep ended."""
        late_ns = 0
        while not event.query() and (left_ns := end_ns - time.monotonic_ns()) > 0:
            wake_ns = time.monotonic_ns() + min(left_ns, period_ns)
            time.sleep(max(wake_ns - time.monotonic_ns(), 0) / 1e9)
            late_ns = max(time.monotonic_ns() - wake_ns, 0)
        return late_ns

    def close(self) -> None:
        """End the thread; nothing is in flight."""
        self._bell.close()


def _raw(over: int, started_ns: int, stage: int, cpus_ns: list[int], overshoot_ns: int) -> RawWait:
    first, second, third, fourth = cpus_ns
    seen_ns = time.monotonic_ns()
    return RawWait(
        *(over, started_ns, seen_ns, stage, first, second, third, fourth, overshoot_ns, 0, 0, 0, 0)
    )


def deafened(plan: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The plan as it is carried out where nobody rings by himself.

    Returns
    -------
    tuple
        The plan with naps for dozes that have an end; the part of it before the first stage that
        sleeps until somebody rings, which the waiter then has to ask for; and the index of that
        stage, `MAX_STAGES` if there is none.
    """
    stages = [plan[at : at + _N_NUMBERS] for at in range(0, len(plan), _N_NUMBERS)]
    begins_ns = 0
    for index, (kind, until_ns, period_ns) in enumerate(stages):
        is_forever = until_ns >= FOREVER_NS
        if kind == PARK or (kind == DOZE and is_forever):
            before = [*stages[:index], *[(PARK, begins_ns, 0)] * (MAX_STAGES - index)]
            return _flat(stages), _flat(before), index
        if is_forever:
            break
        if kind == DOZE:
            stages[index] = (NAP, until_ns, period_ns)
        if kind != REHEARSE:
            begins_ns = max(begins_ns, until_ns)
    return _flat(stages), _flat(stages), MAX_STAGES


def _flat(stages: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(number for stage in stages for number in stage)
