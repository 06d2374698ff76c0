"""Where compiled code is kept on disk, so that the next session starts at once.

In the user's cache, in folders named after all that the code was compiled from. What is read there
is numba's format, which can run code, so a folder that others may write to is not used.
"""

import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numba
from numba.core.bytecode import FunctionIdentity

#: How many folders of one kind are kept: those used last.
MOST: Final = 48

# Numba names the machine code of a function by what it is called and a number, which it counts from
# one in each process. All loops have functions of the same names, so two that were compiled in two
# processes and are read by a third could have the same symbols, and the linker took the first for
# both: the loop of one policy ran another's code. Counting from somewhere else tells them apart.
FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


def cache_folder() -> Path:
    """Where programs of this user keep what they can make again."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "shmsim"


def safe_folder(kind: str, name: str) -> Path | None:
    """The folder of what has this name, made if it is not there; None if it cannot be trusted.

    What was used least recently of the same kind is forgotten.
    """
    folder = cache_folder() / f"{kind}-{name}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)  # used now
        # Where numba cannot write it would take another folder, whose name says nothing.
        with tempfile.TemporaryFile(dir=folder):
            pass
        facts = folder.stat()
    except OSError:
        return None
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        return None
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
def numba_keeps_in(folder: Path) -> Iterator[None]:
    """Have functions that are told to be cached within be cached in a folder."""
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def add_code(digest: Any, code: CodeType) -> None:
    """Add what a function does to a digest, but for what its names refer to."""
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            add_code(digest, constant)
        else:
            digest.update(f"{type(constant)} {constant!r}".encode())


def names_of(code: CodeType) -> tuple[str, ...]:
    """Every name that a function uses which is not its own, of globals and of attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(names_of(constant))
    return tuple(sorted(names))
