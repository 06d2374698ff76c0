"""The scheduler's loop (`shmsim.sim.loop.StepLoop`), on words."""

from shmsim.sim.events import words as w
from shmsim.sim.events.acting import (
    RECEIVE,
    SCHEDULER,
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
from shmsim.sim.events.agenda import go_on_after, schedule
from shmsim.sim.events.batching import (
    admit,
    batch_of,
    complete,
    form,
    has_work,
    is_finished,
    next_arrival_ns,
)
from shmsim.sim.events.bulk import bulk_of, call_write
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.device import leave, step_of
from shmsim.sim.events.luck import next_cost, table_cost
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.events.sources import message

(
    _BEGIN,
    _ROUND,
    _SEND,
    _FORMED,
    _WRITTEN,
    _PUBLISHED,
    _SECOND_SENT,
    _SENT,
    _FIRST_RECEIVED,
    _FIRST_READ,
    _IN_FLIGHT,
    _AWAIT,
    _RECEIVED,
    _IDLE,
    _ASLEEP,
    _AWAKE,
    _LEAVE,
    _LEFT,
    _END,
) = range(19)


@compiled
def scheduling(s: Words, x: Numbers, p: int) -> bool:
    """Form batches, publish them, take replies in, until every request has its tokens."""
    engine, actor, lane = s[p + w.P_ENGINE], s[p + w.P_ACTOR], s[p + w.P_LANE]
    batcher, draws = s[engine + w.EN_BATCHER], s[actor + w.A_DRAWS]
    is_async, two_calls = s[engine + w.EN_IS_ASYNC] != 0, s[engine + w.EN_N_CALLS] == 2
    state = s[p + w.P_STATE]
    while True:
        if state == _BEGIN:
            wake(s, lane)
            state = _ROUND
        if state == _ROUND:
            if is_finished(s, batcher):
                state = _LEAVE
            else:
                admit(s, batcher, s[w.NOW] + s[lane + w.L_OWED])
                state = _SEND

        # As many batches as may be in flight.
        if state == _SEND:
            n_in_flight = s[p + w.D_N_IN_FLIGHT]
            if has_work(s, batcher) and n_in_flight < s[engine + w.EN_DEPTH]:
                s[p + w.D_IS_LAST] = 1 if n_in_flight == s[engine + w.EN_DEPTH] - 1 else 0
                scheduled_ns = s[w.NOW] + s[lane + w.L_OWED]
                batch = form(s, batcher)
                s[batch + w.BT_SCHEDULED] = scheduled_ns
                s[p + w.D_BATCH] = batch
                state = _FORMED
            elif n_in_flight != 0:
                state = _AWAIT
            else:
                state = _IDLE
        batch = s[p + w.D_BATCH]
        if state == _FORMED:
            n = s[batch + w.M_N_SEQUENCES]
            n_bytes = s[s[engine + w.EN_REQUEST_BYTES] + n]
            if n_bytes < 0:
                s[p + w.P_STATE] = _FORMED
                s[w.STATUS] = w.WANTS_BYTES
                s[w.DETAIL] = n
                return False
            work_ns = next_cost(s, x, draws, w.SCHEDULE, float(n))
            work_ns += next_cost(s, x, draws, w.ENCODE_REQUEST, float(n))
            write_message(s, p, batch, 0, s[batch + w.M_PENDING])
            n_bulk = bulk_of(s, s[engine + w.EN_BULK], batch)
            s[p + w.I_OWN] = n_bytes
            s[p + w.I_WORK] = work_ns
            state = _WRITTEN
            if n_bulk != 0:
                s[p + w.P_STATE] = _WRITTEN
                call_write(s, p, n_bytes, n_bulk, work_ns)
                return True
        if state == _WRITTEN:
            s[p + w.P_STATE] = _PUBLISHED
            _publish_request(s, p, engine, s[p + w.I_OWN], s[p + w.I_WORK])
            return True
        if state == _PUBLISHED:
            s[batch + w.BT_PUBLISHED] = s[p + w.U_MESSAGE + w.M_PUBLISHED]
            if is_async and two_calls:
                s[p + w.P_STATE] = _SENT
                _send_second_call(s, x, p, engine, draws, batch)
                return True
            state = _SENT
        if state == _SENT:
            waits_twice = not is_async and two_calls
            if s[p + w.D_IS_LAST] != 0 and not waits_twice:
                learn(s, x, p, lane)
            if waits_twice:
                s[p + w.P_STATE] = _FIRST_RECEIVED
                call_receive(s, p, 0, batch, s[engine + w.EN_SECOND_BYTES])
                return True
            state = _IN_FLIGHT
        if state == _FIRST_RECEIVED:
            work_ns = next_cost(s, x, draws, w.DECODE_REPLY, 0.0)
            s[p + w.P_STATE] = _FIRST_READ
            _read_reply(s, p, engine, s[engine + w.EN_N_REPLIES] - 1, work_ns)
            return True
        if state == _FIRST_READ:
            s[p + w.P_STATE] = _SECOND_SENT
            _send_second_call(s, x, p, engine, draws, batch)
            return True
        if state == _SECOND_SENT:
            learn(s, x, p, lane)
            state = _IN_FLIGHT
        if state == _IN_FLIGHT:
            s[p + w.D_N_IN_FLIGHT] += 1
            if s[p + w.D_N_IN_FLIGHT] == 1:
                s[p + w.D_FIRST] = batch
            state = _SEND
            continue

        # The reply to the oldest.
        if state == _AWAIT:
            learn(s, x, p, lane)  # where nothing was sent since the last reply
            batch = s[p + w.D_FIRST]
            s[p + w.D_N_IN_FLIGHT] -= 1
            n_bytes = s[s[engine + w.EN_REPLY_BYTES] + s[batch + w.M_N_SEQUENCES]]
            s[p + w.P_STATE] = _RECEIVED
            call_receive(s, p, s[engine + w.EN_N_CALLS] - 1, batch, n_bytes)
            return True
        if state == _RECEIVED:
            taken_in = s[p + w.D_FIRST]
            # The next oldest, if one is in flight.
            s[p + w.D_FIRST] = batch_of(s, batcher, s[taken_in + w.M_STEP] + 1)
            along = float(s[taken_in + w.M_N_SEQUENCES])
            work_ns = next_cost(s, x, draws, w.DECODE_REPLY, along)
            work_ns += next_cost(s, x, draws, w.COMPLETE, along)
            complete(s, batcher, taken_in, s[w.NOW])
            _record(s, p, engine, taken_in)
            leave(s, s[engine + w.EN_DEVICE], s[taken_in + w.M_STEP])
            s[p + w.P_STATE] = _ROUND
            _read_reply(s, p, engine, s[engine + w.EN_N_REPLIES] - 1, work_ns)
            return True

        # Nothing to do until the next arrival.
        if state == _IDLE:
            s[p + w.P_STATE] = _ASLEEP
            return busy(s, p, lane, 0)
        index = s[p + w.D_N_IDLES]
        idle_draws = s[actor + w.A_REST_DRAWS]
        if state == _ASLEEP:
            rested_ns = max(next_arrival_ns(s, batcher) - s[w.NOW], 0)
            s[p + w.D_RESTED] = rested_ns
            along = float(rested_ns)
            late_ns = table_cost(s, x, idle_draws, w.TIMER_OVERSHOOT, index, along)
            sleep(s, lane)
            s[p + w.P_STATE] = _AWAKE
            return go_on_after(s, p, rested_ns + late_ns)
        if state == _AWAKE:
            wake(s, lane)
            rested_ns = s[p + w.D_RESTED]
            cpu_ns = table_cost(s, x, idle_draws, w.DOZE_CPU, index, float(rested_ns))
            if s[lane + w.L_THREAD] == 0:
                s[actor + w.A_CPU] += cpu_ns
            else:
                s[lane + w.L_UNPLACED] += cpu_ns
            s[p + w.D_N_IDLES] = index + 1
            s[p + w.P_STATE] = _ROUND
            rest(s, lane, w.PARKED, rested_ns)
            return busy(s, p, lane, slowness(s, x, actor, idle_draws, index, w.PARKED, rested_ns))

        # Tell the workers to leave.
        if state == _LEAVE:
            written = p + w.U_MESSAGE
            for k in range(w.MESSAGE):
                s[written + k] = 0
            s[written + w.M_STEP] = s[engine + w.EN_N_STEPS]
            s[p + w.P_STATE] = _LEFT
            _publish_request(s, p, engine, s[engine + w.EN_SECOND_BYTES], 0)
            return True
        if state == _LEFT:
            s[p + w.P_STATE] = _END
            return busy(s, p, lane, 0)
        sleep(s, lane)
        s[p + w.P_IS_ENDED] = 1
        schedule(s, 0, w.ENDED, p)
        return False


@compiled
def _publish_request(s: Words, p: int, engine: int, n_bytes: int, work_ns: int) -> None:
    ring, site = s[engine + w.EN_REQUESTS], s[engine + w.EN_SLOTS_SITE]
    call_publish(s, p, SCHEDULER, ring, site, n_bytes, work_ns, s[p + w.P_LANE])


@compiled
def _send_second_call(s: Words, x: Numbers, p: int, engine: int, draws: int, batch: int) -> None:
    work_ns = next_cost(s, x, draws, w.ENCODE_REQUEST, 0.0)
    write_message(s, p, batch, 1, s[batch + w.M_PENDING])
    _publish_request(s, p, engine, s[engine + w.EN_SECOND_BYTES], work_ns)


@compiled
def _read_reply(s: Words, p: int, engine: int, rank: int, work_ns: int) -> None:
    ring = s[s[engine + w.EN_REPLIES] + rank]
    inbox = s[ring + w.R_INBOXES]
    call_read(s, p, SCHEDULER, ring, inbox, s[p + w.G_BYTES], work_ns)


@compiled
def _record(s: Words, p: int, engine: int, batch: int) -> None:
    s[engine + w.EN_N_STEPS] += 1
    if s[w.KEEPS_ROWS] == 0:
        return
    row = s[w.STEP_ROWS] + w.STEP_ROW * s[w.N_STEP_ROWS]
    s[w.N_STEP_ROWS] += 1
    if s[w.N_STEP_ROWS] + w.SPARE_ROWS > s[w.STEP_ROOM] and s[w.STATUS] == w.RUNNING:
        s[w.STATUS] = w.ROWS_FULL
    known = step_of(s, s[engine + w.EN_DEVICE], s[batch + w.M_STEP])
    s[row] = s[engine + w.EN_NUMBER]
    s[row + 1] = s[batch + w.M_STEP]
    s[row + 2] = s[batch + w.M_N_DECODE]
    s[row + 3] = s[batch + w.M_N_PREFILL]
    s[row + 4] = s[batch + w.BT_SCHEDULED]
    s[row + 5] = s[batch + w.BT_PUBLISHED]
    s[row + 6] = s[known + w.SS_LAUNCHED]
    s[row + 7] = s[known + w.SS_DONE]
    s[row + 8] = s[p + w.G_FIRST_PUBLISHED]
    s[row + 9] = s[w.NOW]


# Replies.


@compiled
def call_receive(s: Words, p: int, call: int, batch: int, n_bytes: int) -> None:
    """Wait for the replies of one rank after the other, and read all but the last."""
    s[p + w.P_ROUTINE] = RECEIVE
    s[p + w.G_STATE] = 0
    s[p + w.G_CALL] = call
    s[p + w.G_BATCH] = batch
    s[p + w.G_BYTES] = n_bytes
    s[p + w.G_RANK] = 0


@compiled
def receiving(s: Words, p: int) -> bool:
    """Leaves in `G_FIRST_PUBLISHED` when the output rank published its reply."""
    engine = s[p + w.P_ENGINE]
    rank, batch = s[p + w.G_RANK], s[p + w.G_BATCH]
    if s[p + w.G_STATE] == 1:
        inbox = s[s[s[engine + w.EN_REPLIES] + rank] + w.R_INBOXES]
        ring = s[inbox + w.W_RING]
        taken = message(s, inbox)
        if rank == 0:
            s[p + w.G_FIRST_PUBLISHED] = s[taken + w.M_PUBLISHED]
        s[inbox + w.W_N_TAKEN] += 1
        rank += 1
        s[p + w.G_RANK] = rank
        if rank == s[engine + w.EN_N_REPLIES]:
            s[p + w.P_ROUTINE] = SCHEDULER
            return True
        s[p + w.G_STATE] = 0
        call_read(s, p, RECEIVE, ring, inbox, s[p + w.G_BYTES], 0)
        return True
    site = s[s[engine + w.EN_REPLY_SITES] + rank]
    inbox = s[s[s[engine + w.EN_REPLIES] + rank] + w.R_INBOXES]
    s[p + w.G_STATE] = 1
    call, step = s[p + w.G_CALL], s[batch + w.M_STEP]
    call_wait(s, p, RECEIVE, site, inbox, s[p + w.P_LANE], call, step)
    know(s, p, s[batch + w.M_N_DECODE], s[batch + w.M_N_PREFILL], s[batch + w.M_N_KV])
    pend(s, p, 1)
    return True
