"""How near the model came to every way to wait: a table, and claims."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table

from realrun.vllm.ab import Plan
from realrun.vllm.prediction import ArmPrediction, mean_outcome
from shmsim.claims import Claim
from shmsim.console import wide

#: Largest error of a prediction of TPOT, as a share of what was measured; fixed beforehand.
MARGIN: Final = 0.10
_WIDTH: Final = 130  # a row of figures that is broken in two cannot be read


def prediction_table(plan: Plan, found: Sequence[ArmPrediction]) -> Table:
    """What was said of every arm, and what came."""
    processes = list(found[0].predicted[0].cores)
    table = Table(
        title=f"{plan.cell}: predicted from records of vLLM's own waiting, and measured",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="Error: predicted TPOT over measured, less 1, with the 90 % interval over "
        f"{found[0].tpot_error.n} starts, each predicted from its own records; it holds if the "
        f"interval lies within {MARGIN:.0%}. Cores: predicted / measured.",
        caption_justify="left",
        caption_style="",
    )
    table.add_column("arm", no_wrap=True)
    for label in ("TPOT, ms\npredicted", "\nmeasured", "\nerror, %", ""):
        table.add_column(label, justify="right", no_wrap=True)
    for name in processes:
        table.add_column(f"{name}\ncores", justify="right", no_wrap=True)
    for arm in found:
        said, came = mean_outcome(arm.predicted), mean_outcome(arm.measured)
        error = arm.tpot_error
        table.add_row(
            arm.arm,
            f"{1e3 * said.tpot_s:.3f}",
            f"{1e3 * came.tpot_s:.3f}",
            f"{100 * error.value:+.1f} [{100 * error.low:+.1f}, {100 * error.high:+.1f}]",
            str(error.verdict(MARGIN)),
            *(f"{said.cores[name]:.2f} / {came.cores[name]:.2f}" for name in processes),
        )
    return table


def print_predictions(plan: Plan, found: Sequence[ArmPrediction]) -> None:
    """Print `prediction_table`, however narrow the terminal."""
    wide(_WIDTH).print(prediction_table(plan, found))


def prediction_claims(plan: Plan, found: Sequence[ArmPrediction]) -> list[Claim]:
    """The size of each arm's error; its interval is that of sizes."""
    claims = []
    for arm in found:
        value, low, high, n = arm.tpot_error
        ends = sorted((abs(low), abs(high)))
        least = 0.0 if low < 0 < high else ends[0]
        name = f"vllm/prediction_error/{plan.cell}-{arm.arm.replace(' ', '_')}"
        claims.append(Claim(name, abs(value), least, ends[1], "ratio", MARGIN, "<=", n, 0))
    return claims
