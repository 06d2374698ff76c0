"""How the functions of the engine are compiled; with ``NUMBA_DISABLE_JIT=1`` they stay Python."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

#: Numba's settings, whose module tells nobody their types.
_config: Any = numba.config

_OPTIONS: Any = {
    "error_model": "numpy",
    "nogil": True,
    # Nobody calls these functions from Python or C, and a way in takes time to compile.
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

P = ParamSpec("P")
R = TypeVar("R")


def is_plain() -> bool:
    """Whether numba is told to leave functions as they are (``NUMBA_DISABLE_JIT=1``)."""
    return bool(_config.DISABLE_JIT)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile for compiled callers; integers divide as in Python, without a check for zero."""
    twin: Callable[P, R] = numba.njit(**_OPTIONS)(function)
    return twin


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """The same, compiled into whatever calls it, where LLVM alone would not.

    For what is small and called often: a call costs more there than the work. With all that is
    called often compiled so the engine was a fifth faster again, and took five times as long to
    compile.
    """
    twin: Callable[P, R] = numba.njit(forceinline=True, **_OPTIONS)(function)
    return twin


@intrinsic
def _high_word(_context: Any, a: Any, b: Any) -> Any:
    """The upper half of the product of two words without a sign."""

    def product(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        factors = [builder.zext(argument, wide) for argument in arguments]
        high = builder.lshr(builder.mul(*factors), ir.Constant(wide, 64))
        return builder.trunc(high, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), product


#: The upper half of the product of two words without a sign, which no Python number has.
high_word: Any = _high_word


@intrinsic
def _pointer(_context: Any, array: Any) -> Any:
    """Where the memory of an array begins."""

    def address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        return made.data

    pointer = types.CPointer(array.dtype)  # type: ignore[no-untyped-call]
    return pointer(array), address


#: Pointer to what an array holds. The functions of the engine are called hundreds of times for a
#: step of the model: so they take one machine word for each array instead of seven, and nobody
#: counts references.
first_word: Any = _pointer
