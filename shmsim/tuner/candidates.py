"""Which policies to try: the library's, and then each promising one with other parameters."""

from collections.abc import Iterable
from typing import Any, Final, get_type_hints

from shmsim.policies import PRESETS, Park, SpinThenPark, StepAhead, WakeAhead
from shmsim.policies.parameters import RANGES, check_parameters, is_penalty, parameters_of
from shmsim.units import MS, US, format_ns
from shmsim.wait import WaitPolicy

_GUARDS_NS: Final = (25 * US, 50 * US, 100 * US, 200 * US, 400 * US, 800 * US)
_WINDOWS_NS: Final = (100 * US, 500 * US, 2 * MS, 8 * MS, 32 * MS)
_FEW: Final[tuple[WaitPolicy, ...]] = (
    Park(),
    SpinThenPark(),
    StepAhead(),
    WakeAhead(50 * US),
    WakeAhead(100 * US),
    WakeAhead(200 * US),
)
#: What says how an engine works is no matter of choice.
_NOT_CHOSEN: Final = ("asynchronous", "inner")


def coarse(few: bool = False) -> list[WaitPolicy]:
    """What to try first: every policy of the library, and a grid of guards and spin windows.

    Parameters
    ----------
    few
        Only six of those that were found best on one machine or another.
    """
    if few:
        return list(_FEW)
    grid: list[WaitPolicy] = [
        *(WakeAhead(guard_ns) for guard_ns in _GUARDS_NS),
        *(SpinThenPark(window_ns) for window_ns in _WINDOWS_NS),
    ]
    return distinct([*PRESETS.values(), *grid])


def neighbours(policy: WaitPolicy, factor: float) -> list[WaitPolicy]:
    """The same policy with one parameter changed: up and down by a factor, or the other way.

    Only those whose parameters make sense; all learn anew.

    Parameters
    ----------
    policy
        Its parameters are changed one by one.
    factor
        Above 1.
    """
    given = parameters_of(policy)
    hints = get_type_hints(type(policy))
    found = []
    for name, value in given.items():
        if name in _NOT_CHOSEN or is_penalty(policy, name):
            continue
        for other in _others(name, value, hints[name], factor):
            changed: Any = type(policy)(**{**given, name: other})
            try:
                check_parameters(changed)
            except ValueError:
                continue
            found.append(changed)
    return [other for other in distinct(found) if _key(other) != _key(policy)]


def _others(name: str, value: Any, kind: type, factor: float) -> list[Any]:
    if kind is bool:
        return [not value]
    lowest, highest = RANGES[name]
    moved = [_rounded(value / factor), _rounded(value * factor)]
    return [kind(min(max(x, lowest), highest)) for x in moved]


def _rounded(value: float) -> float:
    """To three digits, as a person would write it."""
    return float(f"{value:.3g}")


def written(policy: WaitPolicy) -> str:
    """A policy as a command line takes it: its preset, or its kind and what differs from usual.

    Examples
    --------
    >>> written(Park()), written(WakeAhead(50 * US, rehearse=True))
    ('park', 'WakeAhead:guard=50us,rehearse=true')
    """
    for name, preset in PRESETS.items():
        if _key(preset) == _key(policy):
            return name
    usual = parameters_of(type(policy)())
    changed = [
        f"{name.removesuffix('_ns')}={_value(name, value)}"
        for name, value in parameters_of(policy).items()
        if value != usual[name]
    ]
    return ":".join(filter(None, (type(policy).__name__, ",".join(changed))))


def distinct(policies: Iterable[WaitPolicy]) -> list[WaitPolicy]:
    """Each policy once; tuples of two types with the same numbers would be equal."""
    return list({_key(policy): policy for policy in policies}.values())


def _key(policy: WaitPolicy) -> tuple[str, str]:
    return type(policy).__name__, repr(policy)


def _value(name: str, value: Any) -> str:
    if name == "inner":
        return written(value)
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_ns"):
        return format_ns(value, 9).replace(" ", "").replace("µ", "u")
    return f"{value:g}"
