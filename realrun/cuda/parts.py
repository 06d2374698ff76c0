"""Runs the parts of a calibration one after another, and keeps what came out if one of them fails.

A part yields samples of costs, by the names of `shmsim.profile`, and facts. It is reported as soon
as it is over, a JSON object on a line, so that whoever reads loses nothing to a crash or a time
limit. Nothing here needs torch or a GPU.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

#: What a part may fail of. A sticky error of CUDA fails all that follow, and each says so.
_FAILURES: Final = (RuntimeError, OSError, ValueError, MemoryError, BufferError)

#: Told what is being measured.
Say = Callable[[str], None]


class Measured(NamedTuple):
    """What a part found.

    Parameters
    ----------
    samples
        Cost, what it runs along, nanoseconds.
    facts
        Whatever else; JSON.
    """

    samples: list[tuple[str, float, list[int]]]
    facts: dict[str, Any]


class Part(NamedTuple):
    """A part of a calibration.

    Parameters
    ----------
    name
        In records.
    expected_s
        How long it takes on a GPU of today, generously; it is left out where that is not left.
    measure
        Does it.
    """

    name: str
    expected_s: float
    measure: Callable[[Say], Measured]


class Reported(NamedTuple):
    """What became of a part.

    Parameters
    ----------
    name
        Of the part.
    seconds
        What it took.
    measured
        None if it failed or was left out.
    reason
        Why there is nothing; else empty.
    """

    name: str
    seconds: float
    measured: Measured | None
    reason: str = ""


def run_parts(
    parts: Sequence[Part],
    limit_s: float,
    tell: Callable[[str], None],
    now_s: Callable[[], float] = time.monotonic,
) -> None:
    """Run parts as long as there is time, and tell of each by a line.

    Parameters
    ----------
    limit_s
        For all together.
    tell
        Takes lines for `Reports`.
    now_s
        The clock.
    """
    tell(json.dumps({"plan": [part.name for part in parts]}))
    began_s = now_s()
    for number, part in enumerate(parts):
        share = number / len(parts)

        def say(label: str, name: str = part.name, share: float = share) -> None:
            tell(json.dumps({"doing": f"{name}: {label}", "share": round(share, 3)}))

        begun_s = now_s()
        left_s = limit_s - (begun_s - began_s)
        if left_s < part.expected_s:
            reason = f"no time: {left_s:.0f} s were left and it may take {part.expected_s:.0f}"
            tell(_line(Reported(part.name, 0.0, None, reason)))
            continue
        say("begins")
        try:
            measured = part.measure(say)
        except _FAILURES as error:
            reason = f"{type(error).__name__}: {error}"
            tell(_line(Reported(part.name, now_s() - begun_s, None, reason)))
        else:
            tell(_line(Reported(part.name, now_s() - begun_s, measured)))


def _line(reported: Reported) -> str:
    measured = reported.measured
    found = measured._asdict() if measured is not None else {"reason": reported.reason}
    return json.dumps({"part": reported.name, "seconds": round(reported.seconds, 3), **found})


class Reports:
    """Gathers what `run_parts` tells, line by line.

    Parameters
    ----------
    doing
        Told what is being measured, and the share that is done.

    Attributes
    ----------
    reported
        What became of each part so far.
    """

    def __init__(self, doing: Callable[[str, float], None]) -> None:
        """Nothing was told."""
        self._doing = doing
        self._plan: list[str] = []
        self.reported: list[Reported] = []

    def take(self, line: str) -> None:
        """Take in a line; other text, such as a library prints, is none of them."""
        try:
            content = json.loads(line)
        except ValueError:
            return
        if not isinstance(content, dict):
            return
        if "plan" in content:
            self._plan = list(content["plan"])
        elif "doing" in content:
            self._doing(str(content["doing"]), float(content["share"]))
        elif "part" in content:
            self.reported.append(_reported(content))

    def give_up(self, reason: str) -> None:
        """Nothing more will be told: note why of all parts that were not reported."""
        known = {each.name for each in self.reported}
        self.reported += [Reported(n, 0.0, None, reason) for n in self._plan if n not in known]


def _reported(content: dict[str, Any]) -> Reported:
    measured = None
    if "samples" in content:
        samples = [(str(cost), float(x), list(values)) for cost, x, values in content["samples"]]
        measured = Measured(samples, content["facts"])
    name, seconds = str(content["part"]), float(content["seconds"])
    return Reported(name, seconds, measured, str(content.get("reason", "")))


def spread(values: Iterable[float]) -> dict[str, float]:
    """Count, median, 99th percentile and coefficient of variation of some nanoseconds.

    Raises
    ------
    ValueError
        If there is none.
    """
    found = np.asarray(list(values), dtype=np.float64)
    if not len(found):
        raise ValueError("a spread needs at least one value")
    mean = float(found.mean())
    return {
        "n": len(found),
        "p50_ns": float(np.median(found)),
        "p99_ns": float(np.quantile(found, 0.99)),
        "cv": float(found.std() / mean) if mean else 0.0,
    }
