"""The picture of a validation."""

from pathlib import Path

from realrun.validate import Comparison, Validation
from shmsim.plots import FrontierPoint, frontier
from shmsim.units import MS


def draw_frontier(validation: Validation, path: Path) -> None:
    """Draw CPU against TPOT of every policy in both worlds, into a PNG or SVG file."""
    config = validation.config
    points = [
        _point(validation, name, world)
        for name in validation.policy_names
        for world in ("machine", "model")
    ]
    title = (
        f"{config.engine.workers} worker(s), {config.engine.scheduling}, "
        f"step {config.device.step_ns / MS:g} ms, {config.repeats} repeats; bars: range of repeats"
    )
    frontier(points, title).savefig(path, dpi=150)


def _point(validation: Validation, name: str, world: str) -> FrontierPoint:
    n_workers = validation.config.engine.workers
    tpot = validation.compare(name, "tpot_p50_ns")
    scheduler = validation.compare(name, "scheduler_cores")
    worker = validation.compare(name, "worker_cores")

    def value(comparison: Comparison) -> float:
        return comparison.measured if world == "machine" else comparison.simulated

    cores = value(scheduler) + n_workers * value(worker)
    if world == "model":
        return FrontierPoint(name, world, cores, value(tpot))
    return FrontierPoint(
        name,
        world,
        cores,
        value(tpot),
        scheduler.spread + n_workers * worker.spread,
        tpot.spread,
    )
