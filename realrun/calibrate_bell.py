"""What it costs to wake a further reader: rings for one that sleeps, and for several, in turns."""

import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from realrun.bench import Measured, Undisturbed
from realrun.calibrate_children import children
from realrun.calibrate_reader import encode_order
from realrun.layout import SegmentLayout
from realrun.partner import SPIN_PLAN
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment
from shmsim.provenance import CALIBRATED, Source
from shmsim.units import MS, US

#: What the profile calls it.
FURTHER: Final = "notify_further"
#: How long readers rest, and how many rings for one and for all.
_RESTS: Final = ((500 * US, 30), (2 * MS, 24), (10 * MS, 10))
_MOST_READERS: Final = 8
_FEWEST_CORES: Final = 3  # for whoever rings, and two readers
#: By how much who sleeps deaf to the bell outlasts the rest: readers do not begin it at once.
_DEAF_NS: Final = 500 * US
_FALL_ASLEEP_NS: Final = 100 * US  # from an answer to being asleep on the bell


def reader_cores(cores: list[int]) -> list[int]:
    """A core for each of several readers, beside the second core, on which they are rung for.

    With two cores both readers share the other one.
    """
    others = [*cores[:1], *cores[2:]][:_MOST_READERS]
    return others if len(others) > 1 else others * 2


def further_source(n_cores: int) -> Source:
    """How far the cost can be trusted that was measured on so many cores."""
    if n_cores >= _FEWEST_CORES:
        return CALIBRATED
    text = f"{CALIBRATED.text}: two readers on one core, as it has but two"
    return Source.of("assumed", text)


def further_costs(doorbell: str, cores: list[int]) -> Iterator[Measured]:
    """Ring for one reader and for all, by the rest before, and yield what each further one adds.

    Parameters
    ----------
    doorbell
        See `realrun.doorbell`.
    cores
        That this process may use, at least two; it runs on the second.

    Yields
    ------
    tuple
        Name, rest, and one value: a difference of medians is known once for each replicate.

    Raises
    ------
    RuntimeError
        As of `realrun.calibrate_children.children`.
    """
    each_on = reader_cores(cores)
    n = len(each_on)
    with Segment.create(SegmentLayout(n, slot_bytes=64), doorbell) as segment:
        arguments = [[str(reader), str(core)] for reader, core in enumerate(each_on)]
        with children(segment, "realrun.calibrate_reader", arguments):
            bell = _Bell(segment)
            for rest_ns, n_rings in _RESTS:
                took: dict[int, list[int]] = {1: [], n: []}
                for i in range(n_rings):
                    for n_armed in (1, n) if i % 2 else (n, 1):
                        took[n_armed] += bell.ring(n_armed, rest_ns)
                # Of fewer the medians say more about who cut in.
                if min(map(len, took.values())) > n_rings // 2:
                    more_ns = float(np.median(took[n]) - np.median(took[1]))
                    # Next to nothing can come out as less than nothing.
                    yield FURTHER, rest_ns, [max(0, round(more_ns / (n - 1)))]


class _Bell:
    """The ring that all readers read, and their answers."""

    def __init__(self, segment: Segment) -> None:
        layout = segment.layout
        self._requests = RingWriter(segment, layout.request)
        self._replies = [RingReader(segment, ring, 0) for ring in layout.replies]
        self._n = 0

    def ring(self, n_armed: int, rest_ns: int) -> list[int]:
        """What it takes to ring for so many after a rest; empty if others slept, or cut in."""
        undisturbed = Undisturbed()
        self._publish(n_armed, rest_ns + _DEAF_NS)
        self._answers()
        _spin(rest_ns)
        published_ns = self._publish(len(self._replies), 0)
        took_ns = time.monotonic_ns() - published_ns
        as_told = self._answers() == [reader < n_armed for reader in range(len(self._replies))]
        is_good = undisturbed() and as_told
        _spin(_FALL_ASLEEP_NS)
        return [took_ns] if is_good else []

    def _publish(self, n_armed: int, deaf_ns: int) -> int:
        self._n += 1
        return self._requests.publish(self._n, 0, [encode_order(n_armed, deaf_ns)])

    def _answers(self) -> list[bool]:
        belled = []
        for reply in self._replies:
            reply.wait(SPIN_PLAN)
            belled.append(bool(reply.read().payload[0]))
        return belled


def _spin(duration_ns: int) -> None:
    until_ns = time.monotonic_ns() + duration_ns
    while time.monotonic_ns() < until_ns:
        pass
