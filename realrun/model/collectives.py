"""How the ranks that share a model add up their parts of a layer's output.

Each kind of collective is a function that takes a tensor and adds in place those of all ranks.
gloo works without a GPU and cannot be captured in a CUDA graph; NCCL wants a GPU for each rank and
is captured with the rest of a step; symmetric memory lets several ranks share one GPU, where they
take turns of time slices, so that it is there to check results and never to time anything.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from realrun.causes import in_a_line

AllReduce = Callable[[Any], Any]
KINDS: Final = ("none", "gloo", "nccl", "symm")
#: Kinds that a CUDA graph can hold.
CAPTURABLE: Final = ("none", "nccl", "symm")
_STORE: Final = "ranks"
_WAY_OUT: Final = {
    "gloo": "see whether the loopback interface is up, or name another in GLOO_SOCKET_IFNAME",
    "nccl": "set NCCL_DEBUG=WARN to hear why; every rank needs a GPU of its own",
    "symm": "all ranks need access to each other's memory (torch.cuda.can_device_access_peer)",
}


def alone(part: Any) -> Any:
    """One rank has the whole already."""
    return part


def join(
    kind: str, rank: int, n_ranks: int, folder: Path, device: Any, limit_s: float
) -> AllReduce:
    """Meet the other ranks, and add up once to see that it works.

    Parameters
    ----------
    kind
        One of `KINDS`.
    folder
        Private to the run; the ranks find each other through a file in it.
    device
        Of this rank's tensors.
    limit_s
        How long to wait for the others.

    Raises
    ------
    RuntimeError
        If they do not meet, or do not add up; says what to look at.
    """
    if n_ranks == 1:
        return alone
    # All ranks are processes of this machine. The watchdog threads of NCCL would show in the CPU
    # time of a worker, whose launcher watches it anyhow.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    try:
        store = dist.FileStore(str(folder / _STORE), n_ranks)
        # Symmetric memory needs a group only to exchange handles.
        backend = "gloo" if kind == "symm" else kind
        limit = timedelta(seconds=limit_s)
        # With its device NCCL connects now, and not in the first step.
        bound = {"device_id": device} if backend == "nccl" else {}
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=n_ranks, timeout=limit, **bound
        )
        reduce = _symmetric(device) if kind == "symm" else _in_place
        found = reduce(torch.full((4,), float(rank + 1), device=device))[0].item()
    except (RuntimeError, ValueError) as error:  # DistBackendError is a RuntimeError
        why = in_a_line(str(error).splitlines()) or repr(error)
        raise RuntimeError(
            f"rank {rank} of {n_ranks} could not join the others by {kind}: {why}; {_WAY_OUT[kind]}"
        ) from error
    expected = n_ranks * (n_ranks + 1) / 2
    if found != expected:
        raise RuntimeError(
            f"{kind} added 1 to {n_ranks} up to {found:g}, expected {expected:g}; {_WAY_OUT[kind]}"
        )
    return reduce


def leave() -> None:
    """End what `join` began, if it did."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _in_place(part: Any) -> Any:
    dist.all_reduce(part)
    return part


def _symmetric(device: Any) -> AllReduce:
    """An all-reduce in which each rank reads the parts of all others from their GPU memory."""
    import torch.distributed._symmetric_memory as symm_mem

    group_name = dist.group.WORLD.group_name
    buffers: dict[tuple[int, Any], Any] = {}

    def reduce(part: Any) -> Any:
        key = (part.numel(), part.dtype)
        if key not in buffers:  # by all ranks alike, since all compute the same shapes
            buffer = symm_mem.empty(part.numel(), dtype=part.dtype, device=device)
            symm_mem.rendezvous(buffer, group_name)
            buffers[key] = buffer
        buffer = buffers[key]
        buffer.copy_(part.reshape(-1))
        total = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group_name)
        return part.copy_(total.reshape(part.shape))

    return reduce
