/* The least a hand-off costs when both sides park: one system call to wake, one to sleep.
 *
 * Nothing but a word is handed over. The writer sleeps until every reader has replied; with two
 * readers only the last reply wakes it.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LEAVE = UINT32_MAX };

/* A page. What different processes write is on different cache lines. */
struct words {
    _Alignas(64) _Atomic uint32_t call;
    _Alignas(64) _Atomic uint32_t replies;
    struct {
        _Alignas(64) _Atomic uint64_t ns; /* when this reader, awake again, saw the last call */
    } seen[62];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Until the last reader has seen the call. */
static uint64_t wake_ns_since(const struct words *w, uint32_t n_readers, uint64_t published_ns)
{
    uint64_t last_ns = published_ns;
    for (uint32_t r = 0; r < n_readers; r++) {
        uint64_t seen_ns = atomic_load(&w->seen[r].ns);
        if (seen_ns > last_ns)
            last_ns = seen_ns;
    }
    return last_ns - published_ns;
}

static void sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (ns)
        nanosleep(&t, NULL);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void futex_read(struct words *w, uint32_t reader, uint32_t n_readers)
{
    uint32_t seen = 0, call;
    for (;;) {
        while ((call = atomic_load(&w->call)) == seen)
            futex_wait(&w->call, seen);
        atomic_store(&w->seen[reader].ns, now_ns());
        if (call == LEAVE)
            return;
        seen = call;
        if (atomic_fetch_add(&w->replies, 1) + 1 == n_readers)
            futex_wake_all(&w->replies);
    }
}

void futex_calls(struct words *w, uint32_t n_readers, uint32_t n, uint64_t gap_ns, uint64_t *rtt_ns,
                 uint64_t *wake_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t replies;
        sleep_ns(gap_ns);
        uint64_t before_ns = now_ns();
        atomic_store(&w->replies, 0);
        atomic_fetch_add(&w->call, 1);
        futex_wake_all(&w->call);
        while ((replies = atomic_load(&w->replies)) != n_readers)
            futex_wait(&w->replies, replies);
        rtt_ns[i] = now_ns() - before_ns;
        wake_ns[i] = wake_ns_since(w, n_readers, before_ns);
    }
}

void futex_leave(struct words *w)
{
    atomic_store(&w->call, LEAVE);
    futex_wake_all(&w->call);
}

/* An eventfd adds up what is written to it, and a read takes the sum. */
void eventfd_read(struct words *w, uint32_t reader, int call, int reply)
{
    uint64_t value;
    while (read(call, &value, sizeof value) == sizeof value && value != LEAVE) {
        atomic_store(&w->seen[reader].ns, now_ns());
        value = 1;
        if (write(reply, &value, sizeof value) != sizeof value)
            return;
    }
}

int eventfd_calls(struct words *w, const int *calls, int reply, uint32_t n_readers, uint32_t n,
                  uint64_t gap_ns, uint64_t *rtt_ns, uint64_t *wake_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = 1, replies = 0;
        sleep_ns(gap_ns);
        uint64_t before_ns = now_ns();
        for (uint32_t r = 0; r < n_readers; r++)
            if (write(calls[r], &value, sizeof value) != sizeof value)
                return -1;
        while (replies != n_readers) {
            if (read(reply, &value, sizeof value) != sizeof value)
                return -1;
            replies += value;
        }
        rtt_ns[i] = now_ns() - before_ns;
        wake_ns[i] = wake_ns_since(w, n_readers, before_ns);
    }
    return 0;
}

int eventfd_leave(int call)
{
    uint64_t value = LEAVE;
    return write(call, &value, sizeof value) == sizeof value ? 0 : -1;
}
