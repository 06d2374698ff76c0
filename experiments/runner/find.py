"""Finds experiments by name or number, and loads what they expose."""

import difflib
import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Final

from runner.experiment import Experiment, Plan

EXPERIMENTS: Final = Path(__file__).parents[1]


def names(folder: Path = EXPERIMENTS) -> list[str]:
    """Folders that hold an experiment, in order."""
    return sorted(path.parent.name for path in folder.glob("[0-9][0-9]_*/run.py"))


def find(text: str, folder: Path = EXPERIMENTS) -> str:
    """Name of an experiment, given whole or by its number.

    Raises
    ------
    ValueError
        If there is none, or more than one.
    """
    known = names(folder)
    fitting = [name for name in known if text in (name, name.partition("_")[0])]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(f"{text} could be {' or '.join(fitting)}; write the whole name")
    near = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the experiments are {', '.join(known)}"
    raise ValueError(f"there is no experiment {text!r}; {hint}")


def load(folder: Path) -> Experiment:
    """What the ``run.py`` of a folder exposes; modules beside it can be imported from now on.

    So can those of ``bench``, which are not copied.

    Raises
    ------
    ValueError
        If it exposes no experiment.
    """
    path = folder / "run.py"
    for place in (EXPERIMENTS / "bench", folder):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    spec = importlib.util.spec_from_file_location(f"experiment_{folder.name}", path)
    assert spec is not None, "a file ending in .py has a loader"
    assert spec.loader is not None, "a file ending in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        raise ValueError(f"{path} exposes no EXPERIMENT, a runner.Experiment; it must")
    return found


def read_plan(path: Path) -> Plan:
    """Read a ``config.toml``.

    Raises
    ------
    ValueError
        If it cannot be read, or names no seed.
    """
    try:
        plan = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    if type(plan.get("seed")) is not int:
        raise ValueError(
            f"{path} needs a key seed, a whole number, before its tables; got "
            f"{plan.get('seed')!r}; write seed = 0 where nothing is drawn"
        )
    return plan
