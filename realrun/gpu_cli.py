"""The ``realrun gpu-check`` command, and what ``realrun calibrate --gpu`` prints."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from shmsim.console import Bar, console, diagnostics, print_uncut
from shmsim.program import Output, Written
from shmsim.units import MS, US, format_ns

if TYPE_CHECKING:
    from shmsim.profile import MachineProfile

_TYPICAL_NS: Final = 2.0 * MS  # of the rests that a table shows; the profile has them all


def show_gpu(profile: "MachineProfile") -> None:
    """Print what a GPU costs, and what about it a reader of the figures must know."""
    from realrun.calibrate_gpu import gpu_notes

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("on the GPU")
    table.add_column("p50 / p99 µs", justify="right")
    for name, curve in profile.costs.items():
        if not name.startswith(("device_", "h2d", "d2h")) or name == "device_return":
            continue
        is_rest = curve.by == "asleep_ns"
        for x in (_TYPICAL_NS,) if is_rest else curve.xs:
            along = f"after {format_ns(round(x))}" if is_rest else f"{x:,.0f} {curve.by}"
            p50, p99 = curve.at(0.5, x) / US, curve.at(0.99, x) / US
            table.add_row(f"{name}, {along}" if curve.by else name, f"{p50:.1f} / {p99:.1f}")
    print_uncut(table)
    for note in gpu_notes(profile):
        diagnostics.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


def gpu_check_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for results."), Written.FOLDER
    ] = Path("runs/gpu-check"),
) -> Output:
    """Check everything that needs a GPU, in under 8 minutes: costs, policies, tests.

    Calibrates GPU and box, predicts each cell that it runs, and holds both to each other. Writes
    profile.json, found.json, claims.json and predicted.png, and logs of what failed; exits with 1
    if a claim does not hold. Which GPU: the first that CUDA_VISIBLE_DEVICES shows.
    'python -m realrun.gpu_check' does the same where only torch, numpy and pyzmq are installed.
    """
    from realrun.gpu_check.carry_out import carry_out

    with Bar() as bar:
        done = carry_out(out, bar.show)
    for line in done.lines:
        console.print(line, markup=False, soft_wrap=True)
    for note in done.notes:
        diagnostics.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    return Output(done.data, done.holds)
