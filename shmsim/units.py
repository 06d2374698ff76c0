"""Time is an ``int`` of nanoseconds; this module is the only one that converts."""

import re
from typing import Final

NS: Final = 1
US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000

#: Stands for "no end": far beyond any run, yet far from overflowing int64 when added to an instant.
FOREVER_NS: Final = 2**62

_UNIT_NS: Final = {"ns": NS, "us": US, "µs": US, "ms": MS, "s": S, "min": 60 * S}
_DURATION: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([a-zµ]*)\s*")


def parse_duration_ns(text: str) -> int:
    """Read a duration such as ``"50us"``, ``"1.5 ms"`` or ``"1s"``.

    Raises
    ------
    ValueError
        If the text is no number with one of the units ns, us, µs, ms, s, min, or is not a whole
        number of nanoseconds.

    Examples
    --------
    >>> parse_duration_ns("50us")
    50000
    >>> parse_duration_ns("50")
    Traceback (most recent call last):
    ...
    ValueError: duration '50' has no unit; write one of ns, us, µs, ms, s, min, as in '50us'
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, as in '50us'")
    number, unit = match.groups()
    allowed = ", ".join(_UNIT_NS)
    if not unit:
        raise ValueError(
            f"duration {text.strip()!r} has no unit; write one of {allowed},"
            f" as in '{text.strip()}us'"
        )
    if unit not in _UNIT_NS:
        raise ValueError(f"duration {text!r} has the unknown unit {unit!r}; write one of {allowed}")
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    digits = int(whole.lstrip("+-") or "0") * scale + int(fraction or "0")
    ns, rest = divmod(digits * _UNIT_NS[unit], scale)
    if rest:
        raise ValueError(f"duration {text!r} is not a whole number of nanoseconds")
    return -ns if whole.startswith("-") else ns


def format_ns(ns: float, digits: int = 3) -> str:
    """Write a duration with the unit a person would choose.

    Examples
    --------
    >>> format_ns(50_000), format_ns(1_960_000), format_ns(0), format_ns(-2 * S)
    ('50 µs', '1.96 ms', '0 ns', '-2 s')
    """
    for unit, size in (("s", S), ("ms", MS), ("µs", US)):
        # A value that would round up to a whole of the next unit belongs to that unit.
        if float(f"{abs(ns):.{digits}g}") >= size:
            return f"{_plain(ns / size, digits)} {unit}"
    return f"{_plain(ns, digits)} ns"


def _plain(value: float, digits: int) -> str:
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.0f}" if rounded.is_integer() else f"{rounded}"  # "nan" and "inf" too
