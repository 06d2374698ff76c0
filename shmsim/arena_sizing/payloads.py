"""Payloads to be handed over: when, how large, and how long each stays in its slot."""

import csv
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

_COLUMNS: Final = ("arrival_ns", "bytes")
_HOLD: Final = "hold_ns"


class Payloads(NamedTuple):
    """What an arena has to carry, in order of arrival; all of shape ``(n,)``.

    Parameters
    ----------
    arrival_ns
        When each is written, ascending.
    n_bytes
        Its size, at least 0.
    hold_ns
        How long its slot is in use: until the last reader lets go. At least 1.
    """

    arrival_ns: Int64Array
    n_bytes: Int64Array
    hold_ns: Int64Array

    @property
    def n(self) -> int:
        """How many."""
        return len(self.arrival_ns)

    @property
    def span_ns(self) -> int:
        """From the first arrival to the last, at least 1."""
        return max(int(self.arrival_ns[-1] - self.arrival_ns[0]), 1) if self.n else 1

    def of_at_least(self, n_bytes: int) -> "Payloads":
        """Those of a size or larger."""
        kept = self.n_bytes >= n_bytes
        return Payloads(self.arrival_ns[kept], self.n_bytes[kept], self.hold_ns[kept])


def payloads_of(arrival_ns: Int64Array, n_bytes: Int64Array, hold_ns: Int64Array) -> Payloads:
    """Check and build.

    Raises
    ------
    ValueError
        If the arrivals are out of order, a size is negative or a slot is held for no time.
    """
    shapes = {len(arrival_ns), len(n_bytes), len(hold_ns)}
    if len(shapes) > 1:
        raise ValueError(f"arrivals, sizes and holds must be as many, got {sorted(shapes)}")
    if np.any(np.diff(arrival_ns) < 0):
        index = int(np.argmax(np.diff(arrival_ns) < 0)) + 1
        raise ValueError(
            f"payloads must come in order, but number {index} arrives at {arrival_ns[index]} ns, "
            f"before the one before it at {arrival_ns[index - 1]} ns; sort them"
        )
    if np.any(n_bytes < 0):
        raise ValueError(f"a payload has at least 0 bytes, got {n_bytes.min()}")
    if np.any(hold_ns < 1):
        raise ValueError(
            f"a slot is in use for at least 1 ns, got {hold_ns.min()} ns; what is never copied "
            "needs no slot"
        )
    return Payloads(arrival_ns, n_bytes, hold_ns)


class Table(NamedTuple):
    """What a file of payloads holds: hold times only if it has that column."""

    arrival_ns: Int64Array
    n_bytes: Int64Array
    hold_ns: Int64Array | None


def read_payloads(path: Path) -> Table:
    """Read a CSV file with the columns ``arrival_ns`` and ``bytes``, perhaps ``hold_ns``.

    Raises
    ------
    ValueError
        If it cannot be read, lacks a column or holds something that is no whole number.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            missing = [name for name in _COLUMNS if name not in names]
            if missing:
                raise ValueError(
                    f"{path} lacks the column {' and '.join(missing)}; it needs a first line "
                    f"{','.join(_COLUMNS)}, and may have {_HOLD}"
                )
            wanted = [*_COLUMNS, *([_HOLD] if _HOLD in names else [])]
            rows = [_row(path, number, row, wanted) for number, row in enumerate(reader, 2)]
    except OSError as error:
        raise ValueError(f"cannot read payloads {path}: {error.strerror}") from None
    if not rows:
        raise ValueError(f"{path} holds no payload; it needs a line for each")
    table = np.array(rows, dtype=np.int64)
    return Table(table[:, 0], table[:, 1], table[:, 2] if len(wanted) > 2 else None)


def _row(path: Path, number: int, row: dict[str, str], wanted: list[str]) -> list[int]:
    try:
        return [int(row[name]) for name in wanted]
    except (TypeError, ValueError):
        got = ", ".join(f"{name}={row[name]!r}" for name in wanted)
        raise ValueError(f"{path}, line {number}: needs whole numbers, got {got}") from None
