"""Sequential stopping: run until the interval is as narrow as was asked for."""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from shmsim.stats.estimate import CONFIDENCE, Estimate, Values, mean_of_replications

_FASTEST_GROWTH: Final = 2.0


class Precision(NamedTuple):
    """How well something is to be known.

    Parameters
    ----------
    relative, absolute
        Largest half-width, as a share of the estimate and in its unit; the looser one counts where
        both are given. 0: not asked for.
    least
        Replications before the first look. A procedure that stops at the first narrow interval
        stops too often by luck when it looks early: with 10 its coverage stays near the nominal.
    most
        Replications at which it gives up.
    """

    relative: float = 0.0
    absolute: float = 0.0
    least: int = 10
    most: int = 1000

    def check(self) -> None:
        """Refuse what cannot be followed.

        Raises
        ------
        ValueError
            If no half-width is asked for, or the numbers of replications are out of order.
        """
        if self.relative < 0 or self.absolute < 0 or not (self.relative or self.absolute):
            raise ValueError(
                "a precision needs a positive half-width, relative or absolute; got relative = "
                f"{self.relative}, absolute = {self.absolute}"
            )
        if not 2 <= self.least <= self.most:
            raise ValueError(
                f"least must be from 2 to most = {self.most} replications, got {self.least}"
            )

    def allowed(self, estimate: Estimate) -> float:
        """Largest half-width for an estimate, in its unit."""
        return max(self.relative * abs(estimate.value), self.absolute)

    def is_reached(self, estimate: Estimate) -> bool:
        """Whether an estimate is as precise as asked for."""
        return estimate.n >= self.least and estimate.half_width <= self.allowed(estimate)

    def next_n(self, estimate: Estimate) -> int:
        """How many replications there should be at the next look; no more than now: stop.

        As many as the spread found so far calls for, at most twice as many as now.
        """
        if self.is_reached(estimate) or estimate.n >= self.most:
            return estimate.n
        if estimate.n < self.least:
            return self.least
        wanted = self.needed(estimate)
        fastest = _FASTEST_GROWTH * estimate.n
        return min(max(math.ceil(min(wanted, fastest)), estimate.n + 1), self.most)

    def needed(self, estimate: Estimate) -> float:
        """How many replications the spread found so far calls for."""
        allowed = self.allowed(estimate)
        return estimate.n * (estimate.half_width / allowed) ** 2 if allowed else math.inf

    def judged(self, estimate: Estimate) -> Estimate:
        """The estimate; with the caveat if it is not as precise as asked for."""
        if self.is_reached(estimate):
            return estimate
        shares = [f"{100 * self.relative:g} %"] if self.relative else []
        amounts = [f"{self.absolute:g}"] if self.absolute else []
        said = [
            f"asked for a half-width of {' or '.join(shares + amounts)}, found "
            f"{estimate.half_width:.3g} ({100 * estimate.relative:.2g} %) after {estimate.n} "
            "replications"
        ]
        needed = self.needed(estimate)
        if math.isfinite(needed):
            said.append(f"about {math.ceil(needed)} would be needed")
        caveat = "; ".join([estimate.caveat] * bool(estimate.caveat) + said)
        return estimate._replace(caveat=caveat)


def run_until(
    precision: Precision,
    replicate: Callable[[int], float],
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[Estimate, Values]:
    """Run replications until the mean is known well enough, or there are too many.

    Parameters
    ----------
    precision
        What is asked for.
    replicate
        Gives the figure of replication i, from 0.
    confidence, seed
        As in `Estimate`.

    Returns
    -------
    tuple
        The estimate, with a caveat if the precision was not reached, and the values.
    """
    precision.check()
    values: list[float] = []
    n = precision.least
    while True:
        values += [replicate(index) for index in range(len(values), n)]
        estimate = mean_of_replications(values, confidence=confidence, seed=seed)
        n = precision.next_n(estimate)
        if n <= len(values):
            break
    return precision.judged(estimate)._replace(method="replications, sequential"), values
