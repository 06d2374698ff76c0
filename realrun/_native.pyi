"""The C extension; realrun/_native.c says more."""

from mmap import mmap

#: How a spinner passes the time between two looks: pause, umwait, mwaitx or isb.
RELAX: str

def load(segment: mmap, at: int, /) -> int: ...
def store(segment: mmap, at: int, value: int, /) -> None: ...
def publish(
    segment: mmap,
    ring: tuple[int, ...],
    call_id: int,
    flags: int,
    pieces: list[bytes | bytearray | memoryview],
    /,
) -> tuple[int, int]: ...
def take(
    segment: mmap, ring: tuple[int, ...], reader: int, most_bytes: int, /
) -> tuple[int, int, int, bytes, int] | None: ...
def receive(
    segment: mmap,
    words: tuple[int, int, int, int],
    plan: tuple[int, ...],
    fd: int,
    caller_drains: bool,
    ring: tuple[int, ...],
    reader: int,
    most_bytes: int,
    /,
) -> tuple[int, int, bytes, tuple[int, int, int, bytes, int] | None]: ...
def is_plain(pickle: bytes | bytearray | memoryview, /) -> bool: ...
def post(
    segment: mmap,
    head_at: int,
    sequence: int,
    stamp_at: int,
    armed_at: int,
    armed_stride: int,
    n_readers: int,
    /,
) -> tuple[int, int]: ...
def wake(segment: mmap, bell_at: int, /) -> int: ...
def wait(
    segment: mmap,
    words: tuple[int, int, int, int],
    seen: int,
    plan: tuple[int, ...],
    stage: int = 0,
    started_ns: int = 0,
    fd: int = -1,
    caller_drains: bool = False,
    /,
) -> tuple[int, ...]: ...
