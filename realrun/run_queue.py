"""How long the threads of this process were ready to run and had no core.

The kernel counts that for each thread, and forgets it when the thread ends. So what was seen of a
thread is kept here: the sum never falls. All of it counts of a thread that says when it ends.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_THREADS: Final = Path("/proc/self/task")
_lock: Final = threading.Lock()
#: Of each thread what it had waited when it was last looked at, by its id in the kernel.
_seen_ns: Final[dict[int, int]] = {}
#: Of all that are gone.
_gone_ns = 0


def run_queue_wait_ns() -> int:
    """Sum over the threads there are and those that were, so far; 0 where the kernel counts none.

    Of a thread that ended by itself counts what this saw of it before; see `counted`.
    """
    global _gone_ns
    with _lock:
        now = {int(path.name): _waited_ns(path) for path in _THREADS.iterdir()}
        for thread, seen_ns in list(_seen_ns.items()):
            if now.get(thread, 0) < seen_ns:  # gone, and perhaps its id is another thread's now
                _gone_ns += seen_ns
                del _seen_ns[thread]
        _seen_ns.update(now)
        return _gone_ns + sum(_seen_ns.values())


def counted(target: Callable[[], None]) -> Callable[[], None]:
    """What a thread is to do, so that all that it waits for a core counts, also when it has ended.

    Examples
    --------
    ``threading.Thread(target=counted(work))``
    """

    def run() -> None:
        try:
            target()
        finally:
            with _lock:
                thread = threading.get_native_id()
                _seen_ns[thread] = _waited_ns(_THREADS / str(thread))

    return run


def _waited_ns(thread: Path) -> int:
    try:
        fields = (thread / "schedstat").read_text().split()
    except OSError:  # it ended just now, or the kernel does not count
        return 0
    return int(fields[1]) if len(fields) == 3 else 0
