"""Where a sweep keeps its points, so that a second run fills only the holes.

One small JSON file for each point, named by its key and written beside itself first, then renamed:
it is there whole or not at all. A checksum catches what a crash of the machine, or an editor, did
to it; such a file counts as a hole.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from shmsim.whole import UNFINISHED, write_whole

_log = logging.getLogger(__name__)

_POINTS: Final = "points"
_LOCK: Final = "lock"

Figures = dict[str, float]


class PointStore:
    """The points of one folder.

    Parameters
    ----------
    folder
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        """Look at nothing yet."""
        self._folder = folder / _POINTS

    def get(self, key: str) -> Figures | None:
        """Figures of a point; None if it was not run, or its file is damaged."""
        path = self._path(key)
        try:
            content = json.loads(path.read_text())
            figures = content["figures"]
            if content["sha256"] != _checksum(key, figures):
                raise ValueError("its checksum does not fit")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s is damaged (%s); the point is run again", path, error)
            return None
        return {name: math.nan if value is None else value for name, value in figures.items()}

    def put(self, key: str, figures: Figures) -> None:
        """Store the figures of a point; whoever reads meanwhile sees all or nothing."""
        path = self._path(key)
        content = {name: None if math.isnan(value) else value for name, value in figures.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        point = {"key": key, "figures": content, "sha256": _checksum(key, content)}
        write_whole(path, json.dumps(point), synced=True)

    def sweep_up(self) -> None:
        """Remove what writers that were killed have left; only while nobody writes."""
        for path in self._folder.glob(f"*/*{UNFINISHED}"):
            path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


@contextlib.contextmanager
def locked(folder: Path, refusal: str) -> Iterator[None]:
    """Have a folder for oneself, which is made if it is not there.

    Raises
    ------
    RuntimeError
        If another process has it; says ``refusal``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(refusal) from None
        yield


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[PointStore]:
    """Open the store of a folder for one sweep at a time.

    Raises
    ------
    RuntimeError
        If another process has it open.
    """
    with locked(
        folder, f"another sweep is running in {folder}; wait for it, or choose another folder"
    ):
        store = PointStore(folder)
        store.sweep_up()
        yield store


def _checksum(key: str, figures: dict[str, Any]) -> str:
    text = json.dumps([key, figures], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
