"""Rows of CSV and JSONL files, checked where they are read."""

import csv
import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Generic, TypeVar

from shmsim.nearest import did_you_mean
from shmsim.units import S

T = TypeVar("T")


class InputError(ValueError):
    """What is wrong in a file of somebody else: where, the value, and what is allowed."""


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """What a file held, and what of it was left out.

    Parameters
    ----------
    value
        What was asked for.
    n_rows
        Rows read, the skipped ones among them.
    skipped
        How many rows were left out, by reason; empty if none was.
    notes
        What else the value leaves out of the file.
    """

    value: T
    n_rows: int
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def account(self) -> str:
        """Say in one line what was used and what was not."""
        left_out = sum(self.skipped.values())
        parts = [f"{self.n_rows - left_out} of {self.n_rows} rows used"]
        parts += [f"{n} skipped: {reason}" for reason, n in self.skipped.items()]
        return "; ".join([*parts, *self.notes])


class Row:
    """One row and where it stands.

    Parameters
    ----------
    where
        File and line, for errors.
    cells
        Values by column; texts of a CSV, any of JSON.
    """

    def __init__(self, where: str, cells: dict[str, Any]) -> None:
        """Keep both; nothing is checked yet."""
        self.where = where
        self._cells = cells

    def __contains__(self, column: str) -> bool:
        """Whether there is such a column, and something in it."""
        return self._cells.get(column) not in (None, "")

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._cells)

    def value(self, column: str) -> Any:
        """What stands in a column.

        Raises
        ------
        InputError
            If there is no such column in this row.
        """
        if column not in self._cells:
            raise InputError(f"{self.where}: {missing([column], self._cells)}")
        return self._cells[column]

    def text(self, column: str) -> str:
        """A text that is not empty."""
        value = self.value(column)
        if not isinstance(value, str) or not value.strip():
            raise self.error(column, "must be a text")
        return value.strip()

    def number(self, column: str, lowest: float = 0.0, highest: float = math.inf) -> float:
        """A finite number from ``lowest`` to ``highest``."""
        return float(self._decimal(column, "a number", lowest, highest))

    def whole(self, column: str, lowest: int = 0, highest: float = math.inf) -> int:
        """A whole number from ``lowest`` to ``highest``."""
        number = self._decimal(column, "a whole number", lowest, highest)
        if number != number.to_integral_value():
            raise self.error(column, f"must be {_range('a whole number', lowest, highest)}")
        return int(number)

    def instant_ns(self, column: str, unit_ns: int = S) -> int:
        """An instant of at least 0, exactly, to the nearest nanosecond."""
        return round(self._decimal(column, "a time", 0, math.inf) * unit_ns)

    def error(self, column: str, what: str) -> InputError:
        """An error about the value of a column."""
        return InputError(f"{self.where}: {column} {what}, got {_shown(self._cells.get(column))}")

    def _decimal(self, column: str, kind: str, lowest: float, highest: float) -> Decimal:
        value = self.value(column)
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
                raise InvalidOperation
            if isinstance(value, str) and "_" in value:  # Decimal would read 1_0 as 10
                raise InvalidOperation
            number = Decimal(value.strip() if isinstance(value, str) else value)
            if number.is_finite() and lowest <= number <= highest:
                return number
        except InvalidOperation:
            pass
        raise self.error(column, f"must be {_range(kind, lowest, highest)}")


def read_csv(path: Path, columns: Collection[str]) -> Iterator[Row]:
    """Rows of a CSV file that has at least some columns.

    Raises
    ------
    InputError
        If the file cannot be read, a column is missing (with the nearest one it has), or a row has
        more or fewer cells than the header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            found = reader.fieldnames or ()
            absent = [column for column in columns if column not in found]
            if absent:
                raise InputError(f"{path}: {missing(absent, found)}")
            for cells in reader:
                where = f"{path}, line {reader.line_num}"
                # A first column without a name is an index that pandas wrote, so "" may be one.
                n_found = sum(1 for cell in cells.values() if cell is not None)
                if n_found != len(found) or isinstance(cells.get(""), list):
                    raise InputError(f"{where}: this row has not {len(found)} cells as the header")
                yield Row(where, cells)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from None


def read_jsonl(path: Path) -> Iterator[Row]:
    """Rows of a file with one JSON object on each line; blank lines count as none.

    Raises
    ------
    InputError
        If the file cannot be read, or a line is no JSON object.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield Row(where, _object(line, where))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from None


def read_json(path: Path) -> Row:
    """A file that holds one JSON object, as one row; errors as `read_jsonl`."""
    try:
        return Row(str(path), _object(path.read_text(encoding="utf-8-sig"), str(path)))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from None


def missing(absent: Collection[str], found: Iterable[str]) -> str:
    """Say which columns are missing, and which of those there are come nearest."""
    there = [name for name in found if name]
    hint = next(filter(None, (did_you_mean(name, there) for name in absent)), "")
    return f"column {', '.join(absent)} is missing{hint}; this has {', '.join(there) or 'none'}"


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        # Decimal keeps a time stamp of seconds since 1970 exact to the nanosecond.
        content = json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{where}: must be a JSON object, got {_shown(content)}")
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _range(kind: str, lowest: float, highest: float) -> str:
    if highest == math.inf:
        return f"{kind} of at least {lowest:g}"
    return f"{kind} from {lowest:g} to {highest:g}"


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
