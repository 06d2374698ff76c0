"""What the model says of the cells that run, from the profile calibrated minutes before.

The model and its pictures are loaded where they are asked for: a machine that has no more than
what runs the loop can be checked all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from realrun.calibrate_gpu import per_prefill_token_ns
from realrun.gpu_check.asked import PROMPT, Cell, Figures, Row, config_of, figures_of, name_of
from shmsim.claims import Claim
from shmsim.config import DeviceConfig, parse_policy
from shmsim.profile import MachineProfile
from shmsim.units import MS
from shmsim.whole import whole

_MOST_WRONG: Final = 0.05  # of what was measured
_MOST_CORES_WRONG: Final = 0.15
#: A thread of the worker spins in the driver beside the one that waits; the model has no such.
SPINS_TWICE: Final = "sync"


def predict_cell(cell: Cell, device: DeviceConfig, profile: MachineProfile, path: Path) -> Figures:
    """The figures that the model expects of a cell.

    Parameters
    ----------
    device
        Of the run.
    profile, path
        Calibrated with the GPU, and where it is stored: it tells what steps take.

    Raises
    ------
    ValueError
        If the profile says nothing about steps or prompts, or not of such a batch.
    ModuleNotFoundError
        If a library of the model is not installed.
    """
    from realrun.validate import predict

    config = config_of(cell, device)
    token_ns = per_prefill_token_ns(profile, PROMPT)
    config = replace(
        config,
        engine=replace(config.engine, device_wait=cell.policy),
        device=replace(config.device, file=str(path), per_prefill_token_ns=token_ns),
    )
    return figures_of(predict(config, parse_policy(cell.policy).policy, profile, 0))


def prediction_claims(rows: Sequence[Row], predicted: Mapping[Cell, Figures]) -> list[Claim]:
    """How far the model is off, one claim for each kind of cell: the cell that is off most.

    Parameters
    ----------
    rows, predicted
        What was measured, and what was expected of those cells.
    """
    kinds: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row.cell in predicted:
            kind = row.cell.scheduling, row.cell.observe, row.cell.readers
            kinds.setdefault(kind, []).append(row)
    claims = []
    for (scheduling, observe, readers), of_kind in kinds.items():
        expected = [predicted[row.cell] for row in of_kind]
        both = list(zip(of_kind, expected, strict=True))
        name = f"gpu/predicted_{scheduling}_{observe}{with_readers(readers)}"
        tpot = [abs(e.tpot_p50_ns / row.tpot_p50_ns - 1.0) for row, e in both]
        claims.append(_worst(f"{name}_tpot_error", tpot, "ratio", _MOST_WRONG))
        if observe != SPINS_TWICE:
            cores = [abs(e.cores - row.cores) for row, e in both]
            claims.append(_worst(f"{name}_cores_error", cores, "cores", _MOST_CORES_WRONG))
    return claims


def with_readers(readers: int) -> str:
    """What a claim about several readers has in its name."""
    return f"_{readers}_readers" if readers > 1 else ""


def _worst(name: str, errors: list[float], unit: str, bound: float) -> Claim:
    return Claim(name, max(errors), min(errors), max(errors), unit, bound, "<=", len(errors), 1)


def draw_predictions(path: Path, rows: Sequence[Row], predicted: Mapping[Cell, Figures]) -> None:
    """Draw TPOT of each cell, predicted beside measured; repeats of a cell are one row.

    Raises
    ------
    ValueError
        If there is no cell to draw.
    ModuleNotFoundError
        If what draws is not installed.
    """
    from shmsim.plots import Prediction, predicted_and_measured, ranged

    measured: dict[Cell, list[float]] = {}
    for row in rows:
        measured.setdefault(row.cell._replace(repeat=0), []).append(row.tpot_p50_ns)
    drawn = [
        Prediction(
            name_of(cell),
            ranged([predicted[cell].tpot_p50_ns]) if cell in predicted else None,
            ranged(values),
        )
        for cell, values in measured.items()
    ]
    figure = predicted_and_measured(drawn, "TPOT p50, ms", MS, "GPU check: model and machine")
    with whole(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=150)
