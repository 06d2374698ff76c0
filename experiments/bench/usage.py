"""CPU time and context switches of a process, as the kernel counts them."""

from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What all live threads of one process have consumed.

    Parameters
    ----------
    cpu_ns
        Time on a core.
    queued_ns
        Time ready to run, without a core.
    parked
        Context switches that the threads asked for: a park each, or a yield that found somebody.
    preempted
        Context switches that they did not ask for.
    """

    cpu_ns: int
    queued_ns: int
    parked: int
    preempted: int

    def since(self, before: "Usage") -> dict[str, int]:
        """What was consumed after an earlier reading."""
        return {
            name: after - earlier
            for name, after, earlier in zip(self._fields, self, before, strict=True)
        }


def usage(pid: int) -> Usage:
    """Read the counters of a process."""
    cpu_ns = queued_ns = parked = preempted = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            schedstat = (task / "schedstat").read_text().split()
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
        cpu_ns += int(schedstat[0])
        queued_ns += int(schedstat[1])
        parked += _field(status, "voluntary_ctxt_switches")
        preempted += _field(status, "nonvoluntary_ctxt_switches")
    return Usage(cpu_ns, queued_ns, parked, preempted)


def _field(status: str, name: str) -> int:
    return int(status.partition(f"\n{name}:")[2].split(maxsplit=1)[0])
