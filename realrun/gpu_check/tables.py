"""What a check prints."""

from rich import box
from rich.table import Table

from realrun.gpu_check.asked import name_of
from realrun.gpu_check.flow import TESTS, Found
from shmsim.units import US


def cells_table(found: Found) -> Table:
    """Every cell that ran: what was measured, and what the model had expected."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cell")
    titles = ("step\np50 µs", "TPOT\np50 µs", "predicted\nµs", "off\n%", "cores", "predicted")
    for title in titles:
        table.add_column(title, justify="right")
    for row in found.rows:
        expected = found.predicted.get(row.cell._replace(repeat=0))
        off = f"{100 * (expected.tpot_p50_ns / row.tpot_p50_ns - 1):+.1f}" if expected else ""
        table.add_row(
            name_of(row.cell),
            f"{row.step_p50_ns / US:.0f}",
            f"{row.tpot_p50_ns / US:.0f}",
            f"{expected.tpot_p50_ns / US:.0f}" if expected else "-",
            off,
            f"{row.cores:.2f}",
            f"{expected.cores:.2f}" if expected else "-",
        )
    return table


def spent_sentence(found: Found) -> str:
    """Say what the time went into, and what there was none for."""
    parts = ", ".join(f"{s.part} {s.took_s:.0f} of {s.limit_s:.0f} s" for s in found.spent)
    left_out = [f"{len(found.not_run)} cells"] if found.not_run else []
    left_out += list(found.gpu.get("left_out", {}))
    if TESTS not in [spent.part for spent in found.spent]:
        left_out.append("the tests, which are not here, or pytest is not")
    return f"time: {parts}" + (f"; left out: {', '.join(left_out)}" if left_out else "")
