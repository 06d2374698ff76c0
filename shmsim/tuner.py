"""Chooses the parameters of a policy by trying them: ask for the next, tell what it cost.

Pure: it neither runs a model nor draws a number, so the same tuner can drive a model, a machine or
a table of stored results.
"""

from typing import Final, NamedTuple, Self

from shmsim.policies import SpinThenPark, WakeAhead
from shmsim.units import MS, US
from shmsim.wait import WaitPolicy

_COARSE_GUARDS_NS: Final = (25 * US, 50 * US, 100 * US, 200 * US, 400 * US, 800 * US)
_COARSE_WINDOWS_NS: Final = (0, 100 * US, 500 * US, 2 * MS, 8 * MS, 32 * MS)


class Trial(NamedTuple):
    """One policy tried, and what it cost."""

    policy: WaitPolicy
    cost: float


class Tuner(NamedTuple):
    """Tries a grid of guards and windows, then finer round the best guard, then a rehearsal.

    Parameters
    ----------
    trials
        What was tried so far, in order.
    """

    trials: tuple[Trial, ...] = ()

    @property
    def n_planned(self) -> int:
        """How many trials there will be in all."""
        return len(_COARSE_GUARDS_NS) + len(_COARSE_WINDOWS_NS) + 3

    def ask(self) -> WaitPolicy | None:
        """The policy to try next; None when there is nothing left to learn."""
        n = len(self.trials)
        if n < len(_COARSE_GUARDS_NS):
            return WakeAhead(_COARSE_GUARDS_NS[n])
        n -= len(_COARSE_GUARDS_NS)
        if n < len(_COARSE_WINDOWS_NS):
            return SpinThenPark(_COARSE_WINDOWS_NS[n])
        n -= len(_COARSE_WINDOWS_NS)
        best = self._best_guard_ns()
        # Neighbours on the coarse grid are a factor of two apart; try between them. Then whether
        # rehearsing pays.
        last = (
            WakeAhead(best * 7 // 10),
            WakeAhead(best * 14 // 10),
            WakeAhead(best, rehearse=True),
        )
        return last[n] if n < len(last) else None

    def tell(self, policy: WaitPolicy, cost: float) -> Self:
        """The tuner that knows one more trial."""
        return type(self)((*self.trials, Trial(policy, cost)))

    def best(self) -> Trial:
        """The cheapest trial so far.

        Raises
        ------
        ValueError
            If nothing was tried.
        """
        if not self.trials:
            raise ValueError("nothing was tried yet: ask() and tell() first")
        return min(self.trials, key=lambda trial: trial.cost)

    def _best_guard_ns(self) -> int:
        coarse = self.trials[: len(_COARSE_GUARDS_NS)]
        best = min(coarse, key=lambda trial: trial.cost).policy
        assert isinstance(best, WakeAhead)
        return best.guard_ns
