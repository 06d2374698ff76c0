"""Whether source files still are what was imported from them.

A result, or compiled code, is named after source files, and made by what was imported from them,
perhaps an hour ago. So a file that has changed since is refused: nobody could tell which of the two
it was made by.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shmsim import IMPORTED_NS

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def refuse_changed(paths: Iterable[Path], since_ns: int = IMPORTED_NS) -> None:
    """Refuse files that may hold something else than when this process began to import.

    Parameters
    ----------
    paths
        Source files.
    since_ns
        Unix time, in nanoseconds, from which on they must be the same.

    Raises
    ------
    RuntimeError
        If one has changed since.
    OSError
        If one is gone.
    """
    for path in paths:
        # The date of a file can be set to the past, as by rsync and tar; this one cannot.
        if path.stat().st_ctime_ns > since_ns:
            raise RuntimeError(
                f"{path} has changed since this process began to import its source, so nobody can "
                "tell which of the two a result is made by; run the same command again (in a "
                "notebook: restart the kernel)"
            )


class Sources:
    """Modules that must have been imported from files as they are.

    Parameters
    ----------
    files
        By the name of the module, whether it is loaded by now or not.
    since_ns
        As for `refuse_changed`.
    """

    def __init__(self, files: Mapping[str, Path], since_ns: int = IMPORTED_NS) -> None:
        """Look at nothing yet."""
        self._files: Final = dict(files)
        self._since_ns: Final = since_ns
        self._checked: dict[str, ModuleSpec | None] = {}

    def check(self) -> None:
        """Look at modules that were loaded since the last look; takes microseconds if none was.

        A file may change as much as it likes once its module is loaded and was looked at. A module
        that was loaded again has another specification.

        Raises
        ------
        RuntimeError
            If the file of one has changed.
        """
        for name, path in self._files.items():
            module = sys.modules.get(name)
            if module is None or self._checked.get(name, self) is module.__spec__:
                continue
            refuse_changed([path], self._since_ns)
            self._checked[name] = module.__spec__
