"""The step loop as a recurrence, compiled for a class of policies.

Each thread is followed from wait to wait, in an order in which whatever it needs of the others is
known already: who reads a ring has begun to wait for a message, or has not come so far, when the
message is published. No event is ever queued.

Only what is made here depends on the policy; all else is compiled once.
"""

from collections.abc import Callable
from typing import Any, Final

from numba.core import types

from shmsim.sim.compiled import compile_policy
from shmsim.sim.deciding import can_rest
from shmsim.sim.kept import is_kept
from shmsim.sim.recurrence.batches import admit, has_work
from shmsim.sim.recurrence.luck import (
    AFTER,
    ENTER,
    IDLE,
    PLAN,
    UNIFORM,
    draw,
    draw_from,
    number,
)
from shmsim.sim.recurrence.memory import (
    copier,
    entry,
    inner,
    policy_within,
    records_at,
    within,
)
from shmsim.sim.recurrence.packed import packing_of, shape_of
from shmsim.sim.recurrence.state import (
    ENGINE,
    SITE,
    actor_at,
    batch_at,
    request_at,
    site_at,
)
from shmsim.sim.recurrence.store import keep_on_disk
from shmsim.sim.recurrence.waits import is_sound, meet
from shmsim.sim.recurrence.work import (
    await_echo,
    end_step,
    end_wait,
    hand_over,
    idle,
    publish_reply,
    read_first_replies,
    read_reply,
    say_goodbye,
    send,
    send_second_call,
    spend,
    take_over,
)
from shmsim.units import FOREVER_NS
from shmsim.wait import (
    WORKER_RECV,
    StageCpu,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPolicy,
    is_left_undecided,
)

_copy_site = copier(SITE)
_ONE_WORKER: Final = (("n_workers", 1), ("n_replies", 1))

# How a call of the loop ends.
FINISHED: Final = 0
AT_END_OF_WINDOW: Final = 1
BATCH_UNSIZED: Final = 2
BAD_PLAN: Final = 3
OUTSIDE_LAW: Final = 4
TOO_LATE: Final = 5

_SIGNATURE: Final = (types.int64, types.int64)
_LOOPS: Final[dict[Any, Callable[..., int]]] = {}


def loop_for(
    policy: WaitPolicy, device_policy: WaitPolicy | None, *, one_worker: bool
) -> Callable[..., int]:
    """The loop for policies of these classes; compiled at its first call, and only once."""
    made = tuple(
        () if p is None else (*compile_policy(p), shape_of(p)) for p in (policy, device_policy)
    )
    key = made, one_worker
    if key not in _LOOPS:
        device = _echo_waiting()
        if device_policy is not None:
            device = _device_waiting(*_waiting(device_policy, *made[1][:2], learns_late=True))
        waiting = _waiting(policy, *made[0][:2], learns_late=False)
        loop = _LOOPS[key] = _loop(*waiting, *device, one_worker=one_worker)
        keep_on_disk(loop)
    return _LOOPS[key]


def is_at_hand(loop: Callable[..., int]) -> bool:
    """Whether a loop need not be compiled any more: it has been, or lies on disk."""
    dispatcher: Any = loop
    return bool(dispatcher.signatures) or is_kept(dispatcher)


def compile_loop(loop: Callable[..., int]) -> None:
    """Compile a loop that has not been called yet, or read it from disk."""
    dispatcher: Any = loop
    dispatcher.compile(_SIGNATURE)


def _waiting(policy: WaitPolicy, plan: Any, after: Any, *, learns_late: bool) -> tuple[Any, Any]:
    """Begin a wait by policy, and learn from its end, perhaps many steps later."""
    dtype, unpack, pack = packing_of(policy)
    state_at = records_at(dtype)
    plan, after = policy_within(plan), policy_within(after)
    looks_of = _looks_of if can_rest(type(policy)) else _looks_always

    @within
    def absorb(eng: Any, states: Any, site: Any) -> Any:
        """Let the policy learn from the last wait; what that takes is not yet due (`learn`).

        The next wait at a site may begin before there is time to learn. The policy of the other
        call then decides, so that it does not matter whether this one has learnt.
        """
        site.is_finished = 0
        outcome = WaitOutcome(
            site.found_ns - site.started_ns,
            site.seen_ns - site.started_ns,
            site.stage,
            StageCpu(site.cpu_ns[0], site.cpu_ns[1], site.cpu_ns[2], site.cpu_ns[3]),
            site.overshoot_ns,
            site.belled != 0,
            0,
        )
        # Most policies ask for no number: then it is not even looked up.
        uniform = site.uniform if learns_late else number(eng, site.costs + UNIFORM, site.index)
        state = state_at(states, site.policy + site.call)
        policy = unpack(state)
        if is_left(looks_of(policy), uniform):
            site.idle_lessons |= 1 << site.n_lessons
        site.n_lessons += 1
        pack(state, after(policy, _context(site, eng, uniform), outcome))

    @within
    def begin(eng: Any, states: Any, decisions: Any, actor: Any, site: Any, batch: Any) -> Any:
        """`Actor.await_source` up to the wait itself; False if the plan cannot be carried out.

        The batch is the last that this side knows.
        """
        if site.is_finished:
            absorb(eng, states, site)
        index = site.n_waits
        site.n_waits = index + 1
        site.index = index
        call = site.first_call + (index & site.alternates)
        site.call = call
        site.step = batch.step
        site.pending = 1
        if site.kind == WORKER_RECV and call == 0:  # for the step after it
            site.step = batch.step + 1
            site.pending = batch.pending
        site.n_decode = batch.n_decode
        site.n_prefill = batch.n_prefill
        site.n_kv = batch.n_kv
        site.since_ns = actor.t_ns + actor.owed_ns - site.last_seen_ns
        uniform = number(eng, site.costs + UNIFORM, index)
        if learns_late:  # when the number is no longer at hand
            site.uniform = uniform
        policy = unpack(state_at(states, site.policy + call))
        chosen = plan(policy, _context(site, eng, uniform))
        _note(site, 0, chosen.first)
        _note(site, 1, chosen.second)
        _note(site, 2, chosen.third)
        _note(site, 3, chosen.fourth)
        work_ns = site.begin_ns
        if work_ns < 0:
            cost = site.decision + (PLAN + IDLE if looks_of(policy) < 1.0 else PLAN)
            work_ns = draw_from(eng, decisions, cost, index, actor.cold_plan_ns)
            work_ns += draw(eng, site.costs + ENTER, index, 0)
        actor.cold_plan_ns = 0
        spend(actor, work_ns)
        site.started_ns = actor.t_ns
        return is_sound(site)

    @within
    def learn(eng: Any, states: Any, decisions: Any, actor: Any, site: Any) -> Any:
        """`Actor.learn` at one site."""
        if site.is_finished:
            absorb(eng, states, site)
        while site.n_lessons:
            cost = site.decision + (AFTER + IDLE if site.idle_lessons & 1 else AFTER)
            site.idle_lessons >>= 1
            asleep_ns = actor.cold_after_ns
            actor.cold_after_ns = 0
            actor.owed_ns += draw_from(eng, decisions, cost, site.n_learnt, asleep_ns)
            site.n_learnt += 1
            site.n_lessons -= 1

    return begin, learn


is_left = within(is_left_undecided)


@within
def _looks_of(policy: Any) -> Any:
    return policy.learnt_looks


@within
def _looks_always(policy: Any) -> Any:
    return 1.0


@within
def _context(site: Any, eng: Any, uniform: Any) -> Any:
    return WaitContext(
        site.kind,
        site.call,
        site.since_ns,
        site.pending != 0,
        site.n_decode,
        site.n_prefill,
        site.n_kv,
        uniform,
        WaitCosts(
            eng.wake_latency_ns,
            eng.block_cpu_ns,
            eng.timer_overshoot_ns,
            eng.rehearsal_ns,
            eng.deciding_ns,
            eng.delay_price,
            eng.shares_cores != 0,
        ),
    )


@within
def _note(site: Any, index: Any, stage: Any) -> Any:
    site.kinds[index] = stage.kind
    site.untils_ns[index] = stage.until_ns
    site.periods_ns[index] = stage.period_ns


@within
def batch_of(eng: Any, step: Any) -> Any:
    """What is remembered of the batch of a step."""
    return batch_at(eng.batches, step & eng.batch_mask)


@within
def past_of(eng: Any, rank: Any, step: Any) -> Any:
    """A worker's wait for the device in a step, over but perhaps not learnt from."""
    return site_at(eng.past, rank * (eng.batch_mask + 1) + (step & eng.batch_mask))


def _device_waiting(begin_device: Any, learn_device: Any) -> tuple[Any, Any, Any]:
    """What workers do who wait for their devices by policy."""

    @inner
    def await_device(eng: Any, batch: Any, rank: Any) -> Any:
        """Wait for the end of a step by policy, up to its end; False: the plan is bad."""
        number = eng.n_replies + eng.n_workers + rank
        site = site_at(eng.sites, number)
        actor = actor_at(eng.actors, 1 + rank)
        if eng.is_async:
            actor = actor_at(eng.actors, 1 + eng.n_workers + rank)
        eng.culprit = number
        states, decisions = eng.device_states, eng.device_decisions
        if not begin_device(eng, states, decisions, actor, site, batch):
            return False
        meet(eng, site, batch.done_ns, 0)
        end_wait(eng, actor, site, actor_at(eng.actors, 1 + rank))
        if eng.is_async:
            _copy_site(site, past_of(eng, rank, batch.step))
            site.is_finished = 0  # what is learnt is learnt from the copy
        return True

    @inner
    def catch_up(eng: Any, rank: Any, now_ns: Any) -> Any:
        """Let a reply thread begin all waits that it begins before an instant of the main thread.

        What the main thread learns at that instant decides about later ones only. Up to the step
        before the newest one; who replies has got no further than its last reply.
        """
        site = site_at(eng.sites, eng.n_replies + eng.n_workers + rank)
        lane = actor_at(eng.actors, 1 + eng.n_workers + rank)
        replies = rank < eng.n_replies
        while site.n_waits < eng.step - 1 and not (replies and site.n_waits > eng.n_done):
            batch = batch_of(eng, site.n_waits)
            begins_ns = lane.t_ns
            if batch.handed_ns[rank] > begins_ns:
                begins_ns = max(begins_ns + lane.owed_ns, batch.handed_ns[rank])
            if begins_ns >= now_ns:
                break
            take_over(lane, batch, rank)
            if not await_device(eng, batch, rank):
                return False
            if not replies:
                spend(lane, site.slowness_ns)
        return True

    @inner
    def learn_from_device(eng: Any, rank: Any) -> Any:
        """Let a worker learn from what its reply thread has waited for until now."""
        worker, site = (
            actor_at(eng.actors, 1 + rank),
            site_at(eng.sites, eng.n_replies + eng.n_workers + rank),
        )
        if not eng.is_async:
            learn_device(eng, eng.device_states, eng.device_decisions, worker, site)
            return True
        if not catch_up(eng, rank, worker.t_ns):
            return False
        while site.n_learnt < site.n_waits:
            past = past_of(eng, rank, site.n_learnt)
            if past.seen_ns >= worker.t_ns:
                break
            past.n_learnt = site.n_learnt
            learn_device(eng, eng.device_states, eng.device_decisions, worker, past)
            site.n_learnt = past.n_learnt
        return True

    @inner
    def finish(eng: Any, batch: Any, rank: Any) -> Any:
        """Wait for the device; what the wait adds to the work that follows, -1: a bad plan."""
        site = site_at(eng.sites, eng.n_replies + eng.n_workers + rank)
        if site.n_waits <= batch.step:
            if eng.is_async:
                take_over(actor_at(eng.actors, 1 + eng.n_workers + rank), batch, rank)
            if not await_device(eng, batch, rank):
                return -1
        return site.slowness_ns

    @inner
    def drain(eng: Any) -> Any:
        """Let the reply threads of those who do not reply come to their end."""
        eng.step += 1  # nothing comes behind the newest step any more
        for rank in range(eng.n_replies, eng.n_workers):
            if not catch_up(eng, rank, FOREVER_NS):
                return False
        eng.step -= 1
        return True

    return learn_from_device, finish, drain


def _echo_waiting() -> tuple[Any, Any, Any]:
    """The same of workers who wait as realrun does for its echo device, and learn nothing."""

    @inner
    def learn_from_device(eng: Any, rank: Any) -> Any:
        return True

    @inner
    def finish(eng: Any, batch: Any, rank: Any) -> Any:
        index = 1 + rank
        actor = actor_at(eng.actors, index)
        if eng.is_async:
            actor = actor_at(eng.actors, index + eng.n_workers)
            take_over(actor, batch, rank)
        return await_echo(eng, actor, batch, index)

    @inner
    def drain(eng: Any) -> Any:
        return True

    return learn_from_device, finish, drain


def _loop(
    begin: Any,
    learn: Any,
    learn_from_device: Any,
    finish: Any,
    drain: Any,
    *,
    one_worker: bool,
) -> Callable[..., int]:
    # Most runs have one worker. Without loops over ranks LLVM knows where each record lies, so that
    # instants stay in registers: a quarter faster.
    engine_at = records_at(ENGINE, _ONE_WORKER if one_worker else ())
    inner_or_within = within if one_worker else inner

    @inner_or_within
    def scheduler_learns(eng: Any) -> Any:
        for i in range(eng.n_replies):
            site = site_at(eng.sites, i)
            learn(eng, eng.states, eng.decisions, actor_at(eng.actors, 0), site)

    @inner_or_within
    def await_reply(eng: Any, batch: Any, rank: Any) -> Any:
        """Let the scheduler read the reply of the rank before, and wait for the next one."""
        if rank:
            read_reply(eng, batch, rank - 1, 0)
        eng.culprit = rank
        sched, site = actor_at(eng.actors, 0), site_at(eng.sites, rank)
        return begin(eng, eng.states, eng.decisions, sched, site, batch)

    @inner_or_within
    def worker_learns(eng: Any, rank: Any) -> Any:
        worker, site = actor_at(eng.actors, 1 + rank), site_at(eng.sites, eng.n_replies + rank)
        learn(eng, eng.states, eng.decisions, worker, site)
        return learn_from_device(eng, rank)

    @inner_or_within
    def await_calls(eng: Any, batch: Any, learns: Any) -> Any:
        """Let every worker wait for its next call, and learn before; False: some plan is bad."""
        for rank in range(eng.n_workers):
            worker, site = actor_at(eng.actors, 1 + rank), site_at(eng.sites, eng.n_replies + rank)
            if learns and not worker_learns(eng, rank):
                return False
            if not begin(eng, eng.states, eng.decisions, worker, site, batch):
                eng.culprit = eng.n_replies + rank
                return False
        return True

    @entry
    def run(address: Any, stop_step: Any) -> Any:
        """Go on until the last request is done, or up to a step; says which."""
        eng = engine_at(address, 0)
        sched = actor_at(eng.actors, 0)
        n_replies, n_workers = eng.n_replies, eng.n_workers
        two_calls, is_async = eng.two_calls != 0, eng.is_async != 0
        # Who does not reply is waited for by nobody: its reply thread may be late.
        is_late = is_async and eng.has_device_policy != 0
        n_prompt = n_replies if is_late else n_workers
        lanes = 1 + (n_workers if is_async else 0)
        has_begun = site_at(eng.sites, n_replies).n_waits > 0
        if not has_begun and not await_calls(eng, batch_of(eng, -1), False):
            return BAD_PLAN
        while eng.n_finished < eng.n_requests:
            is_at_end = eng.step >= stop_step
            if is_late:
                # Older batches are forgotten, and so are older numbers in the next window.
                oldest = eng.step - eng.batch_mask + 2
                if is_at_end:
                    oldest = max(oldest, stop_step - eng.margin)
                for rank in range(n_workers):
                    if site_at(eng.sites, n_replies + n_workers + rank).n_learnt < oldest:
                        eng.culprit = rank
                        return TOO_LATE
            if is_at_end:
                return AT_END_OF_WINDOW
            admit(eng, sched.t_ns + sched.owed_ns)
            most = eng.n_decoding + eng.n_admitted - eng.n_begun + 1
            if min(most, eng.most_sequences) >= eng.n_sized:
                return BATCH_UNSIZED

            while has_work(eng) and eng.step - eng.n_done < eng.depth:
                is_last_in_flight = eng.step - eng.n_done == eng.depth - 1
                batch = batch_of(eng, eng.step)
                if not send(eng, batch):
                    eng.culprit = eng.step - 1
                    return OUTSIDE_LAW
                if not is_async and not two_calls:
                    scheduler_learns(eng)
                if two_calls:
                    if not is_async:
                        for rank in range(n_replies):
                            if not await_reply(eng, batch, rank):
                                return BAD_PLAN
                            publish_reply(eng, batch, rank)
                        read_first_replies(eng, batch)
                    if not await_calls(eng, batch, False):
                        return BAD_PLAN
                    send_second_call(eng)
                    if not is_async:
                        scheduler_learns(eng)
                if is_async:
                    hand_over(eng, batch)
                    if not await_calls(eng, batch, True):
                        return BAD_PLAN
                    if is_last_in_flight:
                        scheduler_learns(eng)

            if eng.step == eng.n_done:
                idle(eng, sched, request_at(eng.requests, eng.n_admitted).arrival_ns)
                continue
            scheduler_learns(eng)
            batch = batch_of(eng, eng.n_done)
            for rank in range(n_prompt):
                if rank < n_replies and not await_reply(eng, batch, rank):
                    return BAD_PLAN
                if not is_async and not worker_learns(eng, rank):
                    return BAD_PLAN
                work_ns = finish(eng, batch, rank)
                if work_ns < 0:
                    return BAD_PLAN
                actor_at(eng.actors, lanes + rank).owed_ns += work_ns
                if rank < n_replies:
                    publish_reply(eng, batch, rank)
                else:
                    spend(actor_at(eng.actors, lanes + rank), 0)
            end_step(eng, batch)
            if not is_async and not await_calls(eng, batch, False):
                return BAD_PLAN
        if not drain(eng):
            return BAD_PLAN
        say_goodbye(eng)
        return FINISHED

    return run
