"""A hash of what code does: its bytes, and whatever its names stand for.

It is made of what was imported, not of a file that may hold something else by now, and it covers
helpers in other files. Compiled code and the results of a policy of one's own are named after it.
"""

import dis
import enum
import hashlib
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np

#: Told by their versions, not by their code.
LIBRARIES: Final = frozenset({"llvmlite", "numba", "numpy", "scipy", *sys.stdlib_module_names})
#: What a NamedTuple or an abstract class is given.
_GENERATED: Final = frozenset(
    {"_abc_impl", "_asdict", "_field_defaults", "_fields", "_make", "_replace"}
)
#: Methods that a NamedTuple is given.
_GENERATED_METHODS: Final = frozenset(
    {"__getnewargs__", "__new__", "__repr__", "_asdict", "_make", "_replace"}
)
_IMPORT: Final = dis.opmap["IMPORT_NAME"]
#: What never changes, and whose text says what it is.
_PLAIN: Final = (
    bool, int, float, complex, str, bytes, frozenset, np.generic, np.dtype, np.ufunc,
)  # fmt: skip
#: Modules of numba whose values say by their text what they are.
_TYPES: Final = ("numba.core.types", "numba.core.typing")


class CodeHash:
    """Takes functions, classes and values one by one.

    Parameters
    ----------
    is_told
        Whether the functions and classes of a module, by its name, are known by other means, so
        that their names are enough. Those of `LIBRARIES` are.
    """

    def __init__(self, is_told: Callable[[str], bool] = lambda _: False) -> None:
        """Have nothing yet."""
        self._digest = hashlib.sha256()
        self._is_told = is_told
        self._seen: set[Any] = set()

    def hexdigest(self) -> str:
        """64 hex digits."""
        return self._digest.hexdigest()

    def note(self, text: str) -> None:
        """Add a text."""
        self._digest.update(f"{len(text)} {text}".encode())

    def add(self, value: Any, names: tuple[str, ...] = ()) -> None:
        """Add a value, and all that it refers to.

        Parameters
        ----------
        value
            What some code refers to.
        names
            What that code uses: of a module only these count.

        Raises
        ------
        TypeError
            If it is, or refers to, something of which nobody knows when it changes.
        """
        self.note(repr(getattr(value, "targetoptions", None)))  # how numba is to compile it
        value = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
        if hasattr(value, "cache_info"):  # of functools: it gives what the function gives
            value = value.__wrapped__
        if isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, ModuleType):
            self._add_module(value, names)
        elif isinstance(value, tuple):
            self.note(f"tuple of {len(value)}")
            self._add_class(type(value))
            for part in value:
                self.add(part, names)
        elif isinstance(value, enum.Enum):
            self.note(f"{type(value).__qualname__}.{value.name}")
            self.add(value.value)
        elif isinstance(value, np.ndarray) and not value.flags.writeable:
            self.note(f"array {value.dtype!r} {value.shape} {value.tobytes().hex()}")
        elif _is_plain(value):
            self.note(f"{type(value)} {_text_of(value)}")
        elif hasattr(value, "__qualname__") and _is_library(getattr(value, "__module__", None)):
            self.note(f"{value.__module__}.{value.__qualname__}")
        else:
            raise TypeError(
                f"code refers to {reprlib.repr(value)}, of which nobody knows when it changes; "
                "make it a number, a text or a tuple of these"
            )

    def _add_function(self, function: FunctionType) -> None:
        self.note(f"function {function.__module__}.{function.__qualname__}")
        # functools.wraps lets a wrapper of one's own pass for a function of a library.
        modules = (function.__module__, function.__globals__.get("__name__"))
        if all(map(self._is_known, modules)) or self._again(function):
            return
        code = function.__code__
        self._add_code(code)
        self.add(function.__defaults__)
        self.add(tuple(sorted((function.__kwdefaults__ or {}).items())))
        names = names_of(code)
        for name in names:
            if name in function.__globals__:
                self.note(name)
                self.add(function.__globals__[name], names)
        for name, attributes, level in _imports_of(code):
            self._add_import(function, name, attributes, level)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents, names)

    def _add_import(
        self, function: FunctionType, name: str, attributes: tuple[str, ...], level: int
    ) -> None:
        """Add what a function imports itself, as it will find it when it is called."""
        if not level and _is_library(name):
            return
        names = names_of(function.__code__)
        try:
            module = __import__(name, function.__globals__, None, attributes, level)
            found = [(each, getattr(module, each)) for each in attributes]
        except (ImportError, AttributeError) as error:
            raise TypeError(
                f"{function.__qualname__} imports {'.' * level}{name}, of which nobody knows when "
                f"it changes ({error}); import it at the top of the file"
            ) from None
        for each, value in found or [(name, module)]:
            self.note(each)
            self.add(value, names)

    def _add_code(self, code: CodeType) -> None:
        """Add what code does, but for what its names refer to."""
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.note(f"{shape} {names} {code.co_code.hex()} {code.co_exceptiontable.hex()}")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant)
            else:
                self.note(f"{type(constant)} {_text_of(constant)}")

    def _add_module(self, module: ModuleType, names: tuple[str, ...]) -> None:
        self.note(f"module {module.__name__}")
        if _is_library(module.__name__) or self._again((id(module), names)):
            return
        for name in names:
            if hasattr(module, name):
                self.note(name)
                self.add(getattr(module, name), names)

    def _add_class(self, kind: type[Any]) -> None:
        """Add fields, constants and methods of a class, and of those that it stands on."""
        self.note(f"class {kind.__module__}.{kind.__qualname__}")
        if self._is_known(kind.__module__) or self._again(kind):
            return
        for base in kind.__bases__:
            self._add_class(base)
        fields = getattr(kind, "_fields", ())
        self.note(repr((fields, inspect.get_annotations(kind))))
        self.add(tuple(getattr(kind, "_field_defaults", {}).values()))
        is_enum = issubclass(kind, enum.Enum)
        if is_enum:
            self.add(tuple((name, member.value) for name, member in kind.__members__.items()))
        for name, value in sorted(vars(kind).items()):
            own = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(own, FunctionType):
                if not _is_generated(kind, name, own):
                    self.note(name)
                    self._add_function(own)
            elif not (is_enum or name.startswith("__") or name in (*fields, *_GENERATED)):
                self.note(name)
                self.add(own)

    def _is_known(self, module: str | None) -> bool:
        return _is_library(module) or (module is not None and self._is_told(module))

    def _again(self, value: Any) -> bool:
        """Whether this was added before; its name was, and the rest need not be."""
        key = id(value) if isinstance(value, FunctionType | type) else value
        if key in self._seen:
            return True
        self._seen.add(key)
        return False


def _is_library(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in LIBRARIES


def _is_generated(kind: type[Any], name: str, method: FunctionType) -> bool:
    """Whether a method says no more than the fields of its NamedTuple."""
    makers = ("collections", f"namedtuple_{kind.__name__}")
    return name in _GENERATED_METHODS and method.__globals__.get("__name__") in makers


def _is_plain(value: Any) -> bool:
    """Whether a value never changes, and its text says what it is."""
    return (
        value is None
        or value is Ellipsis
        or isinstance(value, _PLAIN)
        or any(kind.__module__.startswith(_TYPES) for kind in type(value).__mro__)
    )


def _text_of(value: Any) -> str:
    # The order of a set of texts is another in each process.
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def names_of(code: CodeType) -> tuple[str, ...]:
    """Every name that a function uses which is not its own, of globals and of attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(names_of(constant))
    return tuple(sorted(names))


def _imports_of(code: CodeType) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """What a function imports when it is called: module, names from it, dots before it."""
    if _IMPORT in code.co_code[::2]:  # or it only looks so; to take code apart takes long
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opcode == _IMPORT:
                yield step.argval, names.argval or (), level.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_of(constant)
