"""The least memory with which payloads rarely find no slot."""

from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Final, NamedTuple

import numpy as np

from shmsim.arena_sizing.erlang import erlang_b
from shmsim.arena_sizing.payloads import Payloads
from shmsim.arena_sizing.replay import Usage, replay, reserved_bytes
from shmsim.routing import MIB, ArenaPlan, SlotClass

#: Slots are as large as payloads at these quantiles, among others.
_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 1.0)
#: Slots are whole mebibytes, so that their starts are aligned for huge pages as well as may be.
_ROUND_BYTES: Final = 1 * MIB
#: Candidates of Erlang's formula that are tried with the payloads themselves.
_TRIED: Final = 4
#: Slots added in search of the first plan that will do, at most.
_MOST_ADDED: Final = 200

#: Told which plan is being tried.
Progress = Callable[[ArenaPlan], None]


class Sizing(NamedTuple):
    """An arena that will do.

    Parameters
    ----------
    plan
        Its slots and the size from which payloads go there; no slots if none goes there.
    usage
        What became of the payloads.
    erlang
        What Erlang's formula expects to fall back, were no class to help out another.
    """

    plan: ArenaPlan
    usage: Usage
    erlang: float


def smallest_arena(
    payloads: Payloads,
    probability: float,
    divert_bytes: int,
    most_classes: int,
    progress: Progress,
) -> Sizing:
    """The arena of least memory, over slot sizes and counts, for a probability of falling back.

    Erlang's formula proposes plans; the payloads themselves decide: a plan will do if the upper end
    of the interval of its fallbacks is no higher than the probability. From the best of those,
    slots are taken away as long as it does.

    Parameters
    ----------
    payloads
        What is to pass through, enough of it: 3.7 over the probability at least.
    probability
        Share of payloads that may find no slot, above 0 and below 1.
    divert_bytes
        Size from which payloads are to go through the arena.
    most_classes
        Sizes of slots, at most.
    progress
        Told what is being tried.

    Raises
    ------
    ValueError
        If the probability is out of range, or there are too few payloads to tell.
    """
    if not 0 < probability < 1:
        raise ValueError(
            f"the probability of falling back must be above 0 and below 1, got {probability}"
        )
    offered = payloads.of_at_least(divert_bytes)
    if offered.n == 0:
        plan = ArenaPlan((), divert_bytes)
        return Sizing(plan, replay(plan, payloads), 0.0)
    if offered.n * probability < 3.7:
        raise ValueError(
            f"{offered.n} payloads of at least {divert_bytes} bytes cannot tell a probability of "
            f"{probability:g}: not even none in {offered.n} would show it; give at least "
            f"{int(3.7 / probability) + 1}, or a higher probability"
        )
    proposed = sorted(
        (
            _proposed(offered, sizes, probability, divert_bytes)
            for sizes in _slot_sizes(offered, most_classes, probability)
        ),
        key=reserved_bytes,
    )
    found: Sizing | None = None
    for plan in proposed[:_TRIED]:
        enough = _grown(plan, payloads, probability, progress)
        if enough is not None:
            sizing = _trimmed(*enough, payloads, probability, progress)
            if found is None or sizing.usage.reserved_bytes < found.usage.reserved_bytes:
                found = sizing
    if found is None:
        raise ValueError(
            f"no arena of up to {most_classes} sizes was found with which at most "
            f"{probability:g} of these payloads fall back; raise the probability, or the number "
            "of payloads"
        )
    return found


def erlang_of(plan: ArenaPlan, payloads: Payloads) -> float:
    """What Erlang's formula expects to fall back, each class by itself.

    A payload belongs to the smallest slots it fits into. That a larger class helps out is left
    out, which is pessimistic for the small and optimistic for the large.
    """
    offered = payloads.of_at_least(plan.divert_bytes)
    if offered.n == 0:
        return 0.0
    lost = 0.0
    below = 0
    for slot_bytes, n_slots in plan.classes:
        mine = (offered.n_bytes > below) & (offered.n_bytes <= slot_bytes)
        load = float(offered.hold_ns[mine].sum()) / offered.span_ns
        lost += float(mine.mean()) * erlang_b(n_slots, load)
        below = slot_bytes
    return lost + float((offered.n_bytes > below).mean())


def _slot_sizes(offered: Payloads, most_classes: int, probability: float) -> list[tuple[int, ...]]:
    """Sets of slot sizes worth trying, each ascending; the largest takes nearly every payload."""
    tops = np.quantile(offered.n_bytes, (1 - probability / 4, 1.0), method="higher")
    cuts = np.quantile(offered.n_bytes, _QUANTILES, method="higher")
    sizes = sorted({_rounded(int(n)) for n in cuts})
    found: set[tuple[int, ...]] = set()
    for top in {_rounded(int(n)) for n in tops}:
        smaller = [size for size in sizes if size < top]
        for n in range(most_classes):
            found.update((*chosen, top) for chosen in combinations(smaller, n))
    return sorted(found)


def _rounded(n_bytes: int) -> int:
    return max(-(-n_bytes // _ROUND_BYTES), 1) * _ROUND_BYTES


def _proposed(
    offered: Payloads, sizes: tuple[int, ...], probability: float, divert_bytes: int
) -> ArenaPlan:
    """Slots added where they save most fallbacks for their memory, by Erlang's formula."""
    bounds = (0, *sizes)
    shares, loads = [], []
    for low, high in pairwise(bounds):
        mine = (offered.n_bytes > low) & (offered.n_bytes <= high)
        shares.append(float(mine.mean()))
        loads.append(float(offered.hold_ns[mine].sum()) / offered.span_ns)
    counts = [1] * len(sizes)
    lost = [
        share * erlang_b(1, load) if share else 0.0
        for share, load in zip(shares, loads, strict=True)
    ]
    # Whatever is larger than every slot falls back, and no slot helps that.
    allowed = probability - float((offered.n_bytes > sizes[-1]).mean())
    while sum(lost) > max(allowed, probability / 4):
        saved = [
            (lost[k] - shares[k] * erlang_b(counts[k] + 1, loads[k])) / sizes[k]
            for k in range(len(sizes))
        ]
        best = max(range(len(sizes)), key=saved.__getitem__)
        counts[best] += 1
        lost[best] = shares[best] * erlang_b(counts[best], loads[best])
    classes = tuple(SlotClass(size, count) for size, count in zip(sizes, counts, strict=True))
    return ArenaPlan(classes, divert_bytes)


def _with(plan: ArenaPlan, index: int, more: int) -> ArenaPlan:
    """The plan with more or fewer slots of a class, which leaves it with its last slot."""
    classes = list(plan.classes)
    slot_bytes, n_slots = classes[index]
    classes[index] = SlotClass(slot_bytes, n_slots + more)
    return ArenaPlan(tuple(c for c in classes if c.n_slots > 0), plan.divert_bytes)


def _grown(
    plan: ArenaPlan, payloads: Payloads, probability: float, progress: Progress
) -> tuple[ArenaPlan, Usage] | None:
    """Add slots to the class that helps most for its memory until the plan will do."""
    for _ in range(_MOST_ADDED):
        progress(plan)
        usage = replay(plan, payloads)
        if usage.fallback.high <= probability:
            return plan, usage
        if usage.n_too_large > probability * usage.n_diverted:
            return None
        # Classes at the top take what overflows below, so that is where a slot surely helps.
        options = [_with(plan, index, 1) for index in range(len(plan.classes))]
        saved = [
            (usage.n_fallback - replay(option, payloads).n_fallback)
            / plan.classes[index].slot_bytes
            for index, option in enumerate(options)
        ]
        best = max(range(len(options)), key=lambda i: (saved[i], i))
        plan = options[best]
    return None


def _trimmed(
    plan: ArenaPlan, usage: Usage, payloads: Payloads, probability: float, progress: Progress
) -> Sizing:
    """Take slots away, the largest first, while the plan still does."""
    index = len(plan.classes) - 1
    while index >= 0:
        fewer = _with(plan, index, -1)
        if fewer.classes:
            progress(fewer)
            then = replay(fewer, payloads)
            if then.fallback.high <= probability:
                gone = len(fewer.classes) < len(plan.classes)
                plan, usage = fewer, then
                if gone:
                    index -= 1
                continue
        index -= 1
    return Sizing(plan, usage, erlang_of(plan, payloads))
