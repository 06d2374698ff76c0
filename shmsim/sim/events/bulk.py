"""Large payloads: their routes, copies and slots of the arena (`shmsim.sim.payload`), on words."""

from shmsim.routing import ARENA, INLINE, MIB, SOCKET
from shmsim.sim.events import words as w
from shmsim.sim.events.acting import TAKE, WORKER, WRITE, busy, call_read, call_wait, learn, pend
from shmsim.sim.events.asking import ask
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.cores import is_full, spin_thread
from shmsim.sim.events.device import await_stream, copy
from shmsim.sim.events.luck import next_cost
from shmsim.sim.events.memory import Numbers, Words
from shmsim.units import FOREVER_NS

# As in shmsim.sim.payload.
BLOCKS_FROM_BYTES = 16 * MIB
LINE_BYTES = 64
COUNT_BYTES = 8
ROW_BYTES = 32
NOTHING = -1  # is held by a copy from a buffer


@compiled
def bulk_of(s: Words, bulk: int, message: int) -> int:
    """Bytes of bulk that a step carries to every worker."""
    return s[bulk + w.BU_PER_STEP] + s[bulk + w.BU_PER_TOKEN] * s[message + w.M_N_PREFILL]


@compiled
def size_cost(s: Words, x: Numbers, table: int, cost: int, n_bytes: int) -> int:
    """A cost by size: beyond the largest that was measured, in proportion to it."""
    stream = s[table + cost]
    if stream == 0:
        s[w.STATUS] = w.REFUSED
        return 0
    largest_bytes = int(x[s[stream + w.S_XS] + s[stream + w.S_POINTS] - 1])
    if n_bytes <= largest_bytes or largest_bytes == 0:
        return next_cost(s, x, table, cost, float(n_bytes))
    cost_ns = next_cost(s, x, table, cost, float(largest_bytes))
    # cost * n // largest, whose product need not fit into a word.
    whole, rest = n_bytes // largest_bytes, n_bytes % largest_bytes
    return cost_ns * whole + cost_ns * rest // largest_bytes


@compiled
def _lines(n_bytes: int) -> int:
    return -(-n_bytes // LINE_BYTES) * LINE_BYTES


@compiled
def _ask_route(
    s: Words,
    x: Numbers,
    bulk: int,
    n_bytes: int,
    is_stream: int,
    message_bytes: int,
    n_free: int,
) -> int:
    asked = w.ROUTE_ASKED
    s[asked + w.RC_BYTES] = n_bytes
    s[asked + w.RC_IS_STREAM] = is_stream
    s[asked + w.RC_MESSAGE] = message_bytes
    s[asked + w.RC_SLOT] = s[bulk + w.BU_SLOT_BYTES]
    s[asked + w.RC_FREE] = n_free
    state, numbers = s[bulk + w.BU_ROUTE_STATE], s[bulk + w.BU_ROUTE_NUMBERS]
    function = s[bulk + w.BU_ROUTE]
    return ask(function, s, x, w.ASK_ROUTE, state, numbers, asked, 0, 0)


@compiled
def _n_free_for(s: Words, bulk: int, n_bytes: int) -> int:
    n_free = 0
    for index in range(s[bulk + w.BU_N_CLASSES]):
        slot_class = s[bulk + w.BU_CLASSES] + w.SLOT_CLASS * index
        if n_bytes <= s[slot_class + w.SC_BYTES]:
            n_free += s[slot_class + w.SC_FREE]
    return n_free


@compiled
def _take_slot(s: Words, bulk: int, n_bytes: int) -> int:
    """Fill a slot of the smallest class that fits and has one free."""
    for index in range(s[bulk + w.BU_N_CLASSES]):
        slot_class = s[bulk + w.BU_CLASSES] + w.SLOT_CLASS * index
        if s[slot_class + w.SC_FREE] > 0 and n_bytes <= s[slot_class + w.SC_BYTES]:
            s[slot_class + w.SC_FREE] -= 1
            s[bulk + w.BU_N_HELD] += 1
            s[bulk + w.BU_N_MOST] = max(s[bulk + w.BU_N_MOST], s[bulk + w.BU_N_HELD])
            return index
    return -1


@compiled
def _settle_route(wanted: int, fits_inline: bool, n_free: int) -> int:
    """As `shmsim.routing.settle`."""
    if wanted == SOCKET or (wanted == ARENA and n_free > 0):
        return wanted
    if fits_inline:
        return INLINE
    return ARENA if n_free > 0 else SOCKET


@compiled
def _sent_of(s: Words, bulk: int, step: int) -> int:
    return s[bulk + w.BU_SENT] + w.SENT * (step % s[bulk + w.BU_N_SENT])


@compiled
def _place(s: Words, x: Numbers, bulk: int, sent: int) -> None:
    """Find a way for each part of a message: the pickle stream, and bulk kept out of it."""
    own_bytes, n_bulk = s[sent + w.SE_OWN], s[sent + w.SE_BULK]
    slot_bytes = s[bulk + w.BU_SLOT_BYTES]
    in_band = s[sent + w.SE_IN_BAND] != 0
    stream_bytes = own_bytes + n_bulk if in_band else own_bytes
    n_parts = 1 if in_band else 2
    message_bytes = own_bytes + n_bulk
    s[sent + w.SE_N_PARTS] = n_parts
    first, second = sent + w.SE_PARTS, sent + w.SE_PARTS + w.PART
    for part in (first, second):
        s[part + w.PT_CLASS] = -1
        s[part + w.PT_N_READERS] = s[bulk + w.BU_N_READERS]
    s[first + w.PT_BYTES] = stream_bytes
    s[second + w.PT_BYTES] = n_bulk
    if n_parts == 1 and stream_bytes < s[bulk + w.BU_DIVERT]:
        wanted = _ask_route(s, x, bulk, stream_bytes, 1, stream_bytes, 0)
        if wanted == INLINE and stream_bytes <= slot_bytes:
            s[first + w.PT_ROUTE] = INLINE
            s[sent + w.SE_TABLE] = 0
            return
    at = _lines(COUNT_BYTES + ROW_BYTES * n_parts)
    s[sent + w.SE_TABLE] = at
    # From the largest to the smallest, of equals the stream first.
    is_bulk_first = n_parts == 2 and n_bulk > stream_bytes
    for turn in range(n_parts):
        index = 1 - turn if is_bulk_first else turn
        part = first + w.PART * index
        n_bytes = s[part + w.PT_BYTES]
        room = slot_bytes - at
        n_free = _n_free_for(s, bulk, n_bytes)
        is_stream = 1 if index == 0 else 0
        wanted = _ask_route(s, x, bulk, n_bytes, is_stream, message_bytes, n_free)
        route = _settle_route(wanted, n_bytes <= room, n_free)
        if route != wanted:
            s[bulk + w.BU_N_FALLBACKS] += 1
        if route == ARENA:
            s[part + w.PT_CLASS] = _take_slot(s, bulk, n_bytes)
            message_bytes -= n_bytes
        elif route == INLINE:
            at += min(_lines(n_bytes), room)
        s[part + w.PT_ROUTE] = route


@compiled
def _count(s: Words, bulk: int, who: int, sent: int) -> None:
    tally = s[bulk + w.BU_TALLIES] + w.TALLY * who
    s[tally + w.TA_PAYLOADS] += 1
    for index in range(s[sent + w.SE_N_PARTS]):
        s[tally + w.TA_ROUTES + s[sent + w.SE_PARTS + w.PART * index + w.PT_ROUTE]] += 1


@compiled
def _memcpy_ns(s: Words, x: Numbers, draws: int, sent: int, into_arena: bool) -> int:
    """Copies between private and shared memory that publish and read do not hold already."""
    copy_ns = 0
    for index in range(s[sent + w.SE_N_PARTS]):
        part = sent + w.SE_PARTS + w.PART * index
        n_bytes = s[part + w.PT_BYTES]
        if s[part + w.PT_ROUTE] == INLINE:
            n_bytes -= s[sent + w.SE_OWN] if index == 0 else 0
        elif s[part + w.PT_ROUTE] != ARENA or not into_arena:
            n_bytes = 0
        if n_bytes != 0:
            copy_ns += size_cost(s, x, draws, w.MEMCPY, n_bytes)
    return copy_ns


@compiled
def _ring_bytes(s: Words, sent: int) -> int:
    """What of the slot publish and read are priced by."""
    is_inline = s[sent + w.SE_PARTS + w.PT_ROUTE] == INLINE
    return s[sent + w.SE_TABLE] + (s[sent + w.SE_OWN] if is_inline else 0)


@compiled
def let_go(s: Words, bulk: int, rank: int, sent: int) -> None:
    """A reader no longer needs what slots of the arena hold; the last one frees them."""
    for index in range(s[sent + w.SE_N_PARTS]):
        part = sent + w.SE_PARTS + w.PART * index
        if s[part + w.PT_CLASS] < 0:
            continue
        s[s[bulk + w.BU_TALLIES] + w.TALLY * (1 + rank) + w.TA_LET_GO] += 1
        s[part + w.PT_N_READERS] -= 1
        if s[part + w.PT_N_READERS] == 0:
            slot_class = s[bulk + w.BU_CLASSES] + w.SLOT_CLASS * s[part + w.PT_CLASS]
            s[slot_class + w.SC_FREE] += 1
            s[bulk + w.BU_N_HELD] -= 1
            s[bulk + w.BU_N_RELEASED] += 1
    s[sent + w.SE_N_HOLDERS] -= 1
    if s[sent + w.SE_N_HOLDERS] == 0:
        s[sent + w.SE_STEP] = -1


# The scheduler.


@compiled
def call_write(s: Words, p: int, own_bytes: int, n_bulk: int, work_ns: int) -> None:
    """Pickle the message in `U_MESSAGE`, wait for a slot of the ring, then place the bulk."""
    s[p + w.P_ROUTINE] = WRITE
    s[p + w.I_STATE] = 0
    s[p + w.I_OWN] = own_bytes
    s[p + w.I_BULK] = n_bulk
    s[p + w.I_WORK] = work_ns


@compiled
def writing(s: Words, x: Numbers, p: int, caller: int) -> bool:
    """Leaves in `I_OWN` the bytes that the publication is priced by, in `I_WORK` its copies."""
    engine, actor = s[p + w.P_ENGINE], s[p + w.P_ACTOR]
    bulk, ring = s[engine + w.EN_BULK], s[engine + w.EN_REQUESTS]
    draws, lane = s[actor + w.A_DRAWS], s[p + w.P_LANE]
    written = p + w.U_MESSAGE
    n_bulk = s[p + w.I_BULK]
    in_band = n_bulk < s[bulk + w.BU_DIVERT]
    if s[p + w.I_STATE] == 0:
        pickle_ns = size_cost(s, x, draws, w.PICKLE, n_bulk if in_band else 0)
        s[p + w.I_STATE] = 1
        return busy(s, p, lane, s[p + w.I_WORK] + pickle_ns)
    if s[p + w.I_STATE] == 2:
        learn(s, x, p, lane)
        s[p + w.I_STATE] = 1
    step = s[written + w.M_STEP]
    if is_full(s, ring):
        s[p + w.I_STATE] = 2
        slots, site = s[ring + w.R_SLOTS], s[engine + w.EN_SLOTS_SITE]
        call_wait(s, p, WRITE, site, slots, lane, s[written + w.M_CALL], step)
        pend(s, p, s[written + w.M_PENDING])
        return True
    sent = _sent_of(s, bulk, step)
    if s[sent + w.SE_STEP] >= 0:
        s[w.STATUS] = w.REFUSED
    s[sent + w.SE_STEP] = step
    s[sent + w.SE_OWN] = s[p + w.I_OWN]
    s[sent + w.SE_BULK] = n_bulk
    s[sent + w.SE_IN_BAND] = 1 if in_band else 0
    s[sent + w.SE_N_HOLDERS] = s[bulk + w.BU_N_READERS]
    _place(s, x, bulk, sent)
    _count(s, bulk, 0, sent)
    copy_ns = _memcpy_ns(s, x, draws, sent, True)
    for index in range(s[sent + w.SE_N_PARTS]):
        part = sent + w.SE_PARTS + w.PART * index
        if s[part + w.PT_ROUTE] == SOCKET:
            for _ in range(s[bulk + w.BU_N_READERS]):
                copy_ns += size_cost(s, x, draws, w.SOCKET_SEND, s[part + w.PT_BYTES])
    s[p + w.I_OWN] = _ring_bytes(s, sent)
    s[p + w.I_WORK] = copy_ns
    s[p + w.P_ROUTINE] = caller
    return True


# The workers.


@compiled
def call_take(s: Words, p: int) -> None:
    """Take the message in `F_BATCH`, which carries bulk, and send the bulk on to the device."""
    s[p + w.P_ROUTINE] = TAKE
    s[p + w.I_STATE] = 0


@compiled
def taking(s: Words, x: Numbers, p: int) -> bool:
    """Copy a message with bulk out, call for the copy to the device, launch."""
    engine, actor, rank = s[p + w.P_ENGINE], s[p + w.P_ACTOR], s[p + w.P_RANK]
    bulk, ring = s[engine + w.EN_BULK], s[engine + w.EN_REQUESTS]
    draws, lane, device = s[actor + w.A_DRAWS], s[p + w.P_LANE], s[engine + w.EN_DEVICE]
    step = s[p + w.F_BATCH + w.M_STEP]
    has_device = rank < s[bulk + w.BU_N_DEVICES]
    state = s[p + w.I_STATE]
    if state == 0:
        sent = _sent_of(s, bulk, step)
        s[p + w.I_SENT] = sent
        _count(s, bulk, 1 + rank, sent)
        s[lane + w.L_OWED] += _memcpy_ns(s, x, draws, sent, False)
        n_sequences = s[p + w.F_BATCH + w.M_N_SEQUENCES]
        work_ns = next_cost(s, x, draws, w.DECODE_REQUEST, float(n_sequences))
        in_band_bytes = s[sent + w.SE_BULK] if s[sent + w.SE_IN_BAND] != 0 else 0
        work_ns += size_cost(s, x, draws, w.UNPICKLE, in_band_bytes)
        for index in range(s[sent + w.SE_N_PARTS]):
            part = sent + w.SE_PARTS + w.PART * index
            if s[part + w.PT_ROUTE] == SOCKET:
                work_ns += size_cost(s, x, draws, w.SOCKET_RECEIVE, s[part + w.PT_BYTES])
        s[p + w.I_STATE] = 1
        inbox = s[ring + w.R_INBOXES] + w.SOURCE * rank
        call_read(s, p, TAKE, ring, inbox, _ring_bytes(s, sent), work_ns)
        return True
    sent = s[p + w.I_SENT]
    n_bulk = s[sent + w.SE_BULK]
    if state == 1:
        state = 4
        if has_device:
            state = 3
            wanted = s[bulk + w.BU_MEMORY]
            last = sent + w.SE_PARTS + w.PART * (s[sent + w.SE_N_PARTS] - 1)
            # Only the arena can be registered: the other routes end in memory of their own.
            is_in_arena = s[last + w.PT_ROUTE] == ARENA
            memory = wanted if is_in_arena or wanted == w.PINNED else w.PAGEABLE
            s[p + w.I_OWN] = memory
            if memory == w.PINNED:
                s[p + w.I_STATE] = 7
                return busy(s, p, lane, size_cost(s, x, draws, w.MEMCPY, n_bulk))
            is_blocked = memory == w.PAGEABLE and n_bulk >= BLOCKS_FROM_BYTES
            if is_blocked and await_stream(s, device, step, p):
                thread = s[lane + w.L_THREAD]
                s[p + w.I_STARTED] = s[w.NOW]
                s[p + w.I_STATE] = 2
                if thread != 0:
                    spin_thread(s, thread, w.LOOK_AT_STREAM, device, step, 0, FOREVER_NS, 0)
                return False
    if state == 2:
        if s[lane + w.L_THREAD] == 0:
            s[actor + w.A_CPU] += s[w.NOW] - s[p + w.I_STARTED]
        state = 3
    if state == 7:
        let_go(s, bulk, rank, sent)
        state = 3
    if state == 3:
        is_registered = s[p + w.I_OWN] != w.PAGEABLE
        call = w.H2D_CALL_REGISTERED if is_registered else w.H2D_CALL_PAGEABLE
        whole = w.H2D_REGISTERED if is_registered else w.H2D_PAGEABLE
        call_ns = size_cost(s, x, draws, call, n_bulk)
        s[p + w.I_LANDS_AFTER] = size_cost(s, x, draws, whole, n_bulk) - call_ns
        s[p + w.I_STATE] = 5
        return busy(s, p, lane, call_ns)
    if state == 5:
        held = NOTHING if s[p + w.I_OWN] == w.PINNED else sent
        copy(s, device, step, max(s[p + w.I_LANDS_AFTER], 0), engine, rank, held)
        state = 4
    if state == 4:
        s[p + w.I_STATE] = 6
        return busy(s, p, lane, next_cost(s, x, draws, w.LAUNCH, 0.0))
    if not has_device:
        let_go(s, bulk, rank, sent)
    s[p + w.P_ROUTINE] = WORKER
    return True
