"""A process of the model: its costs, its cores, its policies and its records."""

from collections.abc import Iterable
from functools import partial

import simpy

from shmsim.batching import Batch
from shmsim.profile import AT_DEVICE, MachineProfile
from shmsim.records import ProcessRow, WaitRow
from shmsim.sim.clock import Process, VirtualClock
from shmsim.sim.contended import CARRYING, Lane, SharedWait
from shmsim.sim.courier import Courier
from shmsim.sim.deciding import Deciding, looks_of
from shmsim.sim.draws import Draws
from shmsim.sim.source import Inbox, Message, Ring, Source
from shmsim.sim.waiter import DOZED, PARKED, REHEARSED, SPUN, VirtualWait
from shmsim.tape import Tape
from shmsim.wait import (
    DEVICE_DONE,
    SCHEDULER_RECV,
    SCHEDULER_SLOT,
    WORKER_SLOT,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    check_plan,
)


class Site:
    """One place where a process waits: its policies, one for each call, and its luck.

    Parameters
    ----------
    actor
        Whose it is.
    kind
        As in `shmsim.wait.WaitContext`.
    entity
        Name of its random numbers: another site's waits do not shift them.
    policy
        Start value.
    """

    def __init__(self, actor: "Actor", kind: int, entity: str, policy: WaitPolicy) -> None:
        """Nothing was waited for yet."""
        tape, profile = actor.tape, actor.profile
        self.kind = kind
        self.policies = [policy, policy]
        self.uniform = tape.uniform(entity, "policy")
        prefix = AT_DEVICE if kind == DEVICE_DONE else ""
        self.draws = Draws(profile, tape, entity, prefix)
        self.deciding = Deciding(profile, tape, entity, policy)
        self.n_waits = 0
        self.n_learnt = 0
        self.last_seen_ns = 0
        self.finished: list[tuple[WaitContext, WaitOutcome]] = []


class Actor:
    """A process.

    Parameters
    ----------
    env, profile, tape, costs
        Clock, calibrated costs, random numbers, and what policies are told.
    name
        In records.
    kind
        Where it waits for messages: `SCHEDULER_RECV` or `WORKER_RECV`.
    lane
        The main thread.
    courier
        The I/O thread, where rings need one.
    """

    def __init__(
        self,
        env: VirtualClock,
        profile: MachineProfile,
        tape: Tape,
        costs: WaitCosts,
        name: str,
        kind: int,
        lane: Lane,
        courier: Courier | None = None,
    ) -> None:
        """Do nothing yet."""
        self.env = env
        self.profile = profile
        self.tape = tape
        self.costs = costs
        self.name = name
        self.kind = kind
        self.lane = lane
        self.courier = courier
        self.draws = Draws(profile, tape, name)
        self.release_draws = Draws(profile, tape, f"{name} release")
        self.sites: list[Site] = []
        self.cpu_ns = 0
        self.notified = self.elided = 0
        self.rows: list[WaitRow] = []
        is_scheduler = kind == SCHEDULER_RECV
        self._rehearsal = "rehearsal" if is_scheduler else "worker_rehearsal"
        work = "slow" if is_scheduler else "worker_slow"
        self._slow_after = {
            mode: f"{work}_after_{mode}" for mode in (SPUN, PARKED, DOZED, REHEARSED)
        }
        self._slot_kind = SCHEDULER_SLOT if is_scheduler else WORKER_SLOT

    def site(self, kind: int, entity: str, policy: WaitPolicy) -> Site:
        """A place where it waits."""
        site = Site(self, kind, entity, policy)
        self.sites.append(site)
        return site

    # Work.

    def busy(self, duration_ns: int, lane: Lane | None = None) -> Iterable[simpy.Event]:
        """Occupy a core for some time, by the main thread or another, and for what is owed.

        Returns the event to yield from, or none if the time is over already.
        """
        lane = lane or self.lane
        duration_ns += lane.owed_ns
        lane.owed_ns = 0
        if lane.thread is None:
            self.cpu_ns += duration_ns
            if self.env.goes_on_at(self.env.now_ns + duration_ns):
                return ()
            return (simpy.Timeout(self.env, duration_ns),)
        if lane.thread.ran(duration_ns):
            return ()
        return (lane.thread.run(duration_ns),)

    def owe(self, duration_ns: int, lane: Lane | None = None) -> None:
        """Work whose end nobody can see: it is done with whatever comes next (`busy`)."""
        (lane or self.lane).owed_ns += duration_ns

    @property
    def now_ns(self) -> int:
        """The instant by the main thread, which may be ahead of the clock by what it owes."""
        return self.env.now_ns + self.lane.owed_ns

    def book(self, cpu_ns: int) -> None:
        """Count CPU time that delays nobody."""
        if self.lane.thread is None:
            self.cpu_ns += cpu_ns
        else:
            self.lane.unplaced_ns += cpu_ns

    def sleep(self, lane: Lane | None = None) -> None:
        """Leave the core for whatever comes next; `wake` follows."""
        thread = (lane or self.lane).thread
        if thread is not None:
            thread.sleep()

    def wake(self, lane: Lane | None = None) -> None:
        """Want the core again."""
        thread = (lane or self.lane).thread
        if thread is not None:
            thread.wake()

    def slowness(self, draws: Draws, index: int, mode: str, rested_ns: int) -> int:
        """Extra time of the work that follows a wait, or another rest with numbers of its own."""
        if rested_ns <= 0:
            return 0
        return max(0, draws.at(self._slow_after[mode], index, rested_ns))

    # Messages.

    def publish(
        self,
        ring: Ring,
        slots: Site,
        message: Message,
        n_bytes: int,
        work_ns: int,
        lane: Lane | None = None,
    ) -> Process:
        """Work, wait for a slot if there is none, publish, ring; returns the publish stamp."""
        if ring.is_full:
            yield from self.busy(work_ns, lane)
            work_ns = 0
        yield from self.await_slot(ring, slots, message, lane)
        yield from self.busy(work_ns + self.draws.next("ring_publish", n_bytes), lane)
        published = Message(
            message.step, message.call, message.batch, message.pending, self.env.now_ns
        )
        index = ring.n_published + 1
        further_ns = partial(self._further_ns, index)
        n_armed, asleep_ns = ring.publish(published, self.courier, further_ns)
        self._ring_bell(index, n_armed, asleep_ns, lane)
        return published.published_ns

    def await_slot(
        self, ring: Ring, slots: Site, message: Message, lane: Lane | None = None
    ) -> Process:
        """Wait for a slot for a message if there is none."""
        while ring.is_full:
            yield from self.await_source(
                slots, ring.slots, message.call, message.step, None, message.pending, lane
            )
            self.learn(lane)

    def _ring_bell(self, index: int, n_armed: int, asleep_ns: int, lane: Lane | None) -> None:
        if n_armed:
            self.notified += 1
            ring_ns = self.draws.at("notify_armed", index, asleep_ns)
            if n_armed > 1:
                ring_ns += (n_armed - 1) * self._further_ns(index, asleep_ns)
            self.owe(ring_ns, lane)
        else:
            self.elided += 1
            self.owe(self.draws.at("notify_unarmed", index), lane)

    def _further_ns(self, index: int, asleep_ns: int) -> int:
        """What the ring of a message costs for each reader behind the first."""
        is_known = "notify_further" in self.profile.costs
        return self.draws.at("notify_further" if is_known else "notify_armed", index, asleep_ns)

    def receive(
        self, site: Site, inbox: Inbox, call: int, step: int, known: Batch | None, pending: bool
    ) -> Process:
        """Wait for the next message by plan; returns it, and how much slower work on it is."""
        slowness_ns = yield from self.await_source(site, inbox, call, step, known, pending)
        return inbox.messages.popleft(), slowness_ns

    def read(self, ring: Ring, inbox: Inbox, n_bytes: int, work_ns: int) -> Process:
        """Copy a message out, release its slot, and work on it."""
        self.owe(self.draws.next("wait_exit") + self.draws.next("ring_read", n_bytes))
        if ring.can_fill:
            yield from self.busy(0)  # somebody may be waiting for this slot
        asleep_ns = ring.release(inbox, self.courier)
        if asleep_ns is not None:
            self.notified += 1
            self.owe(self.release_draws.at("notify_armed", inbox.n_released, asleep_ns))
        yield from self.busy(work_ns)

    # Waits.

    def await_source(
        self,
        site: Site,
        source: Source,
        call: int,
        step: int,
        known: Batch | None,
        pending: bool,
        lane: Lane | None = None,
    ) -> Process:
        """Wait by plan until something is there, and record it.

        Returns the extra time of the work that follows, as caches were left; whose it is adds it.
        """
        lane = lane or self.lane
        index = site.n_waits
        site.n_waits += 1
        ctx = WaitContext(
            site.kind,
            call,
            self.env.now_ns + lane.owed_ns - site.last_seen_ns,
            pending,
            len(known.decode) if known else 0,
            known.n_prefill_tokens if known else 0,
            known.n_kv_tokens if known else 0,
            site.uniform.at(index),
            self.costs,
        )
        policy = site.policies[call]
        plan = policy.plan(ctx)
        check_plan(plan)
        plan_ns = site.deciding.plan_ns(looks_of(policy), index, lane.cold.plan_ns)
        lane.cold.plan_ns = 0
        yield from self.busy(plan_ns + site.draws.at("wait_enter", index), lane)
        started_ns = self.env.now_ns
        if lane.thread is None:
            seen = yield from self._wait_alone(site, source, plan, index)
            cpu_ns = sum(seen.cpu_ns)
            self.cpu_ns += cpu_ns
            if seen.belled and source.courier is not None and self.courier is not None:
                latency_ns = self.env.now_ns - (source.found_ns() or 0) - seen.late_ns
                carry_ns = min(site.draws.at(CARRYING, index, seen.rested_ns), latency_ns // 3)
                for courier in (source.courier, self.courier):
                    courier.count(carry_ns)
        else:
            wait = SharedWait(
                self.env, lane, site.draws, plan, index, self._rehearsal, self.courier
            )
            seen = yield from wait.see(source)
            cpu_ns = sum(seen.cpu_ns)
        lane.cold.rest(seen.resumed_from, seen.rested_ns)
        found_ns = source.found_ns()
        assert found_ns is not None, "a wait ends when there is something"
        seen_ns = site.last_seen_ns = self.env.now_ns
        n_preempted = lane.take_preemptions()
        outcome = WaitOutcome(
            found_ns - started_ns,
            seen_ns - started_ns,
            seen.stage,
            seen.cpu_ns,
            seen.overshoot_ns,
            seen.belled,
            n_preempted,
        )
        site.finished.append((ctx, outcome))
        self.rows.append(
            WaitRow(
                self.name,
                site.kind,
                call,
                step,
                pending,
                started_ns,
                found_ns,
                seen_ns,
                seen.stage,
                cpu_ns,
                seen.overshoot_ns,
                seen.belled,
                n_preempted,
                plan[seen.stage].kind,
            )
        )
        return self.slowness(site.draws, index, seen.resumed_from, seen.rested_ns)

    def _wait_alone(self, site: Site, source: Source, plan: WaitPlan, index: int) -> Process:
        """With a core to itself a wait can be looked up instead of lived through."""
        started_ns = self.env.now_ns
        wait = VirtualWait(plan, site.draws, index, self._rehearsal)
        late_ns = 0
        if source.found_ns() is None:
            source.wait, source.started_ns = wait, started_ns
            source.arrival = simpy.Event(self.env)
            yield source.arrival
            source.wait = source.arrival = None
            late_ns = source.late_ns
        found_ns = source.found_ns()
        assert found_ns is not None, "an arrival announces something"
        seen = wait.see(found_ns - started_ns, late_ns)
        seen_ns = started_ns + seen.seen_after_ns
        if not self.env.goes_on_at(seen_ns):
            yield simpy.Timeout(self.env, seen_ns - self.env.now_ns)
        return seen

    def learn(self, lane: Lane | None = None) -> None:
        """Let the policies learn from the last waits, off the critical path.

        The first of them meets code that is cold by the longest sleep since it last ran.
        """
        lane = lane or self.lane
        for site in self.sites:
            if not site.finished:
                continue
            finished, site.finished = site.finished, []
            for ctx, outcome in finished:
                policy = site.policies[ctx.call]
                site.policies[ctx.call] = policy.after(ctx, outcome)
                after_ns = site.deciding.after_ns(
                    looks_of(policy), ctx.uniform, site.n_learnt, lane.cold.after_ns
                )
                self.owe(after_ns, lane)
                site.n_learnt += 1
                lane.cold.after_ns = 0

    def row(self, wall_ns: int, lanes: list[Lane]) -> ProcessRow:
        """What it consumed, on its own core or on all of its lanes."""
        threads = [lane.thread for lane in lanes if lane.thread is not None]
        emulation_ns = sum(lane.emulation_ns for lane in lanes)
        unplaced_ns = sum(lane.unplaced_ns for lane in lanes)
        cpu_ns = sum(t.cpu_ns for t in threads) + unplaced_ns
        if threads:  # which also stood in for the device
            cpu_ns -= emulation_ns
        return ProcessRow(
            self.name,
            wall_ns,
            self.cpu_ns + cpu_ns + (self.courier.cpu_ns if self.courier else 0),
            emulation_ns,
            sum(t.queued_ns for t in threads),
            0,
            sum(t.n_preempted for t in threads),
            self.notified,
            self.elided,
            unplaced_ns=unplaced_ns,
        )
