"""Who carries a wait out: the C extension, or its twin in Python."""

import platform
from importlib import import_module

import pytest

import realrun.doorbell
import realrun.ring
import realrun.waiting

CARRIERS = ["native", "fallback"]


def carrier_named(name: str):
    """A module with `publish`, `wake` and `wait`; skips where this box cannot have it."""
    if name == "fallback" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the fallback is for x86 only: nothing in it orders stores elsewhere")
    try:
        return import_module(f"realrun._{name}")
    except ImportError:
        pytest.skip("the C extension is not built here")


def carry_by(name: str, setattr=setattr) -> None:
    """Have rings, waits and doorbells of this process carried by one of both."""
    module = carrier_named(name)
    for name in ("announce", "publish", "receive", "release", "take"):
        setattr(realrun.ring, name, getattr(module, name))
    setattr(realrun.waiting, "wait", module.wait)
    setattr(realrun.doorbell, "wake", module.wake)
