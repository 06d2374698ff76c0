"""Step-time tables as CSV, the format of ``[device] kind = "table"``.

Columns: ``n_decode``, ``n_prefill_tokens``, ``n_kv_tokens`` (the last two may be absent) and
``step_ns``, the mean. The rows, in any order, fill a grid.
"""

import csv
from pathlib import Path
from typing import Final

from shmsim.inputs.rows import InputError, Loaded, read_csv
from shmsim.steptime import TableStepTime
from shmsim.units import S
from shmsim.whole import whole

_AXES: Final = ("n_decode", "n_prefill_tokens", "n_kv_tokens")


def read_step_table(path: Path) -> Loaded[TableStepTime]:
    """Read a table; without jitter, and nothing added for prompt tokens.

    Raises
    ------
    InputError
        If a row is wrong or repeats, the table is empty, or a point of the grid is missing.
    """
    steps: dict[tuple[int, ...], float] = {}
    for row in read_csv(path, ["n_decode", "step_ns"]):
        key = tuple(row.whole(axis) if axis in row else 0 for axis in _AXES)
        if key in steps:
            raise row.error("n_decode", f"and the other columns repeat {_named(key)}")
        steps[key] = row.number("step_ns", 1, 3600 * S)
    if not steps:
        raise InputError(f"{path}: holds no row")
    axes = [tuple(sorted({key[i] for key in steps})) for i in range(3)]
    grid = [(i, j, k) for i in axes[0] for j in axes[1] for k in axes[2]]
    absent = [point for point in grid if point not in steps]
    if absent:
        raise InputError(
            f"{path}: the rows must fill a grid of {' x '.join(str(len(a)) for a in axes)} points, "
            f"and {len(absent)} are missing; the first is {_named(absent[0])}"
        )
    table = TableStepTime(axes[0], axes[1], axes[2], tuple(steps[point] for point in grid))
    return Loaded(table, len(steps))


def write_step_table(table: TableStepTime, path: Path) -> None:
    """Write the grid of a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_AXES, "step_ns"])
        steps = iter(table.step_ns)
        for i in table.n_decode:
            for j in table.n_prefill_tokens:
                for k in table.n_kv_tokens:
                    writer.writerow([i, j, k, next(steps)])


def _named(key: tuple[int, ...]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in zip(_AXES, key, strict=True))
