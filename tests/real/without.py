"""A Python without some packages, for processes that tests start."""

import os
from pathlib import Path

#: What a machine that only runs the loop may lack, and what it brings along by their absence.
NOT_NEEDED = (
    *("typer", "click", "rich", "pyarrow", "matplotlib", "scipy", "simpy", "numba", "llvmlite"),
    *("pytest", "hypothesis", "setuptools"),
)

BLOCK = """
import importlib.metadata, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
plain = importlib.metadata.version

def version(name):
    if name == "shmsim":  # nobody installed the checkout
        raise importlib.metadata.PackageNotFoundError(name)
    return plain(name)

importlib.metadata.version = version
"""


def environment_without(folder: Path, root: Path, names=NOT_NEEDED) -> dict[str, str]:
    """Variables under which no process finds these packages; a file for that goes to a folder."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(names=set(names)))
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"}
