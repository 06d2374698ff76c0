"""A child cgroup with a CPU quota, gone afterwards whatever happens."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from contention import CannotMeasureError

PERIOD_NS: Final = 100_000_000  # the kernel's default, and what container engines use
_REMOVE_WITHIN_S: Final = 5.0


class Throttling(NamedTuple):
    """What ``cpu.stat`` of a group has counted so far.

    Parameters
    ----------
    n_periods, n_throttled
        Periods in which the group ran, and in how many of them it was stopped.
    throttled_ns
        How long it was stopped, summed over the cores on which it wanted to run.
    """

    n_periods: int
    n_throttled: int
    throttled_ns: int

    @classmethod
    def read(cls, path: Path) -> "Throttling":
        """Read a ``cpu.stat``; version 1 counts nanoseconds, version 2 microseconds."""
        rows = dict(line.split() for line in path.read_text().splitlines())
        in_v2 = "throttled_usec" in rows
        throttled_ns = int(rows["throttled_usec"]) * 1000 if in_v2 else int(rows["throttled_time"])
        return cls(int(rows["nr_periods"]), int(rows["nr_throttled"]), throttled_ns)

    def since(self, before: "Throttling") -> "Throttling":
        """What was counted in between."""
        return Throttling(*(a - b for a, b in zip(self, before, strict=True)))


class Group(NamedTuple):
    """A cgroup of ours.

    Parameters
    ----------
    folder
        Its directory; who writes 0 into its ``cgroup.procs`` moves there, and so do its children.
    """

    folder: Path

    @property
    def procs(self) -> Path:
        """Processes in it."""
        return self.folder / "cgroup.procs"

    @property
    def stat(self) -> Path:
        """Its ``cpu.stat``."""
        return self.folder / "cpu.stat"

    def limit(self, cores: float | None) -> None:
        """Allow so much CPU time in each period, in cores; None lifts the limit."""
        quota_us = -1 if cores is None else round(cores * PERIOD_NS / 1000)
        period_us = PERIOD_NS // 1000
        if (self.folder / "cpu.max").exists():
            allowed = "max" if cores is None else str(quota_us)
            (self.folder / "cpu.max").write_text(f"{allowed} {period_us}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(period_us))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))


@contextlib.contextmanager
def child_group() -> Iterator[Group]:
    """Make a child cgroup whose CPU can be limited, and remove it with whoever is left in it.

    Raises
    ------
    CannotMeasureError
        If this box permits none; says what was tried.
    """
    group = _make()
    try:
        yield group
    finally:
        # A second Ctrl-C must not leave the group behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _remove(group)
        finally:
            signal.signal(signal.SIGINT, previous)


def _make() -> Group:
    tried = []
    for parent in _parents():
        folder = parent / f"shmsim-{os.getpid()}"
        try:
            controllers = parent / "cgroup.subtree_control"
            if controllers.exists() and "cpu" not in controllers.read_text().split():
                controllers.write_text("+cpu")
            folder.mkdir()
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
            continue
        group = Group(folder)
        try:
            group.limit(None)
        except OSError as error:
            folder.rmdir()
            tried.append(f"{folder}: {error.strerror}")
            continue
        return group
    raise CannotMeasureError(
        "no child cgroup with a CPU quota can be made: "
        + ("; ".join(tried) or "no cgroup is mounted")
    )


def _parents() -> Iterator[Path]:
    """Groups below which ours could be, the likeliest first."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            yield Path(mount) / own.get("cpu", "")
        elif kind == "cgroup2" and "cpu" in _controllers(Path(mount)):
            here = Path(mount) / own.get("", "")
            # A group that holds processes cannot share out its CPU, unless it is the very root.
            yield here
            if here != Path(mount):
                yield here.parent


def _controllers(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return []


def _remove(group: Group) -> None:
    deadline = time.monotonic() + _REMOVE_WITHIN_S
    while True:
        # Only who we put there, and their children, can be in it.
        for pid in group.procs.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            group.folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)  # who was killed is not gone at once
        else:
            return
