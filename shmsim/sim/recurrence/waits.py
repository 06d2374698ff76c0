"""How a wait ends: `shmsim.sim.waiter.VirtualWait` in compiled code."""

from typing import Any, Final

from shmsim.sim.recurrence.luck import (
    CARRY,
    DOZE_CPU,
    OVERSHOOT,
    PARK_CPU,
    REHEARSAL,
    SLOW,
    SPIN_DETECTION,
    WAKE,
    YIELD_DETECTION,
    draw,
)
from shmsim.sim.recurrence.memory import within
from shmsim.units import FOREVER_NS
from shmsim.wait import DOZE, KIND_NAMES, NAP, PARK, POLL, REHEARSE, SPIN, YIELD

# What the waiter did last: the order of the costs from `SLOW` on.
SPUN: Final = 0
PARKED: Final = 1
DOZED: Final = 2
REHEARSED: Final = 3

_N_KINDS: Final = len(KIND_NAMES)


@within
def is_sound(site: Any) -> Any:
    """Whether `shmsim.wait.check_plan` lets the plan of a site pass."""
    reached_ns = 0
    for stage in range(4):
        kind, until_ns, period_ns = site.kinds[stage], site.untils_ns[stage], site.periods_ns[stage]
        if kind < 0 or kind >= _N_KINDS or until_ns < reached_ns or period_ns < 0:
            return False
        if kind == POLL and period_ns == 0:
            return False
        if until_ns >= FOREVER_NS:
            return kind not in (NAP, REHEARSE)
        reached_ns = until_ns
    return False


@within
def _ring_delay_ns(late_ns: Any, rested_ns: Any, period_ns: Any) -> Any:
    """`shmsim.sim.waiter.ring_delay_ns`."""
    return min(late_ns, -rested_ns % period_ns) if period_ns else late_ns


@within
def _see(eng: Any, site: Any, after_ns: Any, late_ns: Any) -> Any:
    """`VirtualWait.see`; returns when it is seen, and notes the rest at the site."""
    costs, index, cpu_ns = site.costs, site.index, site.cpu_ns
    cpu_ns[0] = cpu_ns[1] = cpu_ns[2] = cpu_ns[3] = 0
    site.overshoot_ns = 0
    site.belled = 0
    site.delay_ns = 0
    begin_ns = 0
    dozed_ns = 0
    rehearsed = False
    for stage in range(4):
        site.stage = stage
        if after_ns <= begin_ns:
            break
        kind, until_ns = site.kinds[stage], site.untils_ns[stage]
        if kind == REHEARSE:
            rehearsed = True
            spent_ns = draw(eng, costs + REHEARSAL, index, dozed_ns)
            cpu_ns[stage] = spent_ns
            begin_ns += spent_ns
            continue
        if begin_ns >= until_ns:
            continue
        ends_here = after_ns <= until_ns or until_ns >= FOREVER_NS
        rested_ns = min(after_ns, until_ns) - begin_ns
        if kind in (SPIN, YIELD):
            if ends_here:
                detection = SPIN_DETECTION if kind == SPIN else YIELD_DETECTION
                seen_ns = after_ns + draw(eng, costs + detection, index, 0)
                cpu_ns[stage] = seen_ns - begin_ns
                if dozed_ns:
                    site.mode, site.rested_ns = DOZED, dozed_ns
                else:
                    site.mode, site.rested_ns = SPUN, rested_ns
                if rehearsed:
                    site.mode = REHEARSED
                return seen_ns
            cpu_ns[stage] = until_ns - begin_ns
            begin_ns = until_ns
        elif kind in (DOZE, PARK):
            period_ns = site.periods_ns[stage]
            delay_ns = _ring_delay_ns(late_ns, rested_ns, period_ns)
            if until_ns >= FOREVER_NS or after_ns + delay_ns <= until_ns:
                spent_ns = draw(eng, costs + PARK_CPU, index, rested_ns)
                if period_ns:
                    looks_ns = draw(eng, costs + DOZE_CPU, index, period_ns)
                    spent_ns += rested_ns // period_ns * looks_ns
                cpu_ns[stage] = spent_ns
                site.belled = 1
                site.mode = PARKED
                site.rested_ns = rested_ns
                site.delay_ns = delay_ns
                return after_ns + delay_ns + draw(eng, costs + WAKE, index, rested_ns)
            rested_ns = until_ns - begin_ns
            site.overshoot_ns = draw(eng, costs + OVERSHOOT, index, rested_ns)
            cpu_ns[stage] = draw(eng, costs + DOZE_CPU, index, rested_ns)
            begin_ns = until_ns + site.overshoot_ns
            dozed_ns = rested_ns
            if after_ns <= begin_ns:
                break
        else:
            period_ns = site.periods_ns[stage] if kind == POLL else until_ns - begin_ns
            site.overshoot_ns = draw(eng, costs + OVERSHOOT, index, period_ns)
            n_naps = -(-rested_ns // (period_ns + site.overshoot_ns))
            cpu_ns[stage] = n_naps * draw(eng, costs + DOZE_CPU, index, period_ns)
            begin_ns += n_naps * (period_ns + site.overshoot_ns)
            dozed_ns = period_ns
            if after_ns <= begin_ns:
                break
    site.mode = REHEARSED if rehearsed else PARKED if dozed_ns else SPUN
    site.rested_ns = dozed_ns
    return max(begin_ns, 0)


@within
def meet(eng: Any, site: Any, found_ns: Any, late_ns: Any) -> Any:
    """What a waiter waits for comes at this instant; for how long it is armed then, -1 if it isn't.

    Parameters
    ----------
    eng, site
        Costs, and the wait; how it ends is noted there.
    found_ns
        The instant; before the wait began, if what is waited for was there already.
    late_ns
        How much later a ring reaches who sleeps on the doorbell.
    """
    after_ns = found_ns - site.started_ns
    seen_after_ns = _see(eng, site, after_ns, late_ns)
    site.found_ns = found_ns
    site.seen_ns = site.started_ns + seen_after_ns
    site.last_seen_ns = site.seen_ns
    site.used_ns = site.cpu_ns[0] + site.cpu_ns[1] + site.cpu_ns[2] + site.cpu_ns[3]
    site.is_finished = 1
    site.slowness_ns = 0
    if site.rested_ns > 0:
        slow_ns = draw(eng, site.costs + SLOW + site.mode, site.index, site.rested_ns)
        site.slowness_ns = max(0, slow_ns)
    if after_ns <= 0 or (site.mode == REHEARSED and not site.belled):
        return -1
    if site.belled:
        return site.rested_ns
    kind = site.kinds[site.stage]
    if kind not in (DOZE, PARK):
        return -1
    return after_ns - site.untils_ns[site.stage] + site.rested_ns


@within
def carried_ns(eng: Any, site: Any) -> Any:
    """CPU time of each of the two I/O threads that carried the ring, where rings need one."""
    drawn_ns = draw(eng, site.costs + CARRY, site.index, site.rested_ns)
    return min(drawn_ns, (site.seen_ns - site.found_ns - site.delay_ns) // 3)
