import datetime
import gc
import math
import pickle
import re
import resource
import sys
import warnings
from collections import OrderedDict, deque
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from pathlib import Path
from pickle import PickleBuffer
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy._core._rational_tests import rational

from realrun.codec import BadMessage, allow, decode, encode

KIB = 1024
DIVERT = 1024


@allow
class Batch(NamedTuple):
    step: int
    tokens: tuple[int, ...] = ()


@allow
@dataclass(frozen=True)
class Reply:
    step: int
    logits: object = None

    def __post_init__(self):
        if self.step < 0:
            raise ValueError(f"Reply.step must be at least 0, got {self.step}")


@allow
@dataclass(slots=True, kw_only=True)
class Keyed:
    a: int
    b: list


class Stranger(NamedTuple):
    step: int


def stream_of(encoded):
    return b"".join(encoded.chunks)


def sent(content, divert_bytes=DIVERT, carry=bytearray):
    """What arrives, each buffer having been copied into memory of its own."""
    encoded = encode(content, divert_bytes)
    return decode(stream_of(encoded), [carry(buffer) for buffer in encoded.buffers])


# What is sent arrives.

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.booleans())
CONTENTS = st.recursive(
    SCALARS
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9))
    | st.frozensets(KEYS)
    | st.binary().map(bytearray),
    lambda part: (
        st.lists(part)
        | st.lists(part).map(tuple)
        | st.dictionaries(KEYS, part)
        | st.dictionaries(KEYS, part).map(OrderedDict)
        | st.sets(KEYS)
        | st.builds(deque, st.lists(part), st.none() | st.integers(0, 3))
        | st.builds(slice, part, part)
        | st.builds(Batch, st.integers(), st.lists(part).map(tuple))
        | st.builds(Reply, st.integers(0), part)
        | st.builds(Keyed, a=st.integers(), b=st.lists(part))
    ),
    max_leaves=20,
)


def spelled(value):
    """All of a value with its types: True is not 1 there, -0.0 not 0.0, and a set has no order."""
    if isinstance(value, dict):
        parts = [(spelled(k), spelled(v)) for k, v in value.items()]
    elif isinstance(value, list | tuple | deque):
        parts = [getattr(value, "maxlen", None), *map(spelled, value)]
    elif isinstance(value, set | frozenset):
        parts = sorted(map(repr, value))
    elif isinstance(value, slice):
        parts = [spelled(value.start), spelled(value.stop), spelled(value.step)]
    elif is_dataclass(value):
        parts = [spelled(getattr(value, f.name)) for f in fields(value)]
    else:
        parts = repr(value)
    return type(value), parts


@given(content=CONTENTS)
def test_a_message_of_plain_values_arrives_as_it_was(content):
    assert spelled(sent(content)) == spelled(content)


@given(content=CONTENTS)
def test_the_stream_is_as_long_as_its_chunks(content):
    encoded = encode(content, DIVERT)
    assert encoded.stream_bytes == len(stream_of(encoded))


@pytest.mark.parametrize("n_bytes", [100, 64 * KIB - 1, 64 * KIB, 300 * KIB])
@pytest.mark.parametrize("carry", [bytes, bytearray, lambda stream: memoryview(bytearray(stream))])
def test_a_stream_is_read_from_any_memory_and_not_aliased(n_bytes, carry):
    content = (bytes(n_bytes), bytearray(n_bytes), "x" * n_bytes, list(range(n_bytes // 10)))
    stream = carry(stream_of(encode(content, DIVERT)))
    arrived = decode(stream)
    if not isinstance(stream, bytes):
        stream[:] = b"\xff" * len(stream)
    assert arrived == content


def test_the_same_object_twice_in_a_message_is_one_object_there():
    array, name = np.arange(500), ["shared"]
    encoded = encode([array, array, name, name], DIVERT)
    assert len(encoded.buffers) == 1
    first, second, one, other = decode(stream_of(encoded), encoded.buffers)
    assert first is second
    assert one is other


# What is large is not copied.


def test_bytes_of_64_kib_are_a_chunk_of_their_own_and_the_very_object():
    for kind in (bytes, bytearray):
        large, small = kind(64 * KIB), kind(64 * KIB - 1)
        chunks = encode(("before", large, small, "after"), DIVERT).chunks
        assert sum(chunk is large for chunk in chunks) == 1
        assert not any(chunk is small for chunk in chunks)


def test_a_buffer_leaves_the_stream_from_the_threshold_on():
    for n_bytes, expected in ((DIVERT - 1, 0), (DIVERT, 1), (DIVERT + 1, 1)):
        encoded = encode(np.zeros(n_bytes, np.uint8), DIVERT)
        assert len(encoded.buffers) == expected
        assert encoded.stream_bytes > n_bytes or expected


def test_a_large_buffer_below_the_threshold_is_in_the_stream_uncopied():
    array = np.arange(200 * KIB, dtype=np.uint8)
    encoded = encode(array, 1 << 30)
    assert encoded.buffers == []
    largest = max(encoded.chunks, key=len)
    assert np.shares_memory(np.frombuffer(largest, np.uint8), array)
    assert np.array_equal(decode(stream_of(encoded)), array)


@pytest.mark.parametrize("shape", [(1000,), (10, 100), (4, 5, 50)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_buffer_is_flat_bytes_over_the_memory_that_was_sent(shape, order):
    array = np.asarray(np.arange(1000.0).reshape(shape), order=order)
    (buffer,) = encode(array, DIVERT).buffers
    assert (buffer.format, buffer.ndim, buffer.nbytes) == ("B", 1, array.nbytes)
    assert buffer.c_contiguous
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)


def test_a_buffer_keeps_alive_what_it_shows():
    encoded = encode(np.full(1000, 7.0), DIVERT)
    gc.collect()
    assert (decode(stream_of(encoded), encoded.buffers) == 7.0).all()


def test_any_object_can_hand_over_memory_with_a_pickle_buffer():
    large, small = bytearray(b"x" * DIVERT), bytearray(b"y")
    encoded = encode([PickleBuffer(large), PickleBuffer(small)], DIVERT)
    assert [bytes(buffer) for buffer in encoded.buffers] == [large]
    arrived = decode(stream_of(encoded), [memoryview(large)])
    assert arrived[0].obj is large
    assert arrived[1] == small


# Arrays.

ARRAYS = {
    **{f"dtype {c}": np.array([[0, 1, 2], [3, 4, 5]]).astype(c) for c in "?bBhHiIlLqQefdgFDG"},
    "big endian": np.arange(5, dtype=">i4"),
    "dates": np.array(["2026-11-29", "NaT"], "M8[ns]"),
    "durations in Fortran order": np.asfortranarray(np.ones((3, 4), "m8[us]")),
    "text": np.array(["a", "long", ""]),
    "empty text": np.zeros(3, "U0"),
    "bytes": np.array([b"a", b"bc\0"]),
    "raw": np.array([b"abc", b"def"], "V3"),
    "records": np.array([(1, 2.5, "x")], [("a", "i4"), ("b", "f8"), ("c", "U3")]),
    "padded records": np.zeros(3, np.dtype([("a", "i1"), ("b", "f8", (2, 2))], align=True)),
    "nothing": np.zeros((0, 3)),
    "nothing of three dimensions": np.zeros((3, 0, 2), order="F"),
    "no dimension": np.array(3.5),
    "Fortran order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "every other": np.arange(20)[::2],
    "backwards": np.arange(5)[::-1],
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "axes swapped": np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
}


@pytest.mark.parametrize("divert_bytes", [0, 1 << 30], ids=["out of band", "in band"])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_arrives_with_its_values_dtype_and_shape(array, divert_bytes):
    arrived = sent(array, divert_bytes)
    assert type(arrived) is np.ndarray
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    assert arrived.tobytes() == array.tobytes()
    if array.flags.forc:
        assert arrived.flags.f_contiguous == array.flags.f_contiguous
        assert arrived.flags.c_contiguous == array.flags.c_contiguous


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_every_array_can_leave_the_stream_also_one_that_is_not_contiguous(array):
    encoded = encode(array, 0)
    assert [buffer.nbytes for buffer in encoded.buffers] == [array.nbytes]


SCALARS_OF_NUMPY = [
    np.float32(1.5),
    np.float64("nan"),
    np.int8(-3),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.datetime64("2026-11-29"),
    np.timedelta64(5, "us"),
    np.str_("text"),
    np.str_(""),
    np.bytes_(b"bytes"),
    ARRAYS["records"][0],
]


@pytest.mark.parametrize("scalar", SCALARS_OF_NUMPY, ids=repr)
def test_a_numpy_scalar_arrives_with_its_type(scalar):
    arrived = sent(scalar)
    assert type(arrived) is type(scalar)
    assert arrived.dtype == scalar.dtype
    assert arrived.tobytes() == scalar.tobytes()


def test_an_array_aliases_the_buffer_it_came_in():
    memory = bytearray(8 * KIB)
    encoded = encode(np.ones(KIB), DIVERT)
    arrived = decode(stream_of(encoded), [memory])
    assert (arrived == 0).all()
    arrived[:] = 1.0
    assert memory == bytes(encoded.buffers[0])


def test_an_array_is_writable_where_its_buffer_and_what_was_sent_are():
    frozen = np.ones(KIB)
    frozen.flags.writeable = False
    assert sent(np.ones(KIB)).flags.writeable
    assert sent(np.ones(3)).flags.writeable
    assert not sent(np.ones(KIB), carry=bytes).flags.writeable
    assert not sent(frozen).flags.writeable


REFUSED_ARRAYS = {
    "objects": (np.array([1, None]), TypeError, "dtype object: its bytes mean nothing elsewhere"),
    "records of objects": (np.zeros(1, [("a", "O")]), TypeError, "bytes mean nothing elsewhere"),
    "variable text": (np.array(["a"], np.dtypes.StringDType()), TypeError, "StringDType.*list"),
    "fields out of order": (
        *(np.zeros(1, {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]}),),
        *(TypeError, "no string says what they mean; send a list"),
    ),
    "fractions": (np.zeros(2, rational), TypeError, "dtype rational.*no string says"),
    "a record array": (
        np.zeros((2, 2)).view(np.recarray),
        TypeError,
        r"recarray.*send np\.asarray\(\)",
    ),
    "a masked array": (np.ma.zeros(3), TypeError, r"MaskedArray.*send np\.asarray\(\)"),
}


@pytest.mark.parametrize(("array", "kind", "message"), REFUSED_ARRAYS.values(), ids=REFUSED_ARRAYS)
def test_an_array_that_is_more_than_its_bytes_is_refused_before_it_is_sent(array, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        encode([array], DIVERT)


# Classes of the caller.


def test_an_allowed_class_arrives_as_itself_with_arrays_in_it():
    arrived = sent([Batch(3, (1, 2)), Reply(4, np.arange(1000)), Keyed(a=1, b=[2])])
    assert arrived[0] == Batch(3, (1, 2))
    assert arrived[1].step == 4
    assert np.array_equal(arrived[1].logits, np.arange(1000))
    assert arrived[2] == Keyed(a=1, b=[2])
    assert [type(part) for part in arrived] == [Batch, Reply, Keyed]


@pytest.mark.parametrize(
    "value",
    [
        Stranger(1),
        datetime.date(2026, 11, 29),
        Path("/"),
        object(),
        memoryview(b""),
        np.dtype("i4"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_nobody_allowed_is_refused_by_the_sender_with_the_way_out(value):
    name = re.escape(f"{type(value).__module__}.{type(value).__qualname__}")
    with pytest.raises(TypeError, match=rf"cannot send a {name}; .*realrun\.codec\.allow\(\)"):
        encode({"key": [value]}, DIVERT)


def test_what_nobody_allowed_is_refused_by_the_receiver_with_the_way_out():
    name = re.escape(f"{__name__}.Stranger")
    with pytest.raises(BadMessage, match=rf"asks for {name}, .*realrun\.codec\.allow\(Stranger\)"):
        decode(pickle.dumps(Stranger(1), 5))


class Plain:
    pass


@dataclass
class WithHiddenField:
    a: int
    b: int = field(init=False, default=0)


@dataclass
class WithInitVar:
    a: int
    scale: InitVar[int] = 1


def local_class():
    class Local(NamedTuple):
        a: int

    return Local


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Plain, "Plain is neither a NamedTuple nor a dataclass"),
        (tuple, "tuple is neither"),
        (WithHiddenField, "takes other arguments than its fields, a, b; leave out"),
        (WithInitVar, "takes other arguments than its fields, a; leave out"),
        (local_class(), "Local is local to a function; move it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_class_that_is_not_just_its_fields_cannot_be_allowed(cls, message):
    with pytest.raises(TypeError, match=message):
        allow(cls)


# A forged message runs nothing.


def named(module, name):
    parts = [module.encode(), name.encode()]
    return b"".join(b"\x8c" + bytes([len(part)]) + part for part in parts) + b"\x93"


def plain(value):
    """The opcodes of a value without those of the pickle around it."""
    opcodes = pickle.dumps(value, 4)[2:-1]
    return opcodes[9:] if opcodes[:1] == b"\x95" else opcodes  # in a frame


def forged(*opcodes):
    return b"\x80\x05" + b"".join(opcodes) + b"."


CODEC = "realrun.codec"
GADGETS = [
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("pty", "spawn"),
    ("runpy", "run_path"),
    ("importlib", "import_module"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "open"),
    ("builtins", "getattr"),
    ("builtins", "__import__"),
    ("builtins", "type"),
    ("builtins", "map"),
    ("builtins", "complex.__class__"),
    ("builtins", "range.__subclasshook__"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("functools", "partial"),
    ("functools", "reduce"),
    ("types", "FunctionType"),
    ("types", "CodeType"),
    ("ctypes", "CDLL"),
    ("pickle", "loads"),
    ("copyreg", "__newobj__"),
    ("copyreg", "_reconstructor"),
    ("collections", "namedtuple"),
    ("collections", "OrderedDict.fromkeys"),
    ("collections", "abc.sys.modules"),
    ("numpy", "load"),
    ("numpy", "fromfile"),
    ("numpy", "vectorize"),
    ("numpy", "lib.format.os.system"),
    ("numpy.testing", "rundocs"),
    ("numpy.testing._private.utils", "runstring"),
    ("numpy.lib._npyio_impl", "DataSource"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("torch", "load"),
    ("torch.storage", "_load_from_bytes"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.hub", "load"),
    (CODEC, "allow"),
    (CODEC, "_MAKERS"),
    (CODEC, "pickle.loads"),
    (CODEC, "np.load"),
    (CODEC, "inspect.os.system"),
    (CODEC, "rebuild_array.__globals__"),
    ("realrun.tensors", "sys.modules"),
    (__name__, "Batch._make"),
    (__name__, "Path"),
]


@pytest.mark.parametrize(("module", "name"), GADGETS, ids=lambda part: part.replace(__name__, ""))
def test_nothing_but_makers_of_data_can_be_named(module, name, tmp_path):
    canary = tmp_path / "canary"
    arguments = plain((f"touch {canary}",))
    for stream in (
        forged(named(module, name), arguments, b"R"),  # call it
        forged(named(module, name), arguments, b"\x81"),  # make an instance
        forged(b"c", f"{module}\n{name}\n".encode(), arguments, b"R"),
        forged(b"(", plain(f"touch {canary}"), f"i{module}\n{name}\n".encode()),
        forged(b"(", named(module, name), plain(f"touch {canary}"), b"o"),
    ):
        with pytest.raises(BadMessage, match="no message may hold"):
            decode(stream)
        with pytest.raises(BadMessage):
            decode(memoryview(stream + bytes(64 * KIB)))
    assert not canary.exists()


class Exploit:
    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize(
    "exploit", [Exploit(eval, "1 / 0"), Exploit(getattr, [], "append"), Exploit(np.load, "/x")]
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_that_says_how_to_rebuild_it_is_neither_sent_nor_rebuilt(exploit, protocol):
    with pytest.raises(TypeError, match=r"cannot send a .*Exploit"):
        encode(exploit, DIVERT)
    with pytest.raises(BadMessage, match="no message may hold"):
        decode(pickle.dumps([exploit], protocol))


ARRAY = named(CODEC, "rebuild_array")
MISUSES = {
    "an array of pointers": (
        (ARRAY, plain((b"x" * 8, "|O", (1,), "C")), b"R"),
        "has pointers in place of values",
    ),
    "records of pointers": (
        (ARRAY, plain((b"x" * 8, [("a", "|O")], (1,), "C")), b"R"),
        "has pointers in place of values",
    ),
    "pointers behind a comma": (
        (ARRAY, plain((b"x" * 12, "i4,O", (1,), "C")), b"R"),
        "has pointers in place of values",
    ),
    "a dtype in words of its own": (
        (ARRAY, plain((b"x" * 8, "double", (1,), "C")), b"R"),
        "'double' is not how numpy writes",
    ),
    "an array beyond its buffer": (
        (ARRAY, plain((b"x" * 8, "<f8", (2,), "C")), b"R"),
        "takes 16 bytes, but its buffer has 8",
    ),
    "two negative sides": (
        (ARRAY, plain((b"x" * 8, "<f8", (-1, -1), "C")), b"R"),
        "negative dimensions",
    ),
    "a side of half": (
        (ARRAY, plain((b"x" * 4, "<f8", (0.5,), "C")), b"R"),
        "TypeError",
    ),
    "a forged state of an array": (
        (
            *(ARRAY, plain((b"x" * 8, "<f8", (1,), "C")), b"R"),
            *(plain((1, (1 << 20,), "<f8", False, b"")), b"b"),
        ),
        r"__setstate__\(\) argument",
    ),
    "a deque of an endless range": (
        (
            *(named("collections", "deque"), b"(", named("builtins", "range"), plain((1 << 60,))),
            *(b"R", b"t", b"R"),
        ),
        "a deque arrives empty",
    ),
    "a class with a field too few": (
        (named(__name__, "Batch"), plain((1,)), b"R"),
        "shorter than argument",
    ),
    "a class with a field too many": (
        (named(__name__, "Reply"), plain((1, 2, 3)), b"R"),
        "longer than argument",
    ),
    "a class whose check fails": (
        (named(__name__, "Reply"), plain((-1, 2)), b"R"),
        r"Reply\.step must be at least 0, got -1",
    ),
    "an instance without its constructor": (
        (named(__name__, "Reply"), plain(()), b"\x81"),
        "must be a type, not _Maker",
    ),
    "an attribute of a class": (
        (named(__name__, "Batch"), plain((None, {"step": 7})), b"b"),
        "AttributeError",
    ),
    "an attribute of a maker": ((ARRAY, plain((None, {"make": 7})), b"b"), "AttributeError"),
    "an entry in the dict of a maker": ((ARRAY, plain({"make": 7}), b"b"), "AttributeError"),
    "a maker in place of a list": ((ARRAY, plain(7), b"a"), "AttributeError"),
    "a registered extension": ((b"\x82\x01",), "unregistered extension code 1"),
    "a persistent object": ((plain("id"), b"Q"), "persistent"),
}


@pytest.mark.parametrize(("opcodes", "reason"), MISUSES.values(), ids=MISUSES)
def test_a_maker_cannot_be_misused(opcodes, reason):
    with pytest.raises(BadMessage, match=reason):
        decode(forged(*opcodes))
    assert Batch(3).step == 3
    assert np.array_equal(sent(np.arange(3)), np.arange(3))


def test_a_forged_message_that_is_none_the_less_right_is_read():
    # Or the tests above would refuse for another reason.
    assert decode(forged(ARRAY, plain((b"x" * 8, "<f8", (1,), "C")), b"R")).nbytes == 8
    assert decode(forged(named(__name__, "Batch"), plain((1, ())), b"R")) == Batch(1)


# A cut or garbled message has one kind of error.

SAMPLE = (
    1000,
    tuple(f"request-{i}" for i in range(6)),
    {"a": [1.5, None, True], "b": deque([1, 2], 5), "c": {1, 2}, "d": complex(1, 2)},
    Batch(1, (2, 3)),
    [Reply(1, np.arange(5)), OrderedDict(x=range(3)), slice(1, 2)],
    np.arange(500.0),
    np.float32(2.5),
    np.ones(2, [("a", "i4"), ("b", "U2")]),
)
SAMPLE_ENCODED = encode(SAMPLE, DIVERT)
SAMPLE_STREAM = stream_of(SAMPLE_ENCODED)
LARGE_ENCODED = encode((b"x" * (64 * KIB), *SAMPLE), DIVERT)
LARGE_STREAM = stream_of(LARGE_ENCODED)


@pytest.fixture
def little_memory():
    """At most 1 GiB more than there is: the memo of the unpickler itself can ask for 64 GiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_or_refuse(stream, buffers):
    """Nothing but a `BadMessage` may come out of a stream, whatever it is."""
    try:
        decode(stream, buffers)
    except BadMessage as error:
        assert len(str(error)) > 20  # noqa: PT017 - any other error is what fails


def test_the_sample_is_a_message():
    arrived = decode(SAMPLE_STREAM, SAMPLE_ENCODED.buffers)
    assert repr(arrived) == repr(SAMPLE)


@pytest.mark.parametrize("carry", [bytes, bytearray])
def test_every_cut_of_a_message_is_refused(carry):
    for end in range(len(SAMPLE_STREAM)):
        with pytest.raises(BadMessage):
            decode(carry(SAMPLE_STREAM[:end]), SAMPLE_ENCODED.buffers)
    for end in range(0, len(LARGE_STREAM), 997):
        with pytest.raises(BadMessage):
            decode(carry(LARGE_STREAM[:end]), LARGE_ENCODED.buffers)


@pytest.mark.parametrize("stream", [SAMPLE_STREAM, bytearray(LARGE_STREAM)], ids=len)
def test_bytes_behind_a_message_are_refused(stream):
    with pytest.raises(BadMessage, match=f"ends after {len(stream)} of {len(stream) + 1} bytes"):
        decode(stream + b".", SAMPLE_ENCODED.buffers)


def test_a_message_wants_exactly_its_buffers():
    (buffer,) = SAMPLE_ENCODED.buffers
    for buffers in ((), (buffer, buffer), (buffer[:-1],), (bytes(buffer) + b"x",), (None,)):
        with pytest.raises(BadMessage):
            decode(SAMPLE_STREAM, buffers)


@pytest.mark.usefixtures("little_memory")
@given(
    flips=st.lists(
        st.tuples(st.integers(0, len(SAMPLE_STREAM) - 1), st.integers(1, 255)), max_size=8
    ),
    end=st.integers(1, len(SAMPLE_STREAM)) | st.just(len(SAMPLE_STREAM)),
    large=st.booleans(),
)
@settings(max_examples=200)
def test_a_garbled_message_gives_no_other_error(flips, end, large):
    stream = bytearray(LARGE_STREAM if large else SAMPLE_STREAM)
    # The opcodes of the large one are behind its payload.
    shift = len(stream) - len(SAMPLE_STREAM)
    for at, flip in flips:
        stream[shift + at] ^= flip
    read_or_refuse(stream[: shift + end], SAMPLE_ENCODED.buffers)


@pytest.mark.usefixtures("little_memory")
@given(stream=st.binary(max_size=200).map(lambda noise: b"\x80\x05" + noise) | st.binary())
@example(b"")
@example(b"\x80\x05r\xff\xff\xff\x7f.")  # LONG_BINPUT far out: the memo alone is 64 GiB
@example(b"\x80\x05Nr\xff\xff\xff\x7f.")
@example(b"\x80\x05\x8e" + b"\xff" * 8)  # BINBYTES8 of 2**64 - 1 bytes
@example(b"\x80\x05\x8e" + (1 << 40).to_bytes(8, "little"))
@example(b"\x80\x05\x96" + (1 << 62).to_bytes(8, "little"))
@example(b"\x80\x05\x95" + b"\xff" * 8)
def test_noise_gives_no_other_error(stream):
    read_or_refuse(stream, ())


# Tensors.


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is an extra that is not installed")


def bytes_of(torch, tensor):
    """Its values as bytes, row by row."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(dense.reshape(-1).view(torch.uint8).tolist())


def tensors(torch):
    grid = torch.arange(12.0).reshape(3, 4)
    yield from (
        torch.tensor([[0.0, 1.0, -2.5]]).to(dtype)
        for dtype in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
            *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
            *(torch.uint16, torch.uint32, torch.uint64),
        )
    )
    yield from (torch.tensor(3.5), torch.tensor(True), torch.empty(0), torch.empty(3, 0, 2))
    yield from (grid.t(), grid[:, ::2], grid[1:, 1:], grid[0].expand(5, 4), grid[2])
    yield torch._neg_view(grid)
    yield torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    yield from (grid.clone().requires_grad_(), torch.nn.Parameter(grid), grid.requires_grad_() * 2)
    turning = torch.tensor([1 + 2j, 3 - 4j])
    yield from (turning.conj(), turning.conj().imag, turning.real)
    with torch.inference_mode():
        yield torch.ones(3)


@pytest.mark.parametrize("carry", [bytearray, bytes, lambda b: memoryview(bytes(1) + b)[1:]])
@pytest.mark.parametrize("divert_bytes", [0, 1 << 30], ids=["out of band", "in band"])
def test_a_tensor_arrives_with_its_values_dtype_and_shape(torch, divert_bytes, carry):
    for tensor in tensors(torch):
        arrived = sent(tensor, divert_bytes, carry)
        assert type(arrived) is torch.Tensor
        assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
        assert bytes_of(torch, arrived) == bytes_of(torch, tensor)
        assert arrived.is_contiguous()
        assert arrived.is_leaf
        assert not arrived.requires_grad
        assert not arrived.is_conj()
        assert not arrived.is_neg()
        assert arrived.data_ptr() % max(arrived.dtype.itemsize, 1) == 0


def test_a_tensor_leaves_the_stream_from_the_threshold_on_and_is_not_copied(torch):
    for n_bytes, expected in ((DIVERT - 1, 0), (DIVERT, 1), (DIVERT + 1, 1)):
        assert len(encode(torch.zeros(n_bytes, dtype=torch.uint8), DIVERT).buffers) == expected
    tensor = torch.arange(1000.0)
    (buffer,) = encode(tensor, DIVERT).buffers
    assert (buffer.format, buffer.ndim, buffer.nbytes) == ("B", 1, 4000)
    assert np.frombuffer(buffer, np.uint8).ctypes.data == tensor.data_ptr()


def test_of_a_view_only_what_it_shows_is_sent(torch):
    base = torch.arange(100_000.0)
    encoded = encode((base[:1000], base[500:1500]), DIVERT)
    assert [buffer.nbytes for buffer in encoded.buffers] == [4000, 4000]
    first, second = decode(stream_of(encoded), [bytearray(b) for b in encoded.buffers])
    first.zero_()
    assert second[0] == 500


def test_a_tensor_aliases_the_buffer_it_came_in(torch):
    memory = bytearray(4000)
    arrived = decode(stream_of(encode(torch.ones(1000), DIVERT)), [memory])
    arrived.fill_(1.0)
    assert memory == np.ones(1000, np.float32).tobytes()


def test_a_tensor_over_read_only_memory_arrives_without_a_warning(torch):
    encoded = encode(torch.arange(1000.0), DIVERT)
    memory = memoryview(bytes(encoded.buffers[0])).toreadonly()
    torch.set_warn_always(True)  # not only once a process
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert decode(stream_of(encoded), [memory]).sum() == math.comb(1000, 2)
            assert seen == []
            torch.frombuffer(memory, dtype=torch.uint8)
            assert len(seen) == 1
    finally:
        torch.set_warn_always(False)


def test_tensors_arrive_inside_of_everything(torch):
    arrived = sent({"batch": [Reply(1, torch.ones(1000)), (torch.zeros(2, dtype=torch.bfloat16),)]})
    assert arrived["batch"][0].logits.sum() == 1000
    assert arrived["batch"][1][0].dtype == torch.bfloat16


def test_a_tensor_that_is_more_than_its_bytes_is_refused_before_it_is_sent(torch):
    class Mine(torch.Tensor):
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse and quantized tensors a prototype
        refused = {
            r"layout torch\.sparse_coo.*to_dense\(\)": torch.eye(3).to_sparse(),
            r"layout torch\.sparse_csr.*to_dense\(\)": torch.eye(3).to_sparse_csr(),
            r"on meta.*send tensor\.cpu\(\)": torch.empty(3, device="meta"),
            r"Mine, only torch\.Tensor itself": torch.ones(3).as_subclass(Mine),
            r"nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
            r"quint8; send tensor\.dequantize\(\)": torch.quantize_per_tensor(
                torch.ones(3), 0.1, 0, torch.quint8
            ),
        }
        for message, tensor in refused.items():
            with pytest.raises(TypeError, match=f"cannot send a.*{message}"):
                encode([tensor], DIVERT)


@pytest.mark.gpu
def test_a_tensor_on_a_gpu_is_refused_with_the_way_out(torch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with pytest.raises(TypeError, match=r"on cuda:0.*send tensor\.cpu\(\)"):
        encode(torch.ones(3, device="cuda"), DIVERT)


def test_a_forged_tensor_is_refused(torch):
    maker = named("realrun.tensors", "rebuild_tensor")
    for arguments in (
        (b"x" * 8, "torch.float32", (3,)),
        (b"x" * 8, "torch.load", (2,)),
        (b"x" * 8, "torch.qint8", (8,)),
        (b"x" * 8, "torch.float32", (-1, -2)),
        (b"x" * 8, "torch.float32", (-2, -1)),
        (b"", "torch.float32", (0, -1)),
        (b"", "torch.float32", (0, 1 << 80)),
        (b"x" * 8, "torch.float32", (2.0,)),
        ("x" * 8, "torch.float32", (2,)),
        (b"x" * 8, ["torch.float32"], (2,)),
    ):
        with pytest.raises(BadMessage):
            decode(forged(maker, plain(arguments), b"R"))
    state = (7, 0, (1 << 40,), (1,))
    with pytest.raises(BadMessage):
        decode(forged(maker, plain((b"x" * 8, "torch.float32", (2,))), b"R", plain(state), b"b"))


@pytest.mark.usefixtures("little_memory")
@given(data=st.data())
@settings(max_examples=200)
def test_a_garbled_message_with_tensors_gives_no_other_error(torch, data):
    encoded = encode([torch.ones(3), torch.zeros(1000, dtype=torch.bfloat16)], DIVERT)
    stream = bytearray(stream_of(encoded))
    places = st.tuples(st.integers(0, len(stream) - 1), st.integers(1, 255))
    for at, flip in data.draw(st.lists(places, min_size=1, max_size=4)):
        stream[at] ^= flip
    read_or_refuse(stream, [bytearray(b) for b in encoded.buffers])


def test_a_receiver_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    maker = named("realrun.tensors", "rebuild_tensor")
    stream = forged(maker, plain((b"x" * 8, "torch.float32", (2,))), b"R")
    with pytest.raises(BadMessage, match=r"torch is not installed here.*\[torch\]"):
        decode(stream)


@pytest.mark.parametrize("value", [len, encode, lambda: 0, dict, np.ndarray])
def test_what_can_be_called_is_refused_where_it_is_sent(value):
    with pytest.raises(TypeError, match="cannot send"):
        encode({"call": value}, 1)
