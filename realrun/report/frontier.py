"""The picture that a validation leaves beside its figures."""

from pathlib import Path

from realrun.validate import Validation
from shmsim.plots import frontier, frontier_points, write_svg


def draw_frontier(validation: Validation, path: Path) -> None:
    """Draw CPU against TPOT of every policy in both worlds, as SVG."""
    config = validation.config
    title = (
        f"{config.engine.workers} worker(s), {config.engine.describe_scheduling()}, "
        f"{config.device.describe()}, {config.repeats} repeats; bars: range of repeats"
    )
    points = frontier_points(validation.table(), config.engine.workers)
    write_svg(frontier(points, title), path)
