"""What parts of our hand-off cost by themselves: systems that measure within their own process."""

from collections.abc import Callable
from typing import Final

import numpy as np
import own_copies
from candidates import CANDIDATES, VLLM, Candidate
from cells import Cells, Key

from shmsim.claims import Claim

COPIES: Final = Candidate("ours, 128 MiB", "own_copies", "Copies", scenarios=())
PUBLISH: Final = Candidate("ours, one process", "own_publish", "PublishAndSee", scenarios=())
#: Who is measured side by side, and with how many readers. Who is not ours hands over the same
#: payload as a call.
_VLLM: Final = next(c for c in CANDIDATES if c.name == VLLM["payload"])
COSTS: Final = (((COPIES, _VLLM), 2), ((PUBLISH,), 1))
PAYLOAD: Final = own_copies.PAYLOAD


def _claim(
    cells: Cells,
    keys: tuple[Key, Key],
    combine: Callable[[float, float], float],
    **fields: str | float,
) -> list[Claim]:
    """The medians of two cells, combined; the interval holds the middle 80 % of the rounds."""
    if not all(key in cells for key in keys):
        return []
    ours, other = (cells[key].round_medians_ns() for key in keys)
    rounds = sorted(ours.keys() & other.keys())
    low, high = np.percentile([combine(ours[i], other[i]) for i in rounds], [10, 90])
    value = combine(*(float(np.median([of[i] for i in rounds])) for of in (ours, other)))
    found = Claim(
        value=value, low=float(low), high=float(high), direction="<=", n=len(rounds), **fields
    )
    return [found]


def claims(cells: Cells, seed: int) -> list[Claim]:
    """The arena against one copy, and Python's share of a hand-off."""
    copies = Key(COPIES.name, 2, "handoff"), Key(COPIES.name, 2, "memcpy")
    publish = Key(PUBLISH.name, 1, "publish_and_see"), Key(PUBLISH.name, 1, "pickle_reply")
    return [
        *_claim(
            *(cells, copies, lambda ours, other: ours / other),
            id="handoff/arena_vs_memcpy",
            unit="ratio",
            bound=1.1,
            seed=seed,
        ),
        *_claim(
            *(cells, publish, lambda ours, other: (ours - other) / 1e3),
            id="handoff/publish_and_see_us",
            unit="us",
            bound=5.0,
            seed=seed,
        ),
    ]


def table(cells: Cells) -> list[str]:
    """Medians of everything measured here."""
    shown = {
        "128 MiB to 2 readers, ours by arena": Key(COPIES.name, 2, "handoff"),
        "128 MiB copied once": Key(COPIES.name, 2, "memcpy"),
        f"128 MiB to 2 readers, {_VLLM.name}": Key(_VLLM.name, 2, "payload", PAYLOAD),
        "150 B sent and received in one process": Key(PUBLISH.name, 1, "publish_and_see"),
        "150 B pickled and unpickled": Key(PUBLISH.name, 1, "pickle_reply"),
    }
    rows = [
        f"{name:42}{cells[key].samples_ns.size:7}{cells[key].median_ns / 1e3:12.2f}"
        f"{cells[key].p90_ns / 1e3:12.2f}"
        for name, key in shown.items()
        if key in cells
    ]
    title = f"{'parts by themselves, us':42}{'n':>7}{'median':>12}{'p90':>12}"
    return ["", title, *rows] if rows else []
