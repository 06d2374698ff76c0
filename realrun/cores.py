"""The cores of this box as a run takes them, and how a thread gets one."""

import os
from pathlib import Path
from typing import Final

from realrun.host import usable_cores

ANY: Final = -1  #: where a core is named: the kernel decides
_SYSFS: Final = Path("/sys/devices/system/cpu")


def cores_in(cpu_list: str) -> tuple[int, ...]:
    """Cores of a list as the kernel writes it, such as ``0-3,8,10-11``.

    Raises
    ------
    ValueError
        If it is no such list.
    """
    cores: set[int] = set()
    for part in filter(None, cpu_list.strip().split(",")):
        first, dash, last = part.partition("-")
        cores.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(cores))


def spread_cores(sysfs: Path = _SYSFS) -> list[int]:
    """Cores this process may run on, in the order in which the threads of a run take them.

    One hardware thread of each physical core comes first: a spinner on the second one slows the
    first down. Then come their siblings, that of the first core last: a run has its scheduler
    there. Where the kernel does not say who is whose sibling, nobody is.
    """
    usable = usable_cores()
    turns = {core: _turn(core, usable, sysfs) for core in usable}
    return sorted(usable, key=lambda core: (turns[core], -core if turns[core] else core))


def _turn(core: int, usable: list[int], sysfs: Path) -> int:
    """How many hardware threads of its physical core come before this one."""
    path = sysfs / f"cpu{core}" / "topology" / "thread_siblings_list"
    try:
        siblings = cores_in(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    return sum(sibling < core for sibling in siblings if sibling in usable)


def stay_on(core: int) -> None:
    """Keep the calling thread on a core, if one is named; threads that it starts inherit it."""
    if core != ANY:
        os.sched_setaffinity(0, {core})


def core_beside(core: int) -> int:
    """A core for what a thread on ``core`` waits for: as in a run of one worker, the third.

    `ANY` if there is no other, or ``core`` is `ANY`. Ask before this thread stays on a core.
    """
    others = [other for other in spread_cores() if other != core]
    return others[min(1, len(others) - 1)] if others and core != ANY else ANY
