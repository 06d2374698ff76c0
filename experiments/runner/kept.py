"""Cells that are done, kept until their experiment is: who interrupts it loses the one in progress.

A file for each cell, written beside itself first, then renamed; a damaged one counts as not there.
What another plan or another code has left is forgotten as a whole, working files included.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shmsim.sweep.store import locked
from shmsim.whole import write_whole

_CELLS: Final = "cells"
_OF: Final = "of"


class Kept:
    """The finished cells of one experiment.

    Parameters
    ----------
    folder
        Where they are.
    """

    def __init__(self, folder: Path) -> None:
        """Look at nothing yet."""
        self._folder = folder

    def get(self, name: str) -> dict[str, Any] | None:
        """What a cell gave; None if it is not there whole."""
        try:
            stored = json.loads(self._path(name).read_text())
            row: dict[str, Any] = stored["row"]
            return row if stored["sha256"] == hash_of(row) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Keep what a cell gave."""
        whole = {"row": row, "sha256": hash_of(row)}
        (self._folder / _CELLS).mkdir(exist_ok=True)
        write_whole(self._path(name), json.dumps(whole).encode())

    def only_of(self, what: str) -> None:
        """Forget everything unless it was kept by a run of the same: plan, code and box."""
        path = self._folder / _OF
        if not path.exists() or path.read_text() != what:
            self.clear()
            write_whole(path, what)

    def clear(self) -> None:
        """Forget everything: the experiment came to its end."""
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    def _path(self, name: str) -> Path:
        return self._folder / _CELLS / f"{hash_of(name)}.json"


@contextmanager
def only_one(folder: Path) -> Iterator[Kept]:
    """Open what is kept in a folder, for one run at a time.

    Raises
    ------
    RuntimeError
        If another process has it open.
    """
    with locked(
        folder, f"this experiment is being run already, as {folder} is in use; wait for it"
    ):
        yield Kept(folder)


def hash_of(content: Any) -> str:
    """SHA-256 of what JSON can hold, 64 hex digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
