"""With constant costs the model adds up to what one adds up by hand."""

from itertools import pairwise

import pytest

from shmsim.policies import BusySpin, GraceThenPark, Park, SpinThenPark, WakeAhead
from shmsim.steptime import StepTime
from shmsim.units import MS, US
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV
from tests.theory.runs import one_request, run
from tests.toy import TOY_COSTS_NS as C
from tests.toy import toy_profile

# From the scheduler's decision to the publication, from there to the launch, from the end of the
# step to the reply, and from seeing the reply to the next decision.
PUBLISH_NS = C["schedule"] + C["encode_request"] + C["ring_publish"]
LAUNCH_NS = C["ring_read"] + C["decode_request"] + C["launch"]
REPLY_NS = C["encode_reply"] + C["ring_publish"]
COMPLETE_NS = C["ring_read"] + C["decode_reply"] + C["complete"]
AROUND_NS = PUBLISH_NS + LAUNCH_NS + REPLY_NS + COMPLETE_NS

# From the launch to the second call in the worker's hands: its acknowledgement and back.
SECOND_CALL_NS = (
    (C["encode_reply"] + C["ring_publish"])
    + (C["ring_read"] + C["decode_reply"])
    + (C["encode_request"] + C["ring_publish"])
    + (C["ring_read"] + C["decode_request"])
)


def step_gaps(records):
    return {b.seen_ns - a.seen_ns for a, b in pairwise(records.steps)}


def test_the_toy_costs_around_a_step_are_seventy_microseconds():
    assert AROUND_NS == 70 * US
    assert SECOND_CALL_NS == 41 * US


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("step_ns", [1, 30 * US, 2 * MS])
def test_a_step_of_one_call_takes_its_device_time_and_the_work_around_it(workers, step_ns):
    records = run(BusySpin(), one_request(20), step_time=StepTime(step_ns), workers=workers)
    assert step_gaps(records) == {AROUND_NS + step_ns}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("step_ns", [1, 30 * US, 41 * US, 42 * US, 2 * MS])
def test_the_second_call_hides_behind_the_device_if_that_takes_longer(workers, step_ns):
    records = run(
        BusySpin(), one_request(20), step_time=StepTime(step_ns), workers=workers, calls=2
    )
    assert step_gaps(records) == {AROUND_NS + max(step_ns, SECOND_CALL_NS)}


@pytest.mark.parametrize("calls", [1, 2])
def test_parking_adds_a_wake_up_for_either_direction(calls):
    """The second call and its acknowledgement are woken too, but behind the device's back."""
    records = run(Park(), one_request(20), calls=calls)
    assert step_gaps(records) == {AROUND_NS + 2 * MS + 2 * C["wake_latency"]}


def test_every_stretch_of_a_step_is_the_sum_of_its_costs():
    records = run(BusySpin(), one_request(5))
    for step in records.steps[1:]:
        assert step.published_ns - step.scheduled_ns == PUBLISH_NS
        assert step.launched_ns - step.published_ns == LAUNCH_NS
        assert step.done_ns - step.launched_ns == 2 * MS
        assert step.replied_ns - step.done_ns == REPLY_NS
        assert step.seen_ns == step.replied_ns
    for before, step in pairwise(records.steps):
        assert step.scheduled_ns - before.seen_ns == COMPLETE_NS


def test_costs_of_the_policy_and_of_entering_and_leaving_a_wait_are_on_the_path_where_they_fall():
    """Leaving a wait delays what follows; entering one, and planning, happens while the peer works.

    Learning comes after the publication, so it never delays.
    """
    profile = toy_profile(wait_exit=1 * US, wait_enter=7 * US, plan=11 * US, after=13 * US)
    records = run(BusySpin(), one_request(20), profile=profile)
    assert step_gaps(records) == {AROUND_NS + 2 * MS + 2 * 1 * US}


def test_what_a_wait_slows_down_is_on_the_path():
    profile = toy_profile(slow_after_park=21 * US, worker_slow_after_park=17 * US)
    parked, spun = (run(p, one_request(20), profile=profile) for p in (Park(), BusySpin()))
    both_ns = 2 * C["wake_latency"] + 21 * US + 17 * US
    assert step_gaps(parked) == {AROUND_NS + 2 * MS + both_ns}
    assert step_gaps(spun) == {AROUND_NS + 2 * MS}


def test_a_doze_that_ends_ahead_costs_no_delay_and_a_tenth_of_the_cpu():
    guard_ns = 100 * US
    records = run(WakeAhead(guard_ns, 1.0), one_request(50))
    assert {b.seen_ns - a.seen_ns for a, b in pairwise(records.steps[3:])} == {AROUND_NS + 2 * MS}
    waits = [w for w in records.waits if w.site == SCHEDULER_RECV][5:]
    # Asleep until a guard before the end, woken late by the overshoot; the rest is spun.
    spun_ns = guard_ns - C["timer_overshoot"]
    assert {w.cpu_ns for w in waits} == {C["doze_cpu"] + spun_ns}
    assert {(w.stage, w.belled, w.overshoot_ns) for w in waits} == {(1, False, 30 * US)}


# CPU time.


def test_a_spinner_is_on_the_cpu_from_start_to_end_of_every_wait():
    records = run(BusySpin(), one_request(20), workers=2, calls=2)
    for wait in records.waits:
        assert wait.cpu_ns == max(wait.published_ns - wait.started_ns, 0)
        assert wait.stage == 0


def test_a_parked_wait_costs_its_wake_up_however_long_it_is():
    for step_ns in (1 * MS, 50 * MS):
        records = run(Park(), one_request(20), step_time=StepTime(step_ns))
        slept = [w for w in records.waits if w.published_ns > w.started_ns]
        assert {w.cpu_ns for w in slept} == {C["park_cpu"]}


def test_a_grace_shorter_than_the_step_pays_for_the_spin_and_the_wake_up():
    window_ns = 500 * US
    records = run(SpinThenPark(window_ns), one_request(20))
    waits = [w for w in records.waits if w.site == SCHEDULER_RECV]
    assert {w.cpu_ns for w in waits} == {window_ns + C["park_cpu"]}
    # The worker's wait, for the scheduler's work alone, is within the window.
    assert step_gaps(records) == {AROUND_NS + 2 * MS + C["wake_latency"]}


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("policy", [BusySpin(), Park(), GraceThenPark(500 * US)])
def test_cpu_time_of_a_process_is_its_waits_and_its_work_done_once_a_step(policy, scheduling):
    n = 20
    records = run(policy, one_request(n), scheduling=scheduling)
    scheduler, worker = records.processes
    waited = {
        site: sum(w.cpu_ns for w in records.waits if w.site == site)
        for site in (SCHEDULER_RECV, WORKER_RECV)
    }
    notify_ns = [C["notify_armed"] * process.notified for process in records.processes]
    assert scheduler.cpu_ns == (
        waited[SCHEDULER_RECV] + n * (PUBLISH_NS + COMPLETE_NS) + notify_ns[0] + C["ring_publish"]
    )
    assert worker.cpu_ns == waited[WORKER_RECV] + n * (LAUNCH_NS + REPLY_NS) + notify_ns[1]
    assert scheduler.cpu_ns <= scheduler.wall_ns
    if scheduling == "sync":  # else its reply thread works beside its main thread
        assert worker.cpu_ns <= worker.wall_ns


def test_every_publication_either_rings_or_finds_nobody_armed():
    n = 20
    for policy, notified in ((BusySpin(), (0, 0)), (Park(), (n + 1, n))):
        processes = run(policy, one_request(n)).processes
        assert tuple(p.notified for p in processes) == notified
        # The scheduler publishes one goodbye more.
        assert tuple(p.notified + p.elided for p in processes) == (n + 1, n)
