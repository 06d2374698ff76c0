"""Compiled loops, kept on disk so that the next session starts at once.

Each lies in the user's cache in a folder named after everything it was compiled from: the code of
every function, every constant and class they use, policies included, and the versions of Python and
numba. Numba's own cache looks at the file of one function, and served old code after a helper in
another file had changed; here other code means another folder. What is read there is numba's
format, which can run code, so a folder that others may write to is not used.
"""

import hashlib
import inspect
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import types
from numba.core.caching import FunctionCache

from shmsim.sim import compiled, kept
from shmsim.sim.kept import add_code, names_of, numba_keeps_in, safe_folder
from shmsim.sim.recurrence import memory

#: They say how code is compiled, to which no code refers; so does this module.
_COMPILERS: Final = (compiled, kept, memory, sys.modules[__name__])
#: Told by their versions, not by their code.
LIBRARIES: Final = ("llvmlite", "math", "numba", "numpy")


class _ByFolder(FunctionCache):
    """Numba's cache, in which the folder says what was compiled.

    Numba's own key has the values that a closure refers to; among them are functions, whose bytes
    differ from session to session.
    """

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        return signature, codegen.magic_tuple()

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled; where the disk is full, do without."""
        write: Any = super().save_overload
        with suppress(OSError):
            write(sig, data)


def keep_on_disk(function: Any) -> bool:
    """Let a compiled function be read from the user's cache and written to it, if that is safe.

    Parameters
    ----------
    function
        What numba made of a function, not yet compiled.

    Returns
    -------
    bool
        False if nothing is kept: the folder cannot be written, or others can write to it, or the
        function refers to something of which nobody knows when it changes.
    """
    try:
        name = fingerprint(function)
    except TypeError:
        return False
    folder = safe_folder("recurrence", name)
    if folder is None:
        return False
    make: Any = _ByFolder
    with numba_keeps_in(folder):
        function._cache = make(function.py_func)
    return True


def fingerprint(function: Any) -> str:
    """Name of all that a function is compiled from: code, what that refers to, and versions.

    Raises
    ------
    TypeError
        If they refer to something of which nobody knows when it changes.
    """
    digest = hashlib.sha256()
    digest.update(repr((sys.version, *(m.__version__ for m in (numba, llvmlite, np)))).encode())
    for module in _COMPILERS:
        digest.update(Path(str(module.__file__)).read_bytes())
    _add(digest, function, None, set())
    return digest.hexdigest()[:32]


def _add(digest: Any, value: Any, user: CodeType | None, seen: set[int]) -> None:
    """Add a value that the code of ``user`` refers to."""
    digest.update(repr(getattr(value, "targetoptions", None)).encode())
    value = getattr(value, "py_func", None) or getattr(value, "_defn", value)
    if isinstance(value, FunctionType):
        digest.update(f"function {value.__qualname__}".encode())
        if id(value) not in seen:
            seen.add(id(value))
            _add_function(digest, value, seen)
    elif isinstance(value, ModuleType):
        digest.update(f"module {value.__name__}".encode())
        if value.__name__.partition(".")[0] not in LIBRARIES and user is not None:
            for name in names_of(user):
                if hasattr(value, name):
                    digest.update(name.encode())
                    _add(digest, getattr(value, name), user, seen)
    elif isinstance(value, type):
        digest.update(f"class {value.__module__}.{value.__qualname__}".encode())
        if id(value) not in seen:
            seen.add(id(value))
            _add_class(digest, value, seen)
    elif isinstance(value, tuple):
        digest.update(f"tuple {type(value).__qualname__} {len(value)}".encode())
        for part in value:
            _add(digest, part, user, seen)
    elif isinstance(value, bool | int | float | str | None | np.generic | np.dtype | types.Type):
        digest.update(f"{type(value)} {value!r}".encode())
    elif getattr(value, "__module__", "").partition(".")[0] not in (*LIBRARIES, "builtins"):
        raise TypeError(f"compiled code may not refer to {value!r}: nobody knows when it changes")
    else:
        digest.update(f"{value.__module__} {getattr(value, '__qualname__', '')}".encode())


def _add_function(digest: Any, function: FunctionType, seen: set[int]) -> None:
    code = function.__code__
    add_code(digest, code)
    _add(digest, function.__defaults__, code, seen)
    for name in names_of(code):
        if name in function.__globals__:
            digest.update(name.encode())
            _add(digest, function.__globals__[name], code, seen)
    for cell in function.__closure__ or ():
        _add(digest, cell.cell_contents, code, seen)


def _add_class(digest: Any, kind: Any, seen: set[int]) -> None:
    """A NamedTuple: its fields, and what a policy does."""
    if kind.__module__.partition(".")[0] in (*LIBRARIES, "builtins"):
        return
    fields = getattr(kind, "_fields", None)
    digest.update(repr((fields, inspect.get_annotations(kind))).encode())
    for value in getattr(kind, "_field_defaults", {}).values():
        _add(digest, value, None, seen)
    for name in ("plan", "after"):
        if hasattr(kind, name):
            _add(digest, getattr(kind, name), None, seen)
