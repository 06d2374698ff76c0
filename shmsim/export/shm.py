"""How much of /dev/shm an engine needs, so that a container gets it."""

from typing import Final, NamedTuple

from shmsim.export.engines import Engine

#: What NVIDIA advises for containers in which NCCL runs: --shm-size=1g, on the page
#: docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/runtime_and_mpi_issues.html
NCCL_MIB: Final = 1024
_ROUND_MIB: Final = 64
_HEADERS_MIB: Final = 1  # flags beside the slots: a byte for each reader, and one


class ShmNeed(NamedTuple):
    """What a container has to allow.

    Parameters
    ----------
    mib
        How much; 0 if the engine needs none, or none that is known.
    parts
        What it consists of, for people.
    """

    mib: int
    parts: str


def shm_need(engine: Engine, values: dict[str, str], workers: int) -> ShmNeed:
    """Sum over the queues of an engine, its arena and NCCL, rounded up.

    Parameters
    ----------
    engine
        The rows of one version.
    values
        Settings that will be set.
    workers
        Worker processes, one for each GPU.
    """
    if not engine.shm:
        return ShmNeed(0, "")
    row = engine.shm[0]
    if row.advised_mib:
        return ShmNeed(row.advised_mib, f"as its documentation advises ({row.source})")
    keys = dict(engine.by_key)
    call_mib = int(values.get(keys.get("slot_bytes", ""), row.call_mib))
    calls_mib, reply_mib = row.chunks * call_mib, row.chunks * row.reply_mib
    arena_mib = row.arena_mib if values.get(keys.get("arena", "")) == "1" else 0
    nccl_mib = NCCL_MIB if workers > 1 else 0
    total_mib = calls_mib + workers * reply_mib + arena_mib + nccl_mib + _HEADERS_MIB
    parts = [f"calls {calls_mib} MiB", f"replies {workers} x {reply_mib} MiB"]
    if arena_mib:
        parts.append(f"arena {arena_mib} MiB")
    if nccl_mib:
        parts.append(f"NCCL {nccl_mib} MiB")
    return ShmNeed(-(-total_mib // _ROUND_MIB) * _ROUND_MIB, ", ".join(parts))
