"""One wait by plan: `shmsim.sim.actor.Actor.await_source` and `shmsim.sim.contended`, on words.

With a core to itself a process looks up how its wait ends. On shared cores it lives through every
stage; what there are generators in generators are states here, and `B_CALLER` remembers where to go
on after a sleep on the doorbell.
"""

from shmsim.sim.events import words as w
from shmsim.sim.events.acting import busy, looks_of, rest, slowness
from shmsim.sim.events.agenda import go_on_after, schedule, set_timer
from shmsim.sim.events.asking import ask
from shmsim.sim.events.compiling import compiled, inlined
from shmsim.sim.events.cores import (
    DESCHEDULED_NS,
    is_there,
    run_thread,
    sleep_thread,
    spin_thread,
    wake_thread,
)
from shmsim.sim.events.luck import cost_at, number_at, table_cost
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.events.sources import found_ns, look_up, ring_delay_ns, sleep_for
from shmsim.units import FOREVER_NS, MS
from shmsim.wait import DOZE, KIND_NAMES, NAP, PARK, POLL, REHEARSE, SPIN, YIELD

CROWDED_FOR_NS = 100 * MS  # as in shmsim.sim.contended
_N_KINDS = len(KIND_NAMES)

(
    _BEGIN,
    _BEGUN,
    _ARRIVED,
    _LOOKED_UP,
    _STAGE,
    _STAGE_DONE,
    _NEXT_STAGE,
    _SPIN,
    _SPIN_AGAIN,
    _LOOK,
    _SPUN,
    _DETECTED,
    _BELL,
    _RANG,
    _REACHED,
    _BELL_DONE,
    _TURN,
    _TAKEN,
    _CARRIED,
    _NAP_DONE,
    _NAP_BEGUN,
    _NAP_OVER,
    _WAKE,
    _WOKEN,
    _SEEN,
) = range(25)


@inlined
def _is_sound(s: Words, plan: int) -> bool:
    """As `shmsim.wait.check_plan`."""
    reached_ns = 0
    for _ in range(4):
        kind, until_ns, period_ns = s[plan], s[plan + 1], s[plan + 2]
        if kind < 0 or kind >= _N_KINDS or until_ns < reached_ns:
            return False
        if period_ns < 0 or (kind == POLL and period_ns == 0):
            return False
        if until_ns >= FOREVER_NS:
            return kind not in (NAP, REHEARSE)
        reached_ns = until_ns
        plan += 3
    return False


@compiled
def waiting(s: Words, x: Numbers, p: int) -> bool:
    """Wait by plan until something is there, and record it."""
    site, source, lane = s[p + w.V_SITE], s[p + w.V_SOURCE], s[p + w.V_LANE]
    actor, thread = s[p + w.P_ACTOR], s[lane + w.L_THREAD]
    table, index = s[site + w.Z_DRAWS], s[p + w.V_INDEX]
    lesson = p + w.V_LESSON
    state = s[p + w.V_STATE]
    while True:
        if state == _BEGIN:
            index = s[site + w.Z_N_WAITS]
            s[site + w.Z_N_WAITS] = index + 1
            s[p + w.V_INDEX] = index
            call = s[lesson + w.X_CALL]
            now_ns = s[w.NOW] + s[lane + w.L_OWED]
            s[lesson + w.X_SINCE_SEEN] = now_ns - s[site + w.Z_LAST_SEEN]
            x[s[p + w.P_UNIFORM]] = number_at(s, x, s[site + w.Z_UNIFORM], index)
            ask(
                s[site + w.Z_POLICY],
                s,
                x,
                w.ASK_PLAN,
                s[site + w.Z_STATE] + call * s[site + w.Z_STATE_WORDS],
                s[site + w.Z_NUMBERS] + call * s[site + w.Z_STATE_NUMBERS],
                lesson,
                s[p + w.P_UNIFORM],
                p + w.V_PLAN,
            )
            if not _is_sound(s, p + w.V_PLAN):
                s[w.STATUS] = w.REFUSED
                return False
            plan = s[site + (w.Z_IDLE_PLAN if looks_of(s, x, site, call) < 1.0 else w.Z_PLAN)]
            plan_ns = cost_at(s, x, plan, index, float(s[lane + w.L_COLD_PLAN]))
            s[lane + w.L_COLD_PLAN] = 0
            s[p + w.V_STATE] = _BEGUN
            enter_ns = plan_ns + table_cost(s, x, table, w.WAIT_ENTER, index, 0.0)
            if not busy(s, p, lane, enter_ns):
                return False
            state = _BEGUN

        # With a core to itself.
        if state == _BEGUN:
            s[p + w.V_STARTED] = s[w.NOW]
            if thread == 0:
                state = _ARRIVED
                if not is_there(s, source):
                    s[source + w.W_WAITER] = p
                    s[source + w.W_STARTED] = s[w.NOW]
                    sleep_for(s, source)
                    s[p + w.V_STATE] = _ARRIVED
                    return False
            else:
                for stage in range(4):
                    s[lesson + w.X_CPU + stage] = 0
                s[p + w.V_BOOKED] = s[thread + w.T_CPU] + s[lane + w.L_UNPLACED]
                s[p + w.V_STAGE] = 0
                s[p + w.V_REHEARSED] = 0
                s[p + w.V_DOZED] = 0
                s[p + w.V_RESTED] = 0
                s[p + w.V_SPUN] = 0
                s[lesson + w.X_OVERSHOOT] = 0
                s[lesson + w.X_BELLED] = 0
                state = _STAGE
        if state == _ARRIVED:
            s[source + w.W_WAITER] = 0
            s[source + w.W_SLEEPER] = 0
            started_ns = s[p + w.V_STARTED]
            look_up(s, x, p, found_ns(s, source) - started_ns, s[source + w.W_LATE])
            s[p + w.V_STATE] = _LOOKED_UP
            seen_ns = started_ns + s[lesson + w.X_SEEN]
            if not go_on_after(s, p, seen_ns - s[w.NOW]):
                return False
            state = _LOOKED_UP
        if state == _LOOKED_UP:
            for stage in range(4):
                s[actor + w.A_CPU] += s[lesson + w.X_CPU + stage]
            sender, receiver = s[source + w.W_COURIER], s[actor + w.A_COURIER]
            if s[lesson + w.X_BELLED] != 0 and sender != 0 and receiver != 0:
                latency_ns = s[w.NOW] - found_ns(s, source) - s[p + w.V_DELAY]
                along = float(s[p + w.V_RESTED])
                carry_ns = table_cost(s, x, table, w.IO_THREAD_CPU, index, along)
                carry_ns = min(carry_ns, latency_ns // 3)
                s[sender + w.Q_CPU] += carry_ns
                s[receiver + w.Q_CPU] += carry_ns
            break

        # On shared cores: the stages.
        if state == _STAGE:
            step = p + w.V_PLAN + 3 * s[p + w.V_STAGE]
            kind, until_ns, period_ns = s[step], s[step + 1], s[step + 2]
            if is_there(s, source):
                state = _SEEN
            elif kind == REHEARSE:
                s[p + w.V_REHEARSED] = 1
                is_scheduler = s[actor + w.A_IS_SCHEDULER] != 0
                cost = w.REHEARSAL if is_scheduler else w.WORKER_REHEARSAL
                along = float(s[p + w.V_DOZED])
                s[p + w.B_FOUND] = 0
                s[p + w.V_STATE] = _STAGE_DONE
                return run_thread(s, thread, table_cost(s, x, table, cost, index, along))
            else:
                s[p + w.V_BEGUN] = s[w.NOW]
                deadline_ns = FOREVER_NS
                if until_ns < FOREVER_NS:
                    deadline_ns = s[p + w.V_STARTED] + until_ns
                s[p + w.V_DEADLINE] = deadline_ns
                if s[w.NOW] >= deadline_ns:
                    state = _NEXT_STAGE
                elif kind in (SPIN, YIELD):
                    state = _SPIN
                elif kind in (DOZE, PARK):
                    s[p + w.B_CALLER] = _STAGE_DONE
                    s[p + w.B_DEADLINE] = deadline_ns
                    s[p + w.B_PERIOD] = period_ns
                    state = _BELL
                else:
                    if kind != POLL:
                        period_ns = deadline_ns - s[w.NOW]
                    along = float(period_ns)
                    overshoot_ns = table_cost(s, x, table, w.TIMER_OVERSHOOT, index, along)
                    s[lesson + w.X_OVERSHOOT] = overshoot_ns
                    s[p + w.V_DOZED] = period_ns
                    s[p + w.B_CALLER] = _NAP_DONE
                    state = _NAP_BEGUN
        if state == _STAGE_DONE:
            spent_ns = s[thread + w.T_CPU] + s[lane + w.L_UNPLACED]
            s[lesson + w.X_CPU + s[p + w.V_STAGE]] = spent_ns - s[p + w.V_BOOKED]
            s[p + w.V_BOOKED] = spent_ns
            state = _SEEN if s[p + w.B_FOUND] != 0 else _NEXT_STAGE
        if state == _NEXT_STAGE:
            s[p + w.V_STAGE] += 1
            state = _STAGE
            continue

        # Spinning, and giving way while the cores are crowded.
        if state == _SPIN:
            kind = s[p + w.V_PLAN + 3 * s[p + w.V_STAGE]]
            crowded_until_ns = s[lane + w.L_CROWDED_UNTIL]
            s[p + w.B_FOUND] = 0
            if s[lane + w.L_IS_GUARDED] != 0 and kind == SPIN and s[w.NOW] < crowded_until_ns:
                s[p + w.B_CALLER] = _SPIN_AGAIN
                s[p + w.B_DEADLINE] = min(crowded_until_ns, s[p + w.V_DEADLINE])
                s[p + w.B_PERIOD] = 0
                state = _BELL
            else:
                state = _LOOK
        if state == _SPIN_AGAIN:
            if s[p + w.B_FOUND] != 0:
                state = _DETECTED
            elif s[w.NOW] >= s[p + w.V_DEADLINE]:
                state = _STAGE_DONE
                continue
            else:
                state = _LOOK
        if state == _LOOK:
            s[p + w.V_STATE] = _SPUN
            yields = s[p + w.V_PLAN + 3 * s[p + w.V_STAGE]] == YIELD
            begin_spin(s, lane, source, s[p + w.V_DEADLINE], yields)
            return False
        if state == _SPUN:
            end_spin(s, lane, source)
            if is_there(s, source):
                s[p + w.B_FOUND] = 1
                state = _DETECTED
            else:
                state = _STAGE_DONE if s[w.NOW] >= s[p + w.V_DEADLINE] else _SPIN
                continue
        if state == _DETECTED:
            if s[lesson + w.X_BELLED] != 0:
                state = _STAGE_DONE
                continue
            s[p + w.V_SPUN] = 1
            s[p + w.V_RESTED] = s[w.NOW] - s[p + w.V_BEGUN]
            kind = s[p + w.V_PLAN + 3 * s[p + w.V_STAGE]]
            cost = w.SPIN_DETECTION if kind == SPIN else w.YIELD_DETECTION
            s[p + w.V_STATE] = _STAGE_DONE
            if not run_thread(s, thread, table_cost(s, x, table, cost, index, 0.0)):
                return False
            state = _STAGE_DONE
            continue

        # Asleep on the doorbell.
        if state == _BELL:
            s[p + w.B_BEGUN] = s[w.NOW]
            s[source + w.W_ARMED_SINCE] = s[w.NOW]
            sleep_for(s, source)
            sleep_thread(s, thread)
            deadline_ns = s[p + w.B_DEADLINE]
            if deadline_ns < FOREVER_NS:
                set_timer(s, source, deadline_ns - s[w.NOW], w.GIVE_UP, w.TIMED)
            s[p + w.V_STATE] = _RANG
            return False
        if state == _RANG:
            s[source + w.W_SLEEPER] = 0
            rested_ns = s[w.NOW] - s[p + w.B_BEGUN]
            delay_ns = 0
            if s[p + w.P_VALUE] != 0:
                delay_ns = ring_delay_ns(s[source + w.W_LATE], rested_ns, s[p + w.B_PERIOD])
                left_ns = s[p + w.B_DEADLINE] - s[w.NOW]
                if delay_ns > left_ns:
                    delay_ns = left_ns
                    rested_ns += left_ns
                    s[p + w.P_VALUE] = 0
            s[p + w.V_DOZED] = rested_ns
            state = _REACHED
            if delay_ns != 0:
                s[p + w.V_STATE] = _REACHED
                if not go_on_after(s, p, delay_ns):
                    return False
        if state == _REACHED:
            rested_ns = s[p + w.V_DOZED]
            along = float(rested_ns)
            if s[p + w.P_VALUE] != 0:
                s[lesson + w.X_BELLED] = 1
                cpu_ns = table_cost(s, x, table, w.PARK_CPU, index, along)
                period_ns = s[p + w.B_PERIOD]
                if period_ns:
                    look_ns = table_cost(s, x, table, w.DOZE_CPU, index, float(period_ns))
                    cpu_ns += rested_ns // period_ns * look_ns
                latency_ns = table_cost(s, x, table, w.WAKE_LATENCY, index, along)
                s[p + w.B_CPU] = cpu_ns
                s[p + w.B_LATENCY] = latency_ns
                s[p + w.B_FOUND] = 1
                state = _WAKE
                if s[source + w.W_COURIER] != 0 and s[actor + w.A_COURIER] != 0:
                    carry_ns = table_cost(s, x, table, w.IO_THREAD_CPU, index, along)
                    carry_ns = min(carry_ns, latency_ns // 3)
                    s[p + w.B_LATENCY] = latency_ns - 2 * carry_ns
                    s[p + w.B_CARRY] = carry_ns
                    s[p + w.B_COURIER] = s[source + w.W_COURIER]
                    s[p + w.B_IS_SECOND] = 0
                    state = _TURN
            else:
                overshoot_ns = table_cost(s, x, table, w.TIMER_OVERSHOOT, index, along)
                s[lesson + w.X_OVERSHOOT] = overshoot_ns
                s[p + w.B_LATENCY] = overshoot_ns
                s[p + w.B_CPU] = table_cost(s, x, table, w.DOZE_CPU, index, along)
                s[p + w.B_FOUND] = 0
                state = _WAKE
        if state == _BELL_DONE:
            state = s[p + w.B_CALLER]
            if state != _NAP_DONE and s[p + w.B_FOUND] == 0:
                s[source + w.W_ARMED_SINCE] = -1
                s[p + w.B_FOUND] = 1 if is_there(s, source) else 0
            continue

        # Carried by the I/O threads of whoever rang, and of this process.
        if state == _TURN:
            s[p + w.V_STATE] = _TAKEN
            request(s, s[p + w.B_COURIER], p)
            return False
        if state == _TAKEN:
            carrier = s[s[p + w.B_COURIER] + w.Q_THREAD]
            wake_thread(s, carrier)
            s[p + w.V_STATE] = _CARRIED
            return run_thread(s, carrier, s[p + w.B_CARRY])
        if state == _CARRIED:
            courier = s[p + w.B_COURIER]
            sleep_thread(s, s[courier + w.Q_THREAD])
            s[courier + w.Q_IS_TAKEN] = 0
            schedule(s, 0, w.RELEASED, courier)
            state = _WAKE
            if s[p + w.B_IS_SECOND] == 0:
                s[p + w.B_IS_SECOND] = 1
                s[p + w.B_COURIER] = s[actor + w.A_COURIER]
                state = _TURN
                continue

        # Woken, and naps.
        if state == _NAP_DONE:
            s[p + w.B_FOUND] = 1 if is_there(s, source) else 0
            if s[p + w.B_FOUND] != 0 or s[w.NOW] >= s[p + w.V_DEADLINE]:
                state = _STAGE_DONE
                continue
            state = _NAP_BEGUN
        if state == _NAP_BEGUN:
            sleep_thread(s, thread)
            s[p + w.V_STATE] = _NAP_OVER
            return go_on_after(s, p, s[p + w.V_DOZED])
        if state == _NAP_OVER:
            s[p + w.B_LATENCY] = s[lesson + w.X_OVERSHOOT]
            along = float(s[p + w.V_DOZED])
            s[p + w.B_CPU] = table_cost(s, x, table, w.DOZE_CPU, index, along)
            state = _WAKE
        if state == _WAKE:
            latency_ns, cpu_ns = s[p + w.B_LATENCY], s[p + w.B_CPU]
            on_core_ns = min(cpu_ns, latency_ns)
            s[lane + w.L_UNPLACED] += cpu_ns - on_core_ns
            s[p + w.B_CPU] = on_core_ns
            s[p + w.V_STATE] = _WOKEN
            if not go_on_after(s, p, latency_ns - on_core_ns):
                return False
            state = _WOKEN
        if state == _WOKEN:
            wake_thread(s, thread)
            s[p + w.V_STATE] = _BELL_DONE
            if not run_thread(s, thread, s[p + w.B_CPU]):
                return False
            state = _BELL_DONE
            continue

        if state == _SEEN:
            mode = w.SPUN
            if s[p + w.V_DOZED] != 0:
                mode = w.DOZED if s[p + w.V_SPUN] != 0 else w.PARKED
                s[p + w.V_RESTED] = s[p + w.V_DOZED]
            if s[p + w.V_REHEARSED] != 0 and s[lesson + w.X_BELLED] == 0:
                mode = w.REHEARSED
            s[p + w.V_MODE] = mode
            s[lesson + w.X_STAGE] = s[p + w.V_STAGE]
            break
    mode, rested_ns = s[p + w.V_MODE], s[p + w.V_RESTED]
    s[p + w.V_SLOWNESS] = slowness(s, x, actor, table, index, mode, rested_ns)
    rest(s, lane, mode, rested_ns)
    _record(s, x, p, found_ns(s, source))
    s[p + w.P_ROUTINE] = s[p + w.V_CALLER]
    return True


@compiled
def begin_spin(s: Words, lane: int, source: int, deadline_ns: int, yields: bool) -> None:
    """Look until it is there, the deadline, or the lane finds that its core was taken from it."""
    thread = s[lane + w.L_THREAD]
    s[thread + w.T_OFF_CORE] = 0
    gives_way = 1 if s[lane + w.L_IS_GUARDED] != 0 and not yields else 0
    s[source + w.W_SPINNER] = thread
    about = w.LOOK_AT_SOURCE
    spin_thread(s, thread, about, source, 0, gives_way, deadline_ns, 1 if yields else 0)


@compiled
def end_spin(s: Words, lane: int, source: int) -> None:
    """Whoever lost its core meanwhile gives way for a while."""
    thread = s[lane + w.L_THREAD]
    s[source + w.W_SPINNER] = 0
    if s[thread + w.T_GIVES_WAY] != 0 and s[thread + w.T_OFF_CORE] > DESCHEDULED_NS:
        s[lane + w.L_CROWDED_UNTIL] = s[w.NOW] + CROWDED_FOR_NS


@compiled
def request(s: Words, courier: int, process: int) -> None:
    """Ask an I/O thread to carry a ring; the process goes on when it is its turn."""
    n = s[courier + w.Q_N_WAITING]
    s[s[courier + w.Q_WAITING] + n] = process
    s[courier + w.Q_N_WAITING] = n + 1
    serve_next(s, courier)


@compiled
def serve_next(s: Words, courier: int) -> None:
    """Give an I/O thread that is free to the first who waits for it."""
    n = s[courier + w.Q_N_WAITING]
    if n == 0 or s[courier + w.Q_IS_TAKEN] != 0:
        return
    queue = s[courier + w.Q_WAITING]
    s[courier + w.Q_IS_TAKEN] = 1
    schedule(s, 0, w.RESUME, s[queue])
    for i in range(1, n):
        s[queue + i - 1] = s[queue + i]
    s[courier + w.Q_N_WAITING] = n - 1


@inlined
def _record(s: Words, x: Numbers, p: int, published_ns: int) -> None:
    """Keep the wait that has just ended, for its policy and for the records."""
    site, lane, lesson = s[p + w.V_SITE], s[p + w.V_LANE], p + w.V_LESSON
    now_ns, started_ns, thread = s[w.NOW], s[p + w.V_STARTED], s[lane + w.L_THREAD]
    s[site + w.Z_LAST_SEEN] = now_ns
    n_preempted = 0
    if thread != 0:
        n_preempted = s[thread + w.T_N_PREEMPTED] - s[lane + w.L_N_PREEMPTED]
        s[lane + w.L_N_PREEMPTED] = s[thread + w.T_N_PREEMPTED]
    s[lesson + w.X_PUBLISHED] = published_ns - started_ns
    s[lesson + w.X_SEEN] = now_ns - started_ns
    s[lesson + w.X_PREEMPTED] = n_preempted
    n = s[site + w.Z_N_FINISHED]
    if n == w.FINISHED_ROOM:
        s[w.STATUS] = w.REFUSED
        return
    s[site + w.Z_N_FINISHED] = n + 1
    kept = s[site + w.Z_FINISHED] + w.LESSON * n
    for k in range(w.LESSON):
        s[kept + k] = s[lesson + k]
    x[s[site + w.Z_FINISHED_UNIFORM] + n] = x[s[p + w.P_UNIFORM]]
    if s[w.KEEPS_ROWS] == 0:
        return
    row = s[w.WAIT_ROWS] + w.WAIT_ROW * s[w.N_WAIT_ROWS]
    s[w.N_WAIT_ROWS] += 1
    if s[w.N_WAIT_ROWS] + w.SPARE_ROWS > s[w.WAIT_ROOM] and s[w.STATUS] == w.RUNNING:
        s[w.STATUS] = w.ROWS_FULL
    stage = s[lesson + w.X_STAGE]
    s[row] = s[s[p + w.P_ACTOR] + w.A_NUMBER]
    s[row + 1] = s[site + w.Z_KIND]
    s[row + 2] = s[lesson + w.X_CALL]
    s[row + 3] = s[p + w.V_STEP]
    s[row + 4] = s[lesson + w.X_PENDING]
    s[row + 5] = started_ns
    s[row + 6] = published_ns
    s[row + 7] = now_ns
    s[row + 8] = stage
    cpu_ns = 0
    for k in range(4):
        cpu_ns += s[lesson + w.X_CPU + k]
    s[row + 9] = cpu_ns
    s[row + 10] = s[lesson + w.X_OVERSHOOT]
    s[row + 11] = s[lesson + w.X_BELLED]
    s[row + 12] = n_preempted
    s[row + 13] = s[p + w.V_PLAN + 3 * stage]
