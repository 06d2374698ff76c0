"""What shared memory is to a GPU, question by question: each a yes, or why not.

The tests marked ``gpu`` ask the same in more ways; a calibration keeps the answers of its machine.
"""

import ctypes
import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

from realrun.cuda.driver import driver
from realrun.cuda.parts import Measured, Say
from realrun.cuda.registration import Registration, address_of
from realrun.cuda.word import Word
from realrun.layout import SegmentLayout
from realrun.segment import Segment

_FUTEX_WAITV: Final = 449  # the same number on every architecture
_N_WORDS: Final = 64
#: What a question may fail of; a sticky error of CUDA fails all that follow.
_FAILURES: Final = (RuntimeError, ValueError, TypeError)


def shared_memory(say: Say) -> Measured:
    """Ask what the hand-off to a GPU rests on.

    Returns
    -------
    Measured
        Facts: by question True, or the reason why not. ``views_pinned``: torch sees views of
        registered memory as page-locked. ``same_pointer``: the device's address is the host's.
        ``second_registration``: it is refused, and leaves no error behind for the next call.
        ``graph_write``, ``graph_copy``: a graph moves a word, as the stream's write and as a copy.
        ``array_interface``: a tensor of the GPU looks at the memory itself. ``futex_waitv``: the
        kernel can wait for several words at once.
    """
    say("shared memory")
    answers: dict[str, Any] = {"futex_waitv": _answer(_futex_waitv)}
    with Segment.create(SegmentLayout(1, n_devices=1)) as segment:
        registration = Registration(driver(), segment.memory)
        if not registration.is_registered:
            return Measured([], {**answers, "not_registered": registration.reason})
        try:
            about = segment, registration
            answers |= {
                "views_pinned": _answer(lambda: _views_pinned(segment)),
                "same_pointer": _answer(lambda: _same_pointer(*about)),
                "second_registration": _answer(lambda: _second_registration(segment)),
                "graph_write": _answer(lambda: _moved_by_graph(*about, "write")),
                "graph_copy": _answer(lambda: _moved_by_graph(*about, "copy")),
                "array_interface": _answer(lambda: _array_interface(*about)),
            }
        finally:
            torch.cuda.synchronize()
            registration.close()
    return Measured([], answers)


def _answer(ask: Callable[[], str]) -> bool | str:
    """True, or why not."""
    try:
        return ask() or True
    except _FAILURES as error:
        return f"{type(error).__name__}: {error}"


def _words(segment: Segment) -> Any:
    """Words of a slot of the request ring, which nobody uses."""
    at = segment.layout.request.slot_at(1)
    return torch.frombuffer(segment.memory, dtype=torch.int64, count=_N_WORDS, offset=at)


def _views_pinned(segment: Segment) -> str:
    base = _words(segment)
    views = {"base": base, "slice": base[3:], "from numpy": torch.from_numpy(base.numpy())}
    return ", ".join(f"{name} is not" for name, view in views.items() if not view.is_pinned())


def _same_pointer(segment: Segment, registration: Registration) -> str:
    host, device = address_of(segment.memory), registration.device_pointer(0)
    return "" if host == device else f"{device:#x} on the device, {host:#x} on the host"


def _second_registration(segment: Segment) -> str:
    again = Registration(driver(), segment.memory)
    if again.is_registered:
        again.close()
        return "it was accepted"
    torch.zeros(1, device="cuda").add_(1)  # would raise an error that was left behind
    torch.cuda.synchronize()
    return "" if "712" in again.reason else again.reason


def _moved_by_graph(segment: Segment, registration: Registration, way: str) -> str:
    ring = segment.layout.ends[0]
    segment.store(ring.head_at, 0)
    word = Word(segment, ring, registration, driver())
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            word.move(way, stream, 1)
        early = segment.load(ring.head_at)
        graph.replay()
        stream.synchronize()
    found = segment.load(ring.head_at)
    segment.store(ring.head_at, 0)
    return "" if (early, found) == (0, 1) else f"{early} when captured, {found} when replayed"


def _array_interface(segment: Segment, registration: Registration) -> str:
    words = _words(segment)
    words.zero_()
    pointer = registration.device_pointer(segment.layout.request.slot_at(1))
    described = {"shape": (_N_WORDS,), "typestr": "<i8", "data": (pointer, False), "version": 3}
    seen = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=described), device="cuda")
    seen.add_(7)
    torch.cuda.synchronize()
    return "" if bool((words == 7).all()) else "what the GPU wrote went elsewhere"


def _futex_waitv() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(_FUTEX_WAITV), None, 0, 0, None, 0)  # of no word: refused
    found = ctypes.get_errno()
    return "" if found == errno.EINVAL else errno.errorcode.get(found, str(found))
