from mmap import mmap

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
def wake(segment: mmap, head_at: int, /) -> int: ...
def wait(
    segment: mmap,
    head_at: int,
    seen: int,
    armed_at: int,
    stop_at: int,
    plan: tuple[int, ...],
    stage: int = 0,
    started_ns: int = 0,
    /,
) -> tuple[int, ...]: ...
