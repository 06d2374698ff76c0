"""Policies as records: what a compiled loop keeps of each (process, call) between two waits.

A policy is a NamedTuple of numbers, possibly nested. Its record has a field for each number, and
two small functions, written for the class, turn one into the other.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from shmsim.sim.recurrence.memory import within
from shmsim.wait import WaitPolicy

_DTYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


class Packing(NamedTuple):
    """How policies of one class are packed.

    Parameters
    ----------
    dtype
        Of a record.
    unpack
        ``unpack(record)``, the policy; compiled.
    pack
        ``pack(record, policy)``; compiled.
    """

    dtype: np.dtype[Any]
    unpack: Any
    pack: Any


def packing_of(policy: WaitPolicy) -> Packing:
    """How policies of the class of this one are packed."""
    classes: dict[str, Any] = {}
    made = _maker(policy, (f"f{i}" for i in count()), classes)
    parts = [f"policy{path}" for path in _paths(policy)]
    lines = [
        "def unpack(record):",
        f"    return {made}",
        "def pack(record, policy):",
        *(f"    record.f{i} = {part}" for i, part in enumerate(parts)),
        "    return",
    ]
    exec("\n".join(lines), classes)
    return Packing(dtype_of(policy), within(classes["unpack"]), within(classes["pack"]))


def dtype_of(policy: WaitPolicy) -> np.dtype[Any]:
    """Type of the record of policies of the class of this one."""
    fields = [(f"f{i}", _DTYPES[type(value)]) for i, value in enumerate(_numbers(policy))]
    # A policy without a number still needs a record to stand in a row.
    return np.dtype(fields or [("nothing", np.dtype(np.int64))], align=True)


def shape_of(value: Any) -> Any:
    """What tells how a policy is packed: its class, and those of its fields."""
    return (type(value), *map(shape_of, value)) if isinstance(value, tuple) else type(value)


def classes_of(value: Any) -> Iterator[type]:
    """Class of a policy, and of the policies within it."""
    if isinstance(value, tuple):
        yield type(value)
        for part in value:
            yield from classes_of(part)


def pack_row(policy: WaitPolicy) -> Any:
    """Record of a policy, shape ``(1,)``."""
    return np.array([tuple(_numbers(policy)) or (0,)], dtype_of(policy))


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield value


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, tuple):
        for i, part in enumerate(value):
            for path in _paths(part):
                yield f"[{i}]{path}"
    else:
        yield ""


def _maker(value: Any, names: Iterator[str], classes: dict[str, Any]) -> str:
    """Source text that makes such a value from the fields of a record."""
    if not isinstance(value, tuple):
        return f"record.{next(names)}"
    parts = [_maker(part, names, classes) for part in value]
    if type(value) is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    name = f"Class{len(classes)}"
    classes[name] = type(value)
    return f"{name}({', '.join(parts)})"
