"""Where compiled code is kept on disk, so that the next session starts at once.

In the user's cache, in folders named after all that the code was compiled from. What is read there
is numba's format, which can run code, so a folder that others may write to is not used. Where
nothing can be kept that is said once, and the session goes on.
"""

import errno
import itertools
import logging
import os
import pickle
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache

_log = logging.getLogger(__name__)

#: How many folders of one kind are kept: those used last.
MOST: Final = 48
#: What reading from a folder may give that somebody else tore or took away.
_UNREADABLE: Final = (EOFError, OSError, pickle.UnpicklingError)
#: What compiled code depends on beside the code that it was compiled from.
VERSIONS: Final = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)

# Numba names the machine code of a function by what it is called and a number, which it counts from
# one in each process. All loops have functions of the same names, so two that were compiled in two
# processes and are read by a third could have the same symbols, and the linker took the first for
# both: the loop of one policy ran another's code. Counting from somewhere else tells them apart.
FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


class _ByFolder(FunctionCache):
    """Numba's cache, in which the folder says what was compiled.

    Numba's own key has the values that a closure refers to; among them are functions, whose bytes
    differ from session to session.
    """

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        return signature, codegen.magic_tuple()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Read what was compiled; what a crash of the machine has torn is forgotten."""
        read: Any = super().load_overload
        try:
            return read(sig, target_context)
        except _UNREADABLE:
            forget: Any = self.flush
            with suppress(OSError):
                forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled; where the disk is full, do without."""
        write: Any = super().save_overload
        try:
            write(sig, data)
        except _UNREADABLE as error:
            _say_once(_told(error))


def keep(kind: str, function: Any, name_of: Callable[[Any], str]) -> bool:
    """Have a compiled function read from the user's cache and written to it, if that is safe.

    Parameters
    ----------
    kind
        First part of the folder's name. Of each kind what was used least recently is forgotten.
    function
        What numba made of a function, not yet compiled.
    name_of
        Names all that it is compiled from; a TypeError or RuntimeError says that nothing can.

    Returns
    -------
    bool
        False if nothing is kept; then a warning has said why, once for each reason.
    """
    make: Any = _ByFolder
    try:
        folder = _safe_folder(kind, name_of(function))
        with _numba_keeps_in(folder):
            made = make(function.py_func)
        if not Path(made.cache_path).is_relative_to(folder):
            # Numba found no room there and took another folder, whose name says nothing.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        _say_once(_told(error))
        return False
    except (RuntimeError, TypeError) as error:
        _say_once(str(error))
        return False
    function._cache = made
    return True


def is_kept(function: Any) -> bool:
    """Whether what `keep` was given lies on disk, compiled."""
    place = function._cache.cache_path  # None where nothing can be kept
    return place is not None and any(Path(place).glob("*.nbi"))


def can_be_kept(function: Any) -> bool:
    """What `keep` gave for a function."""
    return function._cache.cache_path is not None


def cache_folder() -> Path:
    """Where programs of this user keep what they can make again."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "shmsim"


def _safe_folder(kind: str, name: str) -> Path:
    """The folder of what has this name, made if it is not there."""
    folder = cache_folder() / f"{kind}-{name}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(folder)  # used now
    with tempfile.TemporaryFile(dir=folder):
        pass
    facts = folder.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write to what is there")
    _make_room(f"{kind}-*")
    return folder


def _make_room(pattern: str) -> None:
    found = []
    for folder in cache_folder().glob(pattern):
        try:
            found.append((folder.stat().st_mtime_ns, folder))
        except OSError:
            continue  # another process was quicker
    for _, folder in sorted(found)[:-MOST]:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _numba_keeps_in(folder: Path) -> Iterator[None]:
    """Have a cache that is made within lie in a folder."""
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _told(error: Exception) -> str:
    why = getattr(error, "strerror", None) or error
    return f"{why}; make room there, or set XDG_CACHE_HOME to a folder that only you can write to"


@lru_cache(maxsize=32)
def _say_once(why: str) -> None:
    _log.warning(
        "compiled code is not kept in %s, so each session compiles it anew, 10 to 40 s: %s",
        cache_folder(),
        why,
    )
