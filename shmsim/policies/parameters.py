"""What the parameters of policies may be, and which of their fields are state."""

from itertools import pairwise
from typing import Any, Final

from shmsim.units import S, format_ns

DAY_NS: Final = 86_400 * S

#: Least and greatest value of each parameter, by its name in every policy that has it.
RANGES: Final[dict[str, tuple[float, float]]] = {
    "window_ns": (0, DAY_NS),
    "recheck_ns": (0, DAY_NS),
    "period_ns": (1, DAY_NS),
    "last_period_ns": (0, DAY_NS),
    "settled_ns": (0, DAY_NS),
    "spin_ns": (0, DAY_NS),
    "yield_ns": (0, DAY_NS),
    "start_ns": (1, DAY_NS),
    "least_ns": (1, DAY_NS),
    "most_ns": (0, DAY_NS),
    "guard_ns": (0, 60 * S),
    "burst_ns": (1, DAY_NS),
    "smoothing": (1e-6, 1.0),
    "share": (0.0, 100.0),
    "fraction": (0.0, 1.0),
    "epoch": (1, 1_000_000),
    "grow": (1, 1000),
    "shrink": (0, 1000),
    "up": (1e-6, 0.999),
    "down": (1e-6, 0.999),
    "margin": (0.0, 1000.0),
    "eta": (0.0, 1.0),
    "clamp": (1e-6, 1.0),
    "waits": (1, 1_000_000),
    "most_waits": (1, 1_000_000),
    "rehearse": (False, True),
    "asynchronous": (False, True),
    "self_measured": (False, True),
    "doze": (False, True),
    "deaf": (False, True),
    "by_class": (False, True),
}

#: Parameters of one policy that must not descend in this order.
_ASCENDING: Final = (
    ("least_ns", "most_ns"),
    ("spin_ns", "yield_ns", "settled_ns"),
    ("window_ns", "settled_ns"),
    ("waits", "most_waits"),
)

#: Parameters that stand for B of the calibrated costs when they are negative.
_OR_PENALTY: Final = ("window_ns", "most_ns")


def is_learnt(field: str) -> bool:
    """Whether a field of a policy is what it learnt, so that nobody sets it."""
    return field == "mean_wait_ns" or field.startswith("learnt")


def parameters_of(policy: Any) -> dict[str, Any]:
    """The fields of a policy that somebody may set."""
    return {name: v for name, v in policy._asdict().items() if not is_learnt(name)}


def is_penalty(policy: Any, name: str) -> bool:
    """Whether a parameter stands for B, which it does as a default that cannot be written."""
    default = type(policy)._field_defaults[name]
    return name in _OR_PENALTY and default < 0 and getattr(policy, name) == default


def check_parameters(policy: Any) -> None:
    """Refuse a policy whose parameters make no sense.

    Raises
    ------
    ValueError
        If one is out of its range, or two are out of order. Names the policy, the value with its
        unit, and what is allowed.
    """
    kind = type(policy).__name__
    given = parameters_of(policy)
    for name, value in given.items():
        if name == "inner":
            check_parameters(value)
        elif not is_penalty(policy, name):
            lowest, highest = RANGES[name]
            if not lowest <= value <= highest:
                raise ValueError(
                    f"{kind}.{_shown(name)} must be from {_value(name, lowest)} to "
                    f"{_value(name, highest)}, got {_value(name, value)}"
                )
    for names in _ASCENDING:
        if not all(name in given for name in names):
            continue
        for low, high in pairwise(names):
            # A negative most_ns stands for B.
            if 0 <= given[high] < given[low]:
                raise ValueError(
                    f"{kind}.{_shown(high)} must be at least {_shown(low)}, which is "
                    f"{_value(low, given[low])}; got {_value(high, given[high])}"
                )


def _shown(name: str) -> str:
    return name.removesuffix("_ns")


def _value(name: str, value: float) -> str:
    return format_ns(value) if name.endswith("_ns") else f"{value:g}"
