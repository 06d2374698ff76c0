"""Our hand-off with every doorbell and every way to wait: what each of the two is worth."""

from itertools import product
from typing import Final

from candidates import Candidate
from cells import Cells, Key

from realrun.doorbell import KINDS

#: Presets, and how long their readers go on spinning after a call; None is for ever.
_POLICIES: Final = {
    "spin": None,
    "vllm-1s": 1.0,
    "forks-2ms": 0.002,
    "park": 0.0,
    "wake-ahead": 0.0,
}
_GAPS: Final = ("back_to_back", "gap_2ms")
#: As `handoff.BURSTS`, but shorter, and with more calls that are not counted: to a wake-ahead that
#: was stopped, the time it stood still is a wait that it learns from. After 60 calls the mean of
#: half a minute is down to that of a gap.
BURSTS: Final = {"back_to_back": (100, 60), "gap_2ms": (30, 60)}
N_IDLE_CALLS: Final = 3


def _candidate(doorbell: str, policy: str) -> Candidate:
    spins_on_s = _POLICIES[policy]
    # A spinner is awake after any gap, and would keep everybody else from being idle.
    scenarios = _GAPS if spins_on_s is None else (*_GAPS, "idle_5s")
    options = {"doorbell": doorbell, "policy": policy}
    name = f"ours, {doorbell}, {policy}"
    return Candidate(name, "ours", "Ours", options, "python", scenarios, False, spins_on_s or 0.0)


MATRIX: Final = [_candidate(doorbell, policy) for policy, doorbell in product(_POLICIES, KINDS)]


def table(cells: Cells) -> list[str]:
    """Median and p90 of the round trip, and cores kept busy, of every pair."""
    lines = []
    for n_readers in (1, 2):
        shown = [c for c in MATRIX if Key(c.name, n_readers, "back_to_back") in cells]
        if not shown:
            continue
        s = "s" * (n_readers > 1)
        lines += [
            "",
            f"doorbells and policies, {n_readers} reader{s}: round trip in us, cores of writer and "
            "busiest reader",
            f"{'':28}{'back to back':>16}{'':12}{'gap of 2 ms':>16}{'':20}{'5 s idle':>9}",
            f"{'':28}{'median':>8}{'p90':>8}{'cores':>12}"
            f"{'median':>8}{'p90':>8}{'cores':>12}{'rings':>8}{'median':>9}",
        ]
        lines += [_row(cells, candidate.name, n_readers) for candidate in shown]
    return lines


def _row(cells: Cells, name: str, n_readers: int) -> str:
    row = f"{name:28}"
    for scenario in _GAPS:
        cell = cells.get(Key(name, n_readers, scenario))
        if cell is None:
            row += f"{'-':>8}{'-':>8}{'-':>12}"
            continue
        writer, reader = cell.cores() or (0.0, 0.0)
        shares = f"{writer:.0%} {reader:.0%}"
        row += f"{cell.median_ns / 1e3:8.1f}{cell.p90_ns / 1e3:8.1f}{shares:>12}"
        if scenario == "gap_2ms":
            row += f"{cell.per_call()['notified'] + cell.per_call()['announced']:8.2f}"
    idle = cells.get(Key(name, n_readers, "idle_5s"))
    return row + (f"{idle.median_ns / 1e3:9.1f}" if idle else f"{'-':>9}")
