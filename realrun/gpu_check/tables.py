"""What a check prints: plain text, for there may be nothing that draws tables where it runs."""

from realrun.gpu_check.asked import name_of
from realrun.gpu_check.flow import Found
from shmsim.units import US

_TITLES = ("cell", "step p50 µs", "TPOT p50 µs", "predicted µs", "off %", "cores", "predicted")


def cells_table(found: Found) -> list[str]:
    """Every cell that ran, a line each: what was measured, and what the model had expected."""
    rows = [_TITLES] if found.rows else []
    for row in found.rows:
        expected = found.predicted.get(row.cell._replace(repeat=0))
        off = f"{100 * (expected.tpot_p50_ns / row.tpot_p50_ns - 1):+.1f}" if expected else "-"
        rows.append(
            (
                name_of(row.cell) + (", emulated" if row.emulated else ""),
                f"{row.step_p50_ns / US:.0f}",
                f"{row.tpot_p50_ns / US:.0f}",
                f"{expected.tpot_p50_ns / US:.0f}" if expected else "-",
                off,
                f"{row.cores:.2f}",
                f"{expected.cores:.2f}" if expected else "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def spent_sentence(found: Found) -> str:
    """Say what the time went into."""
    parts = ", ".join(f"{s.part} {s.took_s:.0f} of {s.limit_s:.0f} s" for s in found.spent)
    return f"time: {parts}"
