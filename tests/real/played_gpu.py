"""Plays a GPU on the CPU: everything is done at once, in the order in which it was asked for.

It shows that the device asks for the right things in the right order, and nothing about a GPU.
"""

import ctypes
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import realrun.cuda.calibrate
import realrun.cuda.calls
import realrun.cuda.checks
import realrun.cuda.copies
import realrun.cuda.memory
import realrun.cuda.pages
import realrun.cuda.rests
import realrun.cuda.sleep
import realrun.cuda.upload
import realrun.cuda.word
import realrun.device.cuda
from realrun.cuda.driver import DriverError
from realrun.cuda.graphs import buckets_up_to


class Event:
    """An event that comes to pass when it is recorded."""

    def __init__(self, **kinds):
        self.kinds = kinds
        self.at_ns = None

    def record(self, stream=None):
        del stream
        self.at_ns = time.monotonic_ns()

    def query(self):
        return self.at_ns is not None

    def synchronize(self):
        assert self.at_ns is not None

    def elapsed_time(self, later):
        assert self.kinds.get("enable_timing"), "only such events tell the time"
        assert later.kinds.get("enable_timing")
        return (later.at_ns - self.at_ns) / 1e6


class Stream:
    """A stream in which nothing waits."""

    cuda_stream = 0x57

    def __init__(self, device=None):
        del device

    def synchronize(self):
        """Nothing is on its way."""


class Driver:
    """The driver; what it may refuse is set by a test."""

    def __init__(self):
        self.refuses = set()
        self.registered = {}
        self.log = []

    def _may(self, name):
        self.log.append(name)
        if name in self.refuses:
            raise DriverError(name, 801)

    def register(self, address, n_bytes):
        self._may("register")
        if address in self.registered:
            raise DriverError("register", 712)
        self.registered[address] = n_bytes

    def unregister(self, address):
        self._may("unregister")
        del self.registered[address]

    def device_pointer(self, address):
        assert any(a <= address < a + n for a, n in self.registered.items())
        return address

    def write_when_reached(self, stream, pointer, value):
        assert stream == Stream.cuda_stream
        self._may("write")
        ctypes.c_uint32.from_address(pointer).value = value

    def attribute(self, number, device):
        del number, device
        return 0


class Graphs:
    """Runs the step instead of a graph of it."""

    def __init__(self, decoder, positions):
        self._decoder = decoder
        self._positions = positions
        self._buckets = buckets_up_to(positions.shape[0])

    def bucket_for(self, n_rows):
        return next(bucket for bucket in self._buckets if bucket >= n_rows)

    def replay(self, n_rows):
        self._decoder.decode(self._positions[: self.bucket_for(n_rows)])

    def close(self):
        """Nothing is held."""


class Graph:
    """A graph that holds nothing."""

    def replay(self):
        """Nothing was captured."""


def _at_address(described, device):
    """What a GPU takes for its memory, by its address."""
    del device
    about = described.__cuda_array_interface__
    (n,) = about["shape"]
    words = (ctypes.c_int64 * n).from_address(about["data"][0])
    return torch.frombuffer(words, dtype=torch.int64)


#: Whatever of the product asks torch about GPUs.
MODULES = (
    realrun.cuda.calibrate,
    realrun.cuda.calls,
    realrun.cuda.checks,
    realrun.cuda.copies,
    realrun.cuda.memory,
    realrun.cuda.pages,
    realrun.cuda.rests,
    realrun.cuda.sleep,
    realrun.cuda.upload,
    realrun.cuda.word,
    realrun.device.cuda,
)


@contextmanager
def played_gpu():
    """Let `realrun.device.cuda` and `realrun.cuda` find a GPU; gives the driver."""
    driver = Driver()
    properties = SimpleNamespace(name="played", total_memory=1, uuid="0", multi_processor_count=1)
    cuda = SimpleNamespace(
        CUDAGraph=Graph,
        Event=Event,
        Stream=Stream,
        graph=lambda *_, **__: torch.no_grad(),
        set_device=lambda _: None,
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        current_stream=Stream,
        synchronize=lambda: None,
        mem_get_info=lambda _: (70 << 30, 80 << 30),
        get_device_properties=lambda _: properties,
        stream=lambda _: torch.no_grad(),
        _sleep=lambda cycles: time.sleep(cycles / 1e9),
    )
    names = ("bfloat16", "int64", "uint8", "frombuffer", "from_numpy", "__version__", "version")
    fake = SimpleNamespace(
        cuda=cuda, device=lambda *_: torch.device("cpu"), **{n: getattr(torch, n) for n in names}
    )
    fake.as_tensor = _at_address
    # Without CUDA there is no memory to pin, and no device but the CPU.
    fake.zeros = lambda *a, pin_memory=False, device=None, **k: torch.zeros(*a, **k)
    fake.empty = lambda *a, pin_memory=False, device=None, **k: torch.empty(*a, **k)
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name, played in {
                "torch": fake,
                "driver": lambda: driver,
                "cycles_per_ns": lambda: 1.0,
            }.items():
                if hasattr(module, name):
                    patch.setattr(module, name, played)
        patch.setattr(realrun.device.cuda, "DecodeGraphs", Graphs)
        patch.setattr(realrun.cuda.checks, "_said", lambda _: [])
        yield driver
