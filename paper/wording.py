"""Numbers and names as LaTeX shows them."""

import math
from datetime import UTC, datetime
from typing import Final

_DIGITS: Final = 3
_TIMES: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "\\textmu{}s"), (1.0, "ns"))
_SIZES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
#: Units that have larger ones.
_LARGER: Final = {"ns": _TIMES, "bytes": _SIZES}
#: What a claim's unit is called behind its number; what is not here stands alone.
_UNITS: Final = {
    "us": "\\,\\textmu{}s",
    "ms": "\\,ms",
    "s": "\\,s",
    "cores": " cores",
    "1/s": "\\,s$^{-1}$",
}
_ESCAPES: Final = {
    "\\": "\\textbackslash{}",
    "{": "\\{",
    "}": "\\}",
    "_": "\\_",
    "%": "\\%",
    "&": "\\&",
    "#": "\\#",
    "$": "\\$",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "µ": "\\textmu{}",
}


def escaped(text: str) -> str:
    r"""Text in which no character is a command.

    Examples
    --------
    >>> escaped("50 % of a_b")
    '50 \\% of a\\_b'
    """
    return "".join(_ESCAPES.get(c, c) for c in text)


def number(value: float, digits: int = _DIGITS) -> str:
    r"""A number rounded to so many digits, its thousands apart.

    Examples
    --------
    >>> number(0.51856), number(149744.3), number(-2.0), number(0.0), number(1000)
    ('0.519', '150\\,000', '$-$2', '0', '1\\,000')
    """
    if not math.isfinite(value):
        return "--"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    if abs(rounded) >= 1000:
        text = f"{rounded:,.0f}".replace(",", "\\,")
    else:
        text = f"{rounded:.{_decimals(rounded, digits)}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", "$-$")


def fixed(value: float, decimals: int) -> str:
    r"""A number with so many decimals, as the columns of a table want it.

    Examples
    --------
    >>> fixed(2.1079, 2), fixed(-0.004, 2)
    ('2.11', '$-$0.00')
    """
    return f"{value:.{decimals}f}".replace("-", "$-$") if math.isfinite(value) else "--"


def count(value: int) -> str:
    r"""A whole number.

    Examples
    --------
    >>> count(10_000_000)
    '10\\,000\\,000'
    """
    return f"{value:,}".replace(",", "\\,")


def duration(ns: float) -> str:
    r"""A time in the unit that suits it.

    Examples
    --------
    >>> duration(47_956.5), duration(94.0), duration(0.0)
    ('48\\,\\textmu{}s', '94\\,ns', '0\\,ns')
    """
    return quantity(ns, "ns")


def quantity(value: float, unit: str) -> str:
    r"""The number of a claim with its unit.

    Examples
    --------
    >>> quantity(0.5186, "ratio"), quantity(4.496, "us"), quantity(94, "ns")
    ('0.519', '4.5\\,\\textmu{}s', '94\\,ns')
    >>> quantity(372_600_000, "bytes")
    '373\\,MB'
    """
    scale, name = _unit_of(value, unit)
    return number(value / scale) + name


def interval(value: float, low: float, high: float, unit: str) -> str:
    r"""Two numbers with one unit, and with the decimals that the value between them bears.

    Examples
    --------
    >>> interval(47_000.0, 43_968.0, 51_539.5, "ns"), interval(0.998, 0.9968, 1.012, "ratio")
    ('44 to 51.5\\,\\textmu{}s', '0.997 to 1.01')
    >>> interval(0.5186, 0.000012, 0.7295, "ratio")
    '0 to 0.73'
    """
    scale, name = _unit_of(max(abs(low), abs(high)), unit)
    ends = [end / scale for end in (low, high)]
    # Coarser than the value, an end next to it would come out on its wrong side.
    decimals = max(_decimals(shown, _DIGITS) for shown in (max(ends, key=abs), value / scale))
    told = " to ".join(number(round(end, decimals)) for end in ends)
    return told + name


def percent(share: float, decimals: int = 0, *, signed: bool = False) -> str:
    r"""A share as percent.

    Examples
    --------
    >>> percent(0.6236), percent(0.018, 1, signed=True), percent(-0.356, 1, signed=True)
    ('62\\,\\%', '+1.8\\,\\%', '$-$35.6\\,\\%')
    """
    value = round(100 * share, decimals) + 0.0  # no negative zero
    text = f"{value:{'+' if signed and value else ''}.{decimals}f}".replace("-", "$-$")
    return f"{text}\\,\\%"


def moment(iso: str) -> str:
    """An instant, to the minute.

    Examples
    --------
    >>> moment("2026-11-30T00:37:35+00:00")
    '30 November 2026, 00:37 UTC'
    """
    at = datetime.fromisoformat(iso).astimezone(UTC)
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def machine(facts: dict[str, object]) -> str:
    """A machine in a few words, without anything that tells whose it is.

    Examples
    --------
    >>> machine({"cpu": "AMD EPYC", "cores": 2, "kernel": "6.18.44-x", "virtual": True})
    'VM, 2 vCPUs (AMD EPYC), Linux 6.18'
    """
    kernel = ".".join(str(facts["kernel"]).split(".")[:2])
    kind, cores = ("VM", "vCPUs") if facts["virtual"] else ("machine", "cores")
    return escaped(f"{kind}, {facts['cores']} {cores} ({facts['cpu']}), Linux {kernel}")


def _unit_of(value: float, unit: str) -> tuple[float, str]:
    """How large the unit is that suits a value, and what stands behind the number."""
    larger = _LARGER.get(unit)
    if larger is None:
        return 1.0, _UNITS.get(unit, "")
    scale, name = next((each for each in larger if abs(value) >= each[0]), larger[-1])
    return scale, f"\\,{name}"


def _decimals(value: float, digits: int) -> int:
    """Behind the point, for so many digits of a number."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
