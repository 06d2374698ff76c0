"""Compiles what a decode step repeats, so that fewer kernels do the same."""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Shapes that one function may be compiled for, a bucket each; beyond, torch runs it uncompiled.
_MOST_SHAPES: Final = 64


def compiled(function: _Function, device: Any) -> _Function:
    """A function of tensors, compiled at its first call for each shape.

    On a GPU every shape is compiled by itself and products are chosen by timing them, without CUDA
    graphs: the step is captured into one as a whole (`realrun.cuda.graphs`). Needs a C++ compiler
    on a CPU, and Triton on a GPU; the call fails with a `RuntimeError` that says so.
    """
    torch._dynamo.config.recompile_limit = _MOST_SHAPES
    made: Any = torch.compile(function)
    if torch.device(device).type == "cuda":
        made = torch.compile(function, dynamic=False, mode="max-autotune-no-cudagraphs")
    return cast("_Function", made)
