"""Facts about this box that decide what waiting costs, and how to get a core of one's own."""

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import shmsim
from realrun.native import IMPLEMENTATION, RELAX

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_PR_GET_TIMERSLACK: Final = 30
_SIGKILL: Final = 9

#: Facts without which two profiles cannot be from the same box in the same state.
IDENTITY: Final = (
    "cpu", "cores", "affinity", "quota_cores", "kernel", "clocksource", "idle_driver",
    "halt_poll_ns", "implementation",
)  # fmt: skip

_DMA_LATENCY: Final = Path("/dev/cpu_dma_latency")
_RAPL: Final = Path("/sys/class/powercap")
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def prepare_process() -> None:
    """Make timed sleeps exact and die with the parent; call first in every child.

    The kernel rounds a sleep up by the timer slack, 50 µs by default, which would be most of what
    a doze costs.
    """
    _prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between, so the signal will never come
        sys.exit(1)


def exact_timers() -> None:
    """Set the timer slack of this thread to its least."""
    _prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


@contextmanager
def settled_heap() -> Iterator[None]:
    """Keep the garbage collector out of what is measured within; enter when all is imported.

    A full collection looks at every object there is, 15 to 25 ms for what numpy, numba and pyarrow
    load, and it came once in each run in each process: a stall that belongs to no wait. Engines
    take what they loaded out of the collector's sight too (vLLM and SGLang freeze their heaps after
    start-up). Ours stops it besides, because the rows of the records are objects that no engine
    has, and a step leaves no cycles behind that somebody would have to find.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class CannotKeepAwake(RuntimeError):  # noqa: N818 - what is wrong, by its name
    """Idle CPUs sleep as the kernel likes."""


@contextmanager
def kept_awake() -> Iterator[None]:
    """Keep idle CPUs of the whole box from sleeping, at the price of power.

    Raises
    ------
    CannotKeepAwake
        If this process may not ask for that, or the kernel does not know it.
    """
    try:
        asked = _DMA_LATENCY.open("wb", buffering=0)
    except OSError as error:
        raise CannotKeepAwake(f"CPUs cannot be kept awake here ({error}); ask as root") from None
    with asked:
        asked.write(bytes(4))  # the request holds for as long as the file is open
        yield


def energy_uj() -> dict[str, int]:
    """Energy that each CPU package has taken so far, microjoules; empty where nobody says."""
    found = {}
    for package in sorted(_RAPL.glob("intel-rapl:[0-9]*")):
        said = _read(package / "energy_uj")
        if said and package.name.count(":") == 1:
            found[package.name] = int(said)
    return found


def usable_cores() -> list[int]:
    """Cores this process may run on."""
    return sorted(os.sched_getaffinity(0))


def quota_cores() -> float | None:
    """CPU quota of the cgroup in cores; None without one."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        return None
    folder = Path("/sys/fs/cgroup") / own.lstrip("/")
    quotas = []
    for path in [folder, *folder.parents]:
        limit = _read(path / "cpu.max").split()
        if len(limit) == 2 and limit[0].isdecimal():
            quotas.append(int(limit[0]) / int(limit[1]))
        if path == Path("/sys/fs/cgroup"):
            break
    return min(quotas) if quotas else None


def machine_facts() -> dict[str, Any]:
    """What this box is, as stored beside every result."""
    shm = os.statvfs("/dev/shm")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "affinity": usable_cores(),
        "quota_cores": quota_cores(),
        "kernel": platform.release(),
        "virtual": "hypervisor" in _read(Path("/proc/cpuinfo")),
        "clocksource": _read(
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        "timer_slack_ns": int(_prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)),
        "idle_driver": _read(Path("/sys/devices/system/cpu/cpuidle/current_driver")) or "none",
        "idle_states": _idle_states(),
        "halt_poll_ns": _read(Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")) or "none",
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) or "none",
        "shm_bytes": shm.f_blocks * shm.f_frsize,
        "shm_free_bytes": shm.f_bavail * shm.f_frsize,
        "implementation": IMPLEMENTATION,
        "relax": RELAX,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "shmsim": shmsim.__version__,  # also where nobody installed it
    }


def differing_facts(profile_machine: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Which facts tell that a profile was not measured on this box as it is now."""
    unsaid = [n for n in IDENTITY if n not in profile_machine and here.get(n) is not None]
    told = [
        f"{name}: profile {profile_machine[name]!r}, here {here.get(name)!r}"
        for name in IDENTITY
        if name in profile_machine and profile_machine[name] != here.get(name)
    ]
    return [*told, f"it does not say {', '.join(unsaid)}"] if unsaid else told


def warnings_about(facts: dict[str, Any]) -> list[str]:
    """What about this box will show in every figure, and what can be done."""
    warnings = []
    n_cores = len(facts["affinity"])
    if n_cores < 2:
        warnings.append(
            "one usable core: a scheduler and a worker take turns on it, so every spin delays what "
            "it waits for; give this process two cores or more"
        )
    if facts["quota_cores"] is not None and facts["quota_cores"] < n_cores:
        warnings.append(
            f"a cgroup quota of {facts['quota_cores']:g} cores on {n_cores} cores: spinning uses "
            "it up and then everybody is stopped until the next period; raise cpu.max or park"
        )
    if facts["virtual"]:
        warnings.append(
            "a virtual machine: a halted vCPU may be descheduled, so wake-ups and the work after "
            "them take longer and vary more than on bare metal"
        )
    if facts["clocksource"] not in ("tsc", "kvm-clock", "arch_sys_counter"):
        warnings.append(
            f"clocksource {facts['clocksource']!r}: reading the clock is a system call here"
        )
    if facts["shm_free_bytes"] < 64 << 20:
        warnings.append(
            f"/dev/shm has only {facts['shm_free_bytes'] >> 20} MiB free; "
            "in a container, start it with --shm-size=1g"
        )
    if facts["implementation"] != "native":
        warnings.append(
            "the C extension is missing, so Python does the spinning: about 1 µs a look instead of "
            "0.02; install a C compiler and the Python headers, then 'make clean' and try again"
        )
    return warnings


def _cpu_model() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _idle_states() -> list[str]:
    states = Path("/sys/devices/system/cpu/cpu0/cpuidle").glob("state*")
    return [f"{_read(s / 'name')} {_read(s / 'latency')} us" for s in sorted(states)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
