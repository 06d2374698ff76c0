"""Costs drawn for one entity of the model: the profile's distributions on the tape's numbers."""

from bisect import bisect_right

from shmsim.distribution import Curve
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
        self._costs: dict[str, Cost] = {}

    def next(self, name: str, x: float = 0.0) -> int:
        """The cost of the next occasion of this kind, nanoseconds."""
        cost = self._costs.get(name) or self._open(name)
        index = cost.n_drawn
        cost.n_drawn = index + 1
        return cost.at(index, x)

    def at(self, name: str, index: int, x: float = 0.0) -> int:
        """The cost of occasion ``index`` of this kind, nanoseconds."""
        return (self._costs.get(name) or self._open(name)).at(index, x)

    def _open(self, name: str) -> "Cost":
        curve = self._curves.get(self._prefix + name) or self._curves[name]
        cost = self._costs[name] = Cost(curve, self._tape, self._entity, name)
        return cost


class Cost:
    """One cost: `Curve.at`, but of each of its distributions a block is computed at once.

    Parameters
    ----------
    curve
        The distributions.
    tape, entity, purpose
        The random numbers.
    """

    __slots__ = ("n_drawn", "points", "xs")

    def __init__(self, curve: Curve, tape: Tape, entity: str, purpose: str) -> None:
        """Nothing was drawn yet."""
        self.xs = curve.xs
        self.points: list[Stream] = [
            tape.transformed(entity, purpose, point.all_at) for point in curve.points
        ]
        self.n_drawn = 0

    def at(self, index: int, x: float) -> int:
        """The cost of occasion ``index`` at ``x``, nanoseconds."""
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
