"""The memory of the event engine: which word of which object means what.

All state of a run lies in one array ``s`` of int64 words and one array ``x`` of float64. An object
is the address of its first word in ``s``, 0 is no object, and the names here are offsets. So a
compiled function takes two arrays whatever it works on, and the engine can return to Python between
any two events and go on later. An underscore is a word of the array that the name before it begins.
"""

from typing import Final

from shmsim.wait import WaitCosts

# Words of the run, from address 0.
(
    NOW,
    NEXT_ID,
    N_ENTITIES,
    ACTIVE,  # process that runs now
    STATUS,
    DETAIL,
    HEAP,
    N_HEAP,
    HEAP_ROOM,
    HOST,  # 0: every thread has a core to itself
    N_UNENDED,  # schedulers and workers whose end has not happened yet
    WAIT_ROWS,
    N_WAIT_ROWS,
    WAIT_ROOM,
    STEP_ROWS,
    N_STEP_ROWS,
    STEP_ROOM,
    KEEPS_ROWS,
    ROUTE_ASKED,  # what a routing is told
    _,
    _,
    _,
    _,
    TOLD_COSTS,  # what policies are told, but the price
    _,
    _,
    _,
    _,
    TOLD_SHARING,
    N_EVENTS,
    IS_HELD,  # 1: several processes go on in one event, so that none may move the clock
    HAS_FIRST,
    FIRST,  # entry of what happens before the whole heap, if it has one
    _,
    _,
    _,
    GLOBALS,
) = range(37)
#: Words of `TOLD_COSTS`.
N_TOLD: Final = len(WaitCosts._fields) - 2
#: Word of ``x``: the price of delay.
PRICE: Final = 0

# Why the engine returned. Rows are taken whatever it is, so that it may replace ROWS_FULL.
(
    RUNNING,
    FINISHED,
    ROWS_FULL,
    WANTS_LUCK,
    WANTS_THEFTS,
    WANTS_BYTES,
    WANTS_STEP,
    REFUSED,
) = range(8)

# Events. Those from TIMERS on belong to a timer, which its owner moves or takes back.
(RESUME, ENDED, STOP, STORED, RELEASED, STEP_DONE, LANDED, STREAM_FREE) = range(8)
(TIMERS, CORE_TIMER, METER, GIVE_UP) = (16, 16, 17, 18)
#: First word of whoever owns a timer: its place in the agenda, from 1; 0: it is not set.
TIMER: Final = 0
ENTRY: Final = 4  # words of the agenda for each event: instant, order, event, about what

# What comes first of one instant (`shmsim.sim.clock`).
(URGENT, NORMAL) = range(2)
(WORK, TIMED) = range(2)

# A stream of random numbers, and the curve that they are sent through: one line of a cache.
(S_KEY, _, S_BLOCK, S_AT, S_NEXT, S_POINTS, S_XS, S_QUANTILES, STREAM) = range(9)

# Costs: their place in a table of streams.
(
    SCHEDULE,
    COMPLETE,
    ENCODE_REQUEST,
    DECODE_REQUEST,
    ENCODE_REPLY,
    DECODE_REPLY,
    RING_PUBLISH,
    RING_READ,
    LAUNCH,
    DEVICE_RETURN,
    WAIT_ENTER,
    WAIT_EXIT,
    SPIN_DETECTION,
    YIELD_DETECTION,
    NOTIFY_UNARMED,
    NOTIFY_ARMED,
    NOTIFY_FURTHER,
    WAKE_LATENCY,
    PARK_CPU,
    TIMER_OVERSHOOT,
    DOZE_CPU,
    REHEARSAL,
    WORKER_REHEARSAL,
    SLOW_AFTER_SPIN,
    SLOW_AFTER_PARK,
    SLOW_AFTER_DOZE,
    SLOW_AFTER_REHEARSAL,
    WORKER_SLOW_AFTER_SPIN,
    WORKER_SLOW_AFTER_PARK,
    WORKER_SLOW_AFTER_DOZE,
    WORKER_SLOW_AFTER_REHEARSAL,
    IO_THREAD_CPU,
    PICKLE,
    UNPICKLE,
    MEMCPY,
    SOCKET_SEND,
    SOCKET_RECEIVE,
    H2D_CALL_REGISTERED,
    H2D_REGISTERED,
    H2D_CALL_PAGEABLE,
    H2D_PAGEABLE,
    D2H,
    COST_TABLE,
) = range(43)
# What a waiter did last: added to SLOW_AFTER_SPIN or WORKER_SLOW_AFTER_SPIN.
(SPUN, PARKED, DOZED, REHEARSED) = range(4)

# The cores of the box, and the threads on them (`shmsim.sim.cores`).
(
    _timer,
    H_CORES,
    H_N_CORES,
    H_STRIDE,
    H_SLICE,
    H_TICK,
    H_QUOTA,
    H_PERIOD,
    H_STEAL_EVERY,
    H_STEAL,
    H_IS_THROTTLED,
    H_N_RUNNING,
    H_LEFT,
    H_METERED,
    BOX,
) = range(15)
(
    _timer,
    K_PHASE,
    K_RUNNING,
    K_N_QUEUED,
    K_BUSY,
    K_STOLEN,
    K_IS_STOLEN,
    K_STOLEN_SINCE,
    K_STOLEN_FROM,
    K_SETTLED,
    K_MEAN,
    K_IS_SLICE_OVER,
    K_QUEUE,  # and the words behind it
    CORE,
) = range(14)
(
    T_IS_PINNED,
    T_CORE,
    T_CPU,
    T_RUN_QUEUE,
    T_N_PREEMPTED,
    T_WANTED,  # the process that goes on once it has what it wants
    T_LEFT,
    T_LOOK,
    T_ABOUT,
    T_STEP,
    T_GIVES_WAY,
    T_UNTIL,
    T_YIELDS,
    T_VRUNTIME,
    T_DEADLINE,
    T_PROTECTED,
    T_LAG,
    T_SINCE,
    T_OFF_CORE,
    THREAD,
) = range(20)
(NO_LOOK, LOOK_AT_SOURCE, LOOK_AT_STREAM) = range(3)

# What is waited for, and the rings (`shmsim.sim.source`).
(
    _timer,
    W_TYPE,
    W_RING,
    W_WAITER,  # process that waits on a core of its own
    W_STARTED,
    W_SLEEPER,  # process that an arrival resumes
    W_IS_TRIGGERED,
    W_SPINNER,
    W_ARMED_SINCE,  # -1: nobody is asleep on the doorbell
    W_COURIER,
    W_LATE,  # how much later than alone the last ring reaches who sleeps
    W_RESTED,  # of a reader: after what rest it is rung for, -1: it is not
    W_SINCE,  # of slots and the end of a step: since when it is there; -1: it is not
    W_N_ARRIVED,
    W_N_TAKEN,
    W_N_RELEASED,
    SOURCE,
) = range(17)
(INBOX, SLOTS, STEP_END) = range(3)
(
    R_CAN_FILL,
    R_N_SLOTS,
    R_N_PUBLISHED,
    R_N_READERS,
    R_INBOXES,
    R_SLOTS,
    R_MESSAGES,
    R_MASK,  # its messages are as many as a power of two, less one
    RING,
) = range(9)
(
    M_STEP,
    M_CALL,
    M_IS_BATCH,  # 0 tells the workers to leave
    M_PENDING,
    M_N_DECODE,
    M_N_PREFILL,
    M_N_KV,
    M_N_SEQUENCES,
    M_PUBLISHED,
    MESSAGE,
) = range(10)

# Who acts, its threads, its I/O thread, and where it waits (`shmsim.sim.actor`).
(
    A_IS_SCHEDULER,
    A_LANE,
    A_REPLY_LANE,
    A_COURIER,
    A_CPU,
    A_NOTIFIED,
    A_ELIDED,
    A_DRAWS,
    A_RELEASE_DRAWS,
    A_REST_DRAWS,
    A_NUMBER,
    A_N_SITES,
    A_SITES,  # and the words behind it
    ACTOR,
) = range(14)
(
    L_THREAD,
    L_IS_GUARDED,
    L_OWED,
    L_COLD_PLAN,
    L_COLD_AFTER,
    L_CROWDED_UNTIL,
    L_EMULATION,
    L_UNPLACED,
    L_N_PREEMPTED,
    LANE,
) = range(10)
(Q_THREAD, Q_CPU, Q_IS_TAKEN, Q_N_WAITING, Q_WAITING, COURIER) = range(6)
(
    Z_KIND,
    Z_POLICY,  # address of a function
    Z_STATE,
    Z_STATE_WORDS,
    Z_NUMBERS,
    Z_STATE_NUMBERS,
    Z_UNIFORM,
    Z_DRAWS,
    Z_PLAN,
    Z_AFTER,
    Z_IDLE_PLAN,
    Z_IDLE_AFTER,
    Z_LOOKS,  # which number of the state says from what share of the waits it learns; -1: none
    Z_N_WAITS,
    Z_N_LEARNT,
    Z_LAST_SEEN,
    Z_N_FINISHED,
    Z_FINISHED,
    Z_FINISHED_UNIFORM,
    SITE,
) = range(20)
#: So many waits of a site may be finished before its process learns from them.
FINISHED_ROOM: Final = 128
# What a policy is told of a wait: the context, without its costs and its random number, and the
# outcome.
(
    X_SITE,
    X_CALL,
    X_SINCE_SEEN,
    X_PENDING,
    X_N_DECODE,
    X_N_PREFILL,
    X_N_KV,
    X_PUBLISHED,
    X_SEEN,
    X_STAGE,
    X_CPU,
    _,
    _,
    _,
    X_OVERSHOOT,
    X_BELLED,
    X_PREEMPTED,
    LESSON,
) = range(18)
(ASK_PLAN, ASK_AFTER, ASK_ROUTE) = range(3)

# Rows of records, without names.
WAIT_ROW: Final = 14
STEP_ROW: Final = 10
#: Rows that may still come once their buffer counts as full: those of one event.
SPARE_ROWS: Final = 64

# One engine, its device, the steps on it, and the copies to it (`shmsim.sim.device`).
(
    EN_NUMBER,
    EN_IS_ASYNC,
    EN_N_CALLS,
    EN_DEPTH,
    EN_N_WORKERS,
    EN_N_DEVICES,
    EN_N_REPLIES,
    EN_REQUESTS,
    EN_REPLIES,  # address of the addresses of its rings
    EN_SCHEDULER,
    EN_SLOTS_SITE,
    EN_REPLY_SITES,  # address of addresses
    EN_REQUEST_BYTES,
    EN_REPLY_BYTES,
    EN_SECOND_BYTES,
    EN_GUARD,
    EN_DEVICE,
    EN_BATCHER,
    EN_BULK,
    EN_N_STEPS,
    ENGINE,
) = range(21)
(
    DE_N_DEVICES,
    DE_LAW,
    DE_LAW_WORDS,
    DE_LAW_NUMBERS,
    DE_SLOWDOWN,
    DE_LUCK,
    DE_LUCK_FROM,
    DE_LUCK_ROOM,
    DE_ASKED,  # step that Python is asked to draw, and its answer
    DE_ANSWER,
    DE_LAST_DONE,
    DE_N_BEGUN,
    DE_N_ENDED,
    DE_STEPS,
    DE_STRIDE,
    DEVICE,
) = range(16)
(
    SS_STEP,  # -1: free
    SS_N_LAUNCHED,
    SS_N_ASKING,
    SS_SOONEST,
    SS_DRAWN,
    SS_LAUNCHED,
    SS_DONE,
    SS_LANDED,
    SS_N_AWAITING,
    SS_AWAITING,
    SS_N_COPIES,
    SS_COPIES,
    SS_ENDS,
    STEP,
) = range(14)
(CP_CALLED, CP_AFTER, CP_ENGINE, CP_RANK, CP_SENT, COPY) = range(6)
#: Steps that may be on the device, or not taken note of by all, at once; a power of two.
STEPS_ROOM: Final = 256

# Step-time laws.
(LAW_ASKED, LAW_AFFINE, LAW_TABLE, LAW_MEASURED, LAW_ROOFLINE) = range(5)

# Requests and batches (`shmsim.batching`).
(
    BA_N_REQUESTS,
    BA_REQUESTS,
    BA_CONCURRENCY,
    BA_MAX_SEQUENCES,
    BA_MAX_TOKENS,
    BA_N_ADMITTED,
    BA_N_TAKEN,
    BA_N_FINISHED,
    BA_LAST_COMPLETED,
    BA_STEP,
    BA_N_RUNNING,
    BA_RUNNING,
    BA_BATCHES,
    BA_N_BATCHES,
    BA_BATCH_WORDS,
    BATCHER,
) = range(16)
(
    RQ_ARRIVAL,
    RQ_PROMPT,
    RQ_OUTPUT,
    RQ_PROMPT_LEFT,
    RQ_N_SCHEDULED,
    RQ_N_TOKENS,
    RQ_TOKENS,
    RQ_AFTER_IDLE,
    REQUEST,
) = range(9)

# Bulk (`shmsim.sim.payload`).
(
    BU_PER_STEP,
    BU_PER_TOKEN,
    BU_DIVERT,
    BU_SLOT_BYTES,
    BU_MEMORY,
    BU_OUTPUT,
    BU_N_DEVICES,
    BU_N_READERS,
    BU_N_CLASSES,
    BU_CLASSES,
    BU_N_SLOTS,
    BU_N_HELD,
    BU_N_MOST,
    BU_N_RELEASED,
    BU_N_FALLBACKS,
    BU_SENT,
    BU_N_SENT,
    BU_TALLIES,
    BU_ROUTE,  # address of a function, 0: nothing to route
    BU_ROUTE_STATE,
    BU_ROUTE_NUMBERS,
    BULK,
) = range(22)
(NO_MEMORY, REGISTERED, PINNED, PAGEABLE) = range(4)
(
    SE_STEP,  # -1: free
    SE_OWN,
    SE_BULK,
    SE_IN_BAND,
    SE_TABLE,
    SE_N_HOLDERS,
    SE_N_PARTS,
    SE_PARTS,
) = range(8)
(PT_BYTES, PT_ROUTE, PT_CLASS, PT_N_READERS, PART) = range(5)
SENT: Final = SE_PARTS + 2 * PART
(TA_PAYLOADS, TA_LET_GO, TA_ROUTES) = range(3)
TALLY: Final = TA_ROUTES + 3
(SC_BYTES, SC_FREE, SLOT_CLASS) = range(3)
# What a routing is asked about.
(RC_BYTES, RC_IS_STREAM, RC_MESSAGE, RC_SLOT, RC_FREE, ROUTE_CONTEXT) = range(6)

# The work of one step, and who gets a token from it; begins as a message does.
(BT_SCHEDULED, BT_PUBLISHED, BT_N_TOKENS, BT_TOKENS) = range(MESSAGE, MESSAGE + 4)

# A process: which of its routines runs, and the registers of each.
(
    P_ROUTINE,
    P_STATE,
    P_ENTITY,
    P_VALUE,
    P_ENGINE,
    P_ACTOR,
    P_LANE,
    P_RANK,
    P_OTHER,  # of a worker its reply thread, of that its worker, of a thief or balancer its core
    P_IS_ENDED,
    P_UNIFORM,
    # Waiting, from the end of the step to `Actor.await_source`.
    V_CALLER,
    V_STATE,
    V_SITE,
    V_SOURCE,
    V_LANE,
    V_STEP,
    V_INDEX,
    V_STARTED,
    V_STAGE,
    V_BEGUN,
    V_DEADLINE,
    V_REHEARSED,
    V_DOZED,
    V_RESTED,
    V_DELAY,  # how late the ring came that ended it
    V_SPUN,
    V_BOOKED,
    V_MODE,
    V_SLOWNESS,
    # Asleep on the doorbell within a wait; then woken, its ring carried by I/O threads.
    B_CALLER,
    B_DEADLINE,
    B_PERIOD,
    B_BEGUN,
    B_LATENCY,
    B_CPU,
    B_CARRY,
    B_COURIER,
    B_IS_SECOND,
    B_FOUND,
    # Publishing.
    U_CALLER,
    U_STATE,
    U_RING,
    U_SITE,
    U_BYTES,
    U_WORK,
    U_LANE,
    # Reading.
    Y_CALLER,
    Y_STATE,
    Y_RING,
    Y_INBOX,
    Y_BYTES,
    Y_WORK,
    # Replies of all ranks, one after the other.
    G_CALLER,
    G_STATE,
    G_CALL,
    G_RANK,
    G_BYTES,
    G_BATCH,
    G_FIRST_PUBLISHED,
    # Bulk, placed or taken.
    I_STATE,
    I_OWN,
    I_BULK,
    I_WORK,
    I_SENT,
    I_LANDS_AFTER,
    I_STARTED,
    # The end of a step.
    F_CALLER,
    F_STATE,
    F_WORK,
    F_RESTED_FROM,
    F_CPU,
    F_CROWDED,
    F_SPINS_FROM,
    # The scheduler.
    D_BATCH,
    D_FIRST,
    D_N_IN_FLIGHT,
    D_IS_LAST,
    D_SEEN,
    D_RESTED,
    D_N_IDLES,
    # A worker: what it knows.
    E_STEP,
    E_N_DECODE,
    E_N_PREFILL,
    E_N_KV,
    E_PENDING,
    # A reply thread: what was handed over to it.
    E_IS_AWAKE,
    E_IS_WAITING,
    E_ITEMS,
    E_FIRST_ITEM,
    E_N_ITEMS,
    V_LESSON,
) = range(92)
V_PLAN: Final = V_LESSON + LESSON
U_MESSAGE: Final = V_PLAN + 12
F_BATCH: Final = U_MESSAGE + MESSAGE
PROCESS: Final = F_BATCH + MESSAGE
