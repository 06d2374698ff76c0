"""Measured step times, for ``[device] kind = "measured"`` and for steps that are computed.

A CSV has either one row for each step, ``n_decode`` and ``step_ns``, or quantiles: ``n_decode``,
``quantile`` in [0, 1], ``step_ns``. A file that ends in ``.json`` is a profile of a box with a GPU.
"""

import json
from pathlib import Path
from typing import Final

import numpy as np

from shmsim.distribution import QUANTILE_GRID
from shmsim.inputs.rows import InputError, Loaded, Row, read_csv
from shmsim.steptime import MeasuredStepTime
from shmsim.units import S

FEWEST_SAMPLES: Final = 20  # of a bucket: fewer say little about a tail
DEVICE_STEP: Final = "device_step"  # the cost of a profile that tells steps by batch


def read_measured_steps(path: Path) -> Loaded[MeasuredStepTime]:
    """Read distributions by batch bucket; nothing is added for prompt tokens.

    Raises
    ------
    InputError
        If a row is wrong, a bucket has too few steps, its quantiles do not ascend or are given
        at other levels than those of the other buckets, or a profile tells nothing about steps.
    """
    if path.suffix == ".json":
        return _from_profile(path)
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


def _from_profile(path: Path) -> Loaded[MeasuredStepTime]:
    """What ``realrun calibrate --gpu`` measured, out of the profile that it wrote."""
    try:
        costs = json.loads(path.read_text(encoding="utf-8"))["costs"]
        points = costs[DEVICE_STEP]["points"] if DEVICE_STEP in costs else []
        buckets = tuple(int(point["x"]) for point in points)
        quantiles = tuple(float(q) for point in points for q in point["quantiles"])
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no profile: {error!r}") from None
    if not buckets:
        raise InputError(
            f"{path} says nothing about steps of a GPU; measure them with 'realrun calibrate "
            f"--gpu 0 -o {path}', or take a CSV of 'realrun run --steps'"
        )
    if len(quantiles) != len(buckets) * len(QUANTILE_GRID):
        raise InputError(f"{path} is damaged: {DEVICE_STEP} lacks quantiles; calibrate again")
    levels = tuple(min(u, 1.0) for u in QUANTILE_GRID)
    return Loaded(MeasuredStepTime(buckets, levels, quantiles), len(buckets))


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
