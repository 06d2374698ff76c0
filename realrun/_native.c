/* The calls of the hand-off that must not run in the interpreter.
 *
 * Protocol between the writer of a ring and one of its readers (twin: realrun/_fallback.py; checked
 * over every interleaving in tests/protocol). The writer of a full ring waits for a cursor alike.
 *
 *   writer (publish)                         reader (wait, stages DOZE and PARK)
 *   ----------------                         ------------------------------------
 *   write slot, write stamp                  b = bell
 *   head = sequence          (release)       armed = 1
 *   fence                                    fence
 *   take every armed flag    (exchange)      look at head and stop again; leave if one moved
 *   if one was set: bell += 1                futex_wait(bell == b)
 *                   futex_wake(bell)         armed = 0
 *
 * Each side writes its own word before it looks at the other's, with a full fence between. One of
 * the two therefore sees the other; and a ring that comes between b and the sleep is seen by the
 * kernel, which compares the bell once more under its own lock. (b comes first: else the late ring
 * for an earlier message could take the flag, and be taken for heard.) No wake-up can be lost, and
 * neither can a stop, whose sender rings unasked. The writer makes no system call while nobody is
 * armed, and rings once for all readers. What an eventfd or a socket does in place of the bell word:
 * realrun/doorbell.py. Taking a flag and ringing for it are one call, in which no signal handler of
 * Python's runs: a flag that was taken is a ring that is owed.
 *
 * A writer that begins to make a message may ring before it has one (announce): then waking up takes
 * place meanwhile. A reader who is rung for nothing looks on for about as long as waking up takes.
 *
 * Which process writes and reads each word is said where its offset is defined, realrun/layout.py.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

enum { SPIN, YIELD, NAP, DOZE, POLL, PARK, REHEARSE };   /* shmsim/wait.py */
enum { SEEN, STOPPED, ENDED, REHEARSING, LISTENING };     /* realrun/native.py */
#define N_STAGES 4
#define FOREVER_NS ((int64_t)1 << 62)
#define LOOKS_PER_CLOCK_READ 16
#define SIGNAL_CHECK_NS 50000000
#define STOP_LOOK_NS 250000000
#define LATE_RING_NS 1000000
#define ANNOUNCED_NS 100000
/* A spinner reads the clock about every microsecond, so a longer gap is time off the core. One of a
 * time slice, by an involuntary switch, means that somebody else wants this core, who may be the
 * very process it waits for. For a while it then waits on the doorbell instead of spinning. Without
 * this, three spinners on two cores take turns of several milliseconds; sched_yield would still
 * leave 0.3 ms a turn. */
#define BETWEEN_CLOCK_READS_NS 1000
#define OFF_CORE_NS 50000
#define YIELDED_NS 5000 /* a yield that takes longer let somebody else run */
#define YIELDS_PER_CPU_READ 32
#define DESCHEDULED_NS 1000000
#define CROWDED_FOR_NS 100000000
static _Thread_local int64_t crowded_until_ns;
static _Thread_local long known_switches = -1; /* involuntary ones, when last looked: a system call */

static inline int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#define now_ns() clock_ns(CLOCK_MONOTONIC)
#define cpu_ns() clock_ns(CLOCK_THREAD_CPUTIME_ID)

/* How to pass the time between two looks: the processor watches the word's cache line where it can
 * (a write ends the wait at once), and otherwise idles for a moment. */
enum { PAUSE, UMWAIT, MWAITX, ISB };
static const char *const relax_names[] = {"pause", "umwait", "mwaitx", "isb"};
static int relax_kind;

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <x86intrin.h>
/* In ticks of the TSC, 1.5 to 4 per ns, so about 5 to 13 us: how late a stop word or the end of a
 * spin may be noticed. The kernel caps umwait at 100,000 ticks by default. */
#define WATCH_TICKS 20000

__attribute__((target("waitpkg"))) static void relax_umwait(_Atomic uint64_t *word, uint64_t seen)
{
    _umonitor((void *)word);
    if (atomic_load_explicit(word, memory_order_acquire) == seen)
        _umwait(1, __rdtsc() + WATCH_TICKS); /* 1: the shallow state, which is quick to leave */
}

__attribute__((target("mwaitx"))) static void relax_mwaitx(_Atomic uint64_t *word, uint64_t seen)
{
    _mm_monitorx((void *)word, 0, 0);
    if (atomic_load_explicit(word, memory_order_acquire) == seen)
        _mm_mwaitx(2, 0xf0, WATCH_TICKS); /* 2: with a timer; 0xf0: stay in C0 */
}

static int find_relax_kind(void)
{
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 5)))
        return UMWAIT;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d) && (c & (1u << 29)))
        return MWAITX;
    return PAUSE;
}
#else
static int find_relax_kind(void)
{
    return ISB;
}
#endif

static inline void relax(_Atomic uint64_t *word, uint64_t seen)
{
#if defined(__x86_64__)
    if (relax_kind == PAUSE)
        __builtin_ia32_pause();
    else if (relax_kind == UMWAIT)
        relax_umwait(word, seen);
    else
        relax_mwaitx(word, seen);
#elif defined(__aarch64__)
    (void)word, (void)seen;
    __asm__ volatile("isb" ::: "memory");
#else
    (void)word, (void)seen;
#endif
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* Sleep until the bell moves away from `heard`, or the deadline. Returns 0 or an errno. */
static int futex_sleep(_Atomic uint64_t *bell, uint64_t heard, int64_t deadline_ns)
{
    struct timespec t = timespec_of(deadline_ns);
    /* The futex is the low half of the bell: little-endian, so the same address. */
    long rc = syscall(SYS_futex, (uint32_t *)bell, FUTEX_WAIT_BITSET, (uint32_t)heard,
                      deadline_ns >= FOREVER_NS ? NULL : &t, NULL, FUTEX_BITSET_MATCH_ANY);
    return rc == 0 ? 0 : errno;
}

/* The same on a file descriptor, until it is readable. */
static int fd_sleep(int fd, int64_t deadline_ns)
{
    struct pollfd poll = {.fd = fd, .events = POLLIN};
    int64_t left_ns = deadline_ns - now_ns();
    struct timespec t = timespec_of(left_ns > 0 ? left_ns : 0);
    int n = ppoll(&poll, 1, deadline_ns >= FOREVER_NS ? NULL : &t, NULL);
    if (n > 0)
        return poll.revents & POLLIN ? 0 : EBADF;
    return n == 0 ? ETIMEDOUT : errno;
}

/* Who waits by which bell. */
enum { BY_FUTEX = -1 };

typedef struct {
    _Atomic uint64_t *watched;
    _Atomic uint64_t *bell;
    _Atomic uint64_t *armed;
    _Atomic uint64_t *stop;
    int fd;             /* BY_FUTEX, or what to sleep on instead of the bell word */
    int caller_drains;  /* the descriptor is a socket's, which only its library may read */
    uint64_t seen;
    int64_t started_ns;
    int64_t seen_ns;
    int64_t overshoot_ns;
    int64_t stage_cpu_ns[N_STAGES];
    int stage;
    long preempted;
    int belled;   /* a ring ended the last sleep */
    int spurious; /* rings that ended a sleep for nothing */
    int rescued;  /* rechecks that found what no ring had told: always 0, or the protocol is broken */
    int failed;   /* a signal handler raised */
} Wait;

static inline int arrived(const Wait *w)
{
    return atomic_load_explicit(w->watched, memory_order_acquire) != w->seen;
}

static inline int stopped(const Wait *w)
{
    return atomic_load_explicit(w->stop, memory_order_acquire) != 0;
}

/* Run Python's signal handlers, so that Ctrl-C ends a wait of any kind. */
static void run_signal_handlers(Wait *w)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    if (PyErr_CheckSignals() != 0)
        w->failed = 1;
    PyGILState_Release(gil);
}

static void refuse_descriptor(Wait *w)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyErr_Format(PyExc_OSError, "file descriptor %d, by which this wait is to be woken, is not open "
                 "in this process", w->fd);
    w->failed = 1;
    PyGILState_Release(gil);
}

static long involuntary_switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

/* Each stage returns how the wait is over (OVER: seen, stopped or failed; LISTENING), or 0 when its
 * own time is up. */
enum { OVER = -1 };
static int sleep_on_bell(Wait *w, int64_t deadline_ns, int64_t period_ns);

/* The clock stood still for a spinner from before_ns to t: was its core taken from it? Returns how
 * long it was off its core. */
static int64_t off_core_ns(Wait *w, int64_t before_ns, int64_t t)
{
    if (t - before_ns <= OFF_CORE_NS)
        return 0;
    w->preempted++;
    if (t - before_ns > DESCHEDULED_NS) {
        long switches = involuntary_switches();
        if (switches > known_switches)
            crowded_until_ns = t + CROWDED_FOR_NS;
        known_switches = switches;
    }
    return t - before_ns - BETWEEN_CLOCK_READS_NS; /* which it had begun to spin through */
}

/* No system call while it lasts: it reckons its CPU time from the clock alone. */
static int spin(Wait *w, int64_t deadline_ns)
{
    int64_t t = now_ns(), checked_ns = t, on_core_since_ns = t;
    int64_t *cpu = &w->stage_cpu_ns[w->stage];
    int over = 0;
    if (known_switches < 0)
        known_switches = involuntary_switches();
    unsigned watches = relax_kind == UMWAIT || relax_kind == MWAITX;
    for (unsigned looks = 0; !over; looks++) {
        if (arrived(w)) {
            over = OVER;
            break;
        }
        if (t < crowded_until_ns) {
            int64_t until_ns = crowded_until_ns < deadline_ns ? crowded_until_ns : deadline_ns;
            int64_t cpu_before_ns = cpu_ns();
            *cpu += t - on_core_since_ns;
            over = sleep_on_bell(w, until_ns, 0);
            *cpu += cpu_ns() - cpu_before_ns;
            known_switches = involuntary_switches();
            t = on_core_since_ns = now_ns();
            if (over)
                break;
        }
        relax(w->watched, w->seen);
        if (!watches && looks % LOOKS_PER_CLOCK_READ)
            continue;
        int64_t before_ns = t;
        t = now_ns();
        on_core_since_ns += off_core_ns(w, before_ns, t);
        if (t >= deadline_ns)
            break;
        if (stopped(w))
            over = OVER;
        if (t - checked_ns > SIGNAL_CHECK_NS) {
            checked_ns = t;
            known_switches = involuntary_switches();
            run_signal_handlers(w);
            if (w->failed)
                over = OVER;
        }
    }
    /* What it waits for has often come by the time it has its core back. */
    int64_t end_ns = now_ns();
    on_core_since_ns += off_core_ns(w, t, end_ns);
    *cpu += end_ns - on_core_since_ns;
    return over;
}

/* It asks for its CPU time now and then only, since nobody who has seen his message should wait for a
 * system call. Of what came behind the last answer, it takes the begin of each gap for its own. */
static int yield_repeatedly(Wait *w, int64_t deadline_ns)
{
    int64_t t = now_ns(), checked_ns = t, cpu_before_ns = cpu_ns(), unasked_ns = 0;
    int64_t *cpu = &w->stage_cpu_ns[w->stage];
    int over = 0;
    for (unsigned looks = 1; !over; looks++) {
        if (arrived(w) || stopped(w)) {
            over = OVER;
            break;
        }
        sched_yield();
        int64_t gap_ns = now_ns() - t;
        t += gap_ns;
        w->preempted += gap_ns > OFF_CORE_NS;
        if (looks % YIELDS_PER_CPU_READ == 0) {
            int64_t before_ns = cpu_before_ns;
            cpu_before_ns = cpu_ns();
            *cpu += cpu_before_ns - before_ns;
            unasked_ns = 0;
        } else {
            unasked_ns += gap_ns < YIELDED_NS ? gap_ns : YIELDED_NS;
        }
        if (t >= deadline_ns)
            break;
        if (t - checked_ns > SIGNAL_CHECK_NS) {
            checked_ns = t;
            run_signal_handlers(w);
            if (w->failed)
                over = OVER;
        }
    }
    *cpu += unasked_ns;
    return over;
}

static int sleep_deafly(Wait *w, int64_t deadline_ns)
{
    struct timespec t = timespec_of(deadline_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
        run_signal_handlers(w);
        if (w->failed)
            return OVER;
    }
    w->overshoot_ns = now_ns() - deadline_ns;
    return arrived(w) || stopped(w) ? OVER : 0;
}

static int poll_slowly(Wait *w, int64_t deadline_ns, int64_t period_ns)
{
    int64_t next_ns = now_ns();
    while (next_ns < deadline_ns) {
        next_ns = now_ns() + period_ns;
        if (sleep_deafly(w, next_ns < deadline_ns ? next_ns : deadline_ns))
            return OVER;
    }
    return 0;
}

/* Rung for nothing: a message is being made, or what it was for has been seen already. */
static void look_on(Wait *w, int64_t deadline_ns)
{
    int64_t t = now_ns(), until_ns = t + ANNOUNCED_NS;
    unsigned watches = relax_kind == UMWAIT || relax_kind == MWAITX;
    for (unsigned looks = 1; !arrived(w) && !stopped(w) && t < until_ns && t < deadline_ns; looks++) {
        relax(w->watched, w->seen);
        if (watches || looks % LOOKS_PER_CLOCK_READ == 0)
            t = now_ns();
    }
}

static int sleep_on_bell(Wait *w, int64_t deadline_ns, int64_t period_ns)
{
    /* A signal that came during a short stage before this one has interrupted no system call. */
    if (deadline_ns >= FOREVER_NS) {
        run_signal_handlers(w);
        if (w->failed)
            return OVER;
    }
    /* A socket can be gone by the time somebody wants to stop this wait. */
    if (w->caller_drains && (period_ns == 0 || period_ns > STOP_LOOK_NS))
        period_ns = STOP_LOOK_NS;
    for (;;) {
        int64_t until_ns = deadline_ns;
        if (period_ns > 0) {
            int64_t recheck_ns = now_ns() + period_ns;
            if (recheck_ns < until_ns)
                until_ns = recheck_ns;
        }
        uint64_t heard = atomic_load_explicit(w->bell, memory_order_acquire);
        atomic_store_explicit(w->armed, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        int error = EAGAIN;
        if (!arrived(w) && !stopped(w))
            error = w->fd == BY_FUTEX ? futex_sleep(w->bell, heard, until_ns) : fd_sleep(w->fd, until_ns);
        /* Who publishes takes the flag right behind that: give it the time to. */
        if (error == ETIMEDOUT && until_ns != deadline_ns && arrived(w))
            for (int64_t late_ns = now_ns() + LATE_RING_NS;
                 now_ns() < late_ns && atomic_load_explicit(w->armed, memory_order_acquire);)
                relax(w->armed, 1);
        /* If it is still there then, nobody means to ring. */
        int taken = !atomic_exchange_explicit(w->armed, 0, memory_order_acq_rel);
        int rang = error == 0;
        if (rang && w->fd != BY_FUTEX) {
            uint64_t rings;
            if (w->caller_drains)
                return LISTENING;
            if (read(w->fd, &rings, sizeof rings) != sizeof rings)
                rang = 0; /* it was another thread's ring to hear */
        }
        if (error == EINTR) {
            run_signal_handlers(w);
            if (w->failed)
                return OVER;
        }
        if (error == EBADF) {
            refuse_descriptor(w);
            return OVER;
        }
        if (error == ETIMEDOUT)
            w->overshoot_ns = now_ns() - until_ns;
        if (rang)
            look_on(w, deadline_ns);
        if (arrived(w)) {
            w->belled = rang;
            w->rescued += error == ETIMEDOUT && until_ns != deadline_ns && !taken;
            return OVER;
        }
        if (stopped(w))
            return OVER;
        w->spurious += rang;
        /* A signal that came while it woke up or looked on has interrupted no system call. */
        if (rang) {
            run_signal_handlers(w);
            if (w->failed)
                return OVER;
        }
        if (error == ETIMEDOUT && until_ns == deadline_ns)
            return 0;
    }
}

static int carry_out(Wait *w, int64_t stages[N_STAGES][3])
{
    w->seen_ns = now_ns();
    if (w->started_ns == 0)
        w->started_ns = w->seen_ns;
    int over = 0, how = ENDED;
    for (; !over && w->stage < N_STAGES; w->stage++) {
        int64_t kind = stages[w->stage][0], until_ns = stages[w->stage][1];
        int64_t period_ns = stages[w->stage][2];
        int64_t deadline_ns = until_ns >= FOREVER_NS ? FOREVER_NS : w->started_ns + until_ns;
        int64_t cpu_before_ns = -1;
        if (arrived(w) || stopped(w))
            over = OVER;
        else if (kind == REHEARSE)
            return REHEARSING; /* the caller rehearses and comes back for the next stage */
        else if (now_ns() >= deadline_ns)
            continue; /* a late wake-up used this stage's time up */
        else if (kind == SPIN)
            over = spin(w, deadline_ns);
        else if (kind == YIELD)
            over = yield_repeatedly(w, deadline_ns);
        else {
            cpu_before_ns = cpu_ns();
            if (kind == NAP)
                over = sleep_deafly(w, deadline_ns);
            else if (kind == POLL)
                over = poll_slowly(w, deadline_ns, period_ns);
            else
                over = sleep_on_bell(w, deadline_ns, period_ns);
        }
        /* The last look comes before the clock is read: nothing is seen before it was published. And
         * that comes before the system call that tells the CPU time: nobody waits for the latter. */
        how = over == LISTENING ? LISTENING : arrived(w) ? SEEN : stopped(w) ? STOPPED : ENDED;
        w->seen_ns = now_ns();
        if (cpu_before_ns >= 0)
            w->stage_cpu_ns[w->stage] += cpu_ns() - cpu_before_ns;
        if (kind != SPIN)
            known_switches = -1; /* the next spin looks for itself */
        if (over == LISTENING)
            return LISTENING; /* the caller drains its socket and comes back for the same stage */
    }
    w->stage--;
    return how;
}

static void *word_at(Py_buffer *buffer, Py_ssize_t offset)
{
    if (offset < 0 || offset % 8 || offset > buffer->len - 8) {
        PyErr_Format(PyExc_ValueError,
                     "offset %zd is not that of an aligned 8-byte word in a segment of %zd bytes",
                     offset, buffer->len);
        return NULL;
    }
    return (char *)buffer->buf + offset;
}

PyDoc_STRVAR(wait_doc,
"wait(segment, words, seen, plan, stage=0, started_ns=0, fd=-1, caller_drains=False)\n\n"
"Carry out a plan (12 ints) until the watched word differs from seen, the stop word is set or the\n"
"plan has ended; releases the GIL. words are the offsets (watched, bell, armed, stop). fd is what\n"
"to sleep on instead of the bell word: an eventfd, which is drained here, or a socket's, at whose\n"
"ring it returns LISTENING: drain the socket and call again with the same stage. At a REHEARSE\n"
"stage it returns too; call again with the next stage. Both times with the same started_ns.\n"
"Returns (over, started_ns, seen_ns, stage, cpu0, cpu1, cpu2, cpu3, overshoot_ns, belled,\n"
"preempted, spurious, rescued); over is SEEN, STOPPED, ENDED, REHEARSING or LISTENING.");

/* What shmsim.wait.check_plan refuses and would mean something else here. */
static int check_stages(int64_t stages[N_STAGES][3])
{
    for (int i = 0; i < N_STAGES; i++) {
        if (stages[i][0] < SPIN || stages[i][0] > REHEARSE || stages[i][2] < 0 ||
            (stages[i][0] == POLL && stages[i][2] == 0)) {
            PyErr_Format(PyExc_ValueError, "stage %d (kind %lld, period %lld ns) cannot be carried "
                         "out; shmsim.wait.check_plan says why", i, (long long)stages[i][0],
                         (long long)stages[i][2]);
            return 0;
        }
    }
    return 1;
}

/* Carry out a wait whose words and stages were parsed; 0 with an exception. */
static int carry_out_unlocked(Wait *w, int64_t stages[N_STAGES][3], int *over)
{
    if (w->stage < 0 || w->stage > N_STAGES)
        PyErr_Format(PyExc_ValueError, "stage must be from 0 to %d, got %d", N_STAGES, w->stage);
    else if (w->watched && w->bell && w->armed && w->stop && check_stages(stages)) {
        Py_BEGIN_ALLOW_THREADS
        *over = carry_out(w, stages);
        Py_END_ALLOW_THREADS
        return !w->failed;
    }
    return 0;
}

/* The fields of realrun.waiting.RawWait. */
enum { N_NUMBERS = 13 };
static void list_numbers(const Wait *w, int over, int64_t numbers[N_NUMBERS])
{
    int64_t list[N_NUMBERS] = {over, w->started_ns, w->seen_ns, w->stage, w->stage_cpu_ns[0],
                               w->stage_cpu_ns[1], w->stage_cpu_ns[2], w->stage_cpu_ns[3],
                               w->overshoot_ns, w->belled, w->preempted, w->spurious, w->rescued};
    memcpy(numbers, list, sizeof list);
}

static PyObject *py_wait(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t watched_at, bell_at, armed_at, stop_at;
    int64_t stages[N_STAGES][3];
    int64_t *s = &stages[0][0];
    int over;
    unsigned long long seen;
    long long started_ns = 0;
    Wait w = {.fd = BY_FUTEX};
    if (!PyArg_ParseTuple(args, "w*(nnnn)K(LLLLLLLLLLLL)|iLip:wait", &segment, &watched_at, &bell_at,
                          &armed_at, &stop_at, &seen, s, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6,
                          s + 7, s + 8, s + 9, s + 10, s + 11, &w.stage, &started_ns, &w.fd,
                          &w.caller_drains))
        return NULL;
    w.seen = seen;
    w.started_ns = started_ns;
    w.watched = word_at(&segment, watched_at);
    w.bell = word_at(&segment, bell_at);
    w.armed = word_at(&segment, armed_at);
    w.stop = word_at(&segment, stop_at);
    PyObject *result = NULL;
    if (carry_out_unlocked(&w, stages, &over)) {
        int64_t n[N_NUMBERS];
        list_numbers(&w, over, n);
        result = Py_BuildValue("LLLLLLLLLLLLL", n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8],
                               n[9], n[10], n[11], n[12]);
    }
    PyBuffer_Release(&segment);
    return result;
}

/* Wake everybody asleep on a bell, and keep whoever is about to sleep from it. */
static long ring_bell(_Atomic uint64_t *bell)
{
    atomic_fetch_add_explicit(bell, 1, memory_order_acq_rel);
    return syscall(SYS_futex, (uint32_t *)bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

PyDoc_STRVAR(wake_doc,
"wake(segment, bell_at)\n\nRing: wake every waiter asleep on a bell, and keep whoever is about to\n"
"sleep from it, with one call; returns how many were woken.");

static PyObject *py_wake(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t bell_at;
    if (!PyArg_ParseTuple(args, "w*n:wake", &segment, &bell_at))
        return NULL;
    _Atomic uint64_t *bell = word_at(&segment, bell_at);
    long woken = bell ? ring_bell(bell) : -1;
    PyBuffer_Release(&segment);
    return bell ? PyLong_FromLong(woken) : NULL;
}

/* One ring, as realrun/layout.py lays it out. */
typedef struct {
    Py_ssize_t head_at, lines_at, slots_at, slot_stride, slot_bytes, n_slots, n_readers;
    /* How to ring: NULL: the caller does; none: by the bell words; else the eventfds of all readers
     * and, last, of the writer. */
    const char *fds;
    Py_ssize_t fds_bytes;
} Ring;
#define RING_FORMAT "(nnnnnnn)z#"
#define RING_FIELDS(r)                                                                             \
    &(r).head_at, &(r).lines_at, &(r).slots_at, &(r).slot_stride, &(r).slot_bytes, &(r).n_slots,   \
        &(r).n_readers, &(r).fds, &(r).fds_bytes

enum { SEQUENCE, CALL_ID, PUBLISHED_NS, LENGTH, FLAGS };   /* words of a slot */
enum { CURSOR = 0, ARMED = 8, RELEASED_NS = 16, WRITER_ARMED = 24, WRITER_BELL = 32 };
enum { BELL = 8, LINE = 64, PAYLOAD = 64 };

/* Whether all of a ring lies within its segment; 0 with an exception. */
static int is_within(const Py_buffer *segment, const Ring *r)
{
    /* Every sum here is of numbers that were found small before. */
    Py_ssize_t most = segment->len;
    if (r->head_at < 0 || r->head_at % 8 || r->head_at > most - LINE || r->lines_at < 0 ||
        r->lines_at % 8 || r->lines_at > most || r->n_readers < 1 || r->n_readers > 64 ||
        r->n_slots < 1 || r->slots_at % 8 || r->slots_at > most ||
        r->lines_at + LINE * r->n_readers > r->slots_at || r->slot_bytes < 0 ||
        r->slot_bytes > most || r->slot_stride < r->slot_bytes + PAYLOAD || r->slot_stride % 8 ||
        r->slot_stride > (most - r->slots_at) / r->n_slots) {
        PyErr_Format(PyExc_ValueError, "the ring does not lie within its segment of %zd bytes",
                     segment->len);
        return 0;
    }
    if (r->fds && r->fds_bytes && r->fds_bytes != (Py_ssize_t)sizeof(int32_t) * (r->n_readers + 1)) {
        PyErr_Format(PyExc_ValueError, "a ring of %zd readers is rung for by %zd descriptors of 4 "
                     "bytes each, not by %zd bytes", r->n_readers, r->n_readers + 1, r->fds_bytes);
        return 0;
    }
    return 1;
}

static Py_ssize_t slot_of(const Ring *r, uint64_t sequence)
{
    return r->slots_at + r->slot_stride * (Py_ssize_t)((sequence - 1) % (uint64_t)r->n_slots);
}

static _Atomic uint64_t *word(const Py_buffer *segment, Py_ssize_t at)
{
    return (void *)((char *)segment->buf + at);
}

static int take_flag(_Atomic uint64_t *armed)
{
    /* Look before taking: a spinner's line stays shared. */
    return atomic_load_explicit(armed, memory_order_relaxed) &&
           atomic_exchange_explicit(armed, 0, memory_order_acq_rel);
}

/* 0 with an exception if a descriptor is not open. */
static int ring_eventfd(const Ring *r, Py_ssize_t sleeper)
{
    int32_t fd;
    uint64_t one = 1;
    memcpy(&fd, r->fds + sizeof fd * sleeper, sizeof fd);
    if (write(fd, &one, sizeof one) == sizeof one || errno == EAGAIN)
        return 1; /* EAGAIN: it has been rung for 2^64 times, which wakes as well */
    PyErr_Format(PyExc_OSError, "file descriptor %d, by which a sleeper is to be woken, is not open "
                 "in this process", (int)fd);
    return 0;
}

/* Take the flags of the readers that are armed, and ring for them; 0 with an exception. */
static int ring_readers(const Py_buffer *segment, const Ring *r, uint64_t *taken)
{
    uint64_t armed = 0;
    for (Py_ssize_t i = 0; i < r->n_readers; i++)
        if (take_flag(word(segment, r->lines_at + LINE * i + ARMED)))
            armed |= 1ull << i;
    *taken = armed;
    if (!armed || !r->fds)
        return 1;
    if (!r->fds_bytes) {
        ring_bell(word(segment, r->head_at + BELL));
        return 1;
    }
    int open = 1;
    for (Py_ssize_t i = 0; i < r->n_readers; i++)
        if (armed >> i & 1)
            open = ring_eventfd(r, i) && open;
    return open;
}

/* Put pieces one behind the other; returns 0 with an exception if they are no bytes or too many. */
static int copy_pieces(PyObject *pieces, char *to, Py_ssize_t room, Py_ssize_t *length)
{
    Py_ssize_t wanted = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(pieces); i++) {
        Py_buffer piece;
        if (PyObject_GetBuffer(PyList_GetItem(pieces, i), &piece, PyBUF_SIMPLE) < 0)
            return 0;
        wanted += piece.len;
        if (wanted > room) {
            /* The rest is only counted, for the error. */
        } else if (piece.len < 1 << 16) {
            memcpy(to + *length, piece.buf, piece.len);
        } else {
            Py_BEGIN_ALLOW_THREADS
            memcpy(to + *length, piece.buf, piece.len);
            Py_END_ALLOW_THREADS
        }
        *length = wanted;
        PyBuffer_Release(&piece);
    }
    if (wanted > room)
        PyErr_Format(PyExc_ValueError, "a payload of %zd bytes does not fit a slot of %zd; make "
                     "slots larger, or send it by another route", wanted, room);
    return wanted <= room;
}

PyDoc_STRVAR(publish_doc,
"publish(segment, ring, bells, call_id, flags, pieces)\n\n"
"Copy pieces into the slot of the next message, one behind the other, make it visible and ring for\n"
"whoever is armed. ring is (head_at, lines_at, slots_at, slot_stride, slot_bytes, n_slots,\n"
"n_readers). bells are b'' for the bell words, or the eventfds of all readers and, last, of the\n"
"writer, as int32; None: the caller rings. Returns (published_ns, armed): bit r is set if reader r\n"
"was armed. If a reader still holds the slot, nothing happens and it returns (0, reader). Raises\n"
"ValueError if the pieces do not fit.");

static PyObject *py_publish(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Ring r;
    unsigned long long call_id, flags;
    PyObject *pieces;
    if (!PyArg_ParseTuple(args, "w*" RING_FORMAT "KKO!:publish", &segment, RING_FIELDS(r), &call_id,
                          &flags, &PyList_Type, &pieces))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t length = 0;
    if (!is_within(&segment, &r))
        goto done;
    /* Only this writer moves the head. What the caller remembers could be one behind: Ctrl-C between
     * here and its next instruction. */
    uint64_t sequence = atomic_load_explicit(word(&segment, r.head_at), memory_order_relaxed) + 1;
    Py_ssize_t slot_at = slot_of(&r, sequence);
    for (Py_ssize_t i = 0; i < r.n_readers; i++) {
        uint64_t held = atomic_load_explicit(word(&segment, r.lines_at + LINE * i + CURSOR),
                                             memory_order_acquire);
        if (held >= sequence) {
            PyErr_Format(PyExc_RuntimeError, "reader %zd has released message %llu, and %llu is the "
                         "next to be published: something else wrote to the segment", i,
                         (unsigned long long)held, (unsigned long long)sequence);
            goto done;
        }
        if (sequence - held > (uint64_t)r.n_slots) {
            result = Py_BuildValue("in", 0, i);
            goto done;
        }
    }
    if (!copy_pieces(pieces, (char *)segment.buf + slot_at + PAYLOAD, r.slot_bytes, &length))
        goto done;
    int64_t published_ns = now_ns();
    uint64_t header[] = {[SEQUENCE] = sequence, [CALL_ID] = call_id,
                         [PUBLISHED_NS] = (uint64_t)published_ns, [LENGTH] = (uint64_t)length,
                         [FLAGS] = flags};
    for (int i = 0; i <= FLAGS; i++)
        atomic_store_explicit(word(&segment, slot_at + 8 * i), header[i], memory_order_relaxed);
    atomic_store_explicit(word(&segment, r.head_at), sequence, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    uint64_t armed;
    if (ring_readers(&segment, &r, &armed))
        result = Py_BuildValue("LK", published_ns, (unsigned long long)armed);
done:
    PyBuffer_Release(&segment);
    return result;
}

PyDoc_STRVAR(announce_doc,
"announce(segment, ring, bells)\n\nRing for the readers that are armed, as publish does; returns\n"
"the bits of those.");

static PyObject *py_announce(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Ring r;
    if (!PyArg_ParseTuple(args, "w*" RING_FORMAT ":announce", &segment, RING_FIELDS(r)))
        return NULL;
    uint64_t armed;
    int rung = is_within(&segment, &r) && ring_readers(&segment, &r, &armed);
    PyBuffer_Release(&segment);
    return rung ? PyLong_FromUnsignedLongLong(armed) : NULL;
}

/* The same protocol as for a message, the other way round: the cursor is what the writer of a full
 * ring watches, and is armed on. Returns whether it was armed; -1 with an exception. */
static int release_slot(const Py_buffer *segment, const Ring *r, Py_ssize_t reader, uint64_t sequence)
{
    Py_ssize_t line_at = r->lines_at + LINE * reader;
    atomic_store_explicit(word(segment, line_at + RELEASED_NS), (uint64_t)now_ns(),
                          memory_order_relaxed);
    atomic_store_explicit(word(segment, line_at + CURSOR), sequence, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (!take_flag(word(segment, line_at + WRITER_ARMED)))
        return 0;
    if (r->fds && r->fds_bytes)
        return ring_eventfd(r, r->n_readers) ? 1 : -1;
    if (r->fds)
        ring_bell(word(segment, line_at + WRITER_BELL));
    return 1;
}

/* Copy a message out and release its slot; None if it is longer than most_bytes, or not there. */
static PyObject *take(const Py_buffer *segment, const Ring *r, Py_ssize_t reader,
                      Py_ssize_t most_bytes)
{
    Py_ssize_t line_at = r->lines_at + LINE * reader;
    uint64_t sequence = atomic_load_explicit(word(segment, line_at + CURSOR), memory_order_relaxed) + 1;
    Py_ssize_t slot_at = slot_of(r, sequence);
    uint64_t header[FLAGS + 1];
    for (int i = 0; i <= FLAGS; i++)
        header[i] = atomic_load_explicit(word(segment, slot_at + 8 * i), memory_order_relaxed);
    if (most_bytes > r->slot_bytes)
        most_bytes = r->slot_bytes;
    if (header[SEQUENCE] != sequence || header[LENGTH] > (uint64_t)most_bytes)
        return Py_NewRef(Py_None);
    PyObject *payload = PyBytes_FromStringAndSize((char *)segment->buf + slot_at + PAYLOAD,
                                                  (Py_ssize_t)header[LENGTH]);
    if (!payload)
        return NULL;
    int armed = release_slot(segment, r, reader, sequence);
    if (armed < 0) {
        Py_DECREF(payload);
        return NULL;
    }
    return Py_BuildValue("KKKNi", header[CALL_ID], header[FLAGS], header[PUBLISHED_NS], payload,
                         armed);
}

PyDoc_STRVAR(take_doc,
"take(segment, ring, bells, reader, most_bytes)\n\n"
"Copy the next message, which must be visible, out of its slot, release the slot and ring for the\n"
"writer if it is armed. Returns (call_id, flags, published_ns, payload, armed); armed is 1 if it was.\n"
"If the payload is longer than most_bytes, or the slot does not hold that message, nothing happens\n"
"and it returns None.");

/* Whether a ring is sound and has a reader; 0 with an exception. */
static int has_reader(const Py_buffer *segment, const Ring *r, Py_ssize_t reader)
{
    if (!is_within(segment, r))
        return 0;
    if (reader < 0 || reader >= r->n_readers) {
        PyErr_Format(PyExc_ValueError, "the ring has %zd readers, none with number %zd",
                     r->n_readers, reader);
        return 0;
    }
    return 1;
}

static PyObject *py_take(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Ring r;
    Py_ssize_t reader, most_bytes;
    if (!PyArg_ParseTuple(args, "w*" RING_FORMAT "nn:take", &segment, RING_FIELDS(r), &reader,
                          &most_bytes))
        return NULL;
    PyObject *result = has_reader(&segment, &r, reader) ? take(&segment, &r, reader, most_bytes) : NULL;
    PyBuffer_Release(&segment);
    return result;
}

PyDoc_STRVAR(release_doc,
"release(segment, ring, bells, reader)\n\nRelease the slot of the next message, which must be\n"
"visible, as take does; returns whether the writer was armed.");

static PyObject *py_release(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Ring r;
    Py_ssize_t reader;
    if (!PyArg_ParseTuple(args, "w*" RING_FORMAT "n:release", &segment, RING_FIELDS(r), &reader))
        return NULL;
    int armed = -1;
    if (has_reader(&segment, &r, reader)) {
        _Atomic uint64_t *cursor = word(&segment, r.lines_at + LINE * reader + CURSOR);
        uint64_t sequence = atomic_load_explicit(cursor, memory_order_relaxed) + 1;
        armed = release_slot(&segment, &r, reader, sequence);
    }
    PyBuffer_Release(&segment);
    return armed < 0 ? NULL : PyBool_FromLong(armed);
}

PyDoc_STRVAR(receive_doc,
"receive(segment, words, plan, fd, caller_drains, ring, bells, reader, most_bytes)\n\n"
"wait for the next message, then take it, with nothing in between. Returns\n"
"(over, seen_ns, numbers, taken): the rest of what wait returns, as bytes of 13 int64, since who is\n"
"in a hurry does not look at them; and what take returns, None too if over is not SEEN.");

static PyObject *py_receive(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t watched_at, bell_at, armed_at, stop_at, reader, most_bytes;
    int64_t stages[N_STAGES][3];
    int64_t *s = &stages[0][0];
    int over;
    Ring r;
    Wait w = {.started_ns = 0};
    if (!PyArg_ParseTuple(args, "w*(nnnn)(LLLLLLLLLLLL)ip" RING_FORMAT "nn:receive", &segment,
                          &watched_at, &bell_at, &armed_at, &stop_at, s, s + 1, s + 2, s + 3, s + 4,
                          s + 5, s + 6, s + 7, s + 8, s + 9, s + 10, s + 11, &w.fd, &w.caller_drains,
                          RING_FIELDS(r), &reader, &most_bytes))
        return NULL;
    w.watched = word_at(&segment, watched_at);
    w.bell = word_at(&segment, bell_at);
    w.armed = word_at(&segment, armed_at);
    w.stop = word_at(&segment, stop_at);
    PyObject *taken = NULL, *result = NULL;
    if (has_reader(&segment, &r, reader)) {
        w.seen = atomic_load_explicit(word(&segment, r.lines_at + LINE * reader + CURSOR),
                                      memory_order_relaxed);
        if (carry_out_unlocked(&w, stages, &over))
            taken = over == SEEN ? take(&segment, &r, reader, most_bytes) : Py_NewRef(Py_None);
    }
    if (taken) {
        int64_t numbers[N_NUMBERS];
        list_numbers(&w, over, numbers);
        result = Py_BuildValue("iLy#N", over, w.seen_ns, (char *)numbers,
                               (Py_ssize_t)sizeof numbers, taken);
    }
    PyBuffer_Release(&segment);
    return result;
}

/* Copies this large leave nothing in the caches that anybody finds there, so they need not go through
 * them: that takes half the time of glibc's memcpy at 128 MiB on a core with 32 MiB of L3, and from
 * 8 MiB down it takes longer. */
#define STREAMED_BYTES (16 << 20)

static void copy_large(char *to, const char *from, size_t n_bytes)
{
#if defined(__x86_64__)
    size_t at = -(uintptr_t)to % 64;
    memcpy(to, from, at);
    for (; n_bytes - at >= 64; at += 64) {
        _mm_prefetch(from + at + 1024, _MM_HINT_NTA);
        for (size_t i = at; i < at + 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    }
    _mm_sfence(); /* what is streamed is ordered with nothing else, a later release included */
    to += at, from += at, n_bytes -= at;
#endif
    memcpy(to, from, n_bytes);
}

PyDoc_STRVAR(copy_doc,
"copy(segment, at, piece)\n\nCopy bytes into a segment, letting other threads run meanwhile.");

static PyObject *py_copy(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment, piece;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "w*ny*:copy", &segment, &at, &piece))
        return NULL;
    int fits = at >= 0 && at <= segment.len && piece.len <= segment.len - at;
    if (fits) {
        char *to = (char *)segment.buf + at;
        Py_BEGIN_ALLOW_THREADS
        if (piece.len < STREAMED_BYTES)
            memcpy(to, piece.buf, piece.len);
        else
            copy_large(to, piece.buf, piece.len);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_Format(PyExc_ValueError, "%zd bytes at %zd do not lie within a segment of %zd bytes",
                     piece.len, at, segment.len);
    }
    PyBuffer_Release(&piece);
    PyBuffer_Release(&segment);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

/* What each opcode of a pickle is followed by, for those that make plain data and call nothing:
 * FOLLOWED + n for n bytes, or a length of 1, 4 or 8 bytes and as many. The rest is 0. */
enum { FOLLOWED = 1, LENGTH1 = 20, LENGTH4, LENGTH8, STOP };
static const uint8_t plain_opcodes[256] = {
    ['('] = FOLLOWED, ['N'] = FOLLOWED, [0x88] = FOLLOWED, [0x89] = FOLLOWED, [']'] = FOLLOWED,
    ['a'] = FOLLOWED, ['e'] = FOLLOWED, [')'] = FOLLOWED, ['t'] = FOLLOWED, [0x85] = FOLLOWED,
    [0x86] = FOLLOWED, [0x87] = FOLLOWED, ['}'] = FOLLOWED, ['s'] = FOLLOWED, ['u'] = FOLLOWED,
    [0x8f] = FOLLOWED, [0x90] = FOLLOWED, [0x91] = FOLLOWED, [0x94] = FOLLOWED,
    [0x80] = FOLLOWED + 1, ['K'] = FOLLOWED + 1, ['h'] = FOLLOWED + 1, ['M'] = FOLLOWED + 2,
    ['J'] = FOLLOWED + 4, ['j'] = FOLLOWED + 4, ['G'] = FOLLOWED + 8, [0x95] = FOLLOWED + 8,
    [0x8a] = LENGTH1, [0x8c] = LENGTH1, ['C'] = LENGTH1, ['X'] = LENGTH4, ['B'] = LENGTH4,
    [0x8d] = LENGTH8, [0x8e] = LENGTH8, ['.'] = STOP,
};

PyDoc_STRVAR(is_plain_doc,
"is_plain(pickle)\n\nWhether a pickle consists, to its very end, of opcodes that make lists, tuples,\n"
"dicts, sets, numbers, strings and bytes; such a one can call nothing, however it was forged.");

static PyObject *py_is_plain(PyObject *self, PyObject *arg)
{
    (void)self;
    Py_buffer pickle;
    if (PyObject_GetBuffer(arg, &pickle, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *at = pickle.buf, *end = at + pickle.len;
    int plain = 0;
    while (at < end) {
        unsigned kind = plain_opcodes[*at++];
        uint64_t n = 0;
        if (kind == 0 || kind == STOP) {
            plain = kind == STOP && at == end;
            break;
        }
        if (kind < LENGTH1) {
            /* In a run of one kind, as token ids are, the length need not be looked up each time. */
            uint8_t same = at[-1];
            for (n = kind - FOLLOWED; n < (uint64_t)(end - at) && at[n] == same; at += n + 1)
                ;
        } else if (kind == LENGTH1 && end - at > 1 && *at < end - at - 1) {
            at += 1 + *at;
            at += *at == 0x94; /* whatever has a length is nearly always memorised next */
            continue;
        } else {
            Py_ssize_t width = kind == LENGTH1 ? 1 : kind == LENGTH4 ? 4 : 8;
            if (end - at < width)
                break;
            memcpy(&n, at, width); /* little-endian, as a pickle is */
            at += width;
        }
        if (n > (uint64_t)(end - at))
            break;
        at += n;
    }
    PyBuffer_Release(&pickle);
    return PyBool_FromLong(plain);
}

PyDoc_STRVAR(rounds_doc, "rounds(n)\n\nNanoseconds that n rounds of a bare spin take: an idle moment "
                         "and a look at a word, as engines and runtimes that count them do.");

static PyObject *py_rounds(PyObject *self, PyObject *arg)
{
    (void)self;
    long n = PyLong_AsLong(arg);
    if (n == -1 && PyErr_Occurred())
        return NULL;
    static _Atomic uint64_t word;
    int64_t started = now_ns();
    for (long i = 0; i < n && !atomic_load_explicit(&word, memory_order_acquire); i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        relax(&word, 0);
#endif
    }
    return PyLong_FromLongLong(now_ns() - started);
}

PyDoc_STRVAR(load_doc, "load(segment, at)\n\nRead a word (acquire).");

static PyObject *py_load(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "y*n:load", &segment, &at))
        return NULL;
    _Atomic uint64_t *word = word_at(&segment, at);
    uint64_t value = word ? atomic_load_explicit(word, memory_order_acquire) : 0;
    PyBuffer_Release(&segment);
    return word ? PyLong_FromUnsignedLongLong(value) : NULL;
}

PyDoc_STRVAR(store_doc, "store(segment, at, value)\n\nWrite a word (release).");

static PyObject *py_store(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t at;
    unsigned long long value;
    if (!PyArg_ParseTuple(args, "w*nK:store", &segment, &at, &value))
        return NULL;
    _Atomic uint64_t *word = word_at(&segment, at);
    if (word)
        atomic_store_explicit(word, value, memory_order_release);
    PyBuffer_Release(&segment);
    if (!word)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"load", py_load, METH_VARARGS, load_doc},
    {"store", py_store, METH_VARARGS, store_doc},
    {"wait", py_wait, METH_VARARGS, wait_doc},
    {"publish", py_publish, METH_VARARGS, publish_doc},
    {"take", py_take, METH_VARARGS, take_doc},
    {"receive", py_receive, METH_VARARGS, receive_doc},
    {"is_plain", py_is_plain, METH_O, is_plain_doc},
    {"announce", py_announce, METH_VARARGS, announce_doc},
    {"release", py_release, METH_VARARGS, release_doc},
    {"copy", py_copy, METH_VARARGS, copy_doc},
    {"wake", py_wake, METH_VARARGS, wake_doc},
    {"rounds", py_rounds, METH_O, rounds_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "realrun._native",
    .m_doc = "What the hand-off must not do in the interpreter.", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    relax_kind = find_relax_kind();
    PyObject *m = PyModule_Create(&module);
    if (m && PyModule_AddStringConstant(m, "RELAX", relax_names[relax_kind]) < 0)
        Py_CLEAR(m);
#ifdef Py_GIL_DISABLED
    if (m)
        PyUnstable_Module_SetGIL(m, Py_MOD_GIL_NOT_USED);
#endif
    return m;
}
