"""Costs and random numbers of one tape, for the compiled loop: one window of steps at a time.

The numbers are those of `shmsim.tape`, stream by stream; the quantile of a number, and the
interpolation between two points of a curve, are the floating-point operations of
`shmsim.distribution` and `shmsim.sim.draws` in the same order.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.distribution import QUANTILE_GRID, Curve
from shmsim.sim.recurrence.memory import entry, float_at, inner, records_at
from shmsim.tape import Tape

# Costs of a thread: those that all threads have come first.
PUBLISH: Final = 0
UNARMED: Final = 1
ARMED: Final = 2
FURTHER: Final = 3
EXIT: Final = 4
READ: Final = 5
# Of the scheduler.
SCHEDULE: Final = 6
ENCODE_REQUEST: Final = 7
DECODE_REPLY: Final = 8
COMPLETE: Final = 9
IDLE_OVERSHOOT: Final = 10
IDLE_CPU: Final = 11
IDLE_SLOW: Final = 12
# Of a worker.
DECODE_REQUEST: Final = 6
LAUNCH: Final = 7
ENCODE_REPLY: Final = 8
RETURN: Final = 9
END_SLOW: Final = 10
OUTPUT: Final = 11
# Of a site; four of them by what the waiter did last.
ENTER: Final = 0
SPIN_DETECTION: Final = 1
YIELD_DETECTION: Final = 2
WAKE: Final = 3
PARK_CPU: Final = 4
OVERSHOOT: Final = 5
DOZE_CPU: Final = 6
REHEARSAL: Final = 7
CARRY: Final = 8
SLOW: Final = 9
UNIFORM: Final = 13
# Of a site and a class of policies.
PLAN: Final = 0
AFTER: Final = 1

_N_QUANTILES: Final = len(QUANTILE_GRID)

CONSTANT: Final = 0
ONE_POINT: Final = 1
CURVE: Final = 2

#: One cost: of a constant its value; else where its window lies in the numbers, and its points.
COST: Final = np.dtype(
    [(name, np.int64) for name in ("kind", "value_ns", "offset", "first", "n_points")]
)

#: Steps that may be looked back at, or ahead, from the one that is scheduled.
MARGIN: Final = 6


class Luck(NamedTuple):
    """Costs and numbers as the compiled loop reads them; it holds on to the arrays.

    Parameters
    ----------
    costs
        Of `COST`, shape ``(n_costs,)``.
    xs
        Where the points were measured, shape ``(n_points,)``.
    quantiles
        Of each point, shape ``(n_points, 110)``.
    numbers
        Of all windows, one behind the other: costs, where the cost has one point, else uniform.
    """

    costs: Any
    xs: Any
    quantiles: Any
    numbers: Any


class _Window(NamedTuple):
    """Where the numbers of a cost lie, and how many of them each step takes."""

    cost: int
    generator: np.random.Generator | None
    rate: int
    at: int
    length: int


class Windows:
    """The numbers of a tape, a window of steps at a time; they are drawn once, in order.

    Parameters
    ----------
    tape
        Random numbers.
    n_steps
        Steps of a window.
    """

    def __init__(self, tape: Tape, n_steps: int) -> None:
        """Know no cost yet."""
        self._tape = tape
        self.n_steps = n_steps
        self._costs: list[tuple[int, int, int, int, int]] = []
        self._xs: list[float] = []
        self._quantiles: list[tuple[float, ...]] = []
        self._windows: list[_Window] = []
        self._length = 0

    def add(self, curve: Curve | None, entity: str, purpose: str, rate: int, fixed: int = 0) -> int:
        """Add a cost of an entity; returns its number.

        Parameters
        ----------
        curve
            The cost; None: the uniform numbers themselves.
        entity, purpose
            Name of the random numbers.
        rate
            How many occasions each step has.
        fixed
            If they are not counted by steps, how many there are altogether.
        """
        index = len(self._costs)
        points = curve.points if curve else ()
        levels = {q for point in points for q in point.quantiles}
        if len(levels) == 1:
            self._costs.append((CONSTANT, int(levels.pop()), 0, 0, 0))
            return index
        length = fixed or rate * (self.n_steps + 2 * MARGIN) + MARGIN
        kind = ONE_POINT if len(points) == 1 else CURVE
        self._costs.append((kind, 0, self._length, len(self._xs), len(points)))
        for x, point in zip(curve.xs if curve else (), points, strict=True):
            self._xs.append(x)
            self._quantiles.append(point.quantiles)
        # A curve that is constant at each of its points needs no luck.
        varies = curve is None or any(len(set(point.quantiles)) > 1 for point in points)
        generator = self._tape.generator(entity, purpose) if varies else None
        self._windows.append(_Window(index, generator, 0 if fixed else rate, self._length, length))
        self._length += length
        return index

    def constant(self, value_ns: int = 0) -> int:
        """Add a cost that nobody draws, or that is the same each time; returns its number."""
        self._costs.append((CONSTANT, value_ns, 0, 0, 0))
        return len(self._costs) - 1

    def constant_sum_ns(self, indices: Iterable[int]) -> int:
        """Sum of costs, if all of them are constant; else -1."""
        costs = [self._costs[index] for index in indices]
        return -1 if any(cost[0] != CONSTANT for cost in costs) else sum(cost[1] for cost in costs)

    def open(self) -> Luck:
        """Draw the first window; no cost can be added any more."""
        self._numbers = np.zeros(max(self._length, 1))
        self._table = np.array(self._costs, dtype=COST)
        for window in self._windows:
            self._draw(window, self._numbers[window.at : window.at + window.length])
        return Luck(
            self._table,
            np.array(self._xs or [0.0]),
            np.array(self._quantiles or [(0.0,) * _N_QUANTILES]),
            self._numbers,
        )

    def move_on(self) -> None:
        """Go on by ``n_steps``; the last steps of the window before stay at hand."""
        numbers = self._numbers
        for window in self._windows:
            n_new = window.rate * self.n_steps
            self._table["offset"][window.cost] -= n_new
            if n_new:
                begin, end = window.at, window.at + window.length
                numbers[begin : end - n_new] = numbers[begin + n_new : end].copy()
                self._draw(window, numbers[end - n_new : end])

    def _draw(self, window: _Window, numbers: Any) -> None:
        """Fill a part of a window, of a cost at one point with what it costs."""
        if window.generator is not None:
            window.generator.random(out=numbers)
            kind, _, _, point, _ = self._costs[window.cost]
            if kind == ONE_POINT:
                _to_costs(numbers, np.array(self._quantiles[point]))


@entry
def _to_costs(numbers: Any, quantiles: Any) -> Any:
    """Whole quantiles of a distribution in place of uniform numbers, as `Distribution.all_at`."""
    for i in range(len(numbers)):
        u = numbers[i]
        position = 100.0 * u if u < 0.99 else 99.0 + 1000.0 * (u - 0.99)
        j = min(int(position), _N_QUANTILES - 2)
        numbers[i] = int(quantiles[j] + (position - j) * (quantiles[j + 1] - quantiles[j]))


cost_at = records_at(COST)


@inner
def _quantile(eng: Any, point: Any, u: Any) -> Any:
    """`Distribution.at`."""
    position = 100.0 * u if u < 0.99 else 99.0 + 1000.0 * (u - 0.99)
    i = min(int(position), _N_QUANTILES - 2)
    left = float_at(eng.quantiles, point * _N_QUANTILES + i)
    return left + (position - i) * (float_at(eng.quantiles, point * _N_QUANTILES + i + 1) - left)


@inner
def _along(eng: Any, cost: Any, u: Any, x: Any) -> Any:
    """The cost at ``x``, as of `shmsim.sim.draws`."""
    first, n_points = cost.first, cost.n_points
    i = 0
    while i < n_points and float_at(eng.xs, first + i) <= x:
        i += 1
    if i == 0:
        return int(_quantile(eng, first, u))
    if i == n_points:
        return int(_quantile(eng, first + n_points - 1, u))
    before = float_at(eng.xs, first + i - 1)
    share = (x - before) / (float_at(eng.xs, first + i) - before)
    left = _quantile(eng, first + i - 1, u)
    return int(left + share * (_quantile(eng, first + i, u) - left))


@inner
def draw(eng: Any, index: Any, occasion: Any, x: Any) -> Any:
    """The cost of one occasion, nanoseconds."""
    cost = cost_at(eng.costs, index)
    if cost.kind == CONSTANT:
        return cost.value_ns
    drawn = float_at(eng.numbers, cost.offset + occasion)
    return int(drawn) if cost.kind == ONE_POINT else _along(eng, cost, drawn, x)


@inner
def number(eng: Any, index: Any, occasion: Any) -> Any:
    """The uniform number of one occasion."""
    return float_at(eng.numbers, cost_at(eng.costs, index).offset + occasion)
