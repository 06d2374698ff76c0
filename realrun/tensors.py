"""Torch tensors in messages; the one file that knows torch, and it never loads it to send.

A process that has not imported torch has no tensor to send, so `is_tensor` only looks whether
somebody has. A process that receives one imports it then.
"""

import math
import sys
import warnings
from functools import cache
from pickle import PickleBuffer
from typing import Any

from shmsim.extras import how_to_add


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor of whatever kind."""
    # Another thread may be in the middle of importing torch.
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_type is not None and isinstance(value, tensor_type)


def reduce_tensor(tensor: Any) -> tuple[Any, ...]:
    """Say how to pickle a tensor: as its bytes, its dtype's name and its shape.

    What arrives has the same values, dtype and shape, is contiguous, and is a leaf without
    gradient: a ``Parameter`` arrives as a plain tensor, conjugated and negated views as their
    values. Of a view only what it shows is sent, and tensors that share a storage arrive apart. A
    tensor that is not contiguous is copied.

    Raises
    ------
    TypeError
        If the tensor is not dense, not on the CPU, or of a class of its own.
    """
    import torch

    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(
            f"cannot send a {kind}, only torch.Tensor itself; send tensor.as_subclass(torch.Tensor)"
        )
    if tensor.device.type != "cpu":
        raise TypeError(
            f"cannot send a tensor on {tensor.device}: its bytes are not in this process's memory; "
            "send tensor.cpu()"
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(
            f"cannot send a tensor of layout {tensor.layout}"
            f"{' (nested)' if tensor.is_nested else ''}, only dense ones; send tensor.to_dense(), "
            "or its parts"
        )
    if str(tensor.dtype) not in _dtypes():
        raise TypeError(f"cannot send a tensor of {tensor.dtype}; send tensor.dequantize()")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = dense.reshape(-1).view(torch.uint8).numpy()
    return rebuild_tensor, (PickleBuffer(flat), str(tensor.dtype), tuple(tensor.shape))


def rebuild_tensor(data: Any, dtype_name: str, shape: tuple[int, ...]) -> Any:
    """Make a tensor over a buffer; called by `realrun.codec.decode` only.

    The tensor aliases the buffer unless it is not aligned for the dtype. Torch knows no read-only
    tensor: do not write to one whose buffer is.

    Raises
    ------
    RuntimeError
        If torch is not installed.
    ValueError
        If the buffer has not exactly the size of the tensor, or the dtype is not known.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise RuntimeError(
            "the message holds a tensor and torch is not installed here; send an array, or install "
            f"torch, {how_to_add('torch')}"
        ) from None

    dtype = _dtypes().get(dtype_name)
    if dtype is None:
        raise ValueError(f"this torch ({torch.__version__}) sends no dtype {dtype_name!r}")
    n_bytes, expected = memoryview(data).nbytes, math.prod(shape) * dtype.itemsize
    if n_bytes != expected:
        raise ValueError(
            f"a tensor of shape {shape} and {dtype_name} takes {expected} bytes, but its buffer "
            f"has {n_bytes}"
        )
    if n_bytes == 0:
        return torch.empty(shape, dtype=dtype)  # frombuffer refuses an empty buffer
    with warnings.catch_warnings():
        # Said once a process; the docstring says it too. Should two threads be in here at once,
        # what may stay behind is this one filter.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(data, dtype=torch.uint8)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()  # kernels use aligned loads
    return flat.view(dtype).reshape(shape)


@cache
def _dtypes() -> dict[str, Any]:
    """Torch's dtypes whose values are whole bytes by themselves, by name."""
    import torch

    found = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    # Quantized values need a scale that is elsewhere.
    return {name: dtype for name, dtype in found.items() if not name.startswith("torch.q")}
