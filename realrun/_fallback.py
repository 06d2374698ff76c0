"""Waits, publishes, takes, copies and rings without a compiler: the twin of realrun/_native.c.

Correct on x86 only: a Python store is one plain 8-byte move, whose order towards later stores x86
guarantees, and a lock's atomic instruction is the fence between a store and a later load. On other
processors nothing here orders two stores, so `realrun.native` refuses to use it there. Its spin
holds the interpreter lock between looks and takes about 1 µs per look.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import DOZE, MAX_STAGES, NAP, PARK, POLL, REHEARSE, SPIN, YIELD

if TYPE_CHECKING:
    from mmap import mmap

_SYS_FUTEX: Final = 202  # x86-64, the only processor this module is used on
_FUTEX_WAKE: Final = 1
_FUTEX_WAIT_BITSET: Final = 9
_MATCH_ANY: Final = 0xFFFFFFFF
# As in realrun/layout.py, which stands on the module that chooses this one.
_LINE: Final = 64
_PAYLOAD: Final = 64
_CURSOR: Final = 0
_ARMED: Final = 8
_RELEASED_NS: Final = 16
_WRITER_ARMED: Final = 24
_BELL: Final = 8
_WRITER_BELL: Final = 32
_FD_BYTES: Final = 4
_HEADER: Final = struct.Struct("<QQQQQ")
_NUMBERS: Final = struct.Struct("=13q")
_RINGS_BYTES: Final = 8  # an eventfd is read as one counter
SEEN: Final = 0  # these five as in realrun/native.py, which imports this module
STOPPED: Final = 1
ENDED: Final = 2
REHEARSING: Final = 3
LISTENING: Final = 4
RELAX: Final = "none"

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_clock_nanosleep = _libc.clock_nanosleep
_ppoll = _libc.ppoll
_fence_lock = threading.Lock()

# As in _native.c: who was descheduled waits on the doorbell instead of spinning for a while.
_DESCHEDULED_NS: Final = 1 * MS
_CROWDED_FOR_NS: Final = 100 * MS
_STOP_LOOK_NS: Final = 250 * MS
_LATE_RING_NS: Final = 1 * MS
_ANNOUNCED_NS: Final = 100 * US
_crowded = threading.local()


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Pollfd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def _fence() -> None:
    """Order stores before against loads after: taking a lock is an atomic instruction."""
    with _fence_lock:
        pass


def load(segment: "mmap", at: int, /) -> int:
    """Read a word, whole."""
    _check_word(segment, at)
    with memoryview(segment) as view, view.cast("Q") as words:
        return words[at >> 3]


def store(segment: "mmap", at: int, value: int, /) -> None:
    """Write a word, whole."""
    _check_word(segment, at)
    # Not struct.pack_into: it zeroes its bytes before it writes them.
    with memoryview(segment) as view, view.cast("Q") as words:
        words[at >> 3] = value


def _check_word(segment: "mmap", at: int) -> None:
    if at < 0 or at % 8 or at + 8 > len(segment):
        raise ValueError(
            f"offset {at} is not that of an aligned 8-byte word"
            f" in a segment of {len(segment)} bytes"
        )


def _take(segment: "mmap", at: int) -> int:
    """Exchange a word for 0; not atomic, and needs not be.

    Who is armed again between both steps loses that arming, but a ring follows whatever was taken,
    so it wakes and arms once more.
    """
    value = load(segment, at)
    if value:
        store(segment, at, 0)
    return value


def publish(
    segment: "mmap",
    ring: tuple[int, ...],
    bells: bytes | None,
    call_id: int,
    flags: int,
    pieces: "list[bytes | bytearray | memoryview]",
    /,
) -> tuple[int, int]:
    """Write a message and make it visible; see the C function."""
    head_at, lines_at, slots_at, stride, slot_bytes, n_slots, n_readers = ring
    sequence = load(segment, head_at) + 1
    for reader in range(n_readers):
        held = load(segment, lines_at + _LINE * reader + _CURSOR)
        if held >= sequence:
            raise RuntimeError(
                f"reader {reader} has released message {held}, and {sequence} is the next to be "
                "published: something else wrote to the segment"
            )
        if sequence - held > n_slots:
            return 0, reader
    at = slots_at + stride * ((sequence - 1) % n_slots)
    length = sum(map(len, pieces))
    if length > slot_bytes:
        raise ValueError(
            f"a payload of {length} bytes does not fit a slot of {slot_bytes}; make slots larger, "
            "or send it by another route"
        )
    end = at + _PAYLOAD
    for piece in pieces:
        segment[end : end + len(piece)] = piece
        end += len(piece)
    published_ns = time.monotonic_ns()
    _HEADER.pack_into(segment, at, sequence, call_id, published_ns, length, flags)
    store(segment, head_at, sequence)
    _fence()
    return published_ns, announce(segment, ring, bells)


def announce(segment: "mmap", ring: tuple[int, ...], bells: bytes | None, /) -> int:
    """Ring for the readers that are armed; returns a bit for each."""
    head_at, lines_at, *_, n_readers = ring
    armed = 0
    try:
        for reader in range(n_readers):
            if _take(segment, lines_at + _LINE * reader + _ARMED):
                armed |= 1 << reader
        if armed:
            _ring(segment, bells, head_at + _BELL, [r for r in range(n_readers) if armed >> r & 1])
    except BaseException:  # a signal handler has raised: who was disarmed must be rung for
        _ring(segment, bells, head_at + _BELL, list(range(n_readers)))
        raise
    return armed


def _ring(segment: "mmap", bells: bytes | None, bell_at: int, sleepers: list[int]) -> None:
    if bells == b"":
        wake(segment, bell_at)
    for sleeper in sleepers:
        _ring_eventfd(bells, sleeper)


def _ring_eventfd(bells: bytes | None, sleeper: int) -> None:
    if bells:
        fd = int.from_bytes(bells[_FD_BYTES * sleeper : _FD_BYTES * (sleeper + 1)], sys.byteorder)
        os.eventfd_write(fd, 1)


def release(segment: "mmap", ring: tuple[int, ...], bells: bytes | None, reader: int, /) -> bool:
    """Release the slot of the next message, and ring for the writer; see the C function."""
    line_at = ring[1] + _LINE * reader
    store(segment, line_at + _RELEASED_NS, time.monotonic_ns())
    store(segment, line_at + _CURSOR, load(segment, line_at + _CURSOR) + 1)
    _fence()
    try:
        armed = _take(segment, line_at + _WRITER_ARMED) != 0
        if armed:
            _ring(segment, bells, line_at + _WRITER_BELL, [ring[-1]])
    except BaseException:
        _ring(segment, bells, line_at + _WRITER_BELL, [ring[-1]])
        raise
    return armed


def copy(segment: "mmap", at: int, piece: "bytes | bytearray | memoryview", /) -> None:
    """Copy bytes into a segment."""
    if at < 0 or at + len(piece) > len(segment):
        raise ValueError(
            f"{len(piece)} bytes at {at} do not lie within a segment of {len(segment)} bytes"
        )
    segment[at : at + len(piece)] = piece


def take(
    segment: "mmap",
    ring: tuple[int, ...],
    bells: bytes | None,
    reader: int,
    most_bytes: int,
    /,
) -> tuple[int, int, int, bytes, int] | None:
    """Copy a message out and release its slot; see the C function."""
    _, lines_at, slots_at, stride, slot_bytes, n_slots, _ = ring
    line_at = lines_at + _LINE * reader
    sequence = load(segment, line_at + _CURSOR) + 1
    at = slots_at + stride * ((sequence - 1) % n_slots)
    found, call_id, published_ns, length, flags = _HEADER.unpack_from(segment, at)
    if found != sequence or length > min(slot_bytes, most_bytes):
        return None
    payload = segment[at + _PAYLOAD : at + _PAYLOAD + length]
    armed = int(release(segment, ring, bells, reader))
    return call_id, flags, published_ns, payload, armed


def wake(segment: "mmap", bell_at: int, /) -> int:
    """Ring: wake every waiter asleep on a bell, and keep whoever is about to sleep from it."""
    _check_word(segment, bell_at)
    # An instant and no count: of two ringers at once, the slower could set a count back to what a
    # sleeper has heard before the other rang.
    store(segment, bell_at, time.monotonic_ns())
    word = ctypes.c_uint32.from_buffer(segment, bell_at)
    return int(
        _syscall(_SYS_FUTEX, ctypes.byref(word), _FUTEX_WAKE, ctypes.c_int(2**31 - 1), None, None)
    )


def _involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class _Wait:
    """One wait in progress."""

    def __init__(
        self, segment: "mmap", words: tuple[int, int, int, int], seen: int, fd: int, drains: bool
    ) -> None:
        for at in words:
            _check_word(segment, at)
        self.segment = segment
        self.watched_at, self.bell_at, self.armed_at, self.stop_at = words
        self.seen = seen
        self.fd = fd
        self.caller_drains = drains
        self.listening = False
        self.overshoot_ns = 0
        self.belled = False
        self.spurious = 0
        self.rescued = 0
        self.switches = _involuntary_switches()

    def arrived(self) -> bool:
        return load(self.segment, self.watched_at) != self.seen

    def stopped(self) -> bool:
        return load(self.segment, self.stop_at) != 0

    def over(self) -> bool:
        return self.arrived() or self.stopped()

    def look_repeatedly(self, kind: int, deadline_ns: int) -> bool:
        now_ns = time.monotonic_ns()
        while True:
            # What it waits for has often come by the time a spinner has its core back: so the
            # clock comes before the look.
            before_ns, now_ns = now_ns, time.monotonic_ns()
            descheduled = now_ns - before_ns > _DESCHEDULED_NS
            if kind == SPIN and descheduled and _involuntary_switches() > self.switches:
                _crowded.until_ns = now_ns + _CROWDED_FOR_NS
            if self.over():
                return True
            if now_ns >= deadline_ns:
                return False
            crowded_until_ns = getattr(_crowded, "until_ns", 0)
            if kind == SPIN and now_ns < crowded_until_ns:
                if self.sleep_on_bell(min(crowded_until_ns, deadline_ns), 0):
                    return True
                self.switches = _involuntary_switches()
                now_ns = time.monotonic_ns()
            if kind == YIELD:
                os.sched_yield()

    def sleep_deafly(self, deadline_ns: int) -> bool:
        until = _Timespec(*divmod(deadline_ns, S))
        # clock_nanosleep returns its error; an interrupted sleep lets Python run its handlers.
        absolute = ctypes.c_int(1)
        clock = ctypes.c_int(time.CLOCK_MONOTONIC)
        while _clock_nanosleep(clock, absolute, ctypes.byref(until), None) == errno.EINTR:
            pass
        self.overshoot_ns = time.monotonic_ns() - deadline_ns
        return self.over()

    def poll_slowly(self, deadline_ns: int, period_ns: int) -> bool:
        next_ns = time.monotonic_ns()
        while next_ns < deadline_ns:
            next_ns = time.monotonic_ns() + period_ns
            if self.sleep_deafly(min(next_ns, deadline_ns)):
                return True
        return False

    def look_on(self, deadline_ns: int) -> None:
        until_ns = min(time.monotonic_ns() + _ANNOUNCED_NS, deadline_ns)
        while not self.over() and time.monotonic_ns() < until_ns:
            pass

    def sleep_on_bell(self, deadline_ns: int, period_ns: int) -> bool:
        if self.caller_drains and not 0 < period_ns <= _STOP_LOOK_NS:
            period_ns = _STOP_LOOK_NS  # a socket can be gone by the time of a stop
        while True:
            until_ns = deadline_ns
            if period_ns > 0:
                until_ns = min(until_ns, time.monotonic_ns() + period_ns)
            heard = load(self.segment, self.bell_at)
            store(self.segment, self.armed_at, 1)
            _fence()
            error = errno.EAGAIN
            if not self.over():
                error = self._sleep(heard, until_ns)
            if error == errno.ETIMEDOUT and until_ns != deadline_ns and self.arrived():
                late_ns = time.monotonic_ns() + _LATE_RING_NS  # for a flag that is being taken
                while time.monotonic_ns() < late_ns and load(self.segment, self.armed_at):
                    pass
            taken = not _take(self.segment, self.armed_at)
            rang = error == 0
            if rang and self.fd >= 0:
                if self.caller_drains:
                    self.listening = True
                    return True
                with contextlib.suppress(BlockingIOError):
                    os.read(self.fd, _RINGS_BYTES)
            if error == errno.ETIMEDOUT:
                self.overshoot_ns = time.monotonic_ns() - until_ns
            if rang:
                self.look_on(deadline_ns)
            if self.arrived():
                self.belled = rang
                is_recheck = error == errno.ETIMEDOUT and until_ns != deadline_ns
                self.rescued += is_recheck and not taken
                return True
            if self.over():
                return True
            self.spurious += rang
            if error == errno.ETIMEDOUT and until_ns == deadline_ns:
                return False

    def _sleep(self, heard: int, until_ns: int) -> int:
        """Sleep until a ring or an instant; returns 0 or an errno."""
        if self.fd < 0:
            return self._futex_sleep(heard, until_ns)
        # Python's poll takes whole milliseconds, and its select no descriptor above 1023.
        left = None
        if until_ns < FOREVER_NS:
            left = ctypes.byref(_Timespec(*divmod(max(until_ns - time.monotonic_ns(), 0), S)))
        listened = _Pollfd(self.fd, select.POLLIN, 0)
        n_ready = _ppoll(ctypes.byref(listened), ctypes.c_ulong(1), left, None)
        if n_ready > 0 and not listened.revents & select.POLLIN:
            raise OSError(
                f"file descriptor {self.fd}, by which this wait is to be woken, is not open in "
                "this process"
            )
        return 0 if n_ready > 0 else errno.ETIMEDOUT if n_ready == 0 else ctypes.get_errno()

    def _futex_sleep(self, heard: int, until_ns: int) -> int:
        word = ctypes.c_uint32.from_buffer(self.segment, self.bell_at)
        until = None
        if until_ns < FOREVER_NS:
            until = ctypes.byref(_Timespec(*divmod(until_ns, S)))
        low_half = ctypes.c_uint32(heard & 0xFFFFFFFF)
        match_any = ctypes.c_uint32(_MATCH_ANY)
        rc = _syscall(
            _SYS_FUTEX, ctypes.byref(word), _FUTEX_WAIT_BITSET, low_half, until, None, match_any
        )
        return 0 if rc == 0 else ctypes.get_errno()

    def stage(self, kind: int, deadline_ns: int, period_ns: int) -> bool:
        if self.over():
            return True
        if time.monotonic_ns() >= deadline_ns:
            return False
        if kind in (SPIN, YIELD):
            return self.look_repeatedly(kind, deadline_ns)
        if kind == NAP:
            return self.sleep_deafly(deadline_ns)
        if kind == POLL:
            return self.poll_slowly(deadline_ns, period_ns)
        assert kind in (DOZE, PARK)
        return self.sleep_on_bell(deadline_ns, period_ns)


def wait(
    segment: "mmap",
    words: tuple[int, int, int, int],
    seen: int,
    plan: tuple[int, ...],
    stage: int = 0,
    started_ns: int = 0,
    fd: int = -1,
    caller_drains: bool = False,
    /,
) -> tuple[int, ...]:
    """Carry out a plan (12 ints) until the watched word differs from ``seen`` or a stop is set.

    Parameters and result as of the C function, whose docstring says more.

    Returns
    -------
    tuple
        ``(over, started_ns, seen_ns, stage, cpu0, cpu1, cpu2, cpu3, overshoot_ns, belled,
        preempted, spurious, rescued)``; ``over`` is `SEEN`, `STOPPED`, `ENDED`, `REHEARSING` or
        `LISTENING`.
    """
    w = _Wait(segment, words, seen, fd, caller_drains)
    if not 0 <= stage <= MAX_STAGES:
        raise ValueError(f"stage must be from 0 to {MAX_STAGES}, got {stage}")
    for kind, period_ns in zip(plan[::3], plan[2::3], strict=True):
        if not SPIN <= kind <= REHEARSE or period_ns < 0 or (kind == POLL and period_ns == 0):
            raise ValueError(
                f"a stage (kind {kind}, period {period_ns} ns) cannot be carried out; "
                "shmsim.wait.check_plan says why"
            )
    cpu_ns = [0] * MAX_STAGES
    preempted = 0
    cpu_before_ns = time.thread_time_ns()
    seen_ns = time.monotonic_ns()
    started_ns = started_ns or seen_ns
    index, how = stage, ENDED
    for index in range(stage, MAX_STAGES):
        kind, until_ns, period_ns = plan[3 * index : 3 * index + 3]
        if kind == REHEARSE and not w.over():
            how = REHEARSING
            break
        deadline_ns = FOREVER_NS if until_ns >= FOREVER_NS else started_ns + until_ns
        switches = _involuntary_switches()
        is_over = w.stage(kind, deadline_ns, period_ns)
        if kind in (SPIN, YIELD):
            preempted += _involuntary_switches() - switches
        # The last look comes before the clock is read: nothing is seen before it was published.
        how = SEEN if w.arrived() else STOPPED if w.stopped() else ENDED
        seen_ns = time.monotonic_ns()
        cpu_after_ns = time.thread_time_ns()
        cpu_ns[index] += cpu_after_ns - cpu_before_ns
        cpu_before_ns = cpu_after_ns
        if w.listening:
            how = LISTENING
            break
        if is_over:
            break
    return (
        *(how, started_ns, seen_ns, index, *cpu_ns, w.overshoot_ns, int(w.belled), preempted),
        *(w.spurious, w.rescued),
    )


def receive(
    segment: "mmap",
    words: tuple[int, int, int, int],
    plan: tuple[int, ...],
    fd: int,
    caller_drains: bool,
    ring: tuple[int, ...],
    bells: bytes | None,
    reader: int,
    most_bytes: int,
    /,
) -> tuple[int, int, bytes, tuple[int, int, int, bytes, int] | None]:
    """Wait for the next message, then take it; see the C function."""
    released = load(segment, ring[1] + _LINE * reader + _CURSOR)
    waited = wait(segment, words, released, plan, 0, 0, fd, caller_drains)
    taken = None
    if waited[0] == SEEN:
        taken = take(segment, ring, bells, reader, most_bytes)
    return waited[0], waited[2], _NUMBERS.pack(*waited), taken


def is_plain(pickle: "bytes | bytearray | memoryview", /) -> bool:
    """Say of no pickle that it is plain: looking through one in Python costs more than it saves."""
    del pickle
    return False
