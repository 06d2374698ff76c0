"""What a process does but wait: work, publish, read, learn (`shmsim.sim.actor`), on words.

A routine that may have to wait for an event is a function of a process, and goes on from the state
that it left in its registers. It returns whether to go on at once: with itself, or with the routine
that it has called or that had called it.
"""

from shmsim.sim.events import words as w
from shmsim.sim.events.agenda import go_on_after
from shmsim.sim.events.asking import ask
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.cores import is_full, run_thread, sleep_thread, wake_thread
from shmsim.sim.events.luck import cost_at, next_cost, table_cost
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.events.sources import further_ns, publish, release
from shmsim.wait import is_left_undecided

# Routines.
(
    SCHEDULER,
    WORKER,
    REPLIES,
    FINISH,
    WAIT,
    PUBLISH,
    READ,
    RECEIVE,
    WRITE,
    TAKE,
    THIEF,
    BALANCER,
    PERIODS,
) = range(13)


@compiled
def busy(s: Words, process: int, lane: int, duration_ns: int) -> bool:
    """Occupy a core for some time and for what is owed; returns whether to go on at once."""
    duration_ns += s[lane + w.L_OWED]
    s[lane + w.L_OWED] = 0
    thread = s[lane + w.L_THREAD]
    if thread == 0:
        s[s[process + w.P_ACTOR] + w.A_CPU] += duration_ns
        return go_on_after(s, process, duration_ns)
    return run_thread(s, thread, duration_ns)


@compiled
def sleep(s: Words, lane: int) -> None:
    """Leave the core for whatever comes next."""
    if s[lane + w.L_THREAD] != 0:
        sleep_thread(s, s[lane + w.L_THREAD])


@compiled
def wake(s: Words, lane: int) -> None:
    """Want the core again."""
    if s[lane + w.L_THREAD] != 0:
        wake_thread(s, s[lane + w.L_THREAD])


@compiled
def slowness(
    s: Words, x: Numbers, actor: int, table: int, index: int, mode: int, rested_ns: int
) -> int:
    """Extra time of the work that follows a rest."""
    if rested_ns <= 0:
        return 0
    is_scheduler = s[actor + w.A_IS_SCHEDULER] != 0
    cost = w.SLOW_AFTER_SPIN if is_scheduler else w.WORKER_SLOW_AFTER_SPIN
    return max(0, table_cost(s, x, table, cost + mode, index, float(rested_ns)))


@compiled
def rest(s: Words, lane: int, mode: int, rested_ns: int) -> None:
    """Be at the end of a rest (`shmsim.sim.deciding.Cold`)."""
    if mode == w.REHEARSED:
        s[lane + w.L_COLD_PLAN] = s[lane + w.L_COLD_AFTER] = 0
    elif mode != w.SPUN:
        s[lane + w.L_COLD_PLAN] = max(s[lane + w.L_COLD_PLAN], rested_ns)
        s[lane + w.L_COLD_AFTER] = max(s[lane + w.L_COLD_AFTER], rested_ns)


is_left = compiled(is_left_undecided)


@compiled
def looks_of(s: Words, x: Numbers, site: int, call: int) -> float:
    """From what share of its waits the policy of a call learns, below 1 while it rests."""
    number = s[site + w.Z_LOOKS]
    if number < 0:
        return 1.0
    return x[s[site + w.Z_NUMBERS] + call * s[site + w.Z_STATE_NUMBERS] + number]


@compiled
def learn(s: Words, x: Numbers, process: int, lane: int) -> None:
    """Let the policies learn from the last waits, off the critical path."""
    actor = s[process + w.P_ACTOR]
    for number in range(s[actor + w.A_N_SITES]):
        site = s[actor + w.A_SITES + number]
        n = s[site + w.Z_N_FINISHED]
        s[site + w.Z_N_FINISHED] = 0
        for i in range(n):
            lesson = s[site + w.Z_FINISHED] + w.LESSON * i
            call = s[lesson + w.X_CALL]
            uniform = s[site + w.Z_FINISHED_UNIFORM] + i
            is_idle = is_left(looks_of(s, x, site, call), x[uniform])
            after = s[site + (w.Z_IDLE_AFTER if is_idle else w.Z_AFTER)]
            ask(
                s[site + w.Z_POLICY],
                s,
                x,
                w.ASK_AFTER,
                s[site + w.Z_STATE] + call * s[site + w.Z_STATE_WORDS],
                s[site + w.Z_NUMBERS] + call * s[site + w.Z_STATE_NUMBERS],
                lesson,
                uniform,
                0,
            )
            index = s[site + w.Z_N_LEARNT]
            s[site + w.Z_N_LEARNT] = index + 1
            along = float(s[lane + w.L_COLD_AFTER])
            s[lane + w.L_COLD_AFTER] = 0
            s[lane + w.L_OWED] += cost_at(s, x, after, index, along)


@compiled
def call_wait(
    s: Words, process: int, caller: int, site: int, source: int, lane: int, call: int, step: int
) -> None:
    """Wait at a site for a source; what is known of the batch comes with `know`."""
    lesson = process + w.V_LESSON
    s[process + w.P_ROUTINE] = WAIT
    s[process + w.V_CALLER] = caller
    s[process + w.V_STATE] = 0
    s[process + w.V_SITE] = site
    s[process + w.V_SOURCE] = source
    s[process + w.V_LANE] = lane
    s[process + w.V_STEP] = step
    s[lesson + w.X_SITE] = s[site + w.Z_KIND]
    s[lesson + w.X_CALL] = call
    s[lesson + w.X_N_DECODE] = 0
    s[lesson + w.X_N_PREFILL] = 0
    s[lesson + w.X_N_KV] = 0


@compiled
def know(s: Words, process: int, n_decode: int, n_prefill: int, n_kv: int) -> None:
    """Tell the policy of the wait that begins about the last batch."""
    lesson = process + w.V_LESSON
    s[lesson + w.X_N_DECODE] = n_decode
    s[lesson + w.X_N_PREFILL] = n_prefill
    s[lesson + w.X_N_KV] = n_kv


@compiled
def pend(s: Words, process: int, pending: int) -> None:
    """Tell the policy of the wait that begins whether the peer is at work."""
    s[process + w.V_LESSON + w.X_PENDING] = pending


# Publishing.


@compiled
def call_publish(
    s: Words,
    process: int,
    caller: int,
    ring: int,
    site: int,
    n_bytes: int,
    work_ns: int,
    lane: int,
) -> None:
    """Publish the message in `U_MESSAGE`."""
    s[process + w.P_ROUTINE] = PUBLISH
    s[process + w.U_CALLER] = caller
    s[process + w.U_STATE] = 0
    s[process + w.U_RING] = ring
    s[process + w.U_SITE] = site
    s[process + w.U_BYTES] = n_bytes
    s[process + w.U_WORK] = work_ns
    s[process + w.U_LANE] = lane


@compiled
def write_message(s: Words, process: int, batch: int, call: int, pending: int) -> None:
    """Fill `U_MESSAGE` with the work of a step."""
    written = process + w.U_MESSAGE
    for k in range(w.MESSAGE):
        s[written + k] = s[batch + k]
    s[written + w.M_CALL] = call
    s[written + w.M_PENDING] = pending


@compiled
def publishing(s: Words, x: Numbers, p: int) -> bool:
    """Work, wait for a slot if there is none, publish, ring."""
    ring, lane, actor = s[p + w.U_RING], s[p + w.U_LANE], s[p + w.P_ACTOR]
    written = p + w.U_MESSAGE
    state = s[p + w.U_STATE]
    if state == 0:
        s[p + w.U_STATE] = 1
        if is_full(s, ring):
            work_ns, s[p + w.U_WORK] = s[p + w.U_WORK], 0
            if not busy(s, p, lane, work_ns):
                return False
        state = 1
    if state == 2:
        learn(s, x, p, lane)
        state = 1
    if state == 1:
        if is_full(s, ring):
            s[p + w.U_STATE] = 2
            slots, call = s[ring + w.R_SLOTS], s[written + w.M_CALL]
            call_wait(s, p, PUBLISH, s[p + w.U_SITE], slots, lane, call, s[written + w.M_STEP])
            pend(s, p, s[written + w.M_PENDING])
            return True
        s[p + w.U_STATE] = 3
        draws, along = s[actor + w.A_DRAWS], float(s[p + w.U_BYTES])
        copy_ns = next_cost(s, x, draws, w.RING_PUBLISH, along)
        if not busy(s, p, lane, s[p + w.U_WORK] + copy_ns):
            return False
    s[written + w.M_PUBLISHED] = s[w.NOW]
    n_armed = publish(s, x, ring, written, s[actor + w.A_COURIER], s[actor + w.A_DRAWS])
    _ring_bell(s, x, actor, lane, s[ring + w.R_N_PUBLISHED], n_armed, s[w.DETAIL])
    s[p + w.P_ROUTINE] = s[p + w.U_CALLER]
    return True


@compiled
def _ring_bell(
    s: Words, x: Numbers, actor: int, lane: int, index: int, n_armed: int, asleep_ns: int
) -> None:
    draws = s[actor + w.A_DRAWS]
    if n_armed:
        s[actor + w.A_NOTIFIED] += 1
        ring_ns = table_cost(s, x, draws, w.NOTIFY_ARMED, index, float(asleep_ns))
        if n_armed > 1:
            ring_ns += (n_armed - 1) * further_ns(s, x, draws, index, asleep_ns)
        s[lane + w.L_OWED] += ring_ns
    else:
        s[actor + w.A_ELIDED] += 1
        s[lane + w.L_OWED] += table_cost(s, x, draws, w.NOTIFY_UNARMED, index, 0.0)


# Reading.


@compiled
def call_read(
    s: Words, process: int, caller: int, ring: int, inbox: int, n_bytes: int, work_ns: int
) -> None:
    """Copy a message out, release its slot, and work on it, slowed by the last wait."""
    s[process + w.P_ROUTINE] = READ
    s[process + w.Y_CALLER] = caller
    s[process + w.Y_STATE] = 0
    s[process + w.Y_RING] = ring
    s[process + w.Y_INBOX] = inbox
    s[process + w.Y_BYTES] = n_bytes
    s[process + w.Y_WORK] = s[process + w.V_SLOWNESS] + work_ns


@compiled
def reading(s: Words, x: Numbers, p: int) -> bool:
    """Copy a message out, release its slot, and work on it."""
    actor, ring = s[p + w.P_ACTOR], s[p + w.Y_RING]
    lane, draws = s[actor + w.A_LANE], s[actor + w.A_DRAWS]
    state = s[p + w.Y_STATE]
    if state == 0:
        exit_ns = next_cost(s, x, draws, w.WAIT_EXIT, 0.0)
        copy_ns = next_cost(s, x, draws, w.RING_READ, float(s[p + w.Y_BYTES]))
        s[lane + w.L_OWED] += exit_ns + copy_ns
        state = 1
        if s[ring + w.R_CAN_FILL] != 0:
            s[p + w.Y_STATE] = 1
            if not busy(s, p, lane, 0):  # somebody may be waiting for this slot
                return False
    if state == 1:
        inbox = s[p + w.Y_INBOX]
        rested_ns = release(s, x, ring, inbox, s[actor + w.A_COURIER])
        if rested_ns >= 0:
            s[actor + w.A_NOTIFIED] += 1
            index = s[inbox + w.W_N_RELEASED]
            s[lane + w.L_OWED] += table_cost(
                s, x, s[actor + w.A_RELEASE_DRAWS], w.NOTIFY_ARMED, index, float(rested_ns)
            )
        s[p + w.Y_STATE] = 2
        if not busy(s, p, lane, s[p + w.Y_WORK]):
            return False
    s[p + w.P_ROUTINE] = s[p + w.Y_CALLER]
    return True
