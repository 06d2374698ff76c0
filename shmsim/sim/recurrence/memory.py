"""Records and numbers by address: what a compiled function gets at without counting references.

Passing arrays on counts a reference for each of them at each call, which takes longer than the
work here. So the arrays are held in Python (`shmsim.sim.recurrence.engine_run`), the record of the
engine has their addresses, and these functions read there.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """Compile a function that only compiled code calls: no way in from Python is made."""
    compile_it: Any = numba.njit
    compiled: F = compile_it(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return compiled


def entry(function: F) -> F:
    """Compile a function that Python calls; other threads go on meanwhile."""
    compile_it: Any = numba.njit
    compiled: F = compile_it(nogil=True)(function)
    return compiled


def records_at(dtype: np.dtype[Any]) -> Any:
    """Make ``at(address, index)``: a record of an array of them, as a reference."""
    record = numba.from_dtype(dtype)

    @intrinsic
    def at(typing_context: Any, address: Any, index: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _address(builder, arguments, dtype.itemsize)
            return builder.inttoptr(pointer, context.get_value_type(record))

        return record(types.int64, types.int64), build

    return at


def copier(dtype: np.dtype[Any]) -> Any:
    """Make ``copy(source, target)`` for records."""
    copy_bytes: Any = cgutils.raw_memcpy

    @intrinsic
    def copy(typing_context: Any, source: Any, target: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            size = ir.Constant(ir.IntType(64), dtype.itemsize)
            source_pointer, target_pointer = arguments
            copy_bytes(builder, target_pointer, source_pointer, size, 1)
            return context.get_dummy_value()

        return types.void(source, target), build

    return copy


def _number_at(kind: Any, itemsize: int) -> Any:
    @intrinsic
    def at(typing_context: Any, address: Any, index: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _address(builder, arguments, itemsize)
            kind_of_pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(pointer, kind_of_pointer))

        return kind(types.int64, types.int64), build

    return at


def _address(builder: Any, arguments: Any, itemsize: int) -> Any:
    address, index = arguments
    offset = builder.mul(index, ir.Constant(index.type, itemsize))
    return builder.add(address, offset)


#: ``float_at(address, index)`` and ``int_at(address, index)``: a number of an array.
float_at = _number_at(types.float64, 8)
int_at = _number_at(types.int64, 8)
