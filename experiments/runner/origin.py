"""Where a result comes from: which code, which commit, which box."""

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import realrun
import shmsim
from realrun.host import IDENTITY
from runner.kept import hash_of

_KINDS: Final = (".py", ".c", ".toml")  # no .so: two boxes compile one source to different bytes
_SHORT: Final = 8
_RECORDS: Final = ":(top,exclude,glob)experiments/*/results/**"
BENCH: Final = Path(__file__).parents[1] / "bench"  # experiments import from it


def source_hash(folder: Path) -> str:
    """Hash of all code that an experiment runs: its own, benches', the model's, the machine's."""
    roots = [folder, BENCH, Path(shmsim.__file__).parent, Path(realrun.__file__).parent]
    digest = hashlib.sha256()
    for root in roots:
        for path in _sources(root):
            digest.update(f"{root.name}/{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _sources(root: Path) -> Iterable[Path]:
    # The plan is kept by itself, after whatever a quick run makes of it.
    found = (path for path in root.rglob("*") if path.suffix in _KINDS)
    return sorted(path for path in found if path.name != "config.toml")


def commit(folder: Path) -> tuple[str, bool]:
    """The commit that is checked out, and whether files differ from it; ``"unknown"`` without.

    Records do not count as files: one run after the other writes them.
    """
    found = _git(folder, "rev-parse", "HEAD")
    if not found:
        return "unknown", True
    status = ("status", "--porcelain", "--untracked-files=no", "--", ":/", _RECORDS)
    return found, bool(_git(folder, *status))


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def box_hash(machine: dict[str, Any]) -> str:
    """Hash of the facts without which two results cannot be from one box in one state."""
    return hash_of([machine.get(name) for name in IDENTITY])


def label_of(machine: dict[str, Any]) -> str:
    """A name for a node that nobody named; two boxes of one kind get the same."""
    return f"box-{box_hash(machine)[:_SHORT]}"
