"""Where two runs that should be the same begin to differ: the earliest event of any table."""

from collections.abc import Iterator
from itertools import zip_longest
from math import inf
from typing import Any, Final, NamedTuple

from shmsim.records import RunRecords

#: Instants of a row, by table. Rows of processes and cores are sums, known when the run ends.
_INSTANTS: Final = {
    "steps": (
        "scheduled_ns",
        "published_ns",
        "launched_ns",
        "done_ns",
        "replied_ns",
        "seen_ns",
    ),
    "waits": ("started_ns", "published_ns", "seen_ns"),
    "requests": ("arrival_ns", "token_ns"),
    "slices": ("started_ns", "ended_ns"),
    "processes": (),
    "cores": (),
}


class Difference(NamedTuple):
    """A row that two runs do not share.

    Parameters
    ----------
    at_ns
        When they begin to differ in it: the earlier one's instant; infinite at the end of the run.
    place
        Table and number of the row.
    expected, found
        The row of either; None where a run has none.
    """

    at_ns: float
    place: str
    expected: Any
    found: Any


def first_difference(expected: RunRecords, found: RunRecords) -> Difference | None:
    """The row of any table whose difference is the earliest in time; None if all are equal.

    Parameters
    ----------
    expected, found
        Two runs of one thing, whose rows are compared one by one.
    """
    return min(_differences(expected, found), key=lambda each: each.at_ns, default=None)


def _differences(expected: RunRecords, found: RunRecords) -> Iterator[Difference]:
    for table, instants in _INSTANTS.items():
        pairs = zip_longest(getattr(expected, table), getattr(found, table))
        for index, (row, other) in enumerate(pairs):
            if row != other:
                at_ns = _differs_at_ns(row, other, instants)
                yield Difference(at_ns, f"{table}[{index}]", row, other)


def _differs_at_ns(row: Any, other: Any, instants: tuple[str, ...]) -> float:
    """When two rows begin to differ: at an instant that does, else at the last, when all is known.

    A row that only one of the two has differs from its first instant on.
    """
    if row is None or other is None:
        there = other if row is None else row
        return min((ns for name in instants for ns in _of(there, name)), default=inf)
    found = inf
    last_ns = -inf
    for name in instants:
        for ns, other_ns in zip_longest(_of(row, name), _of(other, name)):
            known = [x for x in (ns, other_ns) if x is not None]
            last_ns = max(last_ns, *known)
            if ns != other_ns:
                found = min(found, *known)
    if found < inf:
        return found
    return last_ns if instants else inf


def _of(row: Any, name: str) -> list[int]:
    value = getattr(row, name)
    return value if isinstance(value, list) else [value]
