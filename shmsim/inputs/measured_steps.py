"""Measured step times as CSV, the format of ``[device] kind = "measured"``.

Either one row for each step, ``n_decode`` and ``step_ns``, or quantiles: ``n_decode``,
``quantile`` in [0, 1], ``step_ns``.
"""

from pathlib import Path
from typing import Final

import numpy as np

from shmsim.distribution import QUANTILE_GRID
from shmsim.inputs.rows import InputError, Loaded, Row, read_csv
from shmsim.steptime import MeasuredStepTime
from shmsim.units import S

FEWEST_SAMPLES: Final = 20  # of a bucket: fewer say little about a tail


def read_measured_steps(path: Path) -> Loaded[MeasuredStepTime]:
    """Read distributions by batch bucket; nothing is added for prompt tokens.

    Raises
    ------
    InputError
        If a row is wrong, a bucket has too few steps, or its quantiles do not ascend or are given
        at other levels than those of the other buckets.
    """
    rows = list(read_csv(path, ["n_decode", "step_ns"]))
    if not rows:
        raise InputError(f"{path}: holds no row")
    if "quantile" in rows[0].columns:
        return Loaded(_from_quantiles(path, rows), len(rows))
    samples: dict[int, list[float]] = {}
    for row in rows:
        samples.setdefault(row.whole("n_decode", 1), []).append(_step_ns(row))
    for bucket, values in samples.items():
        if len(values) < FEWEST_SAMPLES:
            raise InputError(
                f"{path}: n_decode {bucket} has {len(values)} steps; a distribution needs at least "
                f"{FEWEST_SAMPLES}"
            )
    buckets = tuple(sorted(samples))
    levels = tuple(min(u, 1.0) for u in QUANTILE_GRID)
    quantiles = [float(q) for bucket in buckets for q in np.quantile(samples[bucket], levels)]
    return Loaded(MeasuredStepTime(buckets, levels, tuple(quantiles)), len(rows))


def _from_quantiles(path: Path, rows: list[Row]) -> MeasuredStepTime:
    given: dict[int, dict[float, float]] = {}
    for row in rows:
        bucket, level = row.whole("n_decode", 1), row.number("quantile", 0, 1)
        of_bucket = given.setdefault(bucket, {})
        if of_bucket and level <= max(of_bucket):
            raise row.error("quantile", f"must ascend for n_decode {bucket}")
        step_ns = _step_ns(row)
        if of_bucket and step_ns < max(of_bucket.values()):
            raise row.error("step_ns", f"must not descend with the quantile for n_decode {bucket}")
        of_bucket[level] = step_ns
    buckets = tuple(sorted(given))
    levels = tuple(given[buckets[0]])
    for bucket in buckets:
        if tuple(given[bucket]) != levels:
            raise InputError(
                f"{path}: n_decode {bucket} must have the quantiles that {buckets[0]} has, "
                f"{', '.join(f'{u:g}' for u in levels)}; it has "
                f"{', '.join(f'{u:g}' for u in given[bucket])}"
            )
    quantiles = tuple(q for bucket in buckets for q in given[bucket].values())
    return MeasuredStepTime(buckets, levels, quantiles)


def _step_ns(row: Row) -> float:
    return row.number("step_ns", 1, 3600 * S)
