"""Costs and random numbers of one tape, for the compiled loop: one window of steps at a time.

The numbers are those of `shmsim.tape`, stream by stream; the quantile of a number, and the
interpolation between two points of a curve, are the floating-point operations of
`shmsim.distribution` and `shmsim.sim.draws` in the same order.

Most policies never do most of what has a cost, so a stream is drawn in a window when the loop first
asks for a number of it, whole (`shmsim.sim.recurrence.drawing`). What was drawn is kept for the
next run that asks for the same (`luck_of`): a slider that changes a policy or the step time does.
"""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.distribution import QUANTILE_GRID, Curve, Distribution
from shmsim.sim.recurrence.memory import (
    address_of,
    ask,
    ask_all,
    drawn_float_at,
    drawn_int_at,
    float_at,
    inner,
    records_at,
    within,
)
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
#: The same of a wait that is left undecided, counted from the two.
IDLE: Final = 2

N_QUANTILES: Final = len(QUANTILE_GRID)

CONSTANT: Final = 0
#: Whole nanoseconds are drawn.
ONE_POINT: Final = 1
#: What is drawn is a position among the quantiles; where along the curve, an occasion says.
CURVE: Final = 2
#: The uniform numbers themselves.
PLAIN: Final = 3
#: A curve along a count, of bytes or sequences, which stays the same for many steps: where it does,
#: whole nanoseconds are drawn for it.
COUNTED: Final = 4

#: One cost in one window. Of a constant its value; else the address of the number of occasion 0, as
#: if the window began there, or 0 before it is drawn; and of its points their number and addresses.
#: Then what drawing needs: where the numbers go, the first occasion of the window, how many there
#: are, whether luck plays a part, and the key of the stream. Of a curve along a count, by even and
#: odd occasions (the two calls of a step differ): where whole nanoseconds are drawn, which count
#: was asked for last and how often since it changed, whether somebody draws.
COST: Final = np.dtype(
    [
        *((name, np.int64) for name in ("kind", "value_ns", "at", "first")),
        ("settled", np.int64, 2),
        *((name, np.int64) for name in (
            "n_points", "xs", "quantiles", "begin", "length", "varies", "key_0", "key_1",
        )),
        *((name, np.int64, 2) for name in ("asked", "n_asked", "claimed")),
    ]
)  # fmt: skip

#: How often the same count is asked for before it counts as settled.
_PATIENCE: Final = 16
_COUNTS: Final = ("bytes", "sequences")

#: Steps that may be looked back at, or ahead, from the one that is scheduled, beyond those in
#: flight.
MARGIN: Final = 4
#: Numbers that one count of the generator yields: windows begin and end at multiples of it.
AT_ONCE: Final = 4

#: Memory for windows that a later run may use: of all tapes, and of one.
_MOST_BYTES: Final = 256 << 20
_MOST_BYTES_EACH: Final = 192 << 20


class Stream(NamedTuple):
    """A cost whose luck is drawn.

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

    curve: Curve | None
    entity: str
    purpose: str
    rate: int
    fixed: int


#: A cost by what is drawn for it; or what it always is, nanoseconds.
Cost = Stream | int


def _is_constant(point: Distribution) -> bool:
    quantiles = point.quantiles
    return quantiles[0] == quantiles[-1] and len(set(quantiles)) == 1


class Costs:
    """The costs of a run by number; nothing is drawn yet."""

    def __init__(self) -> None:
        """Know no cost yet."""
        self._all: list[Cost] = []

    def add(self, curve: Curve | None, entity: str, purpose: str, rate: int, fixed: int = 0) -> int:
        """Add a cost, see `Stream`; returns its number."""
        if curve is not None and all(map(_is_constant, curve.points)):
            levels = {point.quantiles[0] for point in curve.points}
            if len(levels) == 1:
                return self.constant(int(levels.pop()))
        self._all.append(Stream(curve, entity, purpose, rate, fixed))
        return len(self._all) - 1

    def constant(self, value_ns: int = 0) -> int:
        """Add a cost that nobody draws, or that is the same each time; returns its number."""
        self._all.append(value_ns)
        return len(self._all) - 1

    def constant_ns(self, index: int) -> int | None:
        """A cost that is constant; else None."""
        cost = self._all[index]
        return cost if isinstance(cost, int) else None

    def sum_ns(self, indices: Iterable[int]) -> int:
        """Sum of costs, if all of them are constant; else -1."""
        found = 0
        for index in indices:
            cost_ns = self.constant_ns(index)
            if cost_ns is None:
                return -1
            found += cost_ns
        return found

    def all(self) -> tuple[Cost, ...]:
        """Every cost, by number."""
        return tuple(self._all)


class Window(NamedTuple):
    """Costs and numbers of some steps.

    Parameters
    ----------
    costs
        Of `COST`, shape ``(n_costs,)``.
    numbers
        Room for what is drawn, shape ``(n,)``.
    """

    costs: Any
    numbers: Any


class Luck:
    """The luck of some costs on one tape, as far as somebody asked for it.

    Parameters
    ----------
    tape
        Random numbers.
    n_steps
        Steps of a window, a multiple of `AT_ONCE`.
    margin
        How many steps beyond it at either end it holds as well.
    costs
        See `Costs.all`.
    """

    def __init__(self, tape: Tape, n_steps: int, margin: int, costs: tuple[Cost, ...]) -> None:
        """Draw nothing yet."""
        self.costs = costs
        self._n_steps = n_steps
        self._windows: list[Window] = []
        self._lock = Lock()
        self._points: list[Any] = []  # what the table has addresses of
        self._table = table = np.zeros(len(costs), COST)
        self._rates = np.array([0 if isinstance(c, int) else c.rate for c in costs], np.int64)
        self._moves = self._rates > 0
        self._at = np.zeros(len(costs), np.int64)
        self._length = n_fixed = 0
        for row, index, cost in zip(table, range(len(costs)), costs, strict=True):
            if isinstance(cost, int):
                row["kind"], row["value_ns"] = CONSTANT, cost
                continue
            self._describe(row, cost, tape)
            n = cost.fixed or cost.rate * (n_steps + 2 * margin) + margin
            row["length"] = n = -(-n // AT_ONCE) * AT_ONCE
            n += settled_words(n) if row["kind"] == COUNTED else 0
            if cost.rate:
                self._at[index] = self._length
                self._length += n
            else:
                self._at[index] = n_fixed
                n_fixed += n
        # What is not counted by steps is the same in all windows.
        self._fixed = np.empty(n_fixed)
        self._n_bytes_each = 8 * self._length + int(table.nbytes)
        #: Memory of what is kept, if all of it is drawn.
        self.n_bytes = 8 * n_fixed
        table["begin"] = self._fixed.ctypes.data + 8 * self._at

    def _describe(self, row: Any, cost: Stream, tape: Tape) -> None:
        points = cost.curve.points if cost.curve else ()
        row["kind"] = (PLAIN, ONE_POINT)[len(points)] if len(points) < 2 else CURVE
        if cost.curve and len(points) > 1 and cost.curve.by in _COUNTS and cost.rate:
            row["kind"] = COUNTED
        row["n_points"] = len(points)
        # A curve that is constant at each of its points needs no luck.
        row["varies"] = not points or not all(map(_is_constant, points))
        if row["varies"]:
            row["key_0"], row["key_1"] = tape.key(cost.entity, cost.purpose).view(np.int64)
        if cost.curve:
            xs = np.array(cost.curve.xs, np.float64)
            quantiles = np.array([point.quantiles for point in points])
            self._points += [xs, quantiles]
            row["xs"], row["quantiles"] = xs.ctypes.data, quantiles.ctypes.data

    def kept(self, number: int) -> Window | None:
        """A window that all runs share, asked for in order; None if there is no room for it."""
        with self._lock:
            if number == len(self._windows):
                if number and self.n_bytes + self._n_bytes_each > _MOST_BYTES_EACH:
                    return None
                before = self._windows[-1] if number else None
                self._windows.append(self.window(number, before, np.empty(self._length)))
                self.n_bytes += self._n_bytes_each
            return self._windows[number] if number < len(self._windows) else None

    def window(self, number: int, before: Window | None, numbers: Any) -> Window:
        """A window of which nothing is drawn.

        Parameters
        ----------
        number
            Which, from 0 on.
        before
            One before it: what is not counted by steps is not drawn again.
        numbers
            Room for what is drawn.
        """
        costs = (self._table if before is None else before.costs).copy()
        moves = self._moves
        for name in ("at", "settled", "asked", "n_asked", "claimed"):
            costs[name][moves] = 0
        costs["begin"][moves] = numbers.ctypes.data + 8 * self._at[moves]
        costs["first"][moves] = number * self._n_steps * self._rates[moves]
        return Window(costs, numbers)


def settled_words(length: int) -> int:
    """Room for whole nanoseconds of so many occasions: the count, and half of them, twice."""
    return 2 * (1 + length // 2)


class Passage:
    """The way of a run through the windows: those that are kept, then one after the other in place.

    Parameters
    ----------
    luck
        What it goes through.

    Attributes
    ----------
    window
        The present one.
    """

    def __init__(self, luck: Luck) -> None:
        """Be at the first window."""
        self._luck = luck
        self._number = 0
        self._numbers: Any = None
        first = luck.kept(0)
        assert first is not None, "there is always room for one"
        self.window = first

    def move_on(self) -> None:
        """Go on to the next window; nobody may need the one before any more."""
        self._number += 1
        kept = self._luck.kept(self._number)
        if kept is None:
            if self._numbers is None:
                self._numbers = np.empty_like(self.window.numbers)
            kept = self._luck.window(self._number, self.window, self._numbers)
        self.window = kept


_KEPT: Final[OrderedDict[Any, Luck]] = OrderedDict()
_LOCK: Final = Lock()


def luck_of(tape: Tape, n_steps: int, margin: int, costs: tuple[Cost, ...]) -> Luck:
    """Luck as earlier runs left it, if one asked for the same; parameters are those of `Luck`.

    What was asked for least recently is forgotten when there is too much.
    """
    key = (*tape.root, n_steps, margin, *map(_known_by, costs))
    with _LOCK:
        luck = _KEPT.pop(key, None) or Luck(tape, n_steps, margin, costs)
        n_bytes = sum(other.n_bytes for other in _KEPT.values()) + luck.n_bytes
        while _KEPT and n_bytes > _MOST_BYTES:
            n_bytes -= _KEPT.popitem(last=False)[1].n_bytes
        _KEPT[key] = luck
    return luck


def _known_by(cost: Cost) -> Any:
    """What tells a cost from others, while somebody holds it."""
    if isinstance(cost, int) or cost.curve is None:
        return cost
    # Distributions by their identity: to compare thousands of quantiles would take too long.
    return cost.curve[:2], tuple(map(id, cost.curve.points)), cost[1:]


# In compiled code.

cost_at = records_at(COST)


@within
def _quantile(quantiles: Any, position: Any, i: Any) -> Any:
    """`Distribution.at`."""
    left = float_at(quantiles, i)
    return left + (position - i) * (float_at(quantiles, i + 1) - left)


@within
def points_up_to(cost: Any, x: Any) -> Any:
    """How many points of a curve do not lie beyond ``x``."""
    i = 0
    for other in range(cost.n_points):  # they ascend, and to look at all takes no guess
        i += 1 if float_at(cost.xs, other) <= x else 0
    return i


@within
def beside(cost: Any, i: Any, position: Any, x: Any) -> Any:
    """The cost at ``x`` where ``i`` is `points_up_to` it, as of `shmsim.sim.draws`."""
    quantiles, n_points = cost.quantiles, cost.n_points
    level = min(int(position), N_QUANTILES - 2)
    if i == 0:
        return int(_quantile(quantiles, position, level))
    left = _quantile(quantiles + 8 * N_QUANTILES * (i - 1), position, level)
    if i == n_points:
        return int(left)
    before = float_at(cost.xs, i - 1)
    share = (x - before) / (float_at(cost.xs, i) - before)
    right = _quantile(quantiles + 8 * N_QUANTILES * i, position, level)
    return int(left + share * (right - left))


@inner
def along(cost: Any, position: Any, x: Any) -> Any:
    """The cost at ``x``."""
    return beside(cost, points_up_to(cost, x), position, x)


@within
def _numbers_of(eng: Any, cost: Any) -> Any:
    """Where the numbers of a cost lie; they are drawn if nobody asked before."""
    at = cost.at
    return at if at != 0 else ask(eng.draw, address_of(cost))


@within
def draw_from(eng: Any, costs: Any, index: Any, occasion: Any, x: Any) -> Any:
    """A cost of one occasion, nanoseconds."""
    cost = cost_at(costs, index)
    kind = cost.kind
    if kind == CONSTANT:
        return cost.value_ns
    if kind == COUNTED:
        return _counted(eng, cost, occasion, x)
    at = _numbers_of(eng, cost)
    if kind == ONE_POINT:
        return drawn_int_at(at, occasion)
    return along(cost, drawn_float_at(at, occasion), x)


@within
def _counted(eng: Any, cost: Any, occasion: Any, x: Any) -> Any:
    """The same of a curve along a count."""
    parity = occasion & 1
    block = cost.settled[parity]
    if block == 0:
        n_asked = cost.n_asked[parity] + 1 if cost.asked[parity] == x else 0
        cost.asked[parity] = x
        cost.n_asked[parity] = n_asked
        if n_asked > _PATIENCE:
            block = ask_all(eng.settle, address_of(cost), parity, x)
    if block != 0 and drawn_int_at(block, 0) == x:
        return drawn_int_at(block, 1 + ((occasion - cost.first) >> 1))
    return along(cost, drawn_float_at(_numbers_of(eng, cost), occasion), x)


@within
def draw(eng: Any, index: Any, occasion: Any, x: Any) -> Any:
    """A cost of one occasion that is not that of deciding, nanoseconds."""
    return draw_from(eng, eng.costs, index, occasion, x)


@within
def number(eng: Any, index: Any, occasion: Any) -> Any:
    """The uniform number of one occasion."""
    return drawn_float_at(_numbers_of(eng, cost_at(eng.costs, index)), occasion)
