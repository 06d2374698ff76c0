"""Refuses a GPU that cannot do what is asked, before anything is loaded."""

import subprocess
import time
from typing import Final

import torch

from shmsim.roofline import BYTES_PER_VALUE, ModelGeometry

LOAD: Final = "utilization.gpu"  # percent, as nvidia-smi calls it
_BUSY_PERCENT: Final = 10.0
_LOOKS: Final = 4
_LOOK_S: Final = 0.7
_RESERVE_BYTES: Final = 1 << 30  # the context, cuBLAS workspaces and graphs


class NoGpu(RuntimeError):  # noqa: N818 - what is wrong, by its name
    """There is no GPU to run on; says why, and what to do."""


def choose_gpu(rank: int, n_ranks: int, *, shares: bool) -> int:
    """Index of the GPU of a rank.

    Parameters
    ----------
    shares
        Whether several ranks may take one GPU.

    Raises
    ------
    NoGpu
        If there is none, or there are fewer than ranks.
    """
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            raise NoGpu(
                f"this torch ({torch.__version__}) was built without CUDA; install one with it "
                '(pip install torch), or set device.kind = "cpu"'
            )
        raise NoGpu(
            f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no GPU it can use: see "
            "whether nvidia-smi lists one, its driver is recent enough for that CUDA, and "
            'CUDA_VISIBLE_DEVICES names it; or set device.kind = "cpu"'
        )
    n_gpus = int(torch.cuda.device_count())
    if n_ranks > n_gpus and not shares:
        raise NoGpu(
            f"{n_ranks} workers want a GPU each and there are {n_gpus}; set engine.devices = "
            f"{n_gpus}, so that the others only receive and the rows are labelled emulated, or "
            "lower engine.workers"
        )
    return rank % n_gpus


def check_memory(
    geometry: ModelGeometry, n_ranks: int, n_rows: int, max_len: int, index: int
) -> None:
    """Refuse a model and a cache that do not fit.

    Raises
    ------
    NoGpu
        Says how much is needed for what, and how much there is.
    """
    weights = geometry.parameters * BYTES_PER_VALUE // n_ranks
    cache = n_rows * max_len * geometry.kv_bytes_per_token // n_ranks
    logits = 4 * n_rows * geometry.vocab
    free, total = torch.cuda.mem_get_info(index)
    needed = weights + cache + logits + _RESERVE_BYTES
    if needed > free:
        mib = 1 << 20
        raise NoGpu(
            f"GPU {index} has {free // mib:,} of {total // mib:,} MiB free, and "
            f"{needed // mib:,} are needed: {weights // mib:,} for weights, {cache // mib:,} for "
            f"the cache of {n_rows} sequences of {max_len} tokens, the rest for the step itself; "
            "lower engine.max_sequences or device.max_len, or take a smaller device.model"
        )


def check_idle(index: int) -> None:
    """Refuse a GPU that somebody else computes on: every time would be about both.

    Ask before this process computes. Where nvidia-smi is not installed, or does not know (it says
    ``[N/A]`` of a part of a GPU, by MIG or vGPU), nobody can tell, and none is refused; a
    calibration notes it.

    Raises
    ------
    NoGpu
        Says how busy it is, and names the processes on it that can be seen from here.
    """
    busy_percent = 0.0
    for look in range(_LOOKS):
        try:
            busy_percent = float(gpu_state(index, LOAD).get(LOAD, ""))
        except ValueError:
            return
        if busy_percent < _BUSY_PERCENT:
            return
        if look < _LOOKS - 1:
            time.sleep(_LOOK_S)  # what ended just now still shows for a moment
    others = ", ".join(_compute_processes(_uuid(index))) or "none that can be seen from here"
    raise NoGpu(
        f"GPU {index} is {busy_percent:g} % busy with others (processes: {others}), so that times "
        "would be about both; wait for them, or choose another with CUDA_VISIBLE_DEVICES"
    )


def clocks(index: int) -> dict[str, str]:
    """Clocks, power and temperature of a GPU now, for the records; empty if nobody can say."""
    return gpu_state(index, "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


def gpu_state(index: int, *names: str) -> dict[str, str]:
    """What nvidia-smi says about a GPU, by the names of its ``--query-gpu``; empty if nothing."""
    query = f"--query-gpu=uuid,{','.join(names)}"
    for row in _said(["nvidia-smi", query, "--format=csv,noheader,nounits"]):
        uuid, *values = row.split(", ")
        if _uuid(index) in uuid:
            return dict(zip(names, values, strict=False))
    return {}


def _compute_processes(uuid: str) -> list[str]:
    """Process ids on a GPU and what they hold."""
    what = "--query-compute-apps=gpu_uuid,pid,used_memory"
    rows = [row.split(", ") for row in _said(["nvidia-smi", what, "--format=csv,noheader"])]
    return [f"{row[1]} ({row[2]})" for row in rows if len(row) == 3 and uuid in row[0]]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def _said(command: list[str]) -> list[str]:
    """Lines of what a program prints; none if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
