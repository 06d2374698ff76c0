"""Modules of scripts, whose folders are no packages."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
BENCH = EXPERIMENTS / "bench"


@contextmanager
def imported(folders: list[Path], *names: str) -> Iterator[dict[str, ModuleType]]:
    """Import modules from folders of scripts; gives them by name.

    Afterwards they are forgotten, and so is what they imported from there: other experiments have
    modules of the same names.
    """
    known = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for folder in folders:
            patch.syspath_prepend(folder)
        yield {name: import_module(name) for name in names}
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(EXPERIMENTS):
            del sys.modules[name]
