"""How ways to wait look: rest is blue, looking is warm, what they lead to is green."""

from typing import Final, NamedTuple

from shmsim.plots.style import COLOURS
from shmsim.wait import DOZE, NAP, PARK, POLL, REHEARSE, SPIN, YIELD


class Filling(NamedTuple):
    """Of an area: colour, and hatch for a print without."""

    colour: str
    hatch: str


#: By kind of a stage.
KIND_LOOKS: Final[dict[int, Filling]] = {
    SPIN: Filling(COLOURS[1], "////"),
    YIELD: Filling(COLOURS[4], "\\\\\\\\"),
    NAP: Filling(COLOURS[7], ".."),
    DOZE: Filling(COLOURS[5], "--"),
    POLL: Filling(COLOURS[3], "xx"),
    PARK: Filling(COLOURS[0], ""),
    REHEARSE: Filling(COLOURS[2], "||"),
}
