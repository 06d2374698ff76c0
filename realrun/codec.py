"""Messages as bytes: a pickle stream, and the large buffers that were kept out of it.

`encode` copies no payload of 64 KiB or more, and `decode` rebuilds arrays and tensors over the
memory it is given: whoever carries the bytes from one to the other copies them once.

A message comes from a process of the same run, through memory that only its user can open. `decode`
still takes nothing on trust. A pickle names functions to call; the only ones it gets here are a few
makers of plain data, and constructors of the classes that `allow` was told of. NumPy's own are not
among them, since a dtype with a forged state makes NumPy follow any pointer: an array travels as
buffer, dtype string and shape instead, and a tensor likewise.
"""

import inspect
import io
import math
import pickle
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pickle import PickleBuffer
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from realrun.native import BytesLike, is_plain
from realrun.tensors import is_tensor, rebuild_tensor, reduce_tensor

_Class = TypeVar("_Class", bound=type[Any])

_MAINS: Final = ("__main__", "__mp_main__")
#: From this size on CPython's pickler hands a payload to ``write`` as it is, uncopied.
_LARGE_BYTES: Final = 64 * 1024
#: Up to here it takes less to see that a message can call nothing than to watch what it calls.
_BRIEF_BYTES: Final = 3 << 10


class BadMessage(ValueError):  # noqa: N818 - what it is, as in zipfile.BadZipFile
    """The bytes are no message, are cut or garbled, or hold something that is not allowed."""


class Encoded(NamedTuple):
    """A message about to be sent; it aliases what was encoded, so copy before that changes.

    Parameters
    ----------
    chunks
        Pieces of the pickle stream, to be put one behind the other.
    stream_bytes
        Length of the stream.
    buffers
        What was kept out of the stream, flat, in the order in which `decode` wants it.
    """

    chunks: list[BytesLike]
    stream_bytes: int
    buffers: list[memoryview]


def encode(content: Any, divert_bytes: int) -> Encoded:
    """Pickle a message, keeping large buffers out of the stream.

    Lists, tuples, dicts, sets, numbers, strings and bytes arrive as they are, and so do numpy
    scalars, deques, OrderedDicts, ranges, slices and instances of the classes that `allow` was told
    of. Numpy arrays keep dtype, shape and Fortran order; one that is not contiguous is copied. Two
    views of one memory arrive as two arrays. For tensors see `realrun.tensors.reduce_tensor`.

    Parameters
    ----------
    content
        The message.
    divert_bytes
        Arrays, tensors and `pickle.PickleBuffer` of at least this size go out of band. Anything
        smaller is in the stream, and so are ``bytes`` of any size; those of 64 KiB and more are a
        chunk of their own, uncopied.

    Raises
    ------
    TypeError
        If the message holds something that cannot be sent.
    """
    return Encoded(*Encoder(divert_bytes).encode(content))


class Encoder:
    """What `encode` does, again and again: making a pickler costs as much as a small message.

    Parameters
    ----------
    divert_bytes
        See `encode`.
    """

    def __init__(self, divert_bytes: int) -> None:
        """Make the pickler."""
        self._divert_bytes = divert_bytes
        self._chunks = _Chunks()
        self._buffers: list[memoryview] = []
        pickler = _Pickler(self._chunks, 5, buffer_callback=self._stays_in_band)
        self._dump, self._clear_memo = pickler.dump, pickler.clear_memo

    def _stays_in_band(self, buffer: PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < self._divert_bytes:
            return True
        self._buffers.append(raw)
        return False

    def encode(self, content: Any) -> tuple[list[BytesLike], int, list[memoryview]]:
        """Pickle a message; returns the fields of an `Encoded`."""
        kept = self._chunks
        try:
            self._dump(content)
            chunks: list[Any] = kept[:]
        finally:  # also of what could not be sent, nothing may stay for the next message
            kept.clear()
            self._clear_memo()
            buffers = self._buffers
            if buffers:
                self._buffers = []
        if len(chunks) == 1:
            return chunks, len(chunks[0]), buffers
        # A large buffer that stays in band comes through as a PickleBuffer, which has no length.
        flat = [chunk.raw() if isinstance(chunk, PickleBuffer) else chunk for chunk in chunks]
        return flat, sum(map(len, flat)), buffers


def decode(stream: BytesLike, buffers: Sequence[Any] = ()) -> Any:
    """Read a message.

    Parameters
    ----------
    stream
        The chunks of `Encoded`, one behind the other. Nothing of the result aliases it.
    buffers
        Flat bytes-like objects, one for each buffer of `Encoded`. Arrays and tensors alias them:
        the caller sees to it that the memory outlives the result and is not written to meanwhile.
        An array is writable where both its buffer and the array that was sent are.

    Raises
    ------
    BadMessage
        Whatever is wrong: the stream is cut, garbled or too long, a buffer is missing, has the
        wrong size or is left over, or the message names something that is not allowed. Nothing but
        makers of data has been called by then.

    Notes
    -----
    One thing is out of reach here: a forged or garbled LONG_BINPUT, which `encode` never writes,
    makes the unpickler of CPython 3.11 fill up to 64 GiB of memo before anything fails. A checksum
    in front of `decode` keeps garbled messages out.
    """
    n_bytes = len(stream)
    if not buffers and n_bytes <= _BRIEF_BYTES and is_plain(stream):
        try:
            return pickle.loads(stream)
        except Exception as error:
            raise _unreadable(stream, error) from error
    large = n_bytes >= _LARGE_BYTES and not isinstance(stream, bytes)
    # BytesIO would copy all of a large stream once more; it is the faster one where little is read.
    source = _Source(stream) if large else io.BytesIO(stream)
    left = iter(buffers)
    try:
        content = _Unpickler(source, buffers=left).load()
    except BadMessage:
        raise
    except Exception as error:  # a garbled stream can fail in any way an opcode or a maker can
        raise _unreadable(stream, error) from error
    if source.tell() != len(stream):
        raise BadMessage(
            f"the message ends after {source.tell()} of {len(stream)} bytes; give decode() the "
            "stream and nothing behind it"
        )
    for _ in left:
        raise BadMessage("the message uses fewer buffers than came with it; give it its own only")
    return content


def _unreadable(stream: BytesLike, error: Exception) -> BadMessage:
    return BadMessage(
        f"cannot read a message of {len(stream)} bytes; it was cut or overwritten, or did not "
        f"come from encode(): {type(error).__name__}: {error}"
    )


class _Chunks(list[Any]):
    """A file that keeps what is written to it, as it is."""

    write = list.append


class _Source:
    """The part of a file that an unpickler uses, over memory that is not copied first."""

    def __init__(self, memory: BytesLike) -> None:
        self._memory = memoryview(memory)
        self._at = 0

    def read(self, n_bytes: int) -> bytes:
        return self._next(n_bytes).tobytes()

    def readinto(self, target: memoryview) -> int:
        part = self._next(len(target))
        target[: len(part)] = part
        return len(part)

    def readline(self) -> bytes:
        return b""  # only opcodes of protocol 0 read lines, and encode() writes none

    def tell(self) -> int:
        return self._at

    def _next(self, n_bytes: int) -> memoryview:
        part = self._memory[self._at : self._at + n_bytes]
        self._at += len(part)
        return part


# What may be in a message: how a type is sent, and what is called where it arrives.


class _Maker(NamedTuple):
    """Stands for a function or class in an unpickler's hands.

    A pickle can set attributes of what it is given (opcode BUILD): of a class or a function itself,
    for everybody. A tuple has none to set.
    """

    make: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Say how to send what is not a plain container, number or string."""
        reduce = _REDUCERS.get(type(value))
        return _reduce_other(value) if reduce is None else reduce(value)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Look a name up; nothing is imported and no attribute is followed."""
        maker = _MAKERS.get((module, name))
        if maker is None:
            raise BadMessage(
                f"the message asks for {module}.{name}, which no message may hold; if it is a "
                f"NamedTuple or dataclass of yours, call realrun.codec.allow({name}) in both "
                "processes before the first message"
            )
        return maker


def allow(cls: _Class) -> _Class:
    """Let instances of a NamedTuple or dataclass be sent; works as a decorator too.

    To be called in every process that sends or receives one. An instance is sent as its fields and
    arrives through the constructor, so checks in ``__post_init__`` are done again. A message may
    then construct the class from any values: it should do no more than hold them.

    Raises
    ------
    TypeError
        If the class is neither, cannot be found by its name, or its constructor takes other
        arguments than its fields.
    """
    where = f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = tuple(cls._fields)
    elif is_dataclass(cls):
        names = tuple(field.name for field in fields(cls))
    else:
        raise TypeError(
            f"{where} is neither a NamedTuple nor a dataclass, so its fields are not known; make "
            "it one, or send a tuple"
        )
    if "<locals>" in cls.__qualname__:
        raise TypeError(f"{where} is local to a function; move it to the top level of its module")
    if set(inspect.signature(cls).parameters) != set(names):
        raise TypeError(
            f"the constructor of {where} takes other arguments than its fields, "
            f"{', '.join(names)}; leave out field(init=False), InitVar and a constructor of its "
            "own, or send a tuple"
        )

    def make(*values: Any) -> Any:
        return cls(**dict(zip(names, values, strict=True)))

    def reduce(value: Any) -> Any:
        return cls, tuple([getattr(value, name) for name in names])

    # The module that a program runs is called otherwise in the processes multiprocessing spawns.
    modules = _MAINS if cls.__module__ in _MAINS else (cls.__module__,)
    for module in modules:
        _MAKERS[module, cls.__qualname__] = _Maker(make)
    _REDUCERS[cls] = reduce
    return cls


def _reduce_as_python_does(value: Any) -> Any:
    return NotImplemented


def _reduce_ordered(value: OrderedDict[Any, Any]) -> Any:
    return OrderedDict, (), None, None, iter(value.items())


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    descr = _descr(array.dtype)
    if not array.flags.forc:
        array = np.ascontiguousarray(array)
    order = "C" if array.flags.c_contiguous else "F"
    # The buffer protocol has no format for dates and durations.
    plain: Any = array.view(np.int64) if array.dtype.kind in "mM" else array
    return rebuild_array, (PickleBuffer(plain), descr, array.shape, order)


def _reduce_other(value: Any) -> Any:
    if isinstance(value, type | FunctionType):
        if (value.__module__, value.__qualname__) in _MAKERS:
            return NotImplemented  # a maker of something else in the message, by its name
        raise TypeError(
            f"cannot send {value.__module__}.{value.__qualname__}, a {type(value).__name__}; send "
            "data, and have the receiver know what to call"
        )
    if is_tensor(value):
        return reduce_tensor(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, np.generic):
        # An empty text has four bytes, and a dtype that says none; as an array it has one of four.
        array = np.asarray(value)
        return rebuild_scalar, (array.tobytes(), _descr(array.dtype))
    if isinstance(value, np.ndarray):
        raise TypeError(f"cannot send a {kind}, only numpy.ndarray itself; send np.asarray() of it")
    raise TypeError(
        f"cannot send a {kind}; send plain containers, numbers, strings, arrays and tensors, or "
        "make it a NamedTuple or dataclass and call realrun.codec.allow() on it"
    )


@lru_cache(maxsize=256)
def _descr(dtype: np.dtype[Any]) -> Any:
    """What `_dtype` makes the same dtype of."""
    if not dtype.hasobject:
        with suppress(ValueError):  # numpy has no words for fields out of order
            descr = dtype.str if dtype.names is None else np.lib.format.dtype_to_descr(dtype)
            if _dtype(descr) == dtype:
                return descr
    raise TypeError(
        f"cannot send an array of dtype {dtype}: its bytes mean nothing elsewhere, or no string "
        "says what they mean; send a list, or a view of another dtype"
    )


def _dtype(descr: Any) -> np.dtype[Any]:
    if isinstance(descr, str):
        return _named_dtype(descr)
    return _without_pointers(np.lib.format.descr_to_dtype(descr))


@lru_cache(maxsize=256)
def _named_dtype(name: str) -> np.dtype[Any]:
    dtype = _without_pointers(np.dtype(name))
    if dtype.str != name:
        raise ValueError(f"{name!r} is not how numpy writes the dtype {dtype.str!r}")
    return dtype


def _without_pointers(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} has pointers in place of values")
    return dtype


def rebuild_array(data: Any, descr: Any, shape: tuple[int, ...], order: str) -> Any:
    """Make an array over a buffer; called by `decode` only.

    Raises
    ------
    ValueError
        If the buffer has not exactly the size of the array.
    """
    dtype = _dtype(descr)
    n_bytes, expected = memoryview(data).nbytes, math.prod(shape) * dtype.itemsize
    if n_bytes != expected:
        raise ValueError(
            f"an array of shape {shape} and dtype {dtype} takes {expected} bytes, but its buffer "
            f"has {n_bytes}"
        )
    return np.ndarray(shape, dtype, data, order="F" if order == "F" else "C")


def rebuild_scalar(data: bytes, descr: Any) -> Any:
    """Make a numpy scalar; called by `decode` only."""
    return rebuild_array(data, descr, (), "C")[()]


def _empty_deque(items: tuple[()] = (), maxlen: int | None = None) -> deque[Any]:
    # The items follow by themselves. A forged message could name a range here that never ends.
    if items != ():
        raise ValueError(f"a deque arrives empty and is filled afterwards, got {items!r}")
    return deque(maxlen=maxlen)


#: What a message may call, by the module and name it is asked for.
_MAKERS: Final[dict[tuple[str, str], _Maker]] = {
    ("builtins", "complex"): _Maker(complex),
    ("builtins", "range"): _Maker(range),
    ("builtins", "slice"): _Maker(slice),
    ("collections", "OrderedDict"): _Maker(OrderedDict),
    ("collections", "deque"): _Maker(_empty_deque),
    (__name__, "rebuild_array"): _Maker(rebuild_array),
    (__name__, "rebuild_scalar"): _Maker(rebuild_scalar),
    (rebuild_tensor.__module__, "rebuild_tensor"): _Maker(rebuild_tensor),
}
#: How to send what the pickler does not know by itself, by exact type.
_REDUCERS: Final[dict[type[Any], Callable[[Any], Any]]] = {
    complex: _reduce_as_python_does,
    range: _reduce_as_python_does,
    slice: _reduce_as_python_does,
    deque: _reduce_as_python_does,
    OrderedDict: _reduce_ordered,
    np.ndarray: _reduce_array,
}
