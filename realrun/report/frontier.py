"""The picture that a validation leaves beside its figures."""

from pathlib import Path

from realrun.validate import Validation
from shmsim.plots import frontier, frontier_points


def draw_frontier(validation: Validation, path: Path) -> None:
    """Draw CPU against TPOT of every policy in both worlds, into a PNG or SVG file."""
    config = validation.config
    title = (
        f"{config.engine.workers} worker(s), {config.engine.scheduling}, "
        f"{config.device.describe()}, {config.repeats} repeats; bars: range of repeats"
    )
    points = frontier_points(validation.table(), config.engine.workers)
    frontier(points, title).savefig(path, dpi=150)
