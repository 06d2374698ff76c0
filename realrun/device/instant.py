"""Meets an instant of the clock, as a device does whose step takes so and so long."""

import time
from typing import Final

from realrun.layout import Words
from realrun.native import STOPPED, wait
from realrun.segment import Segment
from realrun.waiting import Stopped
from shmsim.wait import NAP, PARK, SPIN

_PARK_UNREACHED: Final = (PARK, 0, 0)


def meet(segment: Segment, idle: Words, instant_ns: int, guard_ns: int) -> None:
    """Sleep, then spin, until an instant.

    Parameters
    ----------
    idle
        Words that never move (`SegmentLayout.idle_words`).
    guard_ns
        How long before the instant to stop sleeping.

    Raises
    ------
    Stopped
        If the run was stopped meanwhile.
    """
    left_ns = instant_ns - time.monotonic_ns()
    if left_ns <= 0:
        return
    nap_ns = max(left_ns - guard_ns, 0)
    plan = (NAP, nap_ns, 0, SPIN, left_ns, 0, *_PARK_UNREACHED, *_PARK_UNREACHED)
    if wait(segment.memory, idle, 0, plan)[0] == STOPPED:
        raise Stopped
