"""Whether functions still refer to what they referred to when they were compiled.

To compile looks at every helper of a policy, which takes milliseconds, also if all of them were
compiled before. A slider has no time for that: it asks here first, which takes microseconds.
"""

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from shmsim.code_hash import LIBRARIES, names_of

_NOTHING: Final = object()


class Unchanged:
    """What some classes of policies refer to.

    Parameters
    ----------
    kinds
        The classes. Only what a cell or a module that runs again would change is watched: the
        functions, classes and values that a name stands for, and the code of a function, in whose
        place IPython's autoreload puts other code.
    """

    def __init__(self, kinds: set[type]) -> None:
        """Look at everything once."""
        self._seen: list[tuple[Mapping[str, Any], str, Any]] = []
        self._codes: list[tuple[FunctionType, CodeType]] = []
        self._is_known = True
        done: set[int] = set()
        for kind in kinds:
            for name in ("plan", "after"):
                if hasattr(kind, name):
                    self._watch(vars(kind), name, (name,), done)

    def holds(self) -> bool:
        """Whether each name still stands for the same object, and a function for the same code."""
        return (
            self._is_known
            and all(names.get(name, _NOTHING) is value for names, name, value in self._seen)
            and all(function.__code__ is code for function, code in self._codes)
        )

    def _watch(
        self, names: Mapping[str, Any], name: str, used: tuple[str, ...], done: set[int]
    ) -> None:
        """Watch a name, and what it stands for; of a module only what is ``used``."""
        value = names.get(name, _NOTHING)
        self._seen.append((names, name, value))
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] not in LIBRARIES:
                for other in used:
                    if hasattr(value, other):
                        self._watch(vars(value), other, used, done)
        elif isinstance(value, FunctionType) and id(value) not in done:
            done.add(id(value))
            self._codes.append((value, value.__code__))
            self._is_known = self._is_known and value.__closure__ is None
            for other in _globals_of(value):
                self._watch(value.__globals__, other, names_of(value.__code__), done)


def _globals_of(function: FunctionType) -> Iterator[str]:
    return (name for name in names_of(function.__code__) if name in function.__globals__)
