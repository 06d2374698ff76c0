"""Records and numbers by address: what a compiled function gets at without counting references.

Passing arrays on counts a reference for each of them at each call, which takes longer than the
work here. So the arrays are held in Python (`shmsim.sim.recurrence.engine_run`), the record of the
engine has their addresses, and these functions read there.

A record is a `Reference`. Each load and store of a field says which field of which kind of record
it is (LLVM's type-based alias analysis): records do not overlap, so a store to one field cannot
change another, and what the loop needs again and again stays in the processor's registers.
"""

import operator
from collections.abc import Callable
from typing import Any, Final, TypeVar
from zlib import crc32

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.typing import templates
from numba.extending import intrinsic, models

F = TypeVar("F", bound=Callable[..., Any])
#: Names of fields, and the one value that they have in code that is compiled for it.
Fixed = tuple[tuple[str, int], ...]

#: Parts of numba that have no types.
_extending: Any = numba.extending
_templates: Any = templates
_cgutils: Any = cgutils

#: Bytes of a stream that are on their way: 64 occasions. From 200 to 1000 make no difference.
_AHEAD: Final = 512

_KINDS: Any = {
    np.dtype(np.int64): types.int64,
    np.dtype(np.float64): types.float64,
    np.dtype(np.bool_): types.boolean,
}


def inner(function: F) -> F:
    """Compile a function that only compiled code calls: no way in from Python is made."""
    return _compiled(function, forceinline=False)


def within(function: F) -> F:
    """Compile a function into whatever calls it, where LLVM sees what it leaves as it is.

    For what is small, or called from few places: everything compiled into one function is a tenth
    faster, and takes three times as long to compile.
    """
    return _compiled(function, forceinline=True)


def policy_within(function: Any) -> Any:
    """The same of a method that `shmsim.sim.compiled` has compiled: it may divide by zero."""
    return _compiled(function.py_func, forceinline=True, error_model="python")


def _compiled(function: F, *, forceinline: bool, error_model: str = "numpy") -> F:
    compile_it: Any = numba.njit
    # Nothing of ours divides by zero, and no check for it stands in the way.
    compiled: F = compile_it(
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        forceinline=forceinline,
        error_model=error_model,
    )(function)
    return compiled


def entry(function: F) -> F:
    """Compile a function that Python calls; other threads go on meanwhile."""
    compile_it: Any = numba.njit
    compiled: F = compile_it(nogil=True)(function)
    return compiled


# Records.


class Reference(types.Type):
    """Type of a record somewhere in memory, by its address."""

    def __init__(self, dtype: np.dtype[Any], fixed: Fixed) -> None:
        self.dtype = dtype
        self.fixed = dict(fixed)
        self.label = f"record_{crc32(repr(dtype).encode()):08x}"
        super().__init__(name=f"{self.label}{fixed}")

    def kind_of(self, name: str) -> Any:
        """Type of a field, None if there is none."""
        if self.dtype.fields is None or name not in self.dtype.fields:
            return None
        dtype = self.dtype.fields[name][0]
        if dtype.subdtype is None:
            return _KINDS[dtype]
        return Cells(_KINDS[dtype.subdtype[0]], f"{self.label}.{name}")

    def offset(self, name: str) -> int:
        """Where a field begins, bytes."""
        assert self.dtype.fields is not None
        return int(self.dtype.fields[name][1])


class Cells(types.Type):
    """Type of a field that holds several numbers, by its address."""

    def __init__(self, kind: Any, label: str) -> None:
        self.kind = kind
        self.label = label
        super().__init__(name=label)


@_extending.register_model(Reference)
@_extending.register_model(Cells)
class _AddressModel(models.OpaqueModel):
    """A pointer, and nothing else."""


@_templates.infer_getattr
class _FieldType(templates.AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference: Any, name: str) -> Any:  # type: ignore[override]
        return reference.kind_of(name)


@_templates.infer_global(operator.getitem)
class _GetCell(templates.AbstractTemplate):
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        cells, index = arguments
        if isinstance(cells, Cells) and isinstance(index, types.Integer):
            return _templates.signature(cells.kind, cells, types.intp)
        return None


@_templates.infer_global(operator.setitem)
class _SetCell(templates.AbstractTemplate):
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        cells, index, _ = arguments
        if isinstance(cells, Cells) and isinstance(index, types.Integer):
            return _templates.signature(types.none, cells, types.intp, cells.kind)
        return None


def _get_field(context: Any, builder: Any, reference: Any, pointer: Any, name: str) -> Any:
    kind = reference.kind_of(name)
    if name in reference.fixed:
        return context.get_constant(kind, reference.fixed[name])
    at = _cgutils.pointer_add(builder, pointer, reference.offset(name))
    if isinstance(kind, Cells):
        return at
    return _load(context, builder, at, kind, f"{reference.label}.{name}")


def _set_field(context: Any, builder: Any, sig: Any, arguments: Any, name: str) -> Any:
    reference, value_kind = sig.args
    pointer, value = arguments
    kind = reference.kind_of(name)
    value = context.cast(builder, value, value_kind, kind)
    at = _cgutils.pointer_add(builder, pointer, reference.offset(name))
    _store(context, builder, at, kind, value, f"{reference.label}.{name}")


def _get_cell(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    cells = sig.args[0]
    at = _nth(context, builder, cells, *arguments)
    return _load(context, builder, at, cells.kind, cells.label)


def _set_cell(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    cells = sig.args[0]
    pointer, index, value = arguments
    at = _nth(context, builder, cells, pointer, index)
    _store(context, builder, at, cells.kind, value, cells.label)
    return context.get_dummy_value()


_extending.lower_getattr_generic(Reference)(_get_field)
_extending.lower_setattr_generic(Reference)(_set_field)
_extending.lower_builtin(operator.getitem, Cells, types.Integer)(_get_cell)
_extending.lower_builtin(operator.setitem, Cells, types.Integer, types.Any)(_set_cell)


def _nth(context: Any, builder: Any, cells: Any, pointer: Any, index: Any) -> Any:
    size = context.get_abi_sizeof(context.get_data_type(cells.kind))
    return _cgutils.pointer_add(builder, pointer, builder.mul(index, index.type(size)))


def _load(context: Any, builder: Any, pointer: Any, kind: Any, tag: str) -> Any:
    model = context.data_model_manager[kind]
    found = builder.load(builder.bitcast(pointer, model.get_data_type().as_pointer()))
    found.set_metadata("tbaa", _tag(builder.module, tag))
    return model.from_data(builder, found)


def _store(context: Any, builder: Any, pointer: Any, kind: Any, value: Any, tag: str) -> None:
    model = context.data_model_manager[kind]
    pointer = builder.bitcast(pointer, model.get_data_type().as_pointer())
    stored = builder.store(model.as_data(builder, value), pointer)
    stored.set_metadata("tbaa", _tag(builder.module, tag))


def _tag(module: Any, name: str) -> Any:
    """Mark of loads and stores that never meet those with another mark."""
    root = module.add_metadata([ir.MetaDataString(module, "shmsim recurrence")])
    zero = ir.Constant(ir.IntType(64), 0)
    kind = module.add_metadata([ir.MetaDataString(module, name), root, zero])
    return module.add_metadata([kind, kind, zero])


def records_at(dtype: np.dtype[Any], fixed: Fixed = ()) -> Any:
    """Make ``at(address, index)``: a record of an array of them, as a reference.

    What the compiler is told of fields that never change (``fixed``) it need not read, and what
    would be done were they otherwise is left out.
    """
    reference = Reference(dtype, fixed)

    @intrinsic
    def at(typing_context: Any, address: Any, index: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            return _address(builder, arguments, dtype.itemsize)

        return reference(types.int64, types.int64), build

    return at


def copier(dtype: np.dtype[Any]) -> Any:
    """Make ``copy(source, target)`` for records."""

    @intrinsic
    def copy(typing_context: Any, source: Any, target: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            size = ir.Constant(ir.IntType(64), dtype.itemsize)
            source_pointer, target_pointer = arguments
            _cgutils.raw_memcpy(builder, target_pointer, source_pointer, size, 1)
            return context.get_dummy_value()

        return types.void(source, target), build

    return copy


@intrinsic
def _address_of(typing_context: Any, reference: Any) -> Any:
    def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.int64(reference), build


#: ``address_of(reference)``: where a record is.
address_of: Any = _address_of


# Numbers that do not change while compiled code runs, and such that it draws.


def _reader(kind: Any, tag: str, ahead: int = 0) -> Any:
    @intrinsic
    def at(typing_context: Any, address: Any, index: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            at = _address(builder, arguments, 8)
            if ahead:
                _fetch(builder, at, ahead)
            return _load(context, builder, at, kind, tag)

        return kind(types.int64, types.int64), build

    return at


def _fetch(builder: Any, pointer: Any, ahead: int) -> None:
    """Have what lies some bytes ahead in the caches before it is asked for."""
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t, i32, i32, i32))
    fetch = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    later = _cgutils.pointer_add(builder, pointer, ahead)
    builder.call(fetch, [later, i32(0), i32(3), i32(1)])


def _writer(kind: Any, tag: str) -> Any:
    @intrinsic
    def put(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            pointer = _address(builder, arguments[:2], 8)
            _store(context, builder, pointer, kind, arguments[2], tag)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), build

    return put


def _address(builder: Any, arguments: Any, itemsize: int) -> Any:
    # As a place in what begins there: LLVM knows then that two places of one array differ.
    address, index = arguments
    offset = builder.mul(index, ir.Constant(index.type, itemsize))
    return builder.gep(builder.inttoptr(address, cgutils.voidptr_t), [offset])


#: ``float_at(address, index)`` and ``int_at(address, index)``: a number of an array.
float_at = _reader(types.float64, "float")
int_at = _reader(types.int64, "int")
#: The same of a drawn number. A run reads a hundred streams side by side, more than the processor
#: follows by itself: without a word about what comes next, a third of its time is waiting for them.
drawn_float_at = _reader(types.float64, "drawn float", _AHEAD)
drawn_int_at = _reader(types.int64, "drawn int", _AHEAD)
#: ``put_float(address, index, value)``, ``put_int(address, index, value)``: note a drawn number.
put_float = _writer(types.float64, "drawn float")
put_int = _writer(types.int64, "drawn int")


@intrinsic
def _high_word(typing_context: Any, a: Any, b: Any) -> Any:
    def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        factors = [builder.zext(argument, wide) for argument in arguments]
        high = builder.lshr(builder.mul(*factors), ir.Constant(wide, 64))
        return builder.trunc(high, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), build


#: The upper half of the product of two words without a sign.
high_word: Any = _high_word


@intrinsic
def _all_stored(typing_context: Any) -> Any:
    def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        builder.fence("release")
        return context.get_dummy_value()

    return types.void(), build


#: Let other threads see what was stored before this no later than what is stored after it.
all_stored: Any = _all_stored


@intrinsic
def _claim(typing_context: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], word.as_pointer())
        both = builder.cmpxchg(pointer, word(0), word(1), "acq_rel", "acquire")
        return builder.extract_value(both, 1)

    return types.boolean(types.int64), build


#: ``claim(address)``: put 1 in place of 0 there; only one thread gets True.
claim: Any = _claim


def _caller(n: int) -> Any:
    def build(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(word, (word,) * n).as_pointer())
        call = builder.call(pointer, arguments[1:], attrs=("readnone", "nounwind"))
        # It comes back: then a call is left out if nobody wants the answer. llvmlite knows the
        # word for functions only.
        set.add(call.attributes, "willreturn")
        return call

    signature_of: Any = types.int64
    return signature_of(*(types.int64,) * (1 + n)), build


@intrinsic
def _ask(typing_context: Any, function: Any, argument: Any) -> Any:
    return _caller(1)


@intrinsic
def _ask_all(typing_context: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    return _caller(3)


#: ``ask(function, argument)``, and ``ask_all`` with three: call a C function by its address.
#: Nothing that the caller has read changes by it, and the same arguments get the same answer.
ask: Any = _ask
ask_all: Any = _ask_all
