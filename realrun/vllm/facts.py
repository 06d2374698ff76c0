"""What of vLLM's insides this package relies on, looked up in its source before anything is done.

Versions differ in what they call themselves and what they contain, forks the more so; so the facts
are checked, not the number. If one does not hold, nothing is installed and vLLM runs as it was.
"""

import inspect
from typing import Any, Final

#: Per function, lines that must occur in this order. Left: class or None, function.
_IN_ORDER: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    # Our release follows the read flag, which is set whatever the reader does; the wait has one
    # place and one argument.
    ("MessageQueue", "acquire_read"): (
        "_spin_condition.wait(timeout_ms=",
        "self.shutting_down",
        "yield buf",
        "finally:",
        "metadata_buffer[self.local_reader_rank + 1] = 1",
        "self._spin_condition.record_read()",
    ),
    # Our publication is between the writing of the slot and the flag.
    ("MessageQueue", "acquire_write"): (
        "sched_yield()",
        "raise TimeoutError",
        "yield buf",
        "metadata_buffer[0] = 1",
        "memory_fence()",
    ),
    ("MessageQueue", "enqueue"): ("self.acquire_write(timeout)", "self._spin_condition.notify()"),
    ("MessageQueue", "dequeue"): ("self.acquire_read(",),
    ("MessageQueue", "shutdown"): ("self.shutting_down = True", "self._spin_condition.cancel()"),
    ("SpinCondition", "wait"): ("self.last_read + self.busy_loop_s", "self.poller.poll("),
    ("SpinCondition", "notify"): ("local_notify_socket.send(",),
    ("SpinCondition", "cancel"): ("write_cancel_socket.send(",),
    ("SpinCondition", "record_read"): ("self.last_read = ",),
    ("ShmRingBuffer", "__init__"): ("self.n_reader", "self.max_chunks", "self.shared_memory"),
    ("MultiprocExecutor", "_init_executor"): ("self.rpc_broadcast_mq", "self.response_mqs"),
    ("MultiprocExecutor", "collective_rpc"): (
        "rpc_broadcast_mq.enqueue((send_method, args, kwargs, output_rank))",
        ".dequeue(timeout=",
    ),
    ("WorkerProc", "_init_message_queues"): (
        "self.rpc_broadcast_mq = ",
        "self.worker_response_mq",
    ),
}
#: What is a context manager of a generator: `realrun.vllm.queues` runs that generator.
_GENERATORS: Final = (("MessageQueue", "acquire_read"), ("MessageQueue", "acquire_write"))
_PARAMETERS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("MessageQueue", "acquire_write"): ("self", "timeout"),
    ("SpinCondition", "wait"): ("self", "timeout_ms"),
    ("SpinCondition", "notify"): ("self",),
    ("SpinCondition", "cancel"): ("self",),
    ("SpinCondition", "record_read"): ("self",),
}
# Whoever sleeps on vLLM's socket looks again by himself: what a ring that is given up relies on.
_NAMES: Final = (
    "memory_fence",
    "logger",
    "LONG_WAIT_TIME_LOG_MSG",
    "SHM_READER_RECHECK_INTERVAL_MS",
)


def objections(queue_module: Any, executor_module: Any) -> list[str]:
    """Why this vLLM cannot be observed; empty if it can.

    Parameters
    ----------
    queue_module
        ``vllm.distributed.device_communicators.shm_broadcast``.
    executor_module
        ``vllm.v1.executor.multiproc_executor``.
    """
    found = []
    for (class_name, name), wanted in _IN_ORDER.items():
        owner = getattr(queue_module, class_name, None) or getattr(
            executor_module, class_name, None
        )
        function = getattr(owner, name, None)
        if function is None:
            found.append(f"there is no {class_name}.{name}")
            continue
        found += [f"{class_name}.{name} {what}" for what in _lacks(function, wanted)]
        if (class_name, name) in _GENERATORS and not _is_of_a_generator(function):
            found.append(f"{class_name}.{name} is no context manager of a generator")
        parameters = _PARAMETERS.get((class_name, name))
        has = tuple(inspect.signature(function).parameters)
        if parameters is not None and has != parameters:
            found.append(f"{class_name}.{name} takes {', '.join(has)}, not {', '.join(parameters)}")
    found += [
        f"{queue_module.__name__} has no {name}"
        for name in _NAMES
        if not hasattr(queue_module, name)
    ]
    return found


def objections_to_policies(queue_module: Any) -> list[str]:
    """Why this vLLM can be observed, yet its waits not be carried out."""
    if getattr(queue_module, "SPINLOOP_EXT_ENABLED", False):
        return ["its spin extension waits before anybody is asked; unset VLLM_USE_SPINLOOP_EXT"]
    return []


def _is_of_a_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(getattr(function, "__wrapped__", None))


def _lacks(function: Any, wanted: tuple[str, ...]) -> list[str]:
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ["has no source to look at"]
    at = 0
    for text in wanted:
        after = source.find(text, at)
        if after < 0:
            order = "" if source.find(text) < 0 else " where it must be"
            return [f"has no {text!r}{order}"]
        at = after + len(text)
    return []
