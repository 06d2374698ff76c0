"""Carries out a wait plan in virtual time.

A plan is data, so no timer is needed for its stages: the model waits for the publication once, and
then looks up what the waiter was doing at that instant.
"""

from typing import Final, NamedTuple

from shmsim.sim.draws import Draws
from shmsim.units import FOREVER_NS
from shmsim.wait import DOZE, MAX_STAGES, PARK, POLL, REHEARSE, SPIN, YIELD, StageCpu, WaitPlan

# What the waiter did last before it saw the event; the work that follows is slowed accordingly.
SPUN: Final = "spin"
PARKED: Final = "park"
DOZED: Final = "doze"
REHEARSED: Final = "rehearsal"


class Seen(NamedTuple):
    """How a wait ended; instants from the start of the wait.

    Parameters
    ----------
    seen_after_ns, stage, cpu_ns, overshoot_ns, belled
        As in `shmsim.wait.WaitOutcome`.
    resumed_from, rested_ns
        What it did last, `SPUN`, `PARKED`, `DOZED` or `REHEARSED`, and for how long it rested.
    late_ns
        How much later the ring that ended it came than to a reader alone.
    """

    seen_after_ns: int
    stage: int
    cpu_ns: StageCpu
    overshoot_ns: int
    belled: bool
    resumed_from: str
    rested_ns: int
    late_ns: int = 0


def ring_delay_ns(late_ns: int, rested_ns: int, period_ns: int) -> int:
    """How late a ring reaches who has rested so long and looks that often by itself (0: never).

    Its own next look, if that comes first.
    """
    return min(late_ns, -rested_ns % period_ns) if period_ns else late_ns


class VirtualWait:
    """One wait in progress.

    Parameters
    ----------
    plan
        What the policy answered.
    draws
        Costs of the waiting process.
    index
        Running number of this wait at this site: the same number gets the same luck under every
        policy.
    rehearsal
        Name of the cost of a rehearsal at this site.
    """

    def __init__(
        self, plan: WaitPlan, draws: Draws, index: int, rehearsal: str = "rehearsal"
    ) -> None:
        """Start to wait."""
        self._plan = plan
        self._draws = draws
        self._index = index
        self._rehearsal = rehearsal

    def _overshoot_ns(self, slept_ns: int) -> int:
        return self._draws.at("timer_overshoot", self._index, slept_ns)

    def armed_for(self, after_ns: int) -> int | None:
        """For how long the waiter is armed on the doorbell at this instant; None: it is not.

        A doze whose timer has ended stays armed until its waiter runs again: the writer then rings
        for nothing.
        """
        # A publication no later than the start is seen by the look before the first sleep, and one
        # during a rehearsal by the look of the stage behind it.
        if after_ns <= 0:
            return None
        seen = self.see(after_ns)
        at_once = seen.resumed_from == REHEARSED and not seen.belled
        kind, until_ns, _ = self._plan[seen.stage]
        if kind not in (DOZE, PARK) or at_once:
            return None
        return seen.rested_ns if seen.belled else after_ns - until_ns + seen.rested_ns

    def see(self, published_after_ns: int, late_ns: int = 0) -> Seen:
        """Find out when and how the waiter sees a publication at this instant.

        Parameters
        ----------
        published_after_ns
            The instant, from the start of the wait.
        late_ns
            How much later a ring reaches who sleeps on the doorbell. Whose timer ends before sees
            the publication then.
        """
        draws, index = self._draws, self._index
        cpu_ns = [0] * MAX_STAGES
        begin_ns = overshoot_ns = dozed_ns = 0
        rehearsed = False
        for stage, (kind, until_ns, period_ns) in enumerate(self._plan):
            if published_after_ns <= begin_ns:
                # Every stage looks once before it waits; nothing was slept in this one.
                break
            if kind == REHEARSE:
                rehearsed = True
                cpu_ns[stage] = draws.at(self._rehearsal, index, dozed_ns)
                begin_ns += cpu_ns[stage]
                continue
            if begin_ns >= until_ns:
                continue
            ends_here = published_after_ns <= until_ns or until_ns >= FOREVER_NS
            rested_ns = min(published_after_ns, until_ns) - begin_ns
            if kind in (SPIN, YIELD):
                if ends_here:
                    detection = "spin_detection" if kind == SPIN else "yield_detection"
                    seen_ns = published_after_ns + draws.at(detection, index)
                    cpu_ns[stage] = seen_ns - begin_ns
                    mode, rested = (DOZED, dozed_ns) if dozed_ns else (SPUN, rested_ns)
                    if rehearsed:
                        mode = REHEARSED
                    return Seen(
                        seen_ns, stage, StageCpu(*cpu_ns), overshoot_ns, False, mode, rested
                    )
                cpu_ns[stage] = until_ns - begin_ns
                begin_ns = until_ns
            elif kind in (DOZE, PARK):
                delay_ns = ring_delay_ns(late_ns, rested_ns, period_ns)
                if until_ns >= FOREVER_NS or published_after_ns + delay_ns <= until_ns:
                    cpu_ns[stage] = draws.at("park_cpu", index, rested_ns)
                    if period_ns:
                        cpu_ns[stage] += (
                            rested_ns // period_ns * draws.at("doze_cpu", index, period_ns)
                        )
                    latency_ns = draws.at("wake_latency", index, rested_ns)
                    return Seen(
                        published_after_ns + delay_ns + latency_ns,
                        stage,
                        StageCpu(*cpu_ns),
                        overshoot_ns,
                        True,
                        PARKED,
                        rested_ns,
                        late_ns=delay_ns,
                    )
                rested_ns = until_ns - begin_ns
                overshoot_ns = self._overshoot_ns(rested_ns)
                cpu_ns[stage] = draws.at("doze_cpu", index, rested_ns)
                begin_ns, dozed_ns = until_ns + overshoot_ns, rested_ns
                if published_after_ns <= begin_ns:
                    break
            else:
                period_ns = period_ns if kind == POLL else until_ns - begin_ns
                overshoot_ns = self._overshoot_ns(period_ns)
                n_naps = -(-rested_ns // (period_ns + overshoot_ns))
                cpu_ns[stage] = n_naps * draws.at("doze_cpu", index, period_ns)
                begin_ns += n_naps * (period_ns + overshoot_ns)
                dozed_ns = period_ns
                if published_after_ns <= begin_ns:
                    break
        else:
            raise AssertionError("the last stage of a plan lasts for ever (check_plan)")
        seen_ns = max(begin_ns, 0)
        mode = REHEARSED if rehearsed else PARKED if dozed_ns else SPUN
        return Seen(seen_ns, stage, StageCpu(*cpu_ns), overshoot_ns, False, mode, dozed_ns)
