"""A sweep as a TOML file; an unknown key is refused with the nearest known one."""

import copy
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from shmsim.config import ConfigError, NamedPolicy, RunConfig, parse_config, policy_from_table
from shmsim.figures import FIGURES
from shmsim.nearest import instead
from shmsim.policy_file import read_policy
from shmsim.profile import MachineProfile
from shmsim.stats.stopping import Precision
from shmsim.sweep.plan import COMPARED, REPLICATIONS, Cell, SweepPlan
from shmsim.units import parse_duration_ns

#: Keys of the file, and what each is.
_KEYS: Final[dict[str, type]] = {
    "profiles": list,
    "configs": list,
    "replications": int,
    "seed": int,
    "reference": str,
    "figures": list,
    "grid": dict,
    "case": list,
    "policy": list,
    "stop": dict,
}
_KINDS: Final[dict[type, str]] = {
    list: "a list",
    int: "a whole number",
    str: "a text",
    dict: "a table",
}
_STOP_KEYS: Final = ("figure", "relative", "absolute", "most")
_MOST: Final = 1000


def load_sweep(path: Path) -> SweepPlan:
    """Read a sweep file.

    Raises
    ------
    ConfigError
        If the file, or one that it names, cannot be read, or anything in it is unknown, of the
        wrong kind or out of range.
    """
    content = _read(path)
    try:
        return parse_sweep(content, path.parent)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_sweep(content: dict[str, Any], folder: Path = Path()) -> SweepPlan:
    """Check what a sweep file holds; paths in it are relative to ``folder``."""
    _refuse_unknown("", content, _KEYS)
    for key, value in content.items():
        if type(value) is not _KEYS[key]:
            raise ConfigError(f"{key} must be {_KINDS[_KEYS[key]]}, got {value!r}")
    profiles = _profiles(content.get("profiles", []), folder)
    bases = _bases(content.get("configs", []), folder)
    configs = list(_configs(bases, content))
    cells = tuple(
        Cell(name, settings, config, profile_name, profile)
        for name, settings, config in configs
        for profile_name, profile in profiles.items()
    )
    replications = content.get("replications", REPLICATIONS)
    precision, stop_figure = _stop(content.get("stop"), replications)
    figures = content.get("figures", list(COMPARED))
    for figure in figures:
        _check_figure("figures", figure)
    return SweepPlan(
        cells,
        _policies(content.get("policy"), [config for _, _, config in configs], folder),
        content.get("reference", ""),
        replications,
        precision,
        stop_figure,
        tuple(figures),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


# Machines.


def _profiles(names: list[Any], folder: Path) -> dict[str, MachineProfile]:
    if not names:
        raise ConfigError(
            'a sweep needs profiles, as in profiles = ["vm-2cpu", "profile.json"]; '
            "shmsim profile --list names those that come along"
        )
    found = {}
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"profiles are names or paths, got {name!r}")
        path = folder / name
        found[Path(name).stem] = MachineProfile.read(path if path.exists() else Path(name))
    if len(found) < len(names):
        raise ConfigError(f"two profiles have the same name among {', '.join(names)}")
    return found


# Workloads and engines.


def _bases(names: list[Any], folder: Path) -> dict[str, tuple[dict[str, Any], Path]]:
    """Contents of config files, and their folders; without any, the defaults."""
    if not names:
        return {"": ({}, folder)}
    found = {}
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"configs are paths of config files, got {name!r}")
        path = folder / name
        found[Path(name).stem] = (_read(path), path.parent)
    if len(found) < len(names):
        raise ConfigError(f"two configs have the same name among {', '.join(names)}")
    return found


def _configs(
    bases: Mapping[str, tuple[dict[str, Any], Path]], content: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], RunConfig]]:
    """Every base with every case and every point of the grid: name, settings, config."""
    cases = [_case(index, table) for index, table in enumerate(content.get("case", [{}]))]
    axes = list(_axes(content.get("grid", {}), ()))
    paths = [path for path, _ in axes]
    for (base, (start, folder)), (case, overrides) in itertools.product(bases.items(), cases):
        for values in itertools.product(*(alternatives for _, alternatives in axes)):
            merged = copy.deepcopy(start)
            settings = {}
            changes = [*_leaves(overrides, ()), *zip(paths, values, strict=True)]
            for path, value in changes:
                _put(merged, path, value)
                settings[".".join(path)] = value
            if "seed" in content:
                _put(merged, ("run", "seed"), content["seed"])
            chosen = [f"{'.'.join(path)}={v}" for path, v in zip(paths, values, strict=True)]
            name = " ".join(filter(None, (base, case, *chosen))) or "default"
            try:
                config = parse_config(merged, folder)
            except ConfigError as error:
                raise ConfigError(f"cell {name!r}: {error}") from None
            yield name, settings, config


def _case(index: int, table: Any) -> tuple[str, dict[str, Any]]:
    """Name and overrides of a case; the empty one has no name."""
    where = f"case[{index}]"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table: write [[case]] above each")
    overrides = dict(table)
    name = overrides.pop("name", "")
    if table and not (isinstance(name, str) and name.strip()):
        raise ConfigError(f"{where} needs a name, beside the keys of a config that it sets")
    return name, overrides


def _axes(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of the grid with its values."""
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, dict):
            yield from _axes(value, here)
        elif isinstance(value, list) and value:
            yield tuple(".".join(here).split(".")), value
        else:
            dotted = ".".join(here)
            raise ConfigError(
                f"grid.{dotted} must be a list of at least one value, as in {dotted} = [1, 8]; "
                f"got {value!r}"
            )


def _leaves(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _put(table: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *sections, key = path
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{section} must be a table: write [{section}] on a line of its own")
    table[key] = value


# Policies.


def _policies(tables: Any, configs: list[RunConfig], folder: Path) -> tuple[NamedPolicy, ...]:
    """Those of the file; without any, those that all configs agree on."""
    if tables is None:
        # By their texts: tuples of two kinds with the same numbers would be equal.
        if len({repr(config.policies) for config in configs}) > 1:
            raise ConfigError(
                "the configs name different policies; say which ones to sweep: [[policy]]"
            )
        return configs[0].policies
    found: list[NamedPolicy] = []
    for index, table in enumerate(tables):
        where = f"policy[{index}]"
        if isinstance(table, dict) and "file" in table:
            _refuse_unknown(where, table, ("file",))
            found.append(read_policy(folder / str(table["file"])))
        else:
            found += _policy_grid(where, table)
    return tuple(found)


def _policy_grid(where: str, table: Any) -> Iterator[NamedPolicy]:
    """A policy for each combination of the parameters that are lists."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table: write [[policy]] above each")
    axes = {key: value for key, value in table.items() if isinstance(value, list)}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        named = dict(table, **chosen)
        shown = ",".join(f"{k}={v}" for k, v in chosen.items() if k not in ("preset", "kind"))
        if shown:
            named["name"] = f"{table.get('name', named.get('kind', ''))}:{shown}"
        yield policy_from_table(where, named)


# Precision.


def _stop(table: dict[str, Any] | None, least: int) -> tuple[Precision | None, str]:
    if table is None:
        return None, COMPARED[0]
    _refuse_unknown("stop", table, _STOP_KEYS)
    figure = table.get("figure", COMPARED[0])
    _check_figure("stop.figure", figure)
    relative, absolute = table.get("relative", 0.0), table.get("absolute", 0.0)
    if isinstance(absolute, str):
        try:
            absolute = parse_duration_ns(absolute)
        except ValueError as error:
            raise ConfigError(f"stop.absolute: {error}") from None
    for key, value in (("relative", relative), ("absolute", absolute)):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"stop.{key} must be a number, got {value!r}")
    most = table.get("most", _MOST)
    if type(most) is not int:
        raise ConfigError(f"stop.most must be a whole number of replications, got {most!r}")
    precision = Precision(float(relative), float(absolute), least, most)
    try:
        precision.check()
    except ValueError as error:
        raise ConfigError(f"stop: {error}") from None
    return precision, figure


def _check_figure(where: str, figure: Any) -> None:
    if figure not in FIGURES:
        raise ConfigError(f"{where}: unknown figure {figure!r}{instead(str(figure), FIGURES)}")


def _refuse_unknown(where: str, table: dict[str, Any], known: Any) -> None:
    for key in table:
        if key not in known:
            full = f"{where}.{key}" if where else key
            raise ConfigError(f"unknown key {full}{instead(key, known)}")
