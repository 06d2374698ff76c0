"""Messages, slots and the ends of steps: `shmsim.sim.source`, on words."""

from shmsim.sim.events import words as w
from shmsim.sim.events.agenda import cancel, schedule
from shmsim.sim.events.compiling import compiled, inlined
from shmsim.sim.events.cores import is_full, is_there, poke
from shmsim.sim.events.luck import table_cost
from shmsim.sim.events.memory import Numbers, Words
from shmsim.units import FOREVER_NS
from shmsim.wait import DOZE, PARK, POLL, REHEARSE, SPIN, YIELD


@inlined
def found_ns(s: Words, source: int) -> int:
    """Since when it is there; -1 while it is not."""
    if not is_there(s, source):
        return -1
    if s[source + w.W_TYPE] == w.INBOX:
        return s[message(s, source) + w.M_PUBLISHED]
    return s[source + w.W_SINCE]


@inlined
def message(s: Words, inbox: int) -> int:
    """The next message of a reader."""
    ring = s[inbox + w.W_RING]
    return s[ring + w.R_MESSAGES] + w.MESSAGE * (s[inbox + w.W_N_TAKEN] & s[ring + w.R_MASK])


@compiled
def ring_delay_ns(late_ns: int, rested_ns: int, period_ns: int) -> int:
    """As `shmsim.sim.waiter.ring_delay_ns`."""
    return min(late_ns, -rested_ns % period_ns) if period_ns else late_ns


@compiled
def look_up(s: Words, x: Numbers, waiter: int, published_ns: int, late_ns: int) -> None:
    """When and how a waiter with a core to itself sees a publication at this instant.

    As `shmsim.sim.waiter.VirtualWait.see`; the answer is in the waiter's registers.
    """
    site = s[waiter + w.V_SITE]
    table, index = s[site + w.Z_DRAWS], s[waiter + w.V_INDEX]
    lesson = waiter + w.V_LESSON
    for stage in range(4):
        s[lesson + w.X_CPU + stage] = 0
    begin_ns = overshoot_ns = dozed_ns = seen_ns = stage = rested_ns = belled = 0
    s[waiter + w.V_DELAY] = 0
    is_rehearsed = False
    mode = -1
    while stage < 4:
        step = waiter + w.V_PLAN + 3 * stage
        kind, until_ns, period_ns = s[step], s[step + 1], s[step + 2]
        cpu = lesson + w.X_CPU + stage
        if published_ns <= begin_ns:
            break
        if kind == REHEARSE:
            is_rehearsed = True
            is_scheduler = s[s[waiter + w.P_ACTOR] + w.A_IS_SCHEDULER] != 0
            cost = w.REHEARSAL if is_scheduler else w.WORKER_REHEARSAL
            s[cpu] = table_cost(s, x, table, cost, index, float(dozed_ns))
            begin_ns += s[cpu]
            stage += 1
            continue
        if begin_ns >= until_ns:
            stage += 1
            continue
        ends_here = published_ns <= until_ns or until_ns >= FOREVER_NS
        rested_ns = min(published_ns, until_ns) - begin_ns
        if kind in (SPIN, YIELD):
            if ends_here:
                cost = w.SPIN_DETECTION if kind == SPIN else w.YIELD_DETECTION
                seen_ns = published_ns + table_cost(s, x, table, cost, index, 0.0)
                s[cpu] = seen_ns - begin_ns
                mode = w.SPUN
                if dozed_ns:
                    mode, rested_ns = w.DOZED, dozed_ns
                if is_rehearsed:
                    mode = w.REHEARSED
                break
            s[cpu] = until_ns - begin_ns
            begin_ns = until_ns
        elif kind in (DOZE, PARK):
            delay_ns = ring_delay_ns(late_ns, rested_ns, period_ns)
            if until_ns >= FOREVER_NS or published_ns + delay_ns <= until_ns:
                along = float(rested_ns)
                s[cpu] = table_cost(s, x, table, w.PARK_CPU, index, along)
                if period_ns:
                    look_ns = table_cost(s, x, table, w.DOZE_CPU, index, float(period_ns))
                    s[cpu] += rested_ns // period_ns * look_ns
                latency_ns = table_cost(s, x, table, w.WAKE_LATENCY, index, along)
                seen_ns = published_ns + delay_ns + latency_ns
                s[waiter + w.V_DELAY] = delay_ns
                mode, belled = w.PARKED, 1
                break
            rested_ns = until_ns - begin_ns
            along = float(rested_ns)
            overshoot_ns = table_cost(s, x, table, w.TIMER_OVERSHOOT, index, along)
            s[cpu] = table_cost(s, x, table, w.DOZE_CPU, index, along)
            begin_ns, dozed_ns = until_ns + overshoot_ns, rested_ns
            if published_ns <= begin_ns:
                break
        else:
            nap_ns = period_ns if kind == POLL else until_ns - begin_ns
            overshoot_ns = table_cost(s, x, table, w.TIMER_OVERSHOOT, index, float(nap_ns))
            n_naps = -(-rested_ns // (nap_ns + overshoot_ns))
            s[cpu] = n_naps * table_cost(s, x, table, w.DOZE_CPU, index, float(nap_ns))
            begin_ns += n_naps * (nap_ns + overshoot_ns)
            dozed_ns = nap_ns
            if published_ns <= begin_ns:
                break
        stage += 1
    if mode < 0:
        seen_ns = max(begin_ns, 0)
        mode = w.REHEARSED if is_rehearsed else w.PARKED if dozed_ns else w.SPUN
        rested_ns = dozed_ns
    s[lesson + w.X_SEEN] = seen_ns
    s[lesson + w.X_STAGE] = stage
    s[lesson + w.X_OVERSHOOT] = overshoot_ns
    s[lesson + w.X_BELLED] = belled
    s[waiter + w.V_MODE] = mode
    s[waiter + w.V_RESTED] = rested_ns


@compiled
def _armed_ns(s: Words, x: Numbers, waiter: int, after_ns: int) -> int:
    """For how long a waiter with a core to itself is armed at this instant; -1: it is not."""
    if after_ns <= 0:
        return -1
    look_up(s, x, waiter, after_ns, 0)
    lesson = waiter + w.V_LESSON
    is_belled = s[lesson + w.X_BELLED] != 0
    step = waiter + w.V_PLAN + 3 * s[lesson + w.X_STAGE]
    if s[step] not in (DOZE, PARK) or (s[waiter + w.V_MODE] == w.REHEARSED and not is_belled):
        return -1
    rested_ns = s[waiter + w.V_RESTED]
    return rested_ns if is_belled else after_ns - s[step + 1] + rested_ns


@compiled
def announce(s: Words, x: Numbers, source: int, courier: int) -> int:
    """It is there now: end the wait; returns after what rest to ring, -1: not to ring."""
    armed_ns = _take_flag(s, x, source)
    _tell(s, source, courier, 0)
    return armed_ns


@compiled
def _take_flag(s: Words, x: Numbers, source: int) -> int:
    """For how long whoever waits is armed now, -1: it is not; nobody else rings for it."""
    if s[source + w.W_WAITER] != 0:
        after_ns = s[w.NOW] - s[source + w.W_STARTED]
        return _armed_ns(s, x, s[source + w.W_WAITER], after_ns)
    if s[source + w.W_ARMED_SINCE] < 0:
        return -1
    armed_ns = s[w.NOW] - s[source + w.W_ARMED_SINCE]
    s[source + w.W_ARMED_SINCE] = -1
    return armed_ns


@compiled
def _tell(s: Words, source: int, courier: int, late_ns: int) -> None:
    """End the wait, which a ring may reach late."""
    s[source + w.W_COURIER] = courier
    sleeper = s[source + w.W_SLEEPER]
    if sleeper != 0 and s[source + w.W_IS_TRIGGERED] == 0:
        s[source + w.W_LATE] = late_ns
        schedule(s, 0, w.RESUME, arrive(s, source, 1))
    if s[source + w.W_SPINNER] != 0:
        poke(s, s[source + w.W_SPINNER])


@compiled
def arrive(s: Words, source: int, value: int) -> int:
    """Tell the process that sleeps for a source: it is there (1), or it is late (0); return it."""
    sleeper = s[source + w.W_SLEEPER]
    s[source + w.W_IS_TRIGGERED] = 1
    s[sleeper + w.P_VALUE] = value
    cancel(s, source)
    return sleeper


@compiled
def sleep_for(s: Words, source: int) -> None:
    """The process that runs now goes on when a source arrives."""
    s[source + w.W_SLEEPER] = s[w.ACTIVE]
    s[source + w.W_IS_TRIGGERED] = 0


@compiled
def further_ns(s: Words, x: Numbers, draws: int, index: int, asleep_ns: int) -> int:
    """What the ring of a message costs for each reader behind the first."""
    cost = w.NOTIFY_FURTHER if s[draws + w.NOTIFY_FURTHER] != 0 else w.NOTIFY_ARMED
    return table_cost(s, x, draws, cost, index, float(asleep_ns))


@compiled
def publish(s: Words, x: Numbers, ring: int, written: int, courier: int, draws: int) -> int:
    """Make a message visible now; returns how many readers are armed.

    How long they have rested, at most, is in `DETAIL`. Rings reach one after another, as in
    `shmsim.sim.source.Ring.publish`, by the costs of whoever rings.
    """
    mask = s[ring + w.R_MASK]
    slot = s[ring + w.R_MESSAGES] + w.MESSAGE * (s[ring + w.R_N_PUBLISHED] & mask)
    for k in range(w.MESSAGE):
        s[slot + k] = s[written + k]
    s[ring + w.R_N_PUBLISHED] += 1
    n_armed = longest_ns = 0
    inbox = s[ring + w.R_INBOXES]
    for _ in range(s[ring + w.R_N_READERS]):
        s[inbox + w.W_N_ARRIVED] += 1
        if s[inbox + w.W_N_ARRIVED] - s[inbox + w.W_N_TAKEN] > mask + 1:
            s[w.STATUS] = w.REFUSED
        rested_ns = _take_flag(s, x, inbox)
        s[inbox + w.W_RESTED] = rested_ns
        if rested_ns >= 0:
            n_armed += 1
            longest_ns = max(longest_ns, rested_ns)
        inbox += w.SOURCE
    each_ns = late_ns = 0
    if n_armed > 1:
        each_ns = further_ns(s, x, draws, s[ring + w.R_N_PUBLISHED], longest_ns)
    inbox = s[ring + w.R_INBOXES]
    for _ in range(s[ring + w.R_N_READERS]):
        _tell(s, inbox, courier, late_ns)
        if s[inbox + w.W_RESTED] >= 0:
            late_ns += each_ns
        inbox += w.SOURCE
    s[w.DETAIL] = longest_ns
    return n_armed


@compiled
def release(s: Words, x: Numbers, ring: int, inbox: int, courier: int) -> int:
    """A reader has copied its message out; returns after what rest to ring, -1: not to ring."""
    was_full = is_full(s, ring)
    s[inbox + w.W_N_RELEASED] += 1
    if not was_full or is_full(s, ring):
        return -1
    slots = s[ring + w.R_SLOTS]
    s[slots + w.W_SINCE] = s[w.NOW]
    return announce(s, x, slots, courier)
