"""Versions of engines, as far as they need comparing: their numbers, in order."""

import re
from typing import Final

_NUMBERS: Final = re.compile(r"[vb]?(\d+(?:\.\d+)*)", re.IGNORECASE)

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """Numbers of a version; what follows them (``rc1``, ``.post2``, ``+cu129``) does not count.

    Raises
    ------
    ValueError
        If the text does not begin with numbers.

    Examples
    --------
    >>> parse_version("v0.33.0"), parse_version("b3778"), parse_version("0.4.6.post4")
    ((0, 33), (3778,), (0, 4, 6))
    """
    found = _NUMBERS.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no version; write it as in 0.33.0, or b3778 for a build")
    numbers = [int(number) for number in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:  # 0.33 is 0.33.0
        numbers.pop()
    return tuple(numbers)
