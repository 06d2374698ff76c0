"""The compiled engine, kept on disk so that the next session starts at once.

It lies in the user's cache in a folder named after everything it was compiled from: the code of
every function, every constant they use, and the versions of Python and numba. Numba's own cache
looks at the file of one function, and served old code after a helper in another file had changed;
here other code means another folder. What is read there is numba's format, which can run code, so
a folder that others may write to is not used. Wait policies are not kept.
"""

import hashlib
import sys
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba import types
from numba.core.typing.templates import Signature

from shmsim.sim.events.compiling import compiled, first_word
from shmsim.sim.events.engine import run_events
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.kept import add_code, names_of, numba_keeps_in, safe_folder

_run_events = compiled(run_events)
SIGNATURE: Final = types.int64(types.int64[::1], types.float64[::1])


def enter(s: Words, x: Numbers) -> int:
    """Run the engine on arrays, see `run_events`."""
    return _run_events(first_word(s), first_word(x))


@lru_cache(maxsize=1)
def compiled_engine() -> Any:
    """The engine's loop: from disk, or compiled, which takes half a minute."""
    engine = numba.njit(error_model="numpy", nogil=True)(enter)
    keep_on_disk(engine)
    engine.compile(SIGNATURE)
    return engine


def keep_on_disk(function: Any) -> bool:
    """Let a compiled function be read from the user's cache and written to it, if that is safe.

    Returns
    -------
    bool
        False if the folder cannot be written, or others can write to it: then nothing is kept.
    """
    folder = safe_folder("events", fingerprint(function.py_func))
    if folder is None:
        return False
    with numba_keeps_in(folder):
        function.enable_caching()
    return True


def fingerprint(function: FunctionType) -> str:
    """Name of all that a function is compiled from: its code, what that refers to, and versions."""
    digest = hashlib.sha256()
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
    digest.update(repr((versions, str(SIGNATURE))).encode())
    _add(digest, function, None, set())
    return digest.hexdigest()[:32]


def _add(digest: Any, value: Any, user: CodeType | None, seen: set[int]) -> None:
    """Add a value that compiled code refers to."""
    value = getattr(value, "py_func", None) or getattr(value, "_defn", value)
    if isinstance(value, FunctionType):
        digest.update(f"function {value.__qualname__}".encode())
        if id(value) in seen:
            return
        seen.add(id(value))
        add_code(digest, value.__code__)
        for name in names_of(value.__code__):
            if name in value.__globals__:
                digest.update(name.encode())
                _add(digest, value.__globals__[name], value.__code__, seen)
        for cell in value.__closure__ or ():
            _add(digest, cell.cell_contents, value.__code__, seen)
    elif isinstance(value, ModuleType):
        digest.update(f"module {value.__name__}".encode())
        if not value.__name__.startswith("shmsim."):
            return  # numba and numpy are told by their versions
        for name in names_of(user) if user else ():
            if hasattr(value, name):
                digest.update(name.encode())
                _add(digest, getattr(value, name), user, seen)
    elif isinstance(value, tuple):
        digest.update(f"tuple {len(value)}".encode())
        for part in value:
            _add(digest, part, user, seen)
    elif isinstance(value, bool | int | float | str | np.generic | type | Signature | None):
        digest.update(f"{type(value)} {value!r}".encode())
    else:
        raise TypeError(f"compiled code may not refer to {value!r}: nobody knows when it changes")
