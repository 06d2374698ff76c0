"""Chooses who waits, publishes, takes, copies and rings: the C extension, or Python on x86."""

import platform
from typing import Final

try:
    from realrun._native import (
        RELAX,
        announce,
        copy,
        is_plain,
        load,
        publish,
        receive,
        release,
        store,
        take,
        wait,
        wake,
    )

    IMPLEMENTATION = "native"
except ImportError:
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ImportError(
            f"realrun needs its C extension on {platform.machine()}: without it nothing orders two "
            "stores to shared memory there; install a C compiler and the Python headers, then "
            "reinstall"
        ) from None
    from realrun._fallback import (
        RELAX,
        announce,
        copy,
        is_plain,
        load,
        publish,
        receive,
        release,
        store,
        take,
        wait,
        wake,
    )

    IMPLEMENTATION = "python"

BytesLike = bytes | bytearray | memoryview

# How a wait ended.
SEEN: Final = 0  #: the word moved
STOPPED: Final = 1  #: the stop word was set
REHEARSING: Final = 3  #: it has come to a REHEARSE stage: rehearse, then go on behind it
ENDED: Final = 2  #: the plan's last stage was bounded, and over
LISTENING: Final = 4  #: the socket that is its bell rang: drain it, then go on in the same stage

__all__ = [
    "ENDED",
    "IMPLEMENTATION",
    "LISTENING",
    "REHEARSING",
    "RELAX",
    "SEEN",
    "STOPPED",
    "BytesLike",
    "announce",
    "copy",
    "is_plain",
    "load",
    "publish",
    "receive",
    "release",
    "store",
    "take",
    "wait",
    "wake",
]
