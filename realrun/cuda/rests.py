"""Waits for the end of a kernel that takes exactly so long: in every way and by every kind of plan.

What a worker does is done here too: `realrun.cuda.ends`, on a ring of its own. What comes out are
raw figures of each wait; `realrun.calibrate_gpu` makes costs of them.
"""

import time
from functools import partial
from typing import Final

import torch

from realrun.cuda.driver import driver
from realrun.cuda.ends import BY_GPU, KINDS, Ended, Ends
from realrun.cuda.parts import Measured, Say
from realrun.cuda.registration import Registration
from realrun.cuda.sleep import cycles_per_ns
from realrun.cuda.word import Word
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from realrun.waiting import RawWait, no_rehearsal
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import DOZE, PARK, SPIN, YIELD

#: How long a kernel takes, and how many of them are waited for.
RESTS: Final = ((100 * US, 40), (500 * US, 40), (2 * MS, 40), (10 * MS, 15))
#: From the end of a doze to that of the kernel, which the spin after it meets.
MEET_NS: Final = 200 * US
_N_WARM_UP: Final = 3
_NS_PER_MS: Final = 1e6
_REST: Final = (PARK, FOREVER_NS, 0)


def plan_of(mode: str, rest_ns: int) -> tuple[int, ...]:
    """How to wait: ``"spin"``, ``"yield"``, ``"park"``, or ``"doze"`` and then spin."""
    if mode == "doze":
        return (DOZE, rest_ns, 0, SPIN, FOREVER_NS, 0, *_REST * 2)
    kind = {"spin": SPIN, "yield": YIELD, "park": PARK}[mode]
    return (kind, FOREVER_NS, 0, *_REST * 3)


def rests(beside: int, say: Say) -> Measured:
    """Wait in every way that this machine has, by every kind of plan, for every rest.

    Parameters
    ----------
    beside
        Core of the thread that waits in the driver; `realrun.cores.ANY`: as this one's.

    Returns
    -------
    Measured
        Facts ``rests``: rows ``(way, mode, rest_ns, waits)``, each wait as ``(from the kernel being
        asked for to its end being seen; what the kernel took on the device; CPU of the
        whole process; how late the timed sleep ended; CPU of the first stage)``; ``not_observed``:
        why a way has no rows.
    """
    rows: list[tuple[str, str, int, list[tuple[int, ...]]]] = []
    reasons: dict[str, str] = {}
    per_ns = cycles_per_ns()
    for way in KINDS:
        say(way)
        with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
            registration = Registration(driver(), segment.memory)
            try:
                if way in BY_GPU and not registration.is_registered:
                    raise RuntimeError(registration.reason)
                rows += _rests_by(way, segment, registration, per_ns, beside, say)
            except RuntimeError as error:
                reasons[way] = str(error)
            finally:
                torch.cuda.synchronize()
                registration.close()
    return Measured([], {"rests": rows, "not_observed": reasons})


def _rests_by(
    way: str, segment: Segment, registration: Registration, per_ns: float, beside: int, say: Say
) -> list[tuple[str, str, int, list[tuple[int, ...]]]]:
    kernels = _Kernels(way, segment, registration, per_ns, beside)
    found = []
    try:
        for rest_ns, n in RESTS:
            for mode in ("spin", "park", "doze"):
                say(f"{way}, {mode} for {rest_ns // US} us")
                found.append((way, mode, rest_ns, kernels.wait_for(mode, rest_ns, n)))
        rest_ns, n = RESTS[1]
        found.append((way, "yield", rest_ns, kernels.wait_for("yield", rest_ns, n)))
    finally:
        kernels.close()
    return found


class _Kernels:
    """Kernels of a given length in a stream, and the ring in which their ends are published."""

    def __init__(
        self, way: str, segment: Segment, registration: Registration, per_ns: float, beside: int
    ) -> None:
        ring = segment.layout.ends[0]
        self._way = way
        self._per_ns = per_ns
        self._stream = torch.cuda.Stream()
        self._start, self._stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._end = torch.cuda.Event(blocking=way != "sync")
        self._word = Word(segment, ring, registration, driver()) if way in BY_GPU else None
        self._serial = 0
        choose = partial(torch.cuda.set_device, torch.cuda.current_device())
        self._ends = Ends(segment, ring, way, _seen_ns, choose, beside)

    def wait_for(self, mode: str, rest_ns: int, n: int) -> list[tuple[int, ...]]:
        """Wait for kernels, one at a time."""
        kernel_ns = rest_ns + MEET_NS if mode == "doze" else rest_ns
        plan = plan_of(mode, rest_ns)
        return [self._wait(kernel_ns, plan) for _ in range(n + _N_WARM_UP)][_N_WARM_UP:]

    def _wait(self, kernel_ns: int, plan: tuple[int, ...]) -> tuple[int, ...]:
        self._stream.synchronize()
        self._serial += 1
        self._ends.prepare(self._serial)
        with torch.cuda.stream(self._stream):
            started_ns = time.monotonic_ns()
            self._start.record()
            torch.cuda._sleep(max(1, round(kernel_ns * self._per_ns)))
            self._stop.record()
            if self._word is not None:
                self._word.move(self._way, self._stream, self._serial)
            self._end.record()
        before_cpu_ns = time.process_time_ns()
        self._ends.expect(self._serial, self._end)
        seen_ns, numbers, _ = self._ends.receive(plan, no_rehearsal, None)
        cpu_ns = time.process_time_ns() - before_cpu_ns
        raw = RawWait.of(numbers)
        self._stream.synchronize()
        device_ns = round(self._start.elapsed_time(self._stop) * _NS_PER_MS)
        return seen_ns - started_ns, device_ns, cpu_ns, raw.overshoot_ns, raw.cpu0_ns

    def close(self) -> None:
        """End the thread."""
        self._stream.synchronize()
        self._ends.close()


def _seen_ns(ended: Ended) -> int:
    return ended.seen_ns
