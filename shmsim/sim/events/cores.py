"""The cores of `shmsim.sim.cores`, on words: the same rules in the same order.

What is recursive there is a loop here: `_serve` says whether a thread gave its core up, and then
`pick` goes on with the next one.
"""

from shmsim.sim.cores import LOOKS_FOR_ONE_MORE
from shmsim.sim.events import words as w
from shmsim.sim.events.agenda import (
    cancel,
    entity,
    go_on_now,
    is_free_until,
    schedule,
    set_timer,
)
from shmsim.sim.events.compiling import compiled, inlined
from shmsim.sim.events.memory import Words
from shmsim.units import FOREVER_NS, MS

DESCHEDULED_NS = 1 * MS  # as in shmsim.sim.contended


@inlined
def is_there(s: Words, source: int) -> bool:
    """Whether what is waited for is there."""
    kind = s[source + w.W_TYPE]
    if kind == w.INBOX:
        return s[source + w.W_N_TAKEN] < s[source + w.W_N_ARRIVED]
    if kind == w.SLOTS:
        return not is_full(s, s[source + w.W_RING])
    return s[source + w.W_SINCE] >= 0


@compiled
def is_full(s: Words, ring: int) -> bool:
    """Whether the slowest reader still holds the slot that comes next."""
    if s[ring + w.R_CAN_FILL] == 0:
        return False
    inbox = s[ring + w.R_INBOXES]
    least = s[inbox + w.W_N_RELEASED]
    for _ in range(1, s[ring + w.R_N_READERS]):
        inbox += w.SOURCE
        least = min(least, s[inbox + w.W_N_RELEASED])
    return s[ring + w.R_N_PUBLISHED] - least >= s[ring + w.R_N_SLOTS]


@compiled
def _finds(s: Words, thread: int) -> bool:
    """Whether a thread finds what it looks for."""
    about = s[thread + w.T_ABOUT]
    if s[thread + w.T_LOOK] == w.LOOK_AT_STREAM:
        return s[about + w.DE_N_ENDED] >= s[thread + w.T_STEP]
    is_crowded = s[thread + w.T_GIVES_WAY] != 0 and s[thread + w.T_OFF_CORE] > DESCHEDULED_NS
    return is_crowded or is_there(s, about)


# The quota.


@compiled
def drain(s: Words, host: int) -> None:
    """Take from the quota what was used since the last look."""
    now_ns = s[w.NOW]
    s[host + w.H_LEFT] -= s[host + w.H_N_RUNNING] * (now_ns - s[host + w.H_METERED])
    s[host + w.H_METERED] = now_ns


@compiled
def set_meter(s: Words, host: int) -> None:
    """Come back when the quota is used up."""
    n_running = s[host + w.H_N_RUNNING]
    if s[host + w.H_QUOTA] == 0 or n_running == 0 or s[host + w.H_IS_THROTTLED] != 0:
        return
    left_ns = s[host + w.H_LEFT]
    set_timer(s, host, (left_ns if left_ns > 0 else 0) // n_running, w.METER, w.WORK)


@inlined
def _running_changed(s: Words, host: int, by: int) -> None:
    drain(s, host)
    s[host + w.H_N_RUNNING] += by
    set_meter(s, host)


# The queue of a core.


@compiled
def _append(s: Words, core: int, thread: int) -> None:
    n = s[core + w.K_N_QUEUED]
    s[core + w.K_QUEUE + n] = thread
    s[core + w.K_N_QUEUED] = n + 1


@compiled
def _position(s: Words, core: int, thread: int) -> int:
    for i in range(s[core + w.K_N_QUEUED]):
        if s[core + w.K_QUEUE + i] == thread:
            return i
    return -1


@compiled
def _remove(s: Words, core: int, thread: int) -> None:
    n = s[core + w.K_N_QUEUED] - 1
    position = _position(s, core, thread)
    if position < 0:  # SimPy refuses this too
        s[w.STATUS] = w.REFUSED
        return
    for i in range(position, n):
        s[core + w.K_QUEUE + i] = s[core + w.K_QUEUE + i + 1]
    s[core + w.K_N_QUEUED] = n


@compiled
def _mean_of_all(s: Words, core: int) -> int:
    n = s[core + w.K_N_QUEUED]
    total = 0
    for i in range(n):
        total += s[s[core + w.K_QUEUE + i] + w.T_VRUNTIME]
    running = s[core + w.K_RUNNING]
    if running != 0:
        total += s[running + w.T_VRUNTIME]
        n += 1
    if n == 1:  # most cores have one thread, and dividing takes as long as all of the above
        return total
    return total // n if n else s[core + w.K_MEAN]


@compiled
def _best(s: Words, core: int) -> int:
    """The earliest deadline of those not ahead of the mean; of equals the one that waits first."""
    if s[core + w.K_N_QUEUED] == 1 and s[core + w.K_RUNNING] == 0:
        return s[core + w.K_QUEUE]
    mean = _mean_of_all(s, core)
    best = fallback = 0
    n = s[core + w.K_N_QUEUED]
    running = s[core + w.K_RUNNING]
    for i in range(n + 1):
        thread = s[core + w.K_QUEUE + i] if i < n else running
        if thread == 0:
            continue
        deadline = s[thread + w.T_DEADLINE]
        if fallback == 0 or deadline < s[fallback + w.T_DEADLINE]:
            fallback = thread
        if s[thread + w.T_VRUNTIME] <= mean and (best == 0 or deadline < s[best + w.T_DEADLINE]):
            best = thread
    return best if best != 0 else fallback


@compiled
def _yields(s: Words, thread: int) -> bool:
    return s[thread + w.T_LOOK] != w.NO_LOOK and s[thread + w.T_YIELDS] != 0


@compiled
def _is_due_to_go(s: Words, core: int, running: int) -> bool:
    vruntime = s[running + w.T_VRUNTIME]
    return vruntime > _mean_of_all(s, core) or vruntime >= s[running + w.T_PROTECTED]


@compiled
def _somebody_has_work(s: Words, core: int) -> bool:
    for i in range(s[core + w.K_N_QUEUED]):
        thread = s[core + w.K_QUEUE + i]
        if not _yields(s, thread) or _finds(s, thread):
            return True
    return False


@inlined
def settle(s: Words, core: int) -> None:
    """Book the time since the last look to the thread that runs."""
    now_ns = s[w.NOW]
    ran_ns = now_ns - s[core + w.K_SETTLED]
    s[core + w.K_SETTLED] = now_ns
    thread = s[core + w.K_RUNNING]
    if thread == 0 or ran_ns == 0:
        return
    s[core + w.K_BUSY] += ran_ns
    s[thread + w.T_CPU] += ran_ns
    vruntime = s[thread + w.T_VRUNTIME] + ran_ns
    s[thread + w.T_VRUNTIME] = vruntime
    if s[thread + w.T_LOOK] == w.NO_LOOK:
        s[thread + w.T_LEFT] -= ran_ns
    host = s[w.HOST]
    if vruntime >= s[thread + w.T_DEADLINE]:
        ago_ns = min((now_ns - s[core + w.K_PHASE]) % s[host + w.H_TICK], ran_ns)
        for _ in range(2):
            if vruntime - ago_ns >= s[thread + w.T_DEADLINE]:
                s[thread + w.T_DEADLINE] = vruntime - ago_ns + s[host + w.H_SLICE]
                s[core + w.K_IS_SLICE_OVER] = 1
            ago_ns = 0


@inlined
def _stop_running(s: Words, core: int) -> None:
    s[core + w.K_RUNNING] = 0
    cancel(s, core)
    _running_changed(s, s[w.HOST], -1)


@compiled
def _preempt(s: Words, core: int) -> None:
    thread = s[core + w.K_RUNNING]
    _stop_running(s, core)
    s[thread + w.T_N_PREEMPTED] += 1
    s[thread + w.T_SINCE] = s[w.NOW]
    n = s[core + w.K_N_QUEUED]
    vruntime = s[thread + w.T_VRUNTIME]
    if _yields(s, thread):
        mean = (_mean_of_all(s, core) * n + vruntime) // (n + 1)
        if n == 0 or vruntime <= mean:
            s[thread + w.T_VRUNTIME] = s[thread + w.T_DEADLINE]
            s[thread + w.T_DEADLINE] += s[s[w.HOST] + w.H_SLICE]
    _append(s, core, thread)


@compiled
def _grant(s: Words, thread: int) -> None:
    process = s[thread + w.T_WANTED]
    s[thread + w.T_WANTED] = 0
    s[thread + w.T_LOOK] = w.NO_LOOK
    schedule(s, 0, w.RESUME, process)


@inlined
def _arm(s: Words, core: int) -> None:
    """Come back when the thread that runs is done, or at the next tick if somebody waits."""
    thread = s[core + w.K_RUNNING]
    now_ns = s[w.NOW]
    due_ns = FOREVER_NS
    kind = w.WORK
    if thread != 0:
        if s[thread + w.T_WANTED] != 0:
            if s[thread + w.T_LOOK] == w.NO_LOOK:
                due_ns = now_ns + s[thread + w.T_LEFT]
            else:
                due_ns = s[thread + w.T_UNTIL]
                kind = w.TIMED
        if s[core + w.K_N_QUEUED] != 0:
            tick_ns = s[s[w.HOST] + w.H_TICK]
            due_ns = min(due_ns, now_ns + tick_ns - (now_ns - s[core + w.K_PHASE]) % tick_ns)
    if thread == 0 or due_ns >= FOREVER_NS:
        cancel(s, core)
    else:
        set_timer(s, core, due_ns - now_ns, w.CORE_TIMER, kind)


@compiled
def _serve(s: Words, core: int) -> bool:
    """Give the thread that runs what is due by now; returns whether it gave the core up."""
    thread = s[core + w.K_RUNNING]
    if thread == 0:
        return False
    if s[thread + w.T_WANTED] != 0:
        if s[thread + w.T_LOOK] == w.NO_LOOK:
            if s[thread + w.T_LEFT] <= 0:
                _grant(s, thread)
        elif _finds(s, thread) or s[w.NOW] >= s[thread + w.T_UNTIL]:
            _grant(s, thread)
        elif s[thread + w.T_YIELDS] != 0 and _somebody_has_work(s, core):
            _preempt(s, core)
            return True
    _arm(s, core)
    return False


@compiled
def _start(s: Words, core: int, thread: int) -> bool:
    """Let a queued thread run; returns whether it gave the core up at once."""
    now_ns = s[w.NOW]
    _remove(s, core, thread)
    waited_ns = now_ns - s[thread + w.T_SINCE]
    s[thread + w.T_RUN_QUEUE] += waited_ns
    s[thread + w.T_OFF_CORE] = max(s[thread + w.T_OFF_CORE], waited_ns)
    s[thread + w.T_CORE] = core
    s[thread + w.T_SINCE] = now_ns
    s[core + w.K_SETTLED] = now_ns
    s[thread + w.T_PROTECTED] = s[thread + w.T_DEADLINE]
    s[core + w.K_RUNNING] = thread
    s[core + w.K_IS_SLICE_OVER] = 0
    _running_changed(s, s[w.HOST], 1)
    return _serve(s, core)


@compiled
def _join(s: Words, core: int, thread: int) -> None:
    """Queue a thread that wakes here, as far behind the mean as it was when it fell asleep."""
    now_ns = s[w.NOW]
    settle(s, core)
    lag = s[thread + w.T_LAG]
    if lag < 0:
        lag = min(0, lag + (now_ns - s[thread + w.T_SINCE]) // 2)
    n_here = s[core + w.K_N_QUEUED] + (1 if s[core + w.K_RUNNING] != 0 else 0)
    if n_here:
        lag = lag * (n_here + 1) // n_here
    s[thread + w.T_VRUNTIME] = _mean_of_all(s, core) - lag
    s[thread + w.T_DEADLINE] = s[thread + w.T_VRUNTIME] + s[s[w.HOST] + w.H_SLICE]
    s[thread + w.T_SINCE] = now_ns
    _append(s, core, thread)


@compiled
def _longest_waiting(s: Words, besides: int) -> int:
    """The thread to move from the fullest other core; 0 if none may move."""
    host = s[w.HOST]
    chosen = 0
    for number in range(s[host + w.H_N_CORES]):
        core = s[host + w.H_CORES] + number * s[host + w.H_STRIDE]
        if core == besides:
            continue
        n = s[core + w.K_N_QUEUED]
        for i in range(n):
            thread = s[core + w.K_QUEUE + i]
            if s[thread + w.T_IS_PINNED] != 0:
                continue
            if chosen == 0:
                chosen = thread
                continue
            longest = s[s[chosen + w.T_CORE] + w.K_N_QUEUED]
            mine = s[s[thread + w.T_CORE] + w.K_N_QUEUED]
            is_earlier = s[thread + w.T_SINCE] < s[chosen + w.T_SINCE]
            if mine > longest or (mine == longest and is_earlier):
                chosen = thread
    return chosen


@compiled
def _move(s: Words, thread: int, core: int) -> None:
    """Queue a thread that waits elsewhere at a core."""
    _remove(s, s[thread + w.T_CORE], thread)
    s[thread + w.T_RUN_QUEUE] += s[w.NOW] - s[thread + w.T_SINCE]
    s[thread + w.T_LAG] = 0
    s[thread + w.T_CORE] = core
    _join(s, core, thread)


@compiled
def pick(s: Words, core: int) -> None:
    """Let the one that is due run, if the core is free."""
    while True:
        if (
            s[core + w.K_RUNNING] != 0
            or s[core + w.K_IS_STOLEN] != 0
            or s[s[w.HOST] + w.H_IS_THROTTLED] != 0
        ):
            return
        thread = s[core + w.K_STOLEN_FROM]
        if thread != 0:
            s[core + w.K_STOLEN_FROM] = 0
            _append(s, core, thread)
        else:
            if s[core + w.K_N_QUEUED] == 0:
                elsewhere = _longest_waiting(s, core)
                if elsewhere == 0:
                    return
                _move(s, elsewhere, core)
            thread = _best(s, core)
        if not _start(s, core, thread):
            return


@compiled
def _serve_and_pick(s: Words, core: int) -> None:
    if _serve(s, core):
        pick(s, core)


# What threads do.


@compiled
def _wish_changed(s: Words, thread: int) -> None:
    core = s[thread + w.T_CORE]
    if s[core + w.K_RUNNING] == thread:
        settle(s, core)
        _serve_and_pick(s, core)


@compiled
def run_thread(s: Words, thread: int, duration_ns: int) -> bool:
    """Use CPU time; returns whether the process that runs now goes on at once.

    It does where nobody waits for the core and nothing else is due before the time is used up:
    then the timer of the core and the event of the process would come next, and are left out.
    Else it goes on by an event.
    """
    s[thread + w.T_WANTED] = s[w.ACTIVE]
    s[thread + w.T_LEFT] = duration_ns
    s[thread + w.T_LOOK] = w.NO_LOOK
    core = s[thread + w.T_CORE]
    if s[core + w.K_RUNNING] != thread:
        return False
    settle(s, core)
    if s[core + w.K_N_QUEUED] == 0:
        done_ns = s[w.NOW] + max(s[thread + w.T_LEFT], 0)
        if is_free_until(s, done_ns):
            entity(s)  # which the timer would have given it
            s[w.NOW] = done_ns
            settle(s, core)
            cancel(s, core)
            s[thread + w.T_WANTED] = 0
            return True
    _serve_and_pick(s, core)
    return False


@compiled
def spin_thread(
    s: Words,
    thread: int,
    look: int,
    about: int,
    step: int,
    gives_way: int,
    until_ns: int,
    yields: int,
) -> None:
    """Keep looking until something is there, or an instant."""
    s[thread + w.T_WANTED] = s[w.ACTIVE]
    s[thread + w.T_LOOK] = look
    s[thread + w.T_ABOUT] = about
    s[thread + w.T_STEP] = step
    s[thread + w.T_GIVES_WAY] = gives_way
    s[thread + w.T_UNTIL] = until_ns
    s[thread + w.T_YIELDS] = yields
    _wish_changed(s, thread)


@compiled
def poke(s: Words, thread: int) -> None:
    """Something that this thread may be looking for has changed."""
    if s[thread + w.T_LOOK] == w.NO_LOOK:
        return
    core = s[thread + w.T_CORE]
    running = s[core + w.K_RUNNING]
    if running == thread:
        settle(s, core)
        _serve_and_pick(s, core)
    elif running != 0 and _yields(s, running) and _position(s, core, thread) >= 0:
        # Yielders pass the core round with every look.
        settle(s, core)
        _preempt(s, core)
        if _start(s, core, thread):
            pick(s, core)


@compiled
def sleep_thread(s: Words, thread: int) -> None:
    """Give the core up."""
    now_ns = s[w.NOW]
    core = s[thread + w.T_CORE]
    settle(s, core)
    mean = _mean_of_all(s, core)
    if s[core + w.K_RUNNING] == thread:
        _stop_running(s, core)
    else:
        _remove(s, core, thread)
        s[thread + w.T_RUN_QUEUE] += now_ns - s[thread + w.T_SINCE]
    host = s[w.HOST]
    most = max(2 * s[host + w.H_SLICE], s[host + w.H_TICK])
    s[thread + w.T_LAG] = max(-most, min(mean - s[thread + w.T_VRUNTIME], most))
    s[thread + w.T_SINCE] = now_ns
    s[core + w.K_MEAN] = mean
    pick(s, core)


@compiled
def _is_idle(s: Words, core: int) -> bool:
    return (
        s[core + w.K_RUNNING] == 0 and s[core + w.K_N_QUEUED] == 0 and s[core + w.K_IS_STOLEN] == 0
    )


@compiled
def wake_thread(s: Words, thread: int) -> None:
    """Want a core again: the one where it ran last, or an idle one."""
    core = s[thread + w.T_CORE]
    if s[thread + w.T_IS_PINNED] == 0 and not _is_idle(s, core):
        host = s[w.HOST]
        for number in range(s[host + w.H_N_CORES]):
            other = s[host + w.H_CORES] + number * s[host + w.H_STRIDE]
            if _is_idle(s, other):
                core = other
                break
    s[thread + w.T_CORE] = core
    _join(s, core, thread)
    _make_way(s, core, thread)


@compiled
def _make_way(s: Words, core: int, thread: int) -> None:
    """A thread has joined the queue: it runs at once, takes the core from another, or waits."""
    running = s[core + w.K_RUNNING]
    if running == 0:
        pick(s, core)
    elif _yields(s, running) or (_is_due_to_go(s, core, running) and _best(s, core) == thread):
        _preempt(s, core)
        pick(s, core)
    else:
        _arm(s, core)  # for the next tick


# What timers do, and the hypervisor.


@compiled
def core_timer(s: Words, core: int) -> int:
    """The thread that runs is done, or it is time for a tick; returns who goes on at once, or 0."""
    settle(s, core)
    thread = s[core + w.K_RUNNING]
    is_done = (
        s[thread + w.T_WANTED] != 0
        and s[thread + w.T_LOOK] == w.NO_LOOK
        and s[thread + w.T_LEFT] <= 0
    )
    if s[core + w.K_N_QUEUED] == 0 and is_done:
        process = s[thread + w.T_WANTED]
        s[thread + w.T_WANTED] = 0
        return go_on_now(s, process)
    if is_done:
        _grant(s, thread)
    if s[core + w.K_N_QUEUED] != 0:
        is_tick = (s[w.NOW] - s[core + w.K_PHASE]) % s[s[w.HOST] + w.H_TICK] == 0
        is_due = is_tick and (s[core + w.K_IS_SLICE_OVER] != 0 or _is_due_to_go(s, core, thread))
        if is_due and _best(s, core) != thread:
            _preempt(s, core)
            pick(s, core)
            return 0
    _serve_and_pick(s, core)
    return 0


@compiled
def _halt(s: Words, core: int) -> int:
    settle(s, core)
    thread = s[core + w.K_RUNNING]
    if thread != 0:
        _stop_running(s, core)
        s[thread + w.T_SINCE] = s[w.NOW]
    return thread


@compiled
def steal(s: Words, core: int) -> None:
    """The hypervisor takes the core."""
    thread = _halt(s, core)
    if thread != 0:
        s[core + w.K_STOLEN_FROM] = thread
    s[core + w.K_IS_STOLEN] = 1
    s[core + w.K_STOLEN_SINCE] = s[w.NOW]


@compiled
def give_back(s: Words, core: int) -> None:
    """The hypervisor gives the core back."""
    s[core + w.K_STOLEN] += s[s[w.HOST] + w.H_STEAL]
    s[core + w.K_IS_STOLEN] = 0
    pick(s, core)


@compiled
def throttle(s: Words, host: int) -> None:
    """The quota of this period is used up."""
    drain(s, host)
    if s[host + w.H_LEFT] >= s[host + w.H_N_RUNNING]:  # rounding left something
        set_meter(s, host)
        return
    s[host + w.H_IS_THROTTLED] = 1
    for number in range(s[host + w.H_N_CORES]):
        core = s[host + w.H_CORES] + number * s[host + w.H_STRIDE]
        thread = _halt(s, core)
        if thread != 0:
            _append(s, core, thread)


@compiled
def refill(s: Words, host: int) -> None:
    """A new period begins; what was used beyond the quota is owed."""
    drain(s, host)
    s[host + w.H_LEFT] = s[host + w.H_QUOTA] + min(s[host + w.H_LEFT], 0)
    if s[host + w.H_IS_THROTTLED] != 0 and s[host + w.H_LEFT] > 0:
        s[host + w.H_IS_THROTTLED] = 0
        for number in range(s[host + w.H_N_CORES]):
            pick(s, s[host + w.H_CORES] + number * s[host + w.H_STRIDE])
    set_meter(s, host)


@compiled
def balance(s: Words, core: int, n_found: int) -> int:
    """Look from a busy core whether another has more to do; returns how often in a row it has."""
    more = _more_to_do_than(s, core)
    if more == 0:
        return 0
    if more == 1 and n_found + 1 < LOOKS_FOR_ONE_MORE:
        return n_found + 1
    thread = _longest_waiting(s, core)
    if thread != 0:
        _move(s, thread, core)
        _make_way(s, core, thread)
    return 0


@compiled
def _n_threads(s: Words, core: int) -> int:
    return s[core + w.K_N_QUEUED] + (1 if s[core + w.K_RUNNING] != 0 else 0)


@compiled
def _more_to_do_than(s: Words, core: int) -> int:
    if s[core + w.K_RUNNING] == 0:
        return 0
    host = s[w.HOST]
    most = 0
    for number in range(s[host + w.H_N_CORES]):
        other = s[host + w.H_CORES] + number * s[host + w.H_STRIDE]
        for i in range(s[other + w.K_N_QUEUED]):
            if s[s[other + w.K_QUEUE + i] + w.T_IS_PINNED] == 0:
                most = max(most, _n_threads(s, other))
                break
    return max(most - _n_threads(s, core), 0)
