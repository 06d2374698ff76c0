"""Whether a start of an engine counts, or somebody else disturbed it.

The rule is fixed beforehand and asks for nothing that an arm can change: for what others used of
the machine, and, of vLLM's own two arms alone, for what the hypervisor took and whether they are
alike. Which way to wait came out better in a start has no part in whether the start counts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import scipy

if TYPE_CHECKING:
    from realrun.vllm.ab import Block

QUIET_CORES: Final = 0.1  #: more than this of others, or of a hypervisor, disturbs
MARGIN: Final = 0.03  #: of a ratio of times
_FEW: Final = 0.1  # of the generations of a start may be disturbed
_BY_CHANCE: Final = 0.01  # of quiet starts have a control that is apart
_FEWEST: Final = 2  # starts, of which there is an interval


def most_starts(wanted: int) -> int:
    """How many starts are made at most, so that as many as wanted were quiet."""
    return wanted + math.ceil(wanted / 2)


def disturbance(blocks: Sequence["Block"], own: str, again: str) -> str:
    """What disturbed a start; empty if nothing did.

    Others did if they used more than `QUIET_CORES` in more than a tenth of its generations, each
    of which was tried up to three times. The hypervisor did if it took more than that, on average,
    of vLLM's own generations: it takes more of who sleeps, so those of other arms have no part.
    Something did if vLLM against itself is more than `MARGIN` apart, and beyond chance: by a t test
    of its pairs, one for each half of a round, at 1 %.

    Parameters
    ----------
    blocks
        All generations of the start.
    own, again
        Names of vLLM's own two arms.
    """
    n_loud = sum(block.foreign_cores > QUIET_CORES for block in blocks)
    if n_loud > _FEW * len(blocks):
        most = max(block.foreign_cores for block in blocks)
        return (
            f"others used more than {QUIET_CORES:g} cores in {n_loud} of {len(blocks)} "
            f"generations, {most:.2f} at most"
        )
    pair = [[block for block in blocks if block.arm == arm] for arm in (own, again)]
    stolen = float(np.mean([block.stolen_cores for of_arm in pair for block in of_arm]))
    if stolen > QUIET_CORES:
        return f"the hypervisor took {stolen:.2f} cores"
    apart = [math.log(b.tpot_s / a.tpot_s) for a, b in zip(*pair, strict=True)]
    ratio = math.exp(np.mean(apart))
    if abs(math.log(ratio)) > math.log1p(MARGIN) and _is_beyond_chance(apart):
        return f"vLLM's own waiting came out at {ratio:.3f} of itself, which is no chance"
    return ""


def _is_beyond_chance(apart: Sequence[float]) -> bool:
    spread = float(np.std(apart, ddof=1))
    if spread == 0.0:
        return True
    t = abs(float(np.mean(apart))) * math.sqrt(len(apart)) / spread
    return t > float(scipy.stats.t.ppf(1 - _BY_CHANCE / 2, len(apart) - 1))


def starts_that_count(starts: Iterable[int], disturbed: Mapping[int, str]) -> list[int]:
    """Which starts count: the quiet ones, or all if fewer than two were quiet."""
    numbers = sorted(starts)
    quiet = [start for start in numbers if start not in disturbed]
    return quiet if len(quiet) >= _FEWEST else numbers
