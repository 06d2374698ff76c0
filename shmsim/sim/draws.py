"""Costs drawn for one entity of the model: the profile's distributions on the tape's numbers."""

from bisect import bisect_right
from collections import defaultdict

from shmsim.profile import MachineProfile
from shmsim.tape import Stream, Tape


class Draws:
    """Costs of one process, each with a random stream of its own.

    Parameters
    ----------
    profile
        The distributions.
    tape
        The random numbers.
    entity
        Name of the process.
    prefix
        Of costs that differ here, such as ``"device_"``, if the profile has them.
    """

    def __init__(self, profile: MachineProfile, tape: Tape, entity: str, prefix: str = "") -> None:
        """Open no stream yet."""
        self._prefix = prefix
        self._curves = profile.costs
        self._tape = tape
        self._entity = entity
        self._streams: dict[str, tuple[tuple[float, ...], list[Stream]]] = {}
        self._next: defaultdict[str, int] = defaultdict(int)

    def next(self, name: str, x: float = 0.0) -> int:
        """The cost of the next occasion of this kind, nanoseconds."""
        index = self._next[name]
        self._next[name] = index + 1
        return self.at(name, index, x)

    def at(self, name: str, index: int, x: float = 0.0) -> int:
        """The cost of occasion ``index`` of this kind, nanoseconds."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = self._open(name)
        # As `Curve.at`, but a block of each of its distributions is computed at once.
        xs, streams = found
        i = bisect_right(xs, x)
        if i == 0:
            return int(streams[0].at(index))
        if i == len(xs):
            return int(streams[-1].at(index))
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        left = streams[i - 1].at(index)
        return int(left + share * (streams[i].at(index) - left))

    def _open(self, name: str) -> tuple[tuple[float, ...], list[Stream]]:
        curve = self._curves.get(self._prefix + name) or self._curves[name]
        return curve.xs, [
            self._tape.transformed(self._entity, name, point.all_at) for point in curve.points
        ]
