"""A worker, its reply thread and the end of its steps (`shmsim.sim.loop.StepLoop`), on words."""

from shmsim.sim.events import words as w
from shmsim.sim.events.acting import (
    FINISH,
    REPLIES,
    WORKER,
    busy,
    call_publish,
    call_read,
    call_wait,
    know,
    learn,
    pend,
    rest,
    sleep,
    slowness,
    wake,
    write_message,
)
from shmsim.sim.events.agenda import go_on_after, schedule, start
from shmsim.sim.events.bulk import bulk_of, call_take, size_cost
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.cores import is_there, run_thread, sleep_thread, wake_thread
from shmsim.sim.events.device import is_drawn, launch, leave, step_of
from shmsim.sim.events.luck import next_cost
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.events.sources import message, sleep_for
from shmsim.sim.events.waiting import begin_spin, end_spin
from shmsim.units import FOREVER_NS, US

LOOK_AGAIN_NS = 20 * US  # as in shmsim.sim.echo

(
    _BEGIN,
    _CALL,
    _CALLED,
    _READ,
    _REPLIED,
    _SECOND_CALLED,
    _SECOND_READ,
    _HAND_OVER,
    _LEAVE,
    _END,
) = range(10)


@compiled
def working(s: Words, x: Numbers, p: int) -> bool:
    """Read calls, launch steps, and see to their end or leave that to the reply thread."""
    engine, actor, lane = s[p + w.P_ENGINE], s[p + w.P_ACTOR], s[p + w.P_LANE]
    rank, draws, ring = s[p + w.P_RANK], s[actor + w.A_DRAWS], s[engine + w.EN_REQUESTS]
    inbox = s[ring + w.R_INBOXES] + w.SOURCE * rank
    site, reply_slots = s[actor + w.A_SITES], s[actor + w.A_SITES + 1]
    is_async, two_calls = s[engine + w.EN_IS_ASYNC] != 0, s[engine + w.EN_N_CALLS] == 2
    batch = p + w.F_BATCH
    state = s[p + w.P_STATE]
    while True:
        if state == _BEGIN:
            if is_async:
                start(s, s[p + w.P_OTHER])
            wake(s, lane)
            state = _CALL
        if state == _CALL:
            s[p + w.P_STATE] = _CALLED
            call_wait(s, p, WORKER, site, inbox, lane, 0, s[p + w.E_STEP])
            know(s, p, s[p + w.E_N_DECODE], s[p + w.E_N_PREFILL], s[p + w.E_N_KV])
            pend(s, p, s[p + w.E_PENDING])
            return True
        if state == _CALLED:
            _take_message(s, p, inbox)
            if s[batch + w.M_IS_BATCH] == 0:
                s[p + w.P_STATE] = _LEAVE
                return busy(s, p, lane, 0)
            s[p + w.P_STATE] = _READ
            if bulk_of(s, s[engine + w.EN_BULK], batch) != 0:
                call_take(s, p)
                return True
            n = s[batch + w.M_N_SEQUENCES]
            work_ns = next_cost(s, x, draws, w.DECODE_REQUEST, float(n))
            work_ns += next_cost(s, x, draws, w.LAUNCH, 0.0)
            n_bytes = s[s[engine + w.EN_REQUEST_BYTES] + n]
            call_read(s, p, WORKER, ring, inbox, n_bytes, work_ns)
            return True
        if state == _READ:
            if rank < s[engine + w.EN_N_DEVICES]:
                if not is_drawn(s, x, s[engine + w.EN_DEVICE], batch):
                    return False
                launch(s, x, s[engine + w.EN_DEVICE], batch)
            s[p + w.E_N_DECODE] = s[batch + w.M_N_DECODE]
            s[p + w.E_N_PREFILL] = s[batch + w.M_N_PREFILL]
            s[p + w.E_N_KV] = s[batch + w.M_N_KV]
            s[p + w.E_PENDING] = s[batch + w.M_PENDING]
            s[p + w.E_STEP] = s[batch + w.M_STEP] + 1
            state = _HAND_OVER
            if two_calls:
                state = _REPLIED
                if not is_async and rank < s[engine + w.EN_N_REPLIES]:
                    work_ns = next_cost(s, x, draws, w.ENCODE_REPLY, 0.0)
                    write_message(s, p, batch, 0, 1)
                    s[p + w.P_STATE] = _REPLIED
                    replies = s[s[engine + w.EN_REPLIES] + rank]
                    n_bytes = s[engine + w.EN_SECOND_BYTES]
                    call_publish(s, p, WORKER, replies, reply_slots, n_bytes, work_ns, lane)
                    return True
        if state == _REPLIED:
            s[p + w.P_STATE] = _SECOND_CALLED
            call_wait(s, p, WORKER, site, inbox, lane, 1, s[batch + w.M_STEP])
            know(s, p, s[p + w.E_N_DECODE], s[p + w.E_N_PREFILL], s[p + w.E_N_KV])
            pend(s, p, 1)
            return True
        if state == _SECOND_CALLED:
            s[inbox + w.W_N_TAKEN] += 1
            work_ns = next_cost(s, x, draws, w.DECODE_REQUEST, 0.0)
            s[p + w.P_STATE] = _HAND_OVER
            call_read(s, p, WORKER, ring, inbox, s[engine + w.EN_SECOND_BYTES], work_ns)
            return True
        if state == _HAND_OVER:
            if not is_async:
                learn(s, x, p, lane)
                s[p + w.P_STATE] = _CALL
                s[p + w.P_ROUTINE] = FINISH
                s[p + w.F_CALLER] = WORKER
                s[p + w.F_STATE] = 0
                return True
            _put(s, s[p + w.P_OTHER], batch)
            learn(s, x, p, lane)
            state = _CALL
            continue
        if state == _LEAVE:
            sleep(s, lane)
            if is_async:
                s[p + w.P_STATE] = _END
                _put(s, s[p + w.P_OTHER], batch)
                return False  # until the reply thread has ended
        s[p + w.P_IS_ENDED] = 1
        schedule(s, 0, w.ENDED, p)
        return False


@compiled
def _take_message(s: Words, p: int, inbox: int) -> None:
    taken = message(s, inbox)
    for k in range(w.MESSAGE):
        s[p + w.F_BATCH + k] = s[taken + k]
    s[inbox + w.W_N_TAKEN] += 1


# What the main thread hands over to the reply thread.


@compiled
def _put(s: Words, replies: int, batch: int) -> None:
    """Hand a step over; whoever waits for it is told when this event happens."""
    n = s[replies + w.E_N_ITEMS]
    if n == w.STEPS_ROOM:
        s[w.STATUS] = w.REFUSED
        return
    at = (s[replies + w.E_FIRST_ITEM] + n) % w.STEPS_ROOM
    for k in range(w.MESSAGE):
        s[s[replies + w.E_ITEMS] + w.MESSAGE * at + k] = s[batch + k]
    s[replies + w.E_N_ITEMS] = n + 1
    schedule(s, 0, w.STORED, replies)


@compiled
def hand_over(s: Words, replies: int) -> None:
    """Give the oldest step handed over to the reply thread, if it waits for one."""
    n = s[replies + w.E_N_ITEMS]
    if n == 0 or s[replies + w.E_IS_WAITING] == 0:
        return
    first = s[replies + w.E_FIRST_ITEM]
    for k in range(w.MESSAGE):
        s[replies + w.F_BATCH + k] = s[s[replies + w.E_ITEMS] + w.MESSAGE * first + k]
    s[replies + w.E_FIRST_ITEM] = (first + 1) % w.STEPS_ROOM
    s[replies + w.E_N_ITEMS] = n - 1
    s[replies + w.E_IS_WAITING] = 0
    schedule(s, 0, w.RESUME, replies)


@compiled
def replying(s: Words, p: int) -> bool:
    """What vLLM's async output thread does: wait for the device beside the main thread."""
    lane = s[p + w.P_LANE]
    state = s[p + w.P_STATE]
    if state == 0:
        if s[p + w.E_IS_AWAKE] != 0 and s[p + w.E_N_ITEMS] == 0:
            s[p + w.P_STATE] = 1
            return busy(s, p, lane, 0)
        state = 2
    if state == 1:
        sleep(s, lane)
        s[p + w.E_IS_AWAKE] = 0
        state = 2
    if state == 2:
        s[p + w.P_STATE] = 3
        s[p + w.E_IS_WAITING] = 1
        hand_over(s, p)
        return False
    if s[p + w.E_IS_AWAKE] == 0:
        wake(s, lane)
        s[p + w.E_IS_AWAKE] = 1
    if s[p + w.F_BATCH + w.M_IS_BATCH] == 0:
        sleep(s, lane)
        schedule(s, 0, w.ENDED, p)
        return False
    s[p + w.P_STATE] = 0
    s[p + w.P_ROUTINE] = FINISH
    s[p + w.F_CALLER] = REPLIES
    s[p + w.F_STATE] = 0
    return True


# The end of a step.

(
    _F_BEGIN,
    _F_WAITED,
    _F_MEET,
    _F_ARRIVED,
    _F_LOOK,
    _F_AWAKE,
    _F_RAN,
    _F_SPUN,
    _F_MET,
    _F_REPLY,
    _F_DONE,
) = range(11)


@compiled
def finishing(s: Words, x: Numbers, p: int) -> bool:
    """Wait for the device, if this worker has one, and reply, where it is due."""
    engine, actor, lane = s[p + w.P_ENGINE], s[p + w.P_ACTOR], s[p + w.P_LANE]
    rank, draws, device = s[p + w.P_RANK], s[actor + w.A_DRAWS], s[engine + w.EN_DEVICE]
    batch, thread = p + w.F_BATCH, s[lane + w.L_THREAD]
    step = s[batch + w.M_STEP]
    has_device = rank < s[engine + w.EN_N_DEVICES]
    end = 0
    if has_device and s[p + w.F_STATE] < _F_REPLY:
        end = s[step_of(s, device, step) + w.SS_ENDS] + w.SOURCE * rank
    state = s[p + w.F_STATE]
    while True:
        if state == _F_BEGIN:
            s[p + w.F_WORK] = 0
            if not has_device:
                state = _F_REPLY
            elif s[actor + w.A_N_SITES] > 2:
                s[p + w.F_STATE] = _F_WAITED
                site = s[actor + w.A_SITES + 2]
                call_wait(s, p, FINISH, site, end, lane, 0, step)
                know(s, p, s[batch + w.M_N_DECODE], s[batch + w.M_N_PREFILL], s[batch + w.M_N_KV])
                pend(s, p, 1)
                return True
            else:
                s[p + w.F_STATE] = _F_MEET
                if not busy(s, p, lane, 0):
                    return False
                state = _F_MEET
        if state == _F_WAITED:
            s[p + w.F_WORK] = s[p + w.V_SLOWNESS]
            leave(s, device, step)
            state = _F_REPLY

        # As realrun waits for its echo device.
        if state == _F_MEET:
            s[p + w.F_RESTED_FROM] = s[w.NOW]
            state = _F_LOOK
            if thread != 0:
                s[p + w.F_CPU] = s[thread + w.T_CPU]
            elif is_there(s, end):
                state = _F_MET
            else:
                soonest_ns = s[step_of(s, device, step) + w.SS_SOONEST]
                s[p + w.F_SPINS_FROM] = max(soonest_ns - s[engine + w.EN_GUARD], s[w.NOW])
                sleep_for(s, end)
                s[p + w.F_STATE] = _F_ARRIVED
                return False
        if state == _F_ARRIVED:
            s[lane + w.L_EMULATION] += s[w.NOW] - s[p + w.F_SPINS_FROM]
            state = _F_MET
        if state == _F_LOOK:
            if is_there(s, end):
                s[lane + w.L_EMULATION] += s[thread + w.T_CPU] - s[p + w.F_CPU]
                state = _F_MET
            else:
                now_ns, guard_ns = s[w.NOW], s[engine + w.EN_GUARD]
                is_guarded = s[lane + w.L_IS_GUARDED] != 0
                is_crowded = is_guarded and now_ns < s[lane + w.L_CROWDED_UNTIL]
                wake_ns = s[step_of(s, device, step) + w.SS_SOONEST] - guard_ns
                if is_crowded:  # the spin is slept through, by the timer
                    late_ns = next_cost(s, x, draws, w.TIMER_OVERSHOOT, float(guard_ns))
                    wake_ns = max(wake_ns + guard_ns, now_ns + LOOK_AGAIN_NS) + late_ns
                s[p + w.F_CROWDED] = 1 if is_crowded else 0
                state = _F_RAN
                if wake_ns > now_ns:
                    sleep_thread(s, thread)
                    s[p + w.F_STATE] = _F_AWAKE
                    return go_on_after(s, p, wake_ns - now_ns)
        if state == _F_AWAKE:
            wake_thread(s, thread)
            s[p + w.F_STATE] = _F_RAN
            if not run_thread(s, thread, 0):
                return False
            state = _F_RAN
        if state == _F_RAN:
            if s[p + w.F_CROWDED] == 0:
                s[p + w.F_STATE] = _F_SPUN
                begin_spin(s, lane, end, FOREVER_NS, False)
                return False
            state = _F_LOOK
            continue
        if state == _F_SPUN:
            end_spin(s, lane, end)
            state = _F_LOOK
            continue
        if state == _F_MET:
            rested_ns = s[w.NOW] - s[p + w.F_RESTED_FROM]
            work_ns = next_cost(s, x, draws, w.DEVICE_RETURN, 0.0)
            rest_draws = s[actor + w.A_REST_DRAWS]
            work_ns += slowness(s, x, actor, rest_draws, step, w.DOZED, rested_ns)
            rest(s, lane, w.DOZED, rested_ns)
            s[p + w.F_WORK] = work_ns
            leave(s, device, step)
            state = _F_REPLY

        if state == _F_REPLY:
            s[p + w.F_STATE] = _F_DONE
            work_ns = s[p + w.F_WORK]
            if rank >= s[engine + w.EN_N_REPLIES]:
                return busy(s, p, lane, work_ns)
            output_bytes = s[s[engine + w.EN_BULK] + w.BU_OUTPUT]
            if has_device and output_bytes != 0:
                work_ns += size_cost(s, x, draws, w.D2H, output_bytes)
            n = s[batch + w.M_N_SEQUENCES]
            work_ns += next_cost(s, x, draws, w.ENCODE_REPLY, float(n))
            write_message(s, p, batch, 1, 1)
            replies, slots = s[s[engine + w.EN_REPLIES] + rank], s[actor + w.A_SITES + 1]
            n_bytes = s[s[engine + w.EN_REPLY_BYTES] + n]
            call_publish(s, p, FINISH, replies, slots, n_bytes, work_ns, lane)
            return True
        s[p + w.P_ROUTINE] = s[p + w.F_CALLER]
        return True
