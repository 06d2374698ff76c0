"""Costs drawn for one entity of the model: the profile's distributions on the tape's numbers."""

from bisect import bisect_right

from shmsim.distribution import Curve
from shmsim.profile import MachineProfile
from shmsim.tape import BLOCK, Block, Stream, Tape


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
        try:
            cost = self._costs[name]
        except KeyError:
            cost = self._open(name)
        index = cost.n_drawn
        cost.n_drawn = index + 1
        return cost.at(index, x)

    def at(self, name: str, index: int, x: float = 0.0) -> int:
        """The cost of occasion ``index`` of this kind, nanoseconds."""
        try:
            return self._costs[name].at(index, x)
        except KeyError:
            return self._open(name).at(index, x)

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

    __slots__ = ("_blocks", "_first", "_n_points", "_streams", "_xs", "n_drawn")

    def __init__(self, curve: Curve, tape: Tape, entity: str, purpose: str) -> None:
        """Nothing was drawn yet."""
        key = tape.key(entity, purpose)
        self._xs = curve.xs
        self._n_points = len(curve.points)
        self._streams = [Stream(key, point.all_at) for point in curve.points]
        self._first = -BLOCK  # index of the first number of the blocks
        self._blocks: list[Block | None] = []  # of each distribution that was asked for
        self.n_drawn = 0

    def at(self, index: int, x: float) -> int:
        """The cost of occasion ``index`` at ``x``, nanoseconds."""
        i = index - self._first
        if not 0 <= i < BLOCK:
            self._first = index // BLOCK * BLOCK
            self._blocks = [None] * self._n_points
            i = index - self._first
        blocks, xs = self._blocks, self._xs
        k = bisect_right(xs, x)
        if 0 < k < self._n_points:
            share = (x - xs[k - 1]) / (xs[k] - xs[k - 1])
            left = (blocks[k - 1] or self._block(k - 1))[i]
            return int(left + share * ((blocks[k] or self._block(k))[i] - left))
        if k:
            k -= 1
        return int((blocks[k] or self._block(k))[i])

    def _block(self, k: int) -> Block:
        numbers = self._blocks[k] = self._streams[k].block(self._first // BLOCK)
        return numbers
