"""`post`, `wake` and `wait` without a compiler: the twin of realrun/_native.c, same protocol.

Correct on x86 only: a Python store is one plain 8-byte move, whose order towards later stores x86
guarantees, and a lock's atomic instruction is the fence between a store and a later load. On other
processors nothing here orders two stores, so `realrun.native` refuses to use it there. Its spin
holds the interpreter lock between looks and takes about 1 µs per look.
"""

import ctypes
import errno
import os
import resource
import threading
import time
from typing import TYPE_CHECKING, Final

from shmsim.units import FOREVER_NS, MS, S
from shmsim.wait import DOZE, MAX_STAGES, NAP, PARK, POLL, REHEARSE, SPIN, YIELD

if TYPE_CHECKING:
    from mmap import mmap

_SYS_FUTEX: Final = 202  # x86-64, the only processor this module is used on
_FUTEX_WAKE: Final = 1
_FUTEX_WAIT_BITSET: Final = 9
_MATCH_ANY: Final = 0xFFFFFFFF
SEEN: Final = 0  # these four as in realrun/native.py, which imports this module
STOPPED: Final = 1
ENDED: Final = 2
REHEARSING: Final = 3

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_clock_nanosleep = _libc.clock_nanosleep
_fence_lock = threading.Lock()

# As in _native.c: who was descheduled waits on the doorbell instead of spinning for a while.
_DESCHEDULED_NS: Final = 1 * MS
_CROWDED_FOR_NS: Final = 100 * MS
_crowded = threading.local()


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _fence() -> None:
    """Order stores before against loads after: taking a lock is an atomic instruction."""
    with _fence_lock:
        pass


def _load(segment: "mmap", at: int) -> int:
    with memoryview(segment) as view, view.cast("Q") as words:
        return words[at >> 3]


def _store(segment: "mmap", at: int, value: int) -> None:
    # Not struct.pack_into: it zeroes its bytes before it writes them.
    with memoryview(segment) as view, view.cast("Q") as words:
        words[at >> 3] = value


def _check_word(segment: "mmap", at: int) -> None:
    if at < 0 or at % 8 or at + 8 > len(segment):
        raise ValueError(
            f"offset {at} is not that of an aligned 8-byte word"
            f" in a segment of {len(segment)} bytes"
        )


def post(
    segment: "mmap",
    head_at: int,
    sequence: int,
    stamp_at: int,
    armed_at: int,
    armed_stride: int,
    n_readers: int,
) -> tuple[int, int]:
    """Stamp and publish a slot; returns ``(published_ns, n_armed)``."""
    for at in (head_at, stamp_at, armed_at, armed_at + armed_stride * (n_readers - 1)):
        _check_word(segment, at)
    published_ns = time.monotonic_ns()
    _store(segment, stamp_at, published_ns)
    _store(segment, head_at, sequence)
    _fence()
    n_armed = sum(
        _load(segment, armed_at + armed_stride * reader) != 0 for reader in range(n_readers)
    )
    return published_ns, n_armed


def wake(segment: "mmap", head_at: int) -> int:
    """Wake every waiter asleep on head with one call; returns how many."""
    _check_word(segment, head_at)
    word = ctypes.c_uint32.from_buffer(segment, head_at)
    return int(
        _syscall(_SYS_FUTEX, ctypes.byref(word), _FUTEX_WAKE, ctypes.c_int(2**31 - 1), None, None)
    )


def _involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class _Wait:
    """One wait in progress."""

    def __init__(
        self, segment: "mmap", head_at: int, seen: int, armed_at: int, stop_at: int
    ) -> None:
        for at in (head_at, armed_at, stop_at):
            _check_word(segment, at)
        self.segment = segment
        self.head_at, self.seen, self.armed_at, self.stop_at = head_at, seen, armed_at, stop_at
        self.overshoot_ns = 0
        self.belled = False
        self.switches = _involuntary_switches()

    def arrived(self) -> bool:
        return _load(self.segment, self.head_at) != self.seen

    def stopped(self) -> bool:
        return _load(self.segment, self.stop_at) != 0

    def over(self) -> bool:
        return self.arrived() or self.stopped()

    def look_repeatedly(self, kind: int, deadline_ns: int) -> bool:
        now_ns = time.monotonic_ns()
        while not self.over():
            crowded_until_ns = getattr(_crowded, "until_ns", 0)
            if kind == SPIN and now_ns < crowded_until_ns:
                if self.sleep_on_bell(min(crowded_until_ns, deadline_ns), 0):
                    return True
                self.switches = _involuntary_switches()
                now_ns = time.monotonic_ns()
            if kind == YIELD:
                os.sched_yield()
            before_ns, now_ns = now_ns, time.monotonic_ns()
            if now_ns >= deadline_ns:
                return False
            descheduled = now_ns - before_ns > _DESCHEDULED_NS
            if kind == SPIN and descheduled and _involuntary_switches() > self.switches:
                _crowded.until_ns = now_ns + _CROWDED_FOR_NS
        return True

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

    def sleep_on_bell(self, deadline_ns: int, period_ns: int) -> bool:
        word = ctypes.c_uint32.from_buffer(self.segment, self.head_at)
        while True:
            until_ns = deadline_ns
            if period_ns > 0:
                until_ns = min(until_ns, time.monotonic_ns() + period_ns)
            _store(self.segment, self.armed_at, 1)
            _fence()
            error = errno.EAGAIN if self.over() else self._futex_sleep(word, until_ns)
            _store(self.segment, self.armed_at, 0)
            if error == errno.ETIMEDOUT:
                self.overshoot_ns = time.monotonic_ns() - until_ns
            if self.arrived():
                self.belled = error == 0
                return True
            if self.over():
                return True
            if error == errno.ETIMEDOUT and until_ns == deadline_ns:
                return False

    def _futex_sleep(self, word: ctypes.c_uint32, until_ns: int) -> int:
        until = None
        if until_ns < FOREVER_NS:
            until = ctypes.byref(_Timespec(*divmod(until_ns, S)))
        low_half = ctypes.c_uint32(self.seen & 0xFFFFFFFF)
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
    head_at: int,
    seen: int,
    armed_at: int,
    stop_at: int,
    plan: tuple[int, ...],
    stage: int = 0,
    started_ns: int = 0,
) -> tuple[int, ...]:
    """Carry out a plan (12 ints) until head differs from ``seen``, stop is set or the plan ends.

    At a REHEARSE stage it returns; call again with the next stage and the same ``started_ns`` to
    go on.

    Returns
    -------
    tuple
        ``(over, started_ns, seen_ns, stage, cpu0, cpu1, cpu2, cpu3, overshoot_ns, belled,
        preempted)``; ``over`` is `SEEN`, `STOPPED`, `ENDED` or `REHEARSING`.
    """
    w = _Wait(segment, head_at, seen, armed_at, stop_at)
    for kind, period_ns in zip(plan[::3], plan[2::3], strict=True):
        if not SPIN <= kind <= REHEARSE or period_ns < 0 or (kind == POLL and period_ns == 0):
            raise ValueError(
                f"a stage (kind {kind}, period {period_ns} ns) cannot be carried out; "
                "shmsim.wait.check_plan says why"
            )
    cpu_ns = [0] * MAX_STAGES
    preempted = w.switches
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
        is_over = w.stage(kind, deadline_ns, period_ns)
        # The last look comes before the clock is read: nothing is seen before it was published.
        how = SEEN if w.arrived() else STOPPED if w.stopped() else ENDED
        seen_ns = time.monotonic_ns()
        cpu_after_ns = time.thread_time_ns()
        cpu_ns[index] += cpu_after_ns - cpu_before_ns
        cpu_before_ns = cpu_after_ns
        if is_over:
            break
    preempted = _involuntary_switches() - preempted
    return (how, started_ns, seen_ns, index, *cpu_ns, w.overshoot_ns, int(w.belled), preempted)
