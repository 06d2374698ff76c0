"""What a soak came to: a table, and claims."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table

from realrun.vllm.report import print_others
from realrun.vllm.soak import OURS, Soaked, SoakPlan
from shmsim.claims import Claim
from shmsim.console import wide

_WIDTH: Final = 110


def soak_table(plan: SoakPlan, found: Sequence[Soaked]) -> Table:
    """Every window on both bells."""
    table = Table(
        title=f"{plan.cell}: {plan.n_steps} steps at every window; vLLM's own bell for "
        f"{plan.control_s:g} s at most",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="Stall: a step of more than 100 ms; a lost wake-up shows as 5 s. Rescued: found "
        "by a recheck of ours only.",
        caption_justify="left",
        caption_style="",
    )
    for label in ("window", "bell"):
        table.add_column(label, no_wrap=True)
    for label in ("steps", "stalls", "longest\nstep, s", "mean\nstep, ms", "rung", "pinged",
                  "rescued", "others'\ncores"):  # fmt: skip
        table.add_column(label, justify="right")
    for row in found:
        table.add_row(
            row.window,
            row.bell,
            f"{row.n_steps}",
            f"{row.stalls}",
            f"{row.longest_s:.3f}",
            f"{1e3 * row.wall_s / max(row.n_steps, 1):.2f}",
            f"{row.rung}",
            f"{row.pinged}",
            f"{row.rescued}",
            f"{row.foreign_cores:.2f}",
        )
    return table


def print_soak(plan: SoakPlan, found: Sequence[Soaked]) -> None:
    """Print `soak_table`, however narrow the terminal."""
    wide(_WIDTH).print(soak_table(plan, found))
    print_others(row.foreign_cores for row in found)


def soak_claims(plan: SoakPlan, found: Sequence[Soaked]) -> list[Claim]:
    """On our bell no step stalls; what vLLM's own does is no claim of ours."""
    return [
        Claim(
            f"vllm/stalls/{plan.cell}-window_{row.window_ns}ns",
            *(float(row.stalls),) * 3,
            "count",
            0.0,
            "<=",
            row.n_steps,
            0,
        )
        for row in found
        if row.bell == OURS
    ]
