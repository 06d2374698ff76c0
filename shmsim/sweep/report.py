"""The tables of a sweep on a terminal."""

from collections.abc import Iterator

from rich import box
from rich.markup import escape
from rich.table import Table

from shmsim.figures import shown
from shmsim.run_costs import notes_on_costs
from shmsim.stats.estimate import Estimate
from shmsim.sweep.plan import SweepPlan
from shmsim.sweep.tables import CellResult, over_all_cells

_SIGNIFICANT = "*"


def cell_table(plan: SweepPlan, result: CellResult) -> Table:
    """Draw one cell: each policy's figures, and below each its difference to the reference."""
    table = Table(
        title=f"{escape(result.cell)} on {escape(result.profile)}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("policy", overflow="fold")
    for figure in plan.figures:
        table.add_column(shown(figure).label, justify="right")
    for policy, estimates in result.estimates.items():
        cells = [escape(policy)]
        for figure in plan.figures:
            unit = shown(figure).unit
            text = _marked(estimates[figure], unit)
            comparison = result.comparisons.get(policy, {}).get(figure)
            if comparison is not None:
                difference = comparison.difference.text(unit)
                sign = "" if difference.startswith("-") else "+"
                star = _SIGNIFICANT if comparison.is_significant else " "
                text += f"\n[dim]{sign}{difference}[/] {star}"
            cells.append(text)
        table.add_row(*cells)
    return table


def _marked(estimate: Estimate, unit: float) -> str:
    return estimate.text(unit) + (" ?" if estimate.caveat else "  ")


def footnotes(plan: SweepPlan, found: list[CellResult]) -> Iterator[str]:
    """What one must know to read the tables."""
    share = f"{100 * plan.confidence:g} %"
    each = [e for r in found for figures in r.estimates.values() for e in figures.values()]
    most = max((estimate.n for estimate in each), default=0)
    seeds = ", ".join(str(seed) for seed in sorted({cell.config.seed for cell in plan.cells}))
    yield (
        f"estimate ± half-width: {share} intervals (Student) of means over {most} replications, "
        f"seed {seeds}; p50 and p99 are means of each run's"
    )
    for cell in plan.cells:
        for note in notes_on_costs(cell.config, cell.profile):
            yield f"{cell.name} on {cell.profile_name}: {note}"
    if any(result.comparisons for result in found):
        methods = sorted(
            {
                comparison.difference.method
                for result in found
                for figures in result.comparisons.values()
                for comparison in figures.values()
            }
        )
        yield (
            f"below: difference to {plan.reference_name} on the same tapes; all differences of a "
            f"table hold jointly at {share} ({'; '.join(methods)}); {_SIGNIFICANT} 0 is outside"
        )
        if len(found) > 1:
            p_values = over_all_cells(found)
            n_significant = sum(p < 1 - plan.confidence for p in p_values)
            yield (
                f"over all {len(found)} tables together {n_significant} of {len(p_values)} "
                "differences are significant (Holm)"
            )
    elif len(plan.policies) > 1:
        yield "no differences: they take at least 2 replications"
    compared = [
        (result, policy, figure, estimates[figure].caveat)
        for result in found
        for policy, estimates in result.estimates.items()
        for figure in dict.fromkeys((*plan.figures, plan.stop_figure))
        if estimates[figure].caveat
    ]
    for result, policy, figure, caveat in compared:
        yield f"? {result.cell} on {result.profile}, {policy}, {shown(figure).label}: {caveat}"
