"""What the comparison claims: our hand-off against vLLM's, the floor, and bare copies."""

import costs
import numpy as np
from candidates import BARE, FLOOR, OURS, VLLM
from cells import Cell, Cells, Key

from shmsim.claims import Claim

#: One reader on a core of its own: two readers on a small box measure its scheduler as well.
_N_READERS = 1
_BOUNDS = {"back_to_back": 0.6, "gap_2ms": 0.5, "parked": 0.5, "idle_5s": 0.5}


def _ratio(
    name: str, bound: float, seed: int, ours: dict[int, float], theirs: dict[int, float]
) -> Claim:
    """A ratio of medians; its interval holds the middle 80 % of the rounds."""
    rounds = sorted(ours.keys() & theirs.keys())
    ratios = [ours[i] / theirs[i] for i in rounds]
    value = float(np.median([ours[i] for i in rounds]) / np.median([theirs[i] for i in rounds]))
    low, high = (float(x) for x in np.percentile(ratios, [10, 90]))
    return Claim(f"handoff/{name}", value, low, high, "ratio", bound, "<=", len(rounds), seed)


def _without_pickle(cells: Cells, system: str) -> dict[int, float]:
    rtt_ns = cells[Key(system, _N_READERS, "back_to_back")].round_medians_ns()
    pickle_ns = cells[Key(system, _N_READERS, "pickle")].round_medians_ns()
    return {i: rtt_ns[i] - pickle_ns[i] for i in rtt_ns.keys() & pickle_ns.keys()}


def claims(cells: Cells, seed: int) -> list[Claim]:
    """Every claim whose systems were both measured."""

    def cell(system: str, scenario: str) -> Cell | None:
        return cells.get(Key(system, _N_READERS, scenario))

    found = []
    for scenario, bound in _BOUNDS.items():
        ours, theirs = cell(OURS[scenario], scenario), cell(VLLM[scenario], scenario)
        if ours and theirs:
            name = f"rtt_vs_vllm/{scenario}"
            medians = ours.round_medians_ns(), theirs.round_medians_ns()
            found.append(_ratio(name, bound, seed, *medians))
    scenario = "back_to_back"
    if cell(OURS[scenario], scenario) and cell(VLLM[scenario], scenario):
        bare = [_without_pickle(cells, names[scenario]) for names in (OURS, VLLM)]
        found.append(_ratio(f"rtt_vs_vllm_without_pickle/{scenario}", 0.35, seed, *bare))
    ours, floor = cell(BARE, "parked"), cell(FLOOR, "parked")
    if ours and floor:
        # The wake-up alone: on the way back the floor wakes nobody who must run Python first.
        wakes = ours.round_wakes_ns(), floor.round_wakes_ns()
        found.append(_ratio("park_vs_futex_floor", 1.3, seed, *wakes))
    return found + costs.claims(cells, seed)
