"""The C extension; realrun/_native.c says more."""

from mmap import mmap

#: How a spinner passes the time between two looks: pause, umwait, mwaitx or isb.
RELAX: str

def load(segment: mmap, at: int, /) -> int: ...
def store(segment: mmap, at: int, value: int, /) -> None: ...
def publish(
    segment: mmap,
    ring: tuple[int, ...],
    bells: bytes | None,
    call_id: int,
    flags: int,
    pieces: list[bytes | bytearray | memoryview],
    /,
) -> tuple[int, int]: ...
def announce(segment: mmap, ring: tuple[int, ...], bells: bytes | None, /) -> int: ...
def release(segment: mmap, ring: tuple[int, ...], bells: bytes | None, reader: int, /) -> bool: ...
def copy(segment: mmap, at: int, piece: bytes | bytearray | memoryview, /) -> None: ...
def take(
    segment: mmap, ring: tuple[int, ...], bells: bytes | None, reader: int, most_bytes: int, /
) -> tuple[int, int, int, bytes, int] | None: ...
def receive(
    segment: mmap,
    words: tuple[int, int, int, int],
    plan: tuple[int, ...],
    fd: int,
    caller_drains: bool,
    ring: tuple[int, ...],
    bells: bytes | None,
    reader: int,
    most_bytes: int,
    /,
) -> tuple[int, int, bytes, tuple[int, int, int, bytes, int] | None]: ...
def is_plain(pickle: bytes | bytearray | memoryview, /) -> bool: ...
def wake(segment: mmap, bell_at: int, /) -> int: ...
def rounds(n: int, /) -> int: ...
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
