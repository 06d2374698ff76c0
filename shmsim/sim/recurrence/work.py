"""What a thread does between two waits, in compiled code: as `shmsim.sim.actor` and `loop` do it.

Time is a sum along each thread; threads meet where one waits for what another publishes.
"""

from typing import Any

from shmsim.sim.recurrence.batches import complete, schedule
from shmsim.sim.recurrence.device import OUTSIDE, step_ns
from shmsim.sim.recurrence.luck import (
    ARMED,
    COMPLETE,
    DECODE_REPLY,
    DECODE_REQUEST,
    ENCODE_REPLY,
    ENCODE_REQUEST,
    END_SLOW,
    EXIT,
    FURTHER,
    IDLE_CPU,
    IDLE_OVERSHOOT,
    IDLE_SLOW,
    LAUNCH,
    OUTPUT,
    PUBLISH,
    READ,
    RETURN,
    SCHEDULE,
    UNARMED,
    draw,
)
from shmsim.sim.recurrence.memory import float_at, inner, int_at, within
from shmsim.sim.recurrence.state import (
    actor_at,
    batch_at,
    site_at,
    step_row_at,
    tokens_at,
    wait_row_at,
)
from shmsim.sim.recurrence.waits import DOZED, PARKED, REHEARSED, SPUN, carried_ns, meet


@within
def spend(actor: Any, duration_ns: Any) -> Any:
    """`Actor.busy`."""
    duration_ns += actor.owed_ns
    actor.owed_ns = 0
    actor.cpu_ns += duration_ns
    actor.t_ns += duration_ns


@within
def rest(actor: Any, mode: Any, rested_ns: Any) -> Any:
    """Be at the end of a rest (`shmsim.sim.deciding.Cold`)."""
    if mode == REHEARSED:
        actor.cold_plan_ns = actor.cold_after_ns = 0
    elif mode != SPUN:
        actor.cold_plan_ns = max(actor.cold_plan_ns, rested_ns)
        actor.cold_after_ns = max(actor.cold_after_ns, rested_ns)


@within
def _ring(eng: Any, actor: Any, n_armed: Any, asleep_ns: Any) -> Any:
    """`Actor._ring_bell`."""
    index = actor.n_published
    if n_armed == 0:
        actor.elided += 1
        actor.owed_ns += draw(eng, actor.costs + UNARMED, index, 0)
        return
    actor.notified += 1
    owed_ns = draw(eng, actor.costs + ARMED, index, asleep_ns)
    if n_armed > 1:
        owed_ns += (n_armed - 1) * _further_ns(eng, actor, asleep_ns)
    actor.owed_ns += owed_ns


@within
def _further_ns(eng: Any, actor: Any, asleep_ns: Any) -> Any:
    """`Actor._further_ns` of the message that was published last."""
    further = FURTHER if eng.has_further else ARMED
    return draw(eng, actor.costs + further, actor.n_published, asleep_ns)


@inner
def _meet_late(eng: Any, site: Any, found_ns: Any, late_ns: Any) -> Any:
    """`meet` again, by who is woken after others; for itself, as few runs come here."""
    return meet(eng, site, found_ns, late_ns)


@within
def _publish_call(eng: Any, work_ns: Any) -> Any:
    """Publish a call to all workers, each of which waits for it, up to the end of their waits."""
    sched = actor_at(eng.actors, 0)
    spend(sched, work_ns)
    sched.n_published += 1
    published_ns = sched.t_ns
    n_armed = 0
    longest_ns = 0
    for rank in range(eng.n_workers):
        site = site_at(eng.sites, eng.n_replies + rank)
        site.armed_ns = meet(eng, site, published_ns, 0)
        if site.armed_ns >= 0:
            n_armed += 1
            longest_ns = max(longest_ns, site.armed_ns)
    each_ns = _further_ns(eng, sched, longest_ns) if n_armed > 1 else 0
    late_ns = 0
    for rank in range(eng.n_workers):
        worker, site = actor_at(eng.actors, 1 + rank), site_at(eng.sites, eng.n_replies + rank)
        if site.armed_ns >= 0:
            if late_ns != 0:
                _meet_late(eng, site, published_ns, late_ns)
            late_ns += each_ns
        end_wait(eng, worker, site, worker)
        _carry(eng, site, worker, sched)
    _ring(eng, sched, n_armed, longest_ns)
    return published_ns


@within
def _reply_bytes(eng: Any, site: Any, batch: Any) -> Any:
    """Bytes of the reply that a site waits for: to the first of two calls without a result."""
    return (
        int_at(eng.reply_sizes, batch.n_sequences)
        if site.call == eng.two_calls
        else eng.second_bytes
    )


@within
def publish_reply(eng: Any, batch: Any, rank: Any) -> Any:
    """A worker replies to the scheduler, which waits for it, up to the end of that wait."""
    sched, site = actor_at(eng.actors, 0), site_at(eng.sites, rank)
    actor = actor_at(eng.actors, 1 + rank + (eng.n_workers if eng.is_async else 0))
    index = actor.n_published
    is_result = site.call == eng.two_calls
    n = batch.n_sequences if is_result else 0
    work_ns = actor.write_ns
    if work_ns < 0:
        work_ns = draw(eng, actor.costs + ENCODE_REPLY, index, n)
        work_ns += draw(eng, actor.costs + PUBLISH, index, _reply_bytes(eng, site, batch))
    if is_result and eng.output_bytes:
        work_ns += _output_ns(eng, actor, batch.step)
    spend(actor, work_ns)
    actor.n_published = index + 1
    if rank == 0:
        batch.replied_ns = actor.t_ns
    armed_ns = meet(eng, site, actor.t_ns, 0)
    _ring(eng, actor, 1 if armed_ns >= 0 else 0, max(armed_ns, 0))
    end_wait(eng, sched, site, sched)
    _carry(eng, site, sched, actor)


@within
def end_wait(eng: Any, actor: Any, site: Any, process: Any) -> Any:
    """Be at the end of the wait at a site; its row is one of a process, by its main thread."""
    actor.t_ns = site.seen_ns
    actor.cpu_ns += site.used_ns
    rest(actor, site.mode, site.rested_ns)
    if eng.keeps_rows:
        row = wait_row_at(eng.wait_rows, process.rank * eng.most_wait_rows + process.n_rows)
        process.n_rows += 1
        row.site = site.kind
        row.call = site.call
        row.step = site.step
        row.pending = site.pending
        row.started_ns = site.started_ns
        row.published_ns = site.found_ns
        row.seen_ns = site.seen_ns
        row.stage = site.stage
        row.cpu_ns = site.used_ns
        row.overshoot_ns = site.overshoot_ns
        row.belled = site.belled
        row.stage_kind = site.kinds[site.stage]


@within
def _carry(eng: Any, site: Any, reader: Any, writer: Any) -> Any:
    """Count what I/O threads did for a ring that woke a reader."""
    if eng.has_courier and site.belled:
        cpu_ns = carried_ns(eng, site)
        reader.courier_ns += cpu_ns
        writer.courier_ns += cpu_ns


@within
def _read(eng: Any, actor: Any, work_ns: Any, n_bytes: Any) -> Any:
    """`Actor.read`; what was slept on is part of the work."""
    index = actor.n_read
    actor.n_read = index + 1
    work_ns += draw(eng, actor.costs + EXIT, index, 0)
    work_ns += draw(eng, actor.costs + READ, index, n_bytes)
    spend(actor, work_ns)


# The scheduler.


@within
def send(eng: Any, batch: Any) -> Any:
    """Form a batch and publish its first call, up to its launch; False: no law for its time."""
    sched = actor_at(eng.actors, 0)
    batch.scheduled_ns = sched.t_ns + sched.owed_ns
    schedule(eng, batch)
    factor = float_at(eng.factors, batch.step & eng.factor_mask)
    drawn_ns = step_ns(eng, batch.n_decode, batch.n_prefill, batch.n_kv, factor)
    n = batch.n_sequences
    n_bytes = int_at(eng.request_sizes, n)
    work_ns = sched.write_ns
    if work_ns < 0:
        work_ns = draw(eng, sched.costs + SCHEDULE, batch.step, n)
        work_ns += draw(eng, sched.costs + ENCODE_REQUEST, sched.n_published, n)
        work_ns += draw(eng, sched.costs + PUBLISH, sched.n_published, n_bytes)
    batch.published_ns = _publish_call(eng, work_ns)
    for rank in range(eng.n_workers):
        worker = actor_at(eng.actors, 1 + rank)
        work_ns = site_at(eng.sites, eng.n_replies + rank).slowness_ns
        if worker.take_ns >= 0:
            worker.n_read += 1
            spend(worker, work_ns + worker.take_ns)
        else:
            work_ns += draw(eng, worker.costs + DECODE_REQUEST, worker.n_read, n)
            work_ns += draw(eng, worker.costs + LAUNCH, batch.step, 0)
            _read(eng, worker, work_ns, n_bytes)
        worker.last_launch_ns = worker.t_ns
    _launch(eng, batch, drawn_ns)
    return drawn_ns != OUTSIDE


@within
def send_second_call(eng: Any) -> Any:
    """Publish the second call of a step, up to its being read."""
    sched = actor_at(eng.actors, 0)
    work_ns = draw(eng, sched.costs + ENCODE_REQUEST, sched.n_published, 0)
    work_ns += draw(eng, sched.costs + PUBLISH, sched.n_published, eng.second_bytes)
    _publish_call(eng, work_ns)
    for rank in range(eng.n_workers):
        worker = actor_at(eng.actors, 1 + rank)
        work_ns = site_at(eng.sites, eng.n_replies + rank).slowness_ns
        work_ns += draw(eng, worker.costs + DECODE_REQUEST, worker.n_read, 0)
        _read(eng, worker, work_ns, eng.second_bytes)


@within
def read_reply(eng: Any, batch: Any, rank: Any, work_ns: Any) -> Any:
    """Let the scheduler read the reply of a rank, and do the work that follows."""
    site = site_at(eng.sites, rank)
    n_bytes = _reply_bytes(eng, site, batch)
    _read(eng, actor_at(eng.actors, 0), site.slowness_ns + work_ns, n_bytes)


@within
def read_first_replies(eng: Any, batch: Any) -> Any:
    """Read the last of the replies to the first of two calls."""
    sched = actor_at(eng.actors, 0)
    work_ns = draw(eng, sched.costs + DECODE_REPLY, sched.n_rounds, 0)
    sched.n_rounds += 1
    read_reply(eng, batch, eng.n_replies - 1, work_ns)


@within
def end_step(eng: Any, batch: Any) -> Any:
    """Take in the tokens of a step, and read the last of the replies."""
    sched = actor_at(eng.actors, 0)
    complete(eng, batch, sched.t_ns)
    _note_step(eng, batch, sched.t_ns)
    rank = eng.n_replies - 1
    if sched.take_ns >= 0:
        sched.n_read += 1
        spend(sched, site_at(eng.sites, rank).slowness_ns + sched.take_ns)
    else:
        work_ns = draw(eng, sched.costs + DECODE_REPLY, sched.n_rounds, batch.n_sequences)
        work_ns += draw(eng, sched.costs + COMPLETE, batch.step, batch.n_sequences)
        read_reply(eng, batch, rank, work_ns)
    sched.n_rounds += 1
    eng.n_done += 1


@inner
def idle(eng: Any, sched: Any, arrival_ns: Any) -> Any:
    """`StepLoop._idle`."""
    spend(sched, 0)
    rested_ns = max(arrival_ns - sched.t_ns, 0)
    index = eng.n_idles
    eng.n_idles += 1
    sched.t_ns += rested_ns + draw(eng, sched.costs + IDLE_OVERSHOOT, index, rested_ns)
    sched.cpu_ns += draw(eng, sched.costs + IDLE_CPU, index, rested_ns)
    rest(sched, PARKED, rested_ns)
    slow_ns = draw(eng, sched.costs + IDLE_SLOW, index, rested_ns) if rested_ns > 0 else 0
    spend(sched, max(0, slow_ns))


# Workers.


@within
def _launch(eng: Any, batch: Any, drawn_ns: Any) -> Any:
    """All workers have launched a step: work out when it begins and ends.

    Of launches at the same instant the one of the lower rank comes first, as in `VirtualClock`.
    """
    first = 1
    last = 1
    for index in range(2, 1 + eng.n_workers):
        if actor_at(eng.actors, index).last_launch_ns < actor_at(eng.actors, first).last_launch_ns:
            first = index
        if actor_at(eng.actors, index).last_launch_ns >= actor_at(eng.actors, last).last_launch_ns:
            last = index
    batch.first_launch_ns = actor_at(eng.actors, first).last_launch_ns
    batch.launched_ns = actor_at(eng.actors, last).last_launch_ns
    batch.launcher = last
    # What was known of the end when the first worker launched: of the steps in flight before it
    # some may not have begun, as a worker was late for them.
    number = batch.step - 1
    begun = batch_at(eng.batches, number & eng.batch_mask)
    while batch.step - number < eng.depth and (
        begun.launched_ns > batch.first_launch_ns
        or (begun.launched_ns == batch.first_launch_ns and begun.launcher > first)
    ):
        number -= 1
        begun = batch_at(eng.batches, number & eng.batch_mask)
    batch.soonest_ns = max(batch.first_launch_ns, begun.done_ns) + drawn_ns
    batch.done_ns = max(batch.launched_ns, eng.last_done_ns) + drawn_ns
    eng.last_done_ns = batch.done_ns


@within
def take_over(lane: Any, batch: Any, rank: Any) -> Any:
    """Let a reply thread come to the step that the main thread handed to it."""
    spend(lane, 0)
    lane.t_ns = max(lane.t_ns, batch.handed_ns[rank])


@within
def await_echo(eng: Any, actor: Any, batch: Any, index: Any) -> Any:
    """Wait for the end of a step as realrun does (`shmsim.sim.echo`); returns work that follows."""
    spend(actor, 0)
    now_ns = actor.t_ns
    rested_ns = 0
    if batch.done_ns > now_ns:
        rested_ns = batch.done_ns - now_ns
        # A reply thread comes after all launches of its instant, a main thread by its rank.
        is_known = batch.launched_ns < now_ns or (
            batch.launched_ns == now_ns and (eng.is_async or batch.launcher <= index)
        )
        end_ns = batch.done_ns if is_known else batch.soonest_ns
        actor.emulation_ns += batch.done_ns - max(end_ns - eng.guard_ns, now_ns)
        actor.t_ns = batch.done_ns
        rest(actor, DOZED, rested_ns)
    work_ns = draw(eng, actor.costs + RETURN, batch.step, 0)
    if rested_ns > 0:
        work_ns += max(0, draw(eng, actor.costs + END_SLOW, batch.step, rested_ns))
    return work_ns


@within
def _output_ns(eng: Any, actor: Any, step: Any) -> Any:
    """`Payloads.output_ns`."""
    n_bytes, largest = eng.output_bytes, eng.largest_output_bytes
    if n_bytes == 0:
        return 0
    if n_bytes <= largest or largest == 0:
        return draw(eng, actor.costs + OUTPUT, step, n_bytes)
    return draw(eng, actor.costs + OUTPUT, step, largest) * n_bytes // largest


@within
def _note_step(eng: Any, batch: Any, seen_ns: Any) -> Any:
    """Write down when a step was seen, and its row if rows are kept."""
    tokens = tokens_at(eng.tokens, eng.n_step_rows)
    tokens.seen_ns = seen_ns
    tokens.n_decode = batch.n_decode
    eng.n_step_rows += 1
    if not eng.keeps_rows:
        return
    row = step_row_at(eng.step_rows, eng.n_step_rows - 1)
    row.step = batch.step
    row.n_decode = batch.n_decode
    row.n_prefill_tokens = batch.n_prefill
    row.scheduled_ns = batch.scheduled_ns
    row.published_ns = batch.published_ns
    row.launched_ns = batch.launched_ns
    row.done_ns = batch.done_ns
    row.replied_ns = batch.replied_ns
    row.seen_ns = seen_ns


@inner
def hand_over(eng: Any, batch: Any) -> Any:
    """Let the main threads hand a step to the reply threads."""
    for rank in range(eng.n_workers):
        batch.handed_ns[rank] = actor_at(eng.actors, 1 + rank).t_ns


@inner
def say_goodbye(eng: Any) -> Any:
    """Let all threads end."""
    sched = actor_at(eng.actors, 0)
    _publish_call(eng, draw(eng, sched.costs + PUBLISH, sched.n_published, eng.second_bytes))
    for number in range(1 + 2 * eng.n_workers):
        spend(actor_at(eng.actors, number), 0)
