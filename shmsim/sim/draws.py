"""Costs drawn for one entity of the model: the profile's distributions on the tape's numbers."""

from bisect import bisect_right

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
        self._costs: dict[str, _Cost] = {}

    def next(self, name: str, x: float = 0.0) -> int:
        """The cost of the next occasion of this kind, nanoseconds."""
        cost = self._costs.get(name) or self._open(name)
        index = cost.n_drawn
        cost.n_drawn = index + 1
        return cost.at(index, x)

    def at(self, name: str, index: int, x: float = 0.0) -> int:
        """The cost of occasion ``index`` of this kind, nanoseconds."""
        return (self._costs.get(name) or self._open(name)).at(index, x)

    def _open(self, name: str) -> "_Cost":
        curve = self._curves.get(self._prefix + name) or self._curves[name]
        points = [self._tape.transformed(self._entity, name, p.all_at) for p in curve.points]
        cost = self._costs[name] = _Cost(curve.xs, points)
        return cost


class _Cost:
    """One cost: `Curve.at`, but of each of its distributions a block is computed at once."""

    __slots__ = ("n_drawn", "points", "xs")

    def __init__(self, xs: tuple[float, ...], points: list[Stream]) -> None:
        self.xs = xs
        self.points = points
        self.n_drawn = 0

    def at(self, index: int, x: float) -> int:
        points = self.points
        if len(points) == 1:
            return int(points[0].at(index))
        xs = self.xs
        i = bisect_right(xs, x)
        if i == 0:
            return int(points[0].at(index))
        if i == len(xs):
            return int(points[-1].at(index))
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        left = points[i - 1].at(index)
        return int(left + share * (points[i].at(index) - left))
