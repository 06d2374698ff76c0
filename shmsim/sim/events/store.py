"""The compiled engine, kept on disk so that the next session starts at once.

It lies in the user's cache in a folder named after everything it was compiled from: the code of
every function, every constant they use, and the versions of Python and numba. Numba's own cache
looks at the file of one function, and served old code after a helper in another file had changed;
here other code means another folder, see `shmsim.sim.kept`. Wait policies are not kept.
"""

from functools import lru_cache
from typing import Any, Final

import numba
from numba import types

from shmsim.code_hash import CodeHash
from shmsim.sim.events.compiling import compiled, first_word
from shmsim.sim.events.engine import run_events
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.kept import VERSIONS, keep

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
        False if nothing is kept: the folder cannot be written, or others can write to it. A warning
        says which.
    """
    return keep("events", function, fingerprint)


def fingerprint(function: Any) -> str:
    """Name of all that a function is compiled from: its code, what that refers to, and versions.

    Raises
    ------
    TypeError
        If it refers to something of which nobody knows when it changes.
    """
    found = CodeHash()
    found.note(f"{VERSIONS} {SIGNATURE}")
    found.add(function)
    return found.hexdigest()[:32]
