"""The memory of all rings and arenas as one sum, compared with every limit before any is taken.

tmpfs gives pages on first touch: queues that each fit by themselves, but not together, end in a
SIGBUS long after the start. A segment is one sum, and it is refused here or committed whole.
"""

import errno
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from realrun.layout import SegmentLayout
from shmsim.routing import ArenaPlan

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
_LEAST_SLOT_BYTES: Final = 4096
_MIB: Final = 1 << 20


class BudgetError(OSError):
    """The segment does not fit; says what it consists of, what limits it, and what would fit."""


class Part(NamedTuple):
    """One part of a segment."""

    name: str
    n_bytes: int
    made_of: str


class Limit(NamedTuple):
    """What bounds a segment here, and the way out."""

    name: str
    free_bytes: int
    way_out: str


def parts(layout: SegmentLayout) -> list[Part]:
    """What a segment consists of; the sum of all is its size."""
    request = layout.request
    replies = layout.replies
    arena = layout.arena_layout
    found = [
        Part(
            "request ring",
            request.end - request.at,
            f"{request.n_slots} slots of {size(request.slot_bytes)}",
        ),
        Part(
            "reply rings",
            replies[-1].end - replies[0].at,
            f"{len(replies)} x {replies[0].n_slots} slots of {size(replies[0].slot_bytes)}",
        ),
        Part(
            "arena",
            arena.end - arena.at,
            ", ".join(f"{c.n_slots} slots of {size(c.slot_bytes)}" for c in layout.arena.classes)
            or "none",
        ),
    ]
    if ends := layout.ends:
        made_of = f"{len(ends)} x {ends[0].n_slots} slots of {size(ends[0].slot_bytes)}"
        found.append(Part("end rings", ends[-1].end - ends[0].at, made_of))
    rest = layout.size - sum(part.n_bytes for part in found)
    return [*found, Part("words", rest, "stamps and flags")]


def limits(folder: Path, *, pinned: bool = False) -> list[Limit]:
    """Everything that bounds shared memory here.

    Parameters
    ----------
    folder
        A tmpfs.
    pinned
        Whether a device will register the memory, so that it may count as locked.
    """
    status = os.statvfs(folder)
    found = []
    if status.f_blocks:  # 0 of a tmpfs without a limit
        found.append(
            Limit(
                str(folder),
                status.f_bavail * status.f_frsize,
                "remove what fills it, or enlarge it (docker run --shm-size=1g)",
            )
        )
    found += [
        Limit(f"the memory cgroup {path}", free_bytes, "raise its limit (docker run --memory=...)")
        for path, free_bytes in _cgroup_headroom()
    ]
    available = _meminfo("MemAvailable")
    if available is not None:
        found.append(Limit("the memory of this machine", available, "end what uses it"))
    if pinned:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft != resource.RLIM_INFINITY:
            found.append(
                Limit("the limit of locked memory", soft, "raise it (ulimit -l unlimited)")
            )
    return found


def check_budget(layout: SegmentLayout, folder: Path, *, pinned: bool = False) -> None:
    """Refuse a segment that does not fit.

    Raises
    ------
    BudgetError
        Names the total, each part, the tightest limit, and a layout that fits.
    """
    bounds = limits(folder, pinned=pinned)
    if not bounds:
        return
    tightest = min(bounds, key=lambda limit: limit.free_bytes)
    if layout.size <= tightest.free_bytes:
        return
    lines = [
        f"cannot reserve {size(layout.size)} of shared memory: "
        f"{tightest.name} has {size(tightest.free_bytes)} left. It would consist of"
    ]
    lines += [f"  {p.name:<13}{size(p.n_bytes):>12}  ({p.made_of})" for p in parts(layout)]
    smaller = shrink(layout, tightest.free_bytes)
    if smaller is not None:
        lines.append(f"This fits: {describe(smaller)}. Or {tightest.way_out}.")
    else:
        lines.append(f"Not even the smallest fits. {tightest.way_out.capitalize()}.")
    raise BudgetError(errno.ENOSPC, "\n".join(lines))


def shrink(layout: SegmentLayout, free_bytes: int) -> SegmentLayout | None:
    """A layout of the same shape that fits, given up least first; None if there is none.

    First goes the arena, whose payloads have other routes; then slots, whose number only lets the
    writer run ahead; last their size, which decides what a message may carry.
    """
    for smaller in _ever_smaller(layout):
        if smaller.size <= free_bytes:
            return smaller
    return None


def _ever_smaller(layout: SegmentLayout) -> Iterator[SegmentLayout]:
    while layout.arena.classes:
        *rest, largest = layout.arena.classes
        if largest.n_slots > 1:
            rest.append(largest._replace(n_slots=largest.n_slots // 2))
        divert_bytes = layout.arena.divert_bytes
        if rest and rest[-1].slot_bytes < divert_bytes:
            rest = []  # nothing would ever go there
        layout = replace(layout, arena=ArenaPlan(tuple(rest), divert_bytes))
        yield layout
    while layout.n_slots > 2:
        layout = replace(layout, n_slots=max(2, layout.n_slots // 2))
        yield layout
    while max(layout.slot_bytes, layout.reply_slot_bytes) > _LEAST_SLOT_BYTES:
        layout = replace(
            layout,
            slot_bytes=max(layout.slot_bytes // 2, min(layout.slot_bytes, _LEAST_SLOT_BYTES)),
            reply_slot_bytes=max(
                layout.reply_slot_bytes // 2, min(layout.reply_slot_bytes, _LEAST_SLOT_BYTES)
            ),
        )
        yield layout


def describe(layout: SegmentLayout) -> str:
    """The settings of a layout in one line."""
    arena = ", ".join(f"{c.n_slots} x {size(c.slot_bytes)}" for c in layout.arena.classes)
    return (
        f"{layout.n_slots} slots of {size(layout.slot_bytes)} for requests and of "
        f"{size(layout.reply_slot_bytes or layout.slot_bytes)} for replies, arena {arena or 'none'}"
        f": {size(layout.size)}"
    )


def size(n_bytes: int) -> str:
    """A number of bytes for people."""
    if n_bytes >= _MIB:
        return f"{n_bytes / _MIB:,.1f} MiB".replace(".0 MiB", " MiB")
    if n_bytes >= 1024:
        return f"{n_bytes / 1024:.1f} KiB".replace(".0 KiB", " KiB")
    return f"{n_bytes} B"


def _cgroup_headroom() -> Iterator[tuple[str, int]]:
    """What each cgroup above this process may still take; of both versions of the hierarchy."""
    try:
        rows = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for row in rows:
        _, controllers, name = row.split(":", 2)
        if controllers == "":
            top, limit, used = CGROUPS, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, used = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = top / name.lstrip("/")
        for path in (folder, *folder.parents):
            most, now = _number(path / limit), _number(path / used)
            if most is not None and now is not None:
                # Cached file pages are given up before anybody is refused.
                cached = _stat(path / "memory.stat", "inactive_file") or 0
                yield str(path), max(most - max(now - cached, 0), 0)
            if path == top:
                break


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _stat(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def _meminfo(name: str) -> int | None:
    kib = None
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            kib = int(value.split()[0])
    return None if kib is None else kib * 1024
