"""The cells of a grid: which policy at which step time, jitter, workers and scheduling.

One TOML file lists them, and is written before any of them is run: a cell that is chosen after its
result was seen proves nothing.
"""

import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmsim.config import ConfigError, RunConfig, parse_config, parse_policy
from shmsim.nearest import instead
from shmsim.units import format_ns, parse_duration_ns

_CELL_KEYS: Final = ("policy", "step", "jitter", "workers", "scheduling")


class Cell(NamedTuple):
    """One cell.

    Parameters
    ----------
    name
        Says all that sets it apart, as in ``tp1-sync-2ms-1pct-park``; names its folder too.
    config
        What is run, with a single policy.
    """

    name: str
    config: RunConfig

    def is_oversubscribed(self, n_cores: int) -> bool:
        """Whether its processes outnumber the cores of a box."""
        return 1 + self.config.engine.workers > n_cores


@dataclass(frozen=True)
class Grid:
    """Every cell of a file.

    Parameters
    ----------
    cells
        In the order of the file.
    repeats
        Tapes of random numbers; on the machine each is run twice.
    """

    cells: tuple[Cell, ...]
    repeats: int

    def only(self, names: list[str]) -> "Grid":
        """Keep the cells of these names.

        Raises
        ------
        ConfigError
            If one of them does not exist.
        """
        known = {cell.name: cell for cell in self.cells}
        for name in names:
            if name not in known:
                raise ConfigError(f"there is no cell {name!r}{instead(name, known)}")
        return replace(self, cells=tuple(known[name] for name in names))


def read_grid(path: Path) -> Grid:
    """Read a list of cells.

    The file is a config (see `shmsim.config`) without policies, plus a table ``grid``: ``run``,
    how long each run shall decode, and ``cells``, for each a ``policy``, ``step``, ``jitter``,
    ``workers`` and ``scheduling``. ``run.repeats`` is the number of tapes.

    Raises
    ------
    ConfigError
        If the file cannot be read, or anything in it is unknown, missing, doubled or out of range.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        return _grid(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _grid(content: dict[str, Any]) -> Grid:
    about = content.pop("grid", None)
    if not isinstance(about, dict) or set(about) != {"run", "cells"}:
        raise ConfigError(
            'a grid needs a table [grid] with run, how long each run decodes, as in "2s", and '
            f"cells, a list; got {about!r}"
        )
    rows = about["cells"]
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"grid.cells must be a list of at least one cell, got {rows!r}")
    if "policy" in content:
        raise ConfigError("each cell has its own policy; [[policy]] has no place in a grid")
    try:
        run_ns = parse_duration_ns(str(about["run"]))
    except ValueError as error:
        raise ConfigError(f"grid.run: {error}") from None
    base = parse_config(content)
    if base.workload.kind != "closed":
        raise ConfigError(
            f'workload.kind must be "closed" in a grid, so that its TPOT is steady; '
            f"got {base.workload.kind!r}"
        )
    if base.repeats < 2:
        raise ConfigError(f"run.repeats must be at least 2 for an interval, got {base.repeats}")
    cells = tuple(_cell(f"grid.cells[{i}]", row, content, run_ns) for i, row in enumerate(rows))
    for name, n in Counter(cell.name for cell in cells).items():
        if n > 1:
            raise ConfigError(f"cell {name} is there {n} times; runs of one cell are its repeats")
    return Grid(cells, base.repeats)


def _cell(where: str, row: Any, base: dict[str, Any], run_ns: int) -> Cell:
    if not isinstance(row, dict) or set(row) != set(_CELL_KEYS):
        raise ConfigError(f"{where} needs exactly the keys {', '.join(_CELL_KEYS)}; got {row!r}")
    engine = {"workers": row["workers"], "scheduling": row["scheduling"]}
    device = {"step": row["step"], "jitter": row["jitter"]}
    try:
        config = parse_config(
            {
                **base,
                "engine": base.get("engine", {}) | engine,
                "device": base.get("device", {}) | device,
            }
        )
        policy = parse_policy(str(row["policy"]))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    workload, step_ns = config.workload, config.device.step_ns
    tokens = max(2, run_ns * workload.concurrency // (workload.requests * step_ns))
    name = (
        f"tp{config.engine.workers}-{config.engine.scheduling}-"
        f"{format_ns(step_ns).replace(' ', '')}-{100 * config.device.jitter:g}pct-{policy.name}"
    )
    return Cell(
        name,
        replace(
            config,
            workload=replace(workload, output_p50=tokens, output_p95=tokens),
            policies=(policy,),
        ),
    )
