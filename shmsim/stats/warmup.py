"""Warm-up: how much of the front of a run is not yet typical of the rest, by MSER-5.

MSER-5 (White 1997; White, Cobb and Spratt 2000) cuts where the mean of what is left would be known
best: it weighs the bias that a cut removes against the values it costs.
"""

from typing import Final, NamedTuple

import numpy as np

from shmsim.stats.batches import batch_means
from shmsim.stats.estimate import CONFIDENCE, Estimate, Values

_BATCH: Final = 5
_FEW_BATCHES: Final = 20


class WarmUp(NamedTuple):
    """What was cut.

    Parameters
    ----------
    n_cut, n
        Values cut from the front, of how many.
    caveat
        Why the cut is not to be trusted; empty if it is.
    """

    n_cut: int
    n: int
    caveat: str = ""

    def text(self) -> str:
        """One line for people."""
        said = f"warm-up (MSER-5): {self.n_cut} of {self.n} values cut"
        return f"{said}; not trustworthy: {self.caveat}" if self.caveat else said

    def noted(self, estimate: Estimate) -> Estimate:
        """An estimate from what was left: its method says what was cut, its caveat how surely."""
        caveats = filter(None, (self.caveat and self.text(), estimate.caveat))
        method = f"{estimate.method}, {self.n_cut} of {self.n} values cut (MSER-5)"
        return estimate._replace(method=method, caveat="; ".join(caveats))


def mser5(values: Values) -> WarmUp:
    """Find the warm-up of a run.

    Parameters
    ----------
    values
        In the order in which they came, shape ``(n,)``.

    Returns
    -------
    WarmUp
        At most half of the values are cut. If the best cut lies that far back, the run has not
        settled within it, and the caveat says so; likewise if there are fewer than 100 values.
    """
    found = np.asarray(values, dtype=np.float64)
    n_batches = len(found) // _BATCH
    if n_batches < 2:
        return WarmUp(0, len(found), f"{len(found)} values are too few to find a warm-up in")
    means = found[: n_batches * _BATCH].reshape(n_batches, _BATCH).mean(axis=1)
    means = means - means.mean()  # against cancellation in the sums of squares
    n_left = np.arange(n_batches, 0, -1.0)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    scores = (squares - sums**2 / n_left) / n_left**2
    n_tried = n_batches // 2 + 1
    cut = int(np.argmin(scores[:n_tried]))
    caveat = ""
    if n_batches < _FEW_BATCHES:
        caveat = f"{len(found)} values are few; run until there are {_FEW_BATCHES * _BATCH}"
    elif cut == n_tried - 1:
        caveat = "the best cut is the last one tried: the run has not settled; run longer"
    return WarmUp(cut * _BATCH, len(found), caveat)


def steady_mean(
    values: Values, *, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[Estimate, WarmUp]:
    """Steady-state mean of one run: warm-up cut by MSER-5, interval by batch means.

    Parameters are those of `batch_means`, warm-up included. The estimate's method says how much was
    cut.

    Raises
    ------
    ValueError
        If fewer than 32 values are left.
    """
    found = np.asarray(values, dtype=np.float64)
    warm_up = mser5(found)
    estimate = batch_means(found[warm_up.n_cut :], confidence=confidence, seed=seed)
    return warm_up.noted(estimate), warm_up
