"""What a sweep found, as tidy tables: points, estimates, and differences to the reference."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shmsim.figures import FIGURES, shown
from shmsim.stats.estimate import Estimate, Float64Array, mean_of_replications
from shmsim.stats.multiplicity import Comparison, against_reference, holm
from shmsim.sweep.key import engine_hash
from shmsim.sweep.plan import Point, SweepPlan
from shmsim.sweep.store import Figures
from shmsim.whole import write_whole

POINTS: Final = "points.parquet"
ESTIMATES: Final = "estimates.parquet"
COMPARISONS: Final = "comparisons.parquet"

_EACH: Final = "replications: mean of each run's figure"


class CellResult(NamedTuple):
    """One cell: estimates of its policies, and their differences to the reference.

    Parameters
    ----------
    cell, profile
        Names.
    settings
        As in `shmsim.sweep.plan.Cell`.
    estimates
        By policy and figure.
    comparisons
        By policy, without the reference, and figure, of those compared; all hold jointly. Empty if
        there are fewer than two replications, or if there is nothing to compare with.
    """

    cell: str
    profile: str
    settings: dict[str, Any]
    estimates: dict[str, dict[str, Estimate]]
    comparisons: dict[str, dict[str, Comparison]]


def points_table(plan: SweepPlan, found: Mapping[Point, Figures]) -> pa.Table:
    """One row for each run: where it belongs, its seed and replication, and its figures."""
    rows = []
    names = _setting_names(plan)
    for point in sorted(found):
        cell = plan.cells[point.cell]
        rows.append(
            {
                "cell": cell.name,
                "profile": cell.profile_name,
                **{name: cell.settings.get(name) for name in names},
                "policy": plan.policies[point.policy].name,
                "seed": cell.config.seed,
                "replication": point.replication,
                **found[point],
            }
        )
    fixed = {"seed": pa.int64(), "replication": pa.int64(), **dict.fromkeys(FIGURES, pa.float64())}
    columns = ["cell", "profile", *names, "policy", *fixed]
    return _table(rows, columns, fixed)


def results(plan: SweepPlan, points: pa.Table) -> list[CellResult]:
    """Estimates and joint comparisons, cell by cell.

    Parameters
    ----------
    plan
        What was run.
    points
        What `points_table` made of it.
    """
    places = zip(*(points[name].to_pylist() for name in ("cell", "profile", "policy")), strict=True)
    rows: dict[tuple[str, str, str], list[int]] = {}
    for index, place in enumerate(places):
        rows.setdefault(place, []).append(index)
    columns = {name: points[name].to_numpy(zero_copy_only=False) for name in FIGURES}
    found = []
    for cell in plan.cells:
        values = {
            policy.name: {
                name: column[rows[cell.name, cell.profile_name, policy.name]]
                for name, column in columns.items()
            }
            for policy in plan.policies
            if (cell.name, cell.profile_name, policy.name) in rows
        }
        seed = cell.config.seed
        estimates = {
            policy: {name: _estimate(plan, name, column, seed) for name, column in figures.items()}
            for policy, figures in values.items()
        }
        compared = _compare(plan, values, seed)
        found.append(CellResult(cell.name, cell.profile_name, cell.settings, estimates, compared))
    return found


def _estimate(plan: SweepPlan, figure: str, values: Float64Array, seed: int) -> Estimate:
    estimate = mean_of_replications(values, confidence=plan.confidence, seed=seed)
    if shown(figure).label.endswith(("p50 ms", "p99 ms")):
        # Only the figures of each run were kept, so this is no quantile of all values together.
        estimate = estimate._replace(method=_EACH)
    if plan.precision is not None and figure == plan.stop_figure:
        return plan.precision.judged(estimate)
    return estimate


def _compare(
    plan: SweepPlan, values: dict[str, dict[str, Float64Array]], seed: int
) -> dict[str, dict[str, Comparison]]:
    """Every compared figure of every policy but the reference, as one family."""
    reference = values.get(plan.reference_name)
    family = []
    columns: list[Float64Array] = []
    for policy, figures in values.items():
        if reference is None or policy == plan.reference_name:
            continue
        for name in plan.figures:
            difference = figures[name] - reference[name]
            if not np.isnan(difference).any():  # as TTFT after idle where nobody found it idle
                family.append((policy, name))
                columns.append(difference)
    if not columns or len(columns[0]) < 2:
        return {}
    found: dict[str, dict[str, Comparison]] = {}
    joint = against_reference(np.stack(columns, axis=1), confidence=plan.confidence, seed=seed)
    for (policy, name), comparison in zip(family, joint, strict=True):
        found.setdefault(policy, {})[name] = comparison
    return found


_ESTIMATE_TYPES: Final = {
    "value": pa.float64(),
    "low": pa.float64(),
    "high": pa.float64(),
    "confidence": pa.float64(),
    "n": pa.int64(),
    "method": pa.string(),
    "seed": pa.int64(),
    "caveat": pa.string(),
}


def estimates_table(plan: SweepPlan, found: list[CellResult]) -> pa.Table:
    """One row for each cell, policy and figure, with its interval."""
    rows = [
        {**_place(result), "policy": policy, "figure": figure, **estimate._asdict()}
        for result in found
        for policy, figures in result.estimates.items()
        for figure, estimate in figures.items()
    ]
    columns = [*_place_columns(plan), "policy", "figure", *_ESTIMATE_TYPES]
    return _table(rows, columns, _ESTIMATE_TYPES)


def over_all_cells(found: list[CellResult]) -> list[float]:
    """p-values of all comparisons, adjusted once more over the cells by Holm; in their order.

    Within a cell they are adjusted already; whoever looks for a difference anywhere in a large
    sweep finds one in some cell by luck.
    """
    p_values = [
        comparison.p_value
        for result in found
        for figures in result.comparisons.values()
        for comparison in figures.values()
    ]
    return list(map(float, holm(p_values)))


def comparisons_table(plan: SweepPlan, found: list[CellResult]) -> pa.Table:
    """One row for each difference to the reference: joint interval, adjusted p-values, verdict.

    Interval, ``p_value`` and ``is_significant`` hold within the cell, ``p_value_of_sweep`` in all.
    """
    over_all = iter(over_all_cells(found))
    rows = [
        {
            **_place(result),
            "policy": policy,
            "reference": plan.reference_name,
            "figure": figure,
            **comparison.difference._asdict(),
            "p_value": comparison.p_value,
            "p_value_of_sweep": next(over_all),
            "is_significant": comparison.is_significant,
        }
        for result in found
        for policy, figures in result.comparisons.items()
        for figure, comparison in figures.items()
    ]
    fixed = {
        **_ESTIMATE_TYPES,
        "p_value": pa.float64(),
        "p_value_of_sweep": pa.float64(),
        "is_significant": pa.bool_(),
    }
    columns = [*_place_columns(plan), "policy", "reference", "figure", *fixed]
    return _table(rows, columns, fixed)


def write_tables(folder: Path, plan: SweepPlan, points: pa.Table) -> list[CellResult]:
    """Store the three tables as Parquet; the same results give the same bytes."""
    found = results(plan, points)
    tables = {
        POINTS: points,
        ESTIMATES: estimates_table(plan, found),
        COMPARISONS: comparisons_table(plan, found),
    }
    for name, table in tables.items():
        buffer = io.BytesIO()
        marked = table.replace_schema_metadata({"shmsim_engine": engine_hash()})
        pq.write_table(marked, buffer, compression="zstd")
        write_whole(folder / name, buffer.getvalue(), synced=True)
    return found


def _setting_names(plan: SweepPlan) -> list[str]:
    return list(dict.fromkeys(name for cell in plan.cells for name in cell.settings))


def _place(result: CellResult) -> dict[str, Any]:
    return {"cell": result.cell, "profile": result.profile, **result.settings}


def _place_columns(plan: SweepPlan) -> Iterator[str]:
    yield from ("cell", "profile", *_setting_names(plan))


def _table(rows: list[dict[str, Any]], columns: list[str], fixed: Mapping[str, Any]) -> pa.Table:
    arrays = [_array([row.get(name) for row in rows], fixed.get(name)) for name in columns]
    return pa.table(arrays, names=columns)


def _array(values: list[Any], kind: Any) -> Any:
    """A column; a setting that is not of one plain type in all cells becomes text."""
    if kind is None:
        kinds = {type(value) for value in values if value is not None}
        if kinds == {int, float}:
            kinds = {float}
        if len(kinds) == 1 and kinds <= {int, float, bool, str}:
            kind = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}[
                kinds.pop()
            ]
        else:
            kind = pa.string()
            values = [None if value is None else str(value) for value in values]
    return pa.array(values, kind)
