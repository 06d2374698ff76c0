"""Compiled loops, kept on disk so that the next session starts at once.

Each lies in the user's cache in a folder named after everything it was compiled from: the code of
every function, every constant and class they use, policies included, and the versions of Python and
numba. Numba's own cache looks at the file of one function, and served old code after a helper in
another file had changed; here other code means another folder, see `shmsim.sim.kept`.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any, Final

from shmsim import code_hash
from shmsim.code_hash import CodeHash
from shmsim.sim import compiled, kept
from shmsim.sim.recurrence import memory
from shmsim.sources import refuse_changed

#: They say how code is compiled, to which no code refers; so does this module.
_COMPILERS: Final = (code_hash, compiled, kept, memory, sys.modules[__name__])


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
        function refers to something of which nobody knows when it changes. A warning says which.
    """
    return kept.keep("recurrence", function, fingerprint)


def fingerprint(function: Any) -> str:
    """Name of all that a function is compiled from: code, what that refers to, and versions.

    Raises
    ------
    TypeError
        If they refer to something of which nobody knows when it changes.
    RuntimeError
        If a module that says how to compile is another by now than in this process.
    """
    found = CodeHash()
    found.note(repr(kept.VERSIONS))
    paths = [Path(str(module.__file__)) for module in _COMPILERS]
    for path in paths:
        found.note(hashlib.sha256(path.read_bytes()).hexdigest())
    refuse_changed(paths)
    found.add(function)
    return found.hexdigest()[:32]
