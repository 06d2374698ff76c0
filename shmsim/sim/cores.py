"""CPU cores in virtual time: who runs, who waits for a core, who is interrupted.

What Linux's EEVDF scheduler does to threads of equal weight, as far as a step loop can feel it.
Each core has a queue of its own. A thread has a virtual runtime, its CPU time on that core, and a
deadline one slice later. Whoever is not ahead of the mean of its core is eligible, and of those the
earliest deadline runs. Until its deadline a thread keeps its core as long as it is eligible; else
whoever wakes with an earlier deadline takes the core at once, and whoever is queued gets it at the
next tick. How far a thread was behind the mean when it fell asleep, its lag, it is again when it
wakes. So two spinners on one core take turns of a tick (4 ms at 250 Hz), and a thread that sleeps
most of the time takes the core from a spinner at once, while one that works for a good part of it
waits for ticks now and then. ``sched_yield`` gives up the rest of a slice, used or not.

A waking thread goes where it ran last if that core is idle, else to an idle core, else into the
queue of the one where it ran last. A core that becomes idle takes a queued thread from another.

Where both are busy, a core with fewer threads than another takes one now and then: of three
spinners on two cores each gets two thirds, in turns of an eighth of a second.

Not modelled: weights, groups, caches shared by some cores only, loads remembered from earlier (how
much a core has to do is how many threads want it at the moment).

Sources: Linux 6.18 kernel/sched/fair.c (pick_eevdf, protect_slice, place_entity, yield_task_fair,
throttle_cfs_rq, get_sd_balance_interval, calculate_imbalance, detach_tasks);
experiments/08_oversubscription measures slices and wake-ups beside it.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import simpy

from shmsim.records import CoreRow, SliceRow
from shmsim.sim.clock import Timer, VirtualClock
from shmsim.units import FOREVER_NS, MS, US

#: How often a busy core looks whether another has more to do: so long for each core of the box,
#: less one tick (a millisecond, and sixteen times that for who is busy).
_BALANCE_NS: Final = 16 * MS
#: How often in a row it finds one thread more elsewhere before it takes it. By the source it could
#: be the second or third time; seen here was a move every 132 ms (median; 116 to 172; three
#: spinners or yielders on two cores, six runs of 1.2 s, Linux 6.18), which is the fifth.
LOOKS_FOR_ONE_MORE: Final = 5


def balance_ns(n_cores: int, tick_ns: int) -> int:
    """How often a busy core looks whether another has more to do, at its ticks."""
    return max(_BALANCE_NS * n_cores // tick_ns - 1, 1) * tick_ns


class Schedule(NamedTuple):
    """The cores of a box and the rules by which threads share them.

    Parameters
    ----------
    n_cores
        How many; 0: one for every thread, and the rest does not matter.
    slice_ns
        Length of a request: how long a thread may keep its core from another that is due; Linux:
        0.7 ms times 1 + log2 of the number of cores, up to eight.
    tick_ns
        How often a core looks whether somebody else is due: 1 s over ``CONFIG_HZ``.
    quota_ns, period_ns
        CPU time that all threads together may use in a period (``cpu.max`` of a cgroup); 0: no
        limit.
    steal_every_ns, steal_ns
        How often the hypervisor takes a core away, in the mean, and for how long; 0: never.
    """

    n_cores: int = 0
    slice_ns: int = 1_400 * US
    tick_ns: int = 4 * MS
    quota_ns: int = 0
    period_ns: int = 100 * MS
    steal_every_ns: int = 0
    steal_ns: int = 0


class Thread:
    """One thread: what it wants of a core, and what it got.

    Attributes
    ----------
    cpu_ns, queued_ns
        CPU time it used; how long it was ready to run and had no core.
    n_preempted
        How often a core was taken from it.
    """

    def __init__(self, host: "Host", process: str, core: int | None) -> None:
        """Make a thread, asleep; pinned to a core or not."""
        self._host = host
        self.process = process
        self.pinned = core
        self.core = host.cores[core if core is not None else len(host.threads) % host.n_cores]
        self.cpu_ns = self.queued_ns = self.n_preempted = 0
        self.is_awake = False
        # What it wants: an event that is due once `left_ns` of CPU time are used up (`run`), or at
        # the first look that finds something, or at `until_ns` (`spin`).
        self.wanted: simpy.Event | None = None
        self.left_ns = 0
        self.look: Callable[[], bool] | None = None
        self.until_ns = FOREVER_NS
        self.yields = False
        # Where it stands in its core's queue.
        self.vruntime = self.deadline = self.protected_until = self.lag = 0
        self.since_ns = 0  # when it got the core, or was queued, or fell asleep
        self.off_core_ns = 0  # how long the last preemption kept it from its core

    def run(self, duration_ns: int) -> simpy.Event:
        """Use CPU time; the event is due when it is used up, however often it was interrupted."""
        event = simpy.Event(self._host.env)
        self.wanted = event
        self.left_ns, self.look = duration_ns, None
        self.core.wish_changed(self)
        return event

    def ran(self, duration_ns: int) -> bool:
        """Use CPU time at once, if nothing is due before it is used up; else `run` it is."""
        core, env = self.core, self._host.env
        if core.running is not self:
            return False
        ends_ns = env.now_ns + duration_ns
        if core.queue and (not duration_ns or ends_ns >= core.next_tick_ns()):
            return False
        core.settle()
        if not env.goes_on_at(ends_ns):
            return False
        core.settle()
        core.arm(is_own=True)
        return True

    def spin(self, look: Callable[[], bool], until_ns: int, *, yields: bool) -> simpy.Event:
        """Keep looking until something is there, or an instant.

        Whoever makes it true calls `poke`. With ``yields``, it gives the core up whenever somebody
        else is queued for it.
        """
        event = simpy.Event(self._host.env)
        self.wanted = event
        self.look, self.until_ns, self.yields = look, until_ns, yields
        self.core.wish_changed(self)
        return event

    def poke(self) -> None:
        """Something that this thread may be looking for has changed."""
        if self.look is not None:
            self.core.poked(self)

    def sleep(self) -> None:
        """Give the core up."""
        self.is_awake = False
        self._host.n_awake -= 1
        self.core.leave(self)

    def wake(self) -> None:
        """Want a core again."""
        self.is_awake = True
        self._host.n_awake += 1
        self._host.place(self)


class Core:
    """One core: the thread that runs, and those that want to."""

    def __init__(self, host: "Host", number: int) -> None:
        """Start idle."""
        self._host = host
        self._env = host.env
        self.number = number
        self.tick_phase_ns = 0  #: when its first tick is
        self.running: Thread | None = None
        self.queue: list[Thread] = []
        self.busy_ns = self.stolen_ns = 0
        self.is_stolen = False
        self._stolen_since_ns = 0
        self._stolen_from: Thread | None = None
        self._settled_ns = 0
        self._mean = 0  # virtual runtime when the last thread left
        self._is_slice_over = False  # since the thread was picked
        self._timer = Timer(self._env, self._tick)
        self._slice_since_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether a thread that wakes here runs at once."""
        return self.running is None and not self.queue and not self.is_stolen

    @property
    def n_threads(self) -> int:
        """How many threads want this core."""
        return len(self.queue) + (self.running is not None)

    # What threads do.

    def wish_changed(self, thread: Thread) -> None:
        """A thread here wants something else than before."""
        if self.running is thread:
            self.settle()
            self._serve_and_pick()

    def poked(self, thread: Thread) -> None:
        """What a spinner looks for may be there."""
        if self.running is thread:
            self.settle()
            self._serve_and_pick()
        elif thread in self.queue and self.running is not None and self._yields(self.running):
            # Yielders pass the core round with every look.
            self.settle()
            self._preempt()
            if self._start(thread):
                self.pick()

    def leave(self, thread: Thread) -> None:
        """A thread falls asleep."""
        now_ns = self._env.now_ns
        self.settle()
        mean = self._mean_of_all()
        if self.running is thread:
            self._stop_running()
        else:
            self.queue.remove(thread)
            thread.queued_ns += now_ns - thread.since_ns
        most = max(2 * self._host.rules.slice_ns, self._host.rules.tick_ns)
        thread.lag = max(-most, min(mean - thread.vruntime, most))
        thread.since_ns = now_ns
        self._mean = mean
        self.pick()

    def enter(self, thread: Thread) -> None:
        """A thread wakes here: it runs at once, takes the core from another, or queues."""
        now_ns, rules = self._env.now_ns, self._host.rules
        self.settle()
        lag = thread.lag
        if lag < 0:  # who had more than its share pays it back while it sleeps
            lag = min(0, lag + (now_ns - thread.since_ns) // 2)
        # Its coming moves the mean: so much further away it is as far from it as it was.
        n_here = self.n_threads
        if n_here:
            lag = lag * (n_here + 1) // n_here
        thread.vruntime = self._mean_of_all() - lag
        thread.deadline = thread.vruntime + rules.slice_ns
        thread.since_ns = now_ns
        self.queue.append(thread)
        running = self.running
        if running is None:
            self.pick()
        elif self._yields(running) or (self._is_due_to_go(running) and self._best() is thread):
            self._preempt()
            self.pick()
        else:
            self.arm()  # for the next tick

    # Who runs.

    def pick(self) -> None:
        """Let the one that is due run, if the core is free."""
        # A yielder may hand the core on at once, and so may hundreds in a row.
        while self.running is None and self._pick_one():
            pass

    def _pick_one(self) -> bool:
        """Let one run; returns whether it has given the core up again."""
        host = self._host
        if self.is_stolen or host.is_throttled:
            return False
        if self._stolen_from is not None:
            thread, self._stolen_from = self._stolen_from, None
            self.queue.append(thread)
            return self._start(thread)
        if not self.queue:
            host.pull(self)
        return self._start(self._best()) if self.queue else False

    def _is_due_to_go(self, running: Thread) -> bool:
        """Whether the one that runs must leave the core to one whose deadline is earlier."""
        is_eligible = running.vruntime <= self._mean_of_all()
        return not is_eligible or running.vruntime >= running.protected_until

    def _best(self) -> Thread:
        if self.running is None and len(self.queue) == 1:
            return self.queue[0]
        mean = self._mean_of_all()
        # Of equals the one that waits comes first.
        candidates = self.queue if self.running is None else [*self.queue, self.running]
        eligible = [t for t in candidates if t.vruntime <= mean] or candidates
        return min(eligible, key=lambda t: t.deadline)

    def _start(self, thread: Thread) -> bool:
        """Give the core to a thread; returns whether it has given it up again."""
        now_ns = self._env.now_ns
        self.queue.remove(thread)
        waited_ns = now_ns - thread.since_ns
        thread.queued_ns += waited_ns
        if waited_ns > thread.off_core_ns:
            thread.off_core_ns = waited_ns
        thread.core = self
        thread.since_ns = self._settled_ns = self._slice_since_ns = now_ns
        thread.protected_until = thread.deadline
        self.running = thread
        self._is_slice_over = False
        self._host.running_changed(1)
        return self._serve()

    def _stop_running(self) -> None:
        thread = self.running
        assert thread is not None, "nobody runs here"
        self.running = None
        self._timer.stop()
        self._host.running_changed(-1)
        self._host.note_slice(thread, self.number, self._slice_since_ns)

    def _preempt(self) -> None:
        """Take the core from the thread that runs; it stays queued here."""
        thread = self.running
        assert thread is not None, "nobody runs here"
        self._stop_running()
        thread.n_preempted += 1
        thread.since_ns = self._env.now_ns
        mean = (self._mean_of_all() * len(self.queue) + thread.vruntime) // (len(self.queue) + 1)
        if self._yields(thread) and (not self.queue or thread.vruntime <= mean):
            thread.vruntime = thread.deadline
            thread.deadline += self._host.rules.slice_ns
        self.queue.append(thread)

    @staticmethod
    def _yields(thread: Thread) -> bool:
        return thread.look is not None and thread.yields

    # What the one that runs gets.

    def _serve_and_pick(self) -> None:
        if self._serve():
            self.pick()

    def _serve(self) -> bool:
        """Give the thread that runs what is due by now, and set the timer for the rest.

        Returns whether it gave its core up, so that another is to be picked.
        """
        thread = self.running
        if thread is None:
            return False
        now_ns = self._env.now_ns
        if thread.wanted is not None:
            if thread.look is None:
                if thread.left_ns <= 0:
                    self._grant(thread)
            elif thread.look() or now_ns >= thread.until_ns:
                self._grant(thread)
            elif thread.yields and self._somebody_has_work():
                self._preempt()
                return True
        self.arm()
        return False

    def _somebody_has_work(self) -> bool:
        """Whether anybody in line is no yielder that would only look in vain and pass it on."""
        return any(t.look is None or not t.yields or t.look() for t in self.queue)

    @staticmethod
    def _grant(thread: Thread) -> None:
        event = thread.wanted
        assert event is not None, "nothing is wanted"
        thread.wanted = thread.look = None
        event.succeed()

    def settle(self) -> None:
        """Book the time since the last look to the thread that runs."""
        now_ns = self._env.now_ns
        thread = self.running
        ran_ns = now_ns - self._settled_ns
        self._settled_ns = now_ns
        if thread is None or not ran_ns:
            return
        self.busy_ns += ran_ns
        thread.cpu_ns += ran_ns
        thread.vruntime += ran_ns
        if thread.look is None:
            thread.left_ns -= ran_ns
        if thread.vruntime < thread.deadline:
            return
        # Ticks renew a deadline that has passed, whether anybody waits or not; so does an arrival.
        rules = self._host.rules
        since_tick_ns = min((now_ns - self.tick_phase_ns) % rules.tick_ns, ran_ns)
        for ago_ns in (since_tick_ns, 0):
            if thread.vruntime - ago_ns >= thread.deadline:
                thread.deadline = thread.vruntime - ago_ns + rules.slice_ns
                self._is_slice_over = True

    def _mean_of_all(self) -> int:
        running, queue = self.running, self.queue
        if not queue:
            return self._mean if running is None else running.vruntime
        total = sum([t.vruntime for t in queue])
        if running is None:
            return total // len(queue)
        return (total + running.vruntime) // (len(queue) + 1)

    # Timers.

    def arm(self, *, is_own: bool = False) -> None:
        """Come back when the thread that runs is done, or at the next tick if somebody waits."""
        thread = self.running
        due_ns, is_timer = FOREVER_NS, False
        if thread is not None and thread.wanted is not None:
            is_timer = thread.look is not None
            due_ns = thread.until_ns if is_timer else self._env.now_ns + thread.left_ns
        if self.queue and thread is not None:
            due_ns = min(due_ns, self.next_tick_ns())
        if due_ns >= FOREVER_NS:
            self._timer.stop()
        else:
            self._timer.set(due_ns, self._env.order(is_timer=is_timer, is_own=is_own))

    def next_tick_ns(self) -> int:
        """When it looks next whether somebody else is due."""
        now_ns, tick_ns = self._env.now_ns, self._host.rules.tick_ns
        return now_ns + tick_ns - (now_ns - self.tick_phase_ns) % tick_ns

    def _tick(self) -> None:
        self.settle()
        thread = self.running
        assert thread is not None, "a timer is set for a thread that runs"
        if thread.wanted is not None and thread.look is None and thread.left_ns <= 0:
            self._grant(thread)
        if self.queue and (self._env.now_ns - self.tick_phase_ns) % self._host.rules.tick_ns == 0:
            is_due = self._is_slice_over or self._is_due_to_go(thread)
            if is_due and self._best() is not thread:
                self._preempt()
                self.pick()
                return
        if thread.wanted is None:
            self.arm()
        else:
            self._serve_and_pick()

    # What others take.

    def halt(self) -> Thread | None:
        """Take the core from its thread; returns it."""
        self.settle()
        thread = self.running
        if thread is not None:
            self._stop_running()
            thread.since_ns = self._env.now_ns
        return thread

    def steal(self, duration_ns: int) -> simpy.events.ProcessGenerator:
        """Let the hypervisor have the core for a while."""
        # Its thread cannot be moved meanwhile, and is first when the core comes back.
        self._stolen_from = self.halt() or self._stolen_from
        self.is_stolen = True
        self._stolen_since_ns = self._env.now_ns
        yield self._env.timeout(duration_ns)
        self.stolen_ns += duration_ns
        self.is_stolen = False
        self.pick()

    def row(self, wall_ns: int) -> CoreRow:
        """What became of its time."""
        self.settle()
        stolen_ns = self.stolen_ns
        if self.is_stolen:
            stolen_ns += self._env.now_ns - self._stolen_since_ns
        idle_ns = wall_ns - self.busy_ns - stolen_ns
        return CoreRow(self.number, wall_ns, self.busy_ns, stolen_ns, idle_ns)


class Host:
    """The cores of a box, and the threads on them.

    Parameters
    ----------
    env
        The virtual clock.
    rules
        How many cores, and how they are shared.
    slices
        Where to note who ran where and when; None: nowhere.
    """

    def __init__(
        self, env: VirtualClock, rules: Schedule, n_cores: int, slices: list[SliceRow] | None = None
    ) -> None:
        """Start with idle cores and no threads."""
        self.env = env
        self.rules = rules
        self.n_cores = n_cores
        self.threads: list[Thread] = []
        self.cores = [Core(self, number) for number in range(n_cores)]
        self.is_throttled = False
        self._slices = slices
        self.n_awake = self.n_running = 0
        self._left_ns = rules.quota_ns
        self._metered_ns = 0
        self._meter = 0

    def thread(self, process: str, core: int | None = None) -> Thread:
        """A new thread of a process, asleep; pinned to a core or free."""
        thread = Thread(self, process, core)
        self.threads.append(thread)
        return thread

    def start(self, intervals: Iterable[Callable[[], float]]) -> None:
        """Begin periods and thefts; ``intervals`` draw the time to the next theft, core by core."""
        if self.rules.quota_ns:
            self.env.process(self._refill())
        if self.rules.steal_every_ns and self.rules.steal_ns:
            for core, draw in zip(self.cores, intervals, strict=False):
                self.env.process(self._steal(core, draw))
        if self.n_cores > 1:
            for core in self.cores:
                self.env.process(self._balance(core))

    def place(self, thread: Thread) -> None:
        """Let a waking thread in at the core that suits it."""
        core = thread.core
        if thread.pinned is None and not core.is_idle:
            core = next((c for c in self.cores if c.is_idle), core)
        thread.core = core
        core.enter(thread)

    def pull(self, idle: Core) -> None:
        """Move a thread that waits elsewhere to a core that has become idle."""
        if self.n_awake == self.n_running:  # so that with many cores nobody looks through them all
            return
        waiting = [t for core in self.cores if core is not idle for t in core.queue]
        free = [thread for thread in waiting if thread.pinned is None]
        if free:
            thread = max(free, key=lambda t: (len(t.core.queue), -t.since_ns))
            thread.core.queue.remove(thread)
            thread.queued_ns += self.env.now_ns - thread.since_ns
            thread.lag = 0
            thread.core = idle
            idle.enter(thread)

    def _balance(self, core: Core) -> simpy.events.ProcessGenerator:
        """Look from a busy core, at every so many of its ticks, whether another has more to do."""
        every_ns = balance_ns(self.n_cores, self.rules.tick_ns)
        n_found = 0
        yield self.env.timeout(core.tick_phase_ns)
        while True:
            yield self.env.timeout(every_ns)
            more = self._more_to_do_than(core)
            n_found = n_found + 1 if more else 0
            if n_found >= (LOOKS_FOR_ONE_MORE if more == 1 else 1):
                self.pull(core)
                n_found = 0

    def _more_to_do_than(self, core: Core) -> int:
        """How many more threads than a busy core the fullest one has that could give one away."""
        if core.running is None:
            return 0
        movable = [c for c in self.cores if any(t.pinned is None for t in c.queue)]
        most = max((c.n_threads for c in movable), default=0)
        return max(most - core.n_threads, 0)

    def note_slice(self, thread: Thread, core: int, since_ns: int) -> None:
        """Remember that a thread has run."""
        if self._slices is not None and self.env.now_ns > since_ns:
            self._slices.append(SliceRow(thread.process, core, since_ns, self.env.now_ns))

    # The quota.

    def running_changed(self, by: int) -> None:
        """One thread more or less is running: the quota drains faster or slower."""
        if not self.rules.quota_ns:
            self.n_running += by
            return
        self._drain()
        self.n_running += by
        self._set_meter()

    def _drain(self) -> None:
        now_ns = self.env.now_ns
        self._left_ns -= self.n_running * (now_ns - self._metered_ns)
        self._metered_ns = now_ns

    def _set_meter(self) -> None:
        if not self.n_running or self.is_throttled:
            return
        self._meter += 1
        meter = self._meter

        def empty() -> None:
            if meter == self._meter:
                self._throttle()

        self.env.after(max(self._left_ns, 0) // self.n_running, empty)

    def _throttle(self) -> None:
        self._drain()
        if self._left_ns >= self.n_running:  # rounding left something
            self._set_meter()
            return
        self.is_throttled = True
        for core in self.cores:
            thread = core.halt()
            if thread is not None:
                core.queue.append(thread)

    def _refill(self) -> simpy.events.ProcessGenerator:
        while True:
            yield self.env.timeout(self.rules.period_ns)
            self._drain()
            # What was used beyond the quota is owed; what was left over is lost.
            self._left_ns = self.rules.quota_ns + min(self._left_ns, 0)
            if self.is_throttled and self._left_ns > 0:
                self.is_throttled = False
                for core in self.cores:
                    core.pick()
            self._set_meter()

    def _steal(self, core: Core, draw: Callable[[], float]) -> simpy.events.ProcessGenerator:
        while True:
            yield self.env.timeout(max(1, int(draw() * self.rules.steal_every_ns)))
            yield from core.steal(self.rules.steal_ns)

    def rows(self, wall_ns: int) -> list[CoreRow]:
        """What became of the time of each core."""
        return [core.row(wall_ns) for core in self.cores]


#: Threads that have a core each are not scheduled at all.
AMPLE: Final = Schedule()
