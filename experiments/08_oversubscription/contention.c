/* What threads do to each other that share cores: round trips, stays on a core, wake-ups.
 *
 *     contention ring  WAIT N_THREADS WORK_NS SECONDS
 *     contention stays OTHER CORE SECONDS
 *     contention wakes OTHER CORE WAKER_CORE GAP_NS WORK_NS N
 *
 * WAIT is spin (with the pause hint), yield or park (a futex); OTHER, who shares the core, is none,
 * spin or yield. Samples go to stdout as int64 nanoseconds. Nothing here guards a spinner against a
 * crowded core: what that costs is what is measured.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SAMPLES = 1 << 21, MOST_THREADS = 64, OFF_CORE_NS = 100000 };
enum wait { NONE, SPIN, YIELD, PARK };

static int64_t samples[MOST_SAMPLES];
static int n_samples;
static atomic_int stop;
static _Atomic uint32_t word; /* whose turn it is, or how often the sleeper was rung */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void work(int64_t for_ns)
{
    int64_t until_ns = now_ns() + for_ns;
    while (now_ns() < until_ns)
        ;
}

static void keep(int64_t ns)
{
    if (n_samples < MOST_SAMPLES)
        samples[n_samples++] = ns;
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static void park(uint32_t seen)
{
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void ring_bell(void)
{
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void pass_time(enum wait how, uint32_t seen)
{
    if (how == SPIN)
        relax();
    else if (how == YIELD)
        sched_yield();
    else
        park(seen);
}

static enum wait parse_wait(const char *name)
{
    static const char *names[] = {"none", "spin", "yield", "park"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]))
            return i;
    fprintf(stderr, "unknown way to wait: %s\n", name);
    exit(2);
}

static pthread_t start(void *(*body)(void *), intptr_t argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, (void *)argument)) {
        perror("pthread_create");
        exit(1);
    }
    return thread;
}

static void end_all(pthread_t *threads, int n)
{
    stop = 1;
    atomic_fetch_add(&word, 1);
    ring_bell();
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

/* ring: a turn goes from thread to thread; a sample is one round trip, turn to turn of thread 0. */

static enum wait ring_wait;
static int ring_size;
static int64_t ring_work_ns;

static void *take_turns(void *argument)
{
    uint32_t me = (uint32_t)(intptr_t)argument, found;
    int64_t last_ns = 0;
    while (!stop) {
        if ((found = word) != me) {
            if (stop) /* looked at after the word, which moves for the last time after the stop */
                break;
            pass_time(ring_wait, found);
            continue;
        }
        int64_t t = now_ns();
        if (me == 0) {
            if (last_ns)
                keep(t - last_ns);
            last_ns = t;
        }
        work(ring_work_ns);
        if (stop) /* the word may have moved for good */
            break;
        word = (me + 1) % ring_size;
        if (ring_wait == PARK)
            ring_bell();
    }
    return NULL;
}

static void measure_ring(char **arguments)
{
    pthread_t threads[MOST_THREADS];
    ring_wait = parse_wait(arguments[0]);
    ring_size = atoi(arguments[1]);
    ring_work_ns = atoll(arguments[2]);
    if (ring_size < 2 || ring_size > MOST_THREADS || ring_wait == NONE) {
        fprintf(stderr, "a ring has 2 to %d threads that wait somehow\n", MOST_THREADS);
        exit(2);
    }
    for (int i = 0; i < ring_size; i++)
        threads[i] = start(take_turns, i);
    usleep((useconds_t)(atof(arguments[3]) * 1e6));
    stop = 1;
    word = UINT32_MAX; /* nobody's turn: parked threads see it move, and the stop */
    ring_bell();
    for (int i = 0; i < ring_size; i++)
        pthread_join(threads[i], NULL);
}

/* Who shares the core. */

static enum wait other_wait;

static void *occupy(void *argument)
{
    pin((int)(intptr_t)argument);
    while (!stop)
        pass_time(other_wait, 0);
    return NULL;
}

/* stays: samples are pairs, how long a spinner was on its core, and how long off it afterwards. */

static void *watch_the_clock(void *argument)
{
    pin((int)(intptr_t)argument);
    int64_t t = now_ns(), since_ns = t;
    while (!stop) {
        int64_t before_ns = t;
        t = now_ns();
        if (t - before_ns > OFF_CORE_NS) {
            keep(before_ns - since_ns);
            keep(t - before_ns);
            since_ns = t;
        }
    }
    return NULL;
}

static void measure_stays(char **arguments)
{
    int core = atoi(arguments[1]);
    other_wait = parse_wait(arguments[0]);
    pthread_t threads[2];
    int n = 0;
    threads[n++] = start(watch_the_clock, core);
    if (other_wait != NONE)
        threads[n++] = start(occupy, core);
    usleep((useconds_t)(atof(arguments[2]) * 1e6));
    end_all(threads, n);
}

/* wakes: a sample is the time from just before a futex wake to the sleeper's first instruction. */

static _Atomic int64_t rang_ns;
static atomic_int n_answered;
static int64_t sleeper_work_ns;

static void *sleep_and_work(void *argument)
{
    pin((int)(intptr_t)argument);
    uint32_t seen = word;
    while (!stop) {
        while (word == seen && !stop)
            park(seen);
        int64_t t = now_ns();
        seen = word;
        if (!stop)
            keep(t - rang_ns);
        work(sleeper_work_ns);
        n_answered++;
    }
    return NULL;
}

static void measure_wakes(char **arguments)
{
    int core = atoi(arguments[1]), n_wakes = atoi(arguments[5]);
    int64_t gap_ns = atoll(arguments[3]);
    other_wait = parse_wait(arguments[0]);
    sleeper_work_ns = atoll(arguments[4]);
    pthread_t threads[2];
    int n = 0;
    if (other_wait != NONE)
        threads[n++] = start(occupy, core);
    threads[n++] = start(sleep_and_work, core);
    pin(atoi(arguments[2]));
    usleep(50000);
    for (int i = 0; i < n_wakes; i++) {
        work(gap_ns); /* awake, so that nothing but the sleeper's wake-up is in the sample */
        rang_ns = now_ns();
        atomic_fetch_add(&word, 1);
        ring_bell();
        /* A second ring before it answers the first would make that sample too short. */
        while (n_answered <= i)
            relax();
    }
    end_all(threads, n);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0);
    if (argc == 6 && !strcmp(argv[1], "ring"))
        measure_ring(argv + 2);
    else if (argc == 5 && !strcmp(argv[1], "stays"))
        measure_stays(argv + 2);
    else if (argc == 8 && !strcmp(argv[1], "wakes"))
        measure_wakes(argv + 2);
    else {
        fprintf(stderr, "usage: ring WAIT N WORK_NS S | stays OTHER CORE S"
                        " | wakes OTHER CORE WAKER_CORE GAP_NS WORK_NS N\n");
        return 2;
    }
    return fwrite(samples, sizeof *samples, n_samples, stdout) == (size_t)n_samples ? 0 : 1;
}
