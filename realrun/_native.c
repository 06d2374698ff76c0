/* The three calls of the hand-off that must not run in the interpreter: post, wake and wait.
 *
 * Protocol between the writer of a ring and one of its readers (twin: realrun/_fallback.py):
 *
 *   writer (post, wake)                      reader (wait, stages DOZE and PARK)
 *   -------------------                      ------------------------------------
 *   write slot, write stamp                  armed = 1
 *   head = sequence        (release)         fence
 *   fence                                    look at head again; leave if it moved
 *   look at every armed flag                 futex_wait(head == what I saw)
 *   futex_wake if one is set                 armed = 0
 *
 * Each side writes its own word before it looks at the other's, with a full fence between. One of
 * the two therefore sees the other, and the kernel compares head once more under its own lock: no
 * wake-up can be lost. The writer makes no system call while nobody is armed.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

enum { SPIN, YIELD, NAP, DOZE, POLL, PARK, REHEARSE };   /* shmsim/wait.py */
enum { SEEN, STOPPED, ENDED, REHEARSING };                /* realrun/native.py */
#define N_STAGES 4
#define FOREVER_NS ((int64_t)1 << 62)
#define LOOKS_PER_CLOCK_READ 16
#define SIGNAL_CHECK_NS 50000000
/* A spinner reads the clock about every microsecond. A gap of a time slice, by an involuntary switch,
 * means that somebody else wants this core, who may be the very process it waits for. For a while it
 * then waits on the doorbell instead of spinning. Without this, three spinners on two cores take
 * turns of several milliseconds; sched_yield would still leave 0.3 ms a turn. */
#define DESCHEDULED_NS 1000000
#define CROWDED_FOR_NS 100000000
static _Thread_local int64_t crowded_until_ns;

static inline int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#define now_ns() clock_ns(CLOCK_MONOTONIC)
#define cpu_ns() clock_ns(CLOCK_THREAD_CPUTIME_ID)

static inline void pause_hint(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* Sleep until head moves away from `seen`, a wake, or the deadline. Returns 0 or an errno. */
static int futex_sleep(_Atomic uint64_t *head, uint64_t seen, int64_t deadline_ns)
{
    struct timespec t = timespec_of(deadline_ns);
    /* The futex is the low half of head: little-endian, so the same address. */
    long rc = syscall(SYS_futex, (uint32_t *)head, FUTEX_WAIT_BITSET, (uint32_t)seen,
                      deadline_ns >= FOREVER_NS ? NULL : &t, NULL, FUTEX_BITSET_MATCH_ANY);
    return rc == 0 ? 0 : errno;
}

typedef struct {
    _Atomic uint64_t *head;
    _Atomic uint64_t *armed;
    _Atomic uint64_t *stop;
    uint64_t seen;
    int64_t started_ns;
    int64_t seen_ns;
    int64_t overshoot_ns;
    int64_t stage_cpu_ns[N_STAGES];
    int stage;
    long switches; /* involuntary ones of this thread before it began to spin */
    int belled;
    int failed; /* a signal handler raised */
} Wait;

static inline int arrived(const Wait *w)
{
    return atomic_load_explicit(w->head, memory_order_acquire) != w->seen;
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

static long involuntary_switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

static int sleep_on_bell(Wait *w, int64_t deadline_ns, int64_t period_ns);

/* Each stage returns 1 when the wait is over (seen, stopped or failed), 0 when its time is. */

static int look_repeatedly(Wait *w, int kind, int64_t deadline_ns)
{
    int64_t t = now_ns(), checked_ns = t;
    for (unsigned looks = 0;; looks++) {
        if (arrived(w))
            return 1;
        if (kind == SPIN && t < crowded_until_ns) {
            int64_t until_ns = crowded_until_ns < deadline_ns ? crowded_until_ns : deadline_ns;
            if (sleep_on_bell(w, until_ns, 0))
                return 1;
            w->switches = involuntary_switches();
            t = now_ns();
        }
        if (kind == YIELD)
            sched_yield();
        else
            pause_hint();
        if (kind == SPIN && looks % LOOKS_PER_CLOCK_READ)
            continue;
        int64_t before_ns = t;
        t = now_ns();
        if (t >= deadline_ns)
            return 0;
        if (kind == SPIN && t - before_ns > DESCHEDULED_NS && involuntary_switches() > w->switches)
            crowded_until_ns = t + CROWDED_FOR_NS;
        if (stopped(w))
            return 1;
        if (t - checked_ns > SIGNAL_CHECK_NS) {
            checked_ns = t;
            run_signal_handlers(w);
            if (w->failed)
                return 1;
        }
    }
}

static int sleep_deafly(Wait *w, int64_t deadline_ns)
{
    struct timespec t = timespec_of(deadline_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
        run_signal_handlers(w);
        if (w->failed)
            return 1;
    }
    w->overshoot_ns = now_ns() - deadline_ns;
    return arrived(w) || stopped(w);
}

static int poll_slowly(Wait *w, int64_t deadline_ns, int64_t period_ns)
{
    int64_t next_ns = now_ns();
    while (next_ns < deadline_ns) {
        next_ns = now_ns() + period_ns;
        if (sleep_deafly(w, next_ns < deadline_ns ? next_ns : deadline_ns))
            return 1;
    }
    return 0;
}

static int sleep_on_bell(Wait *w, int64_t deadline_ns, int64_t period_ns)
{
    for (;;) {
        int64_t until_ns = deadline_ns;
        if (period_ns > 0) {
            int64_t recheck_ns = now_ns() + period_ns;
            if (recheck_ns < until_ns)
                until_ns = recheck_ns;
        }
        atomic_store_explicit(w->armed, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        int over = arrived(w) || stopped(w);
        int error = over ? EAGAIN : futex_sleep(w->head, w->seen, until_ns);
        atomic_store_explicit(w->armed, 0, memory_order_release);
        if (error == EINTR) {
            run_signal_handlers(w);
            if (w->failed)
                return 1;
        }
        if (error == ETIMEDOUT)
            w->overshoot_ns = now_ns() - until_ns;
        if (arrived(w)) {
            w->belled = error == 0;
            return 1;
        }
        if (stopped(w))
            return 1;
        if (error == ETIMEDOUT && until_ns == deadline_ns)
            return 0;
    }
}

static int carry_out(Wait *w, int64_t stages[N_STAGES][3])
{
    int64_t cpu_before_ns = cpu_ns();
    w->seen_ns = now_ns();
    if (w->started_ns == 0)
        w->started_ns = w->seen_ns;
    int over = 0, how = ENDED;
    for (; !over && w->stage < N_STAGES; w->stage++) {
        int64_t kind = stages[w->stage][0], until_ns = stages[w->stage][1];
        int64_t period_ns = stages[w->stage][2];
        int64_t deadline_ns = until_ns >= FOREVER_NS ? FOREVER_NS : w->started_ns + until_ns;
        if (arrived(w) || stopped(w))
            over = 1;
        else if (kind == REHEARSE)
            return REHEARSING; /* the caller rehearses and comes back for the next stage */
        else if (now_ns() >= deadline_ns)
            continue; /* a late wake-up used this stage's time up */
        else if (kind == SPIN || kind == YIELD)
            over = look_repeatedly(w, (int)kind, deadline_ns);
        else if (kind == NAP)
            over = sleep_deafly(w, deadline_ns);
        else if (kind == POLL)
            over = poll_slowly(w, deadline_ns, period_ns);
        else
            over = sleep_on_bell(w, deadline_ns, period_ns);
        /* The last look comes before the clock is read: nothing is seen before it was published. */
        how = arrived(w) ? SEEN : stopped(w) ? STOPPED : ENDED;
        w->seen_ns = now_ns();
        int64_t cpu_after_ns = cpu_ns();
        w->stage_cpu_ns[w->stage] += cpu_after_ns - cpu_before_ns;
        cpu_before_ns = cpu_after_ns;
    }
    w->stage--;
    return how;
}

static void *word_at(Py_buffer *buffer, Py_ssize_t offset)
{
    if (offset < 0 || offset % 8 || offset + 8 > buffer->len) {
        PyErr_Format(PyExc_ValueError,
                     "offset %zd is not that of an aligned 8-byte word in a segment of %zd bytes",
                     offset, buffer->len);
        return NULL;
    }
    return (char *)buffer->buf + offset;
}

PyDoc_STRVAR(wait_doc,
"wait(segment, head_at, seen, armed_at, stop_at, plan, stage=0, started_ns=0)\n\n"
"Carry out a plan (12 ints) until head differs from seen, stop is set or the plan has ended;\n"
"releases the GIL. At a REHEARSE stage it returns; call again with the next stage and the same\n"
"started_ns to go on. Returns (over, started_ns, seen_ns, stage, cpu0, cpu1, cpu2, cpu3,\n"
"overshoot_ns, belled, preempted); over is SEEN, STOPPED, ENDED or REHEARSING.");

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

static PyObject *py_wait(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t head_at, armed_at, stop_at;
    unsigned long long seen;
    int64_t stages[N_STAGES][3];
    int64_t *s = &stages[0][0];
    int first_stage = 0;
    long long started_ns = 0;
    if (!PyArg_ParseTuple(args, "w*nKnn(LLLLLLLLLLLL)|iL:wait", &segment, &head_at, &seen, &armed_at,
                          &stop_at, s, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6, s + 7, s + 8,
                          s + 9, s + 10, s + 11, &first_stage, &started_ns))
        return NULL;
    Wait w = {.seen = seen,
              .stage = first_stage,
              .started_ns = started_ns,
              .head = word_at(&segment, head_at),
              .armed = word_at(&segment, armed_at),
              .stop = word_at(&segment, stop_at)};
    PyObject *result = NULL;
    if (first_stage < 0 || first_stage > N_STAGES)
        PyErr_Format(PyExc_ValueError, "stage must be from 0 to %d, got %d", N_STAGES, first_stage);
    else if (w.head && w.armed && w.stop && check_stages(stages)) {
        int over;
        long preempted;
        Py_BEGIN_ALLOW_THREADS
        preempted = w.switches = involuntary_switches();
        over = carry_out(&w, stages);
        preempted = involuntary_switches() - preempted;
        Py_END_ALLOW_THREADS
        if (!w.failed)
            result = Py_BuildValue("iLLiLLLLLil", over, w.started_ns, w.seen_ns, w.stage,
                                   w.stage_cpu_ns[0], w.stage_cpu_ns[1], w.stage_cpu_ns[2],
                                   w.stage_cpu_ns[3], w.overshoot_ns, w.belled, preempted);
    }
    PyBuffer_Release(&segment);
    return result;
}

PyDoc_STRVAR(post_doc,
"post(segment, head_at, sequence, stamp_at, armed_at, armed_stride, n_readers)\n\n"
"Stamp the slot, publish it by setting head to sequence, then count the readers that are armed.\n"
"Returns (published_ns, n_armed).");

static PyObject *py_post(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t head_at, stamp_at, armed_at, armed_stride, n_readers;
    unsigned long long sequence;
    if (!PyArg_ParseTuple(args, "w*nKnnnn:post", &segment, &head_at, &sequence, &stamp_at,
                          &armed_at, &armed_stride, &n_readers))
        return NULL;
    PyObject *result = NULL;
    _Atomic uint64_t *head = word_at(&segment, head_at);
    _Atomic uint64_t *stamp = head ? word_at(&segment, stamp_at) : NULL;
    _Atomic uint64_t *last =
        stamp ? word_at(&segment, armed_at + armed_stride * (n_readers - 1)) : NULL;
    if (last && word_at(&segment, armed_at)) {
        int64_t published_ns = now_ns();
        atomic_store_explicit(stamp, (uint64_t)published_ns, memory_order_relaxed);
        atomic_store_explicit(head, sequence, memory_order_release);
        atomic_thread_fence(memory_order_seq_cst);
        long n_armed = 0;
        for (Py_ssize_t i = 0; i < n_readers; i++) {
            _Atomic uint64_t *armed =
                (void *)((char *)segment.buf + armed_at + armed_stride * i);
            n_armed += atomic_load_explicit(armed, memory_order_relaxed) != 0;
        }
        result = Py_BuildValue("Ll", published_ns, n_armed);
    }
    PyBuffer_Release(&segment);
    return result;
}

PyDoc_STRVAR(wake_doc,
"wake(segment, head_at)\n\nWake every waiter asleep on head with one call; returns how many.");

static PyObject *py_wake(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer segment;
    Py_ssize_t head_at;
    if (!PyArg_ParseTuple(args, "w*n:wake", &segment, &head_at))
        return NULL;
    long woken = -1;
    void *head = word_at(&segment, head_at);
    if (head)
        woken = syscall(SYS_futex, head, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    PyBuffer_Release(&segment);
    return head ? PyLong_FromLong(woken) : NULL;
}

static PyMethodDef methods[] = {
    {"wait", py_wait, METH_VARARGS, wait_doc},
    {"post", py_post, METH_VARARGS, post_doc},
    {"wake", py_wake, METH_VARARGS, wake_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "realrun._native",
    .m_doc = "post, wake and wait without the interpreter.", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&module);
}
