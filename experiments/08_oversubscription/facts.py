"""Reads what the experiment found out about this kernel, as the numbers a model of cores needs."""

import json
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_AT_ONCE_NS: Final = 200_000  # a wake-up that did not have to wait for the end of a slice


class CoreFacts(NamedTuple):
    """How threads share a core on one box; nanoseconds.

    Parameters
    ----------
    stay_beside_spinner_ns
        Median stay of a spinner on a core that another spinner wants too.
    tick_ns
        Period of the scheduler's tick; None if the kernel does not tell.
    spinner_share_beside_yielder
        Share of the core that a spinner has while the other one only yields.
    wake_idle_ns, wake_beside_spinner_ns, wake_beside_yielder_ns
        Wake to first instruction of a light sleeper, p50 and p90: on a core of its own, on one that
        a spinner holds, on one whose holder yields.
    preempts_share
        Share of a light sleeper's wake-ups that took the core from a spinner at once.
    preempts_share_heavy
        The same of a sleeper that works for 1 ms each time.
    """

    stay_beside_spinner_ns: float
    tick_ns: int | None
    spinner_share_beside_yielder: float
    wake_idle_ns: tuple[float, float]
    wake_beside_spinner_ns: tuple[float, float]
    wake_beside_yielder_ns: tuple[float, float]
    preempts_share: float
    preempts_share_heavy: float


def read_core_facts(path: Path) -> CoreFacts:
    """Read ``results/facts.json``; numbers of several repeats and gaps are pooled by their median.

    Raises
    ------
    ValueError
        If it is missing or holds no facts.
    """
    try:
        found = json.loads(path.read_text())
        stays, wakes = found["stays"], found["wakes"]

        def of(other: str, load: str) -> list[dict[str, float]]:
            return [w for w in wakes if (w["other"], w["load"]) == (other, load)]

        def both(other: str) -> tuple[float, float]:
            p50, p90 = (_middle([w[q] for w in of(other, "light")]) for q in ("p50_ns", "p90_ns"))
            return p50, p90

        return CoreFacts(
            _middle([s["on"]["p50_ns"] for s in stays if s["other"] == "spin"]),
            found["kernel"]["tick_ns"],
            _middle([s["share"] for s in stays if s["other"] == "yield"]),
            both("none"),
            both("spin"),
            both("yield"),
            _middle([w["at_once"] for w in of("spin", "light")]),
            _middle([w["at_once"] for w in of("spin", "heavy")]),
        )
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no facts about cores: {error!r}") from None


def at_once_share(samples_ns: NDArray[np.int64]) -> float:
    """Share of wake-ups that did not wait for a slice to end."""
    return float(np.mean(samples_ns < _AT_ONCE_NS))


def _middle(values: list[float]) -> float:
    if not values:
        raise ValueError("no measurement of one kind")
    return float(np.median(values))
