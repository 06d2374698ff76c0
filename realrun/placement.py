"""Which core each thread of a run gets."""

from typing import Final, NamedTuple

from realrun.cores import ANY, spread_cores
from realrun.cuda.ends import BY_THREAD
from shmsim.config import DeviceConfig, RunConfig


class ThreadCores(NamedTuple):
    """Cores of the threads of one process; `realrun.cores.ANY`: the kernel decides.

    Parameters
    ----------
    main
        Of the thread that receives, sends and launches.
    replies
        Of the one that waits for the device beside it, where scheduling is async; else of nobody.
    device
        Of the one that publishes the ends of steps: it computes them, or waits in the driver.
    """

    main: int
    replies: int
    device: int


ANYWHERE: Final = ThreadCores(ANY, ANY, ANY)


def assign_cores(config: RunConfig) -> tuple[ThreadCores, ...]:
    """Cores of each process of a run, the scheduler first; empty: the kernel decides about all.

    A spinner keeps its core from whom it waits for, so each thread has its own if there are enough.
    If not, the two threads of a worker share one, as its process has one in the model; but none
    is shared with what publishes the ends of steps, on which a worker may spin: where there are too
    few for that, nobody is kept anywhere.
    """
    engine = config.engine
    n_processes = 1 + engine.workers
    n_publishing = engine.n_devices if _publishes_by_thread(config.device) else 0
    cores = spread_cores()
    if not config.pin or len(cores) < n_processes + n_publishing:
        return ()
    mains, rest = cores[:n_processes], cores[n_processes:]
    devices = [ANY, *rest[:n_publishing], *[ANY] * (engine.workers - n_publishing)]
    rest = rest[n_publishing:]
    replies = mains
    if engine.scheduling == "async" and len(rest) >= engine.workers:
        replies = [mains[0], *rest[: engine.workers]]
    return tuple(map(ThreadCores, mains, replies, devices))


def _publishes_by_thread(device: DeviceConfig) -> bool:
    """Whether a thread of the worker publishes the ends of steps."""
    return device.kind == "cpu" or (device.kind == "cuda" and device.observe in BY_THREAD)
