"""With several batches in flight the model adds up to what one adds up by hand, too.

The loop is a system of sums and maxima. In the long run ``k`` steps, with ``k`` in flight, take as
long as the slowest of three: the scheduler's own work ``k`` times, the device ``k`` times, and once
the whole way round, from a publication to the next one that had to wait for its tokens.
"""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.policies import BusySpin, Park
from shmsim.steptime import StepTime
from shmsim.units import MS, US
from tests.theory.runs import one_request, run, token_times
from tests.theory.test_critical_path import (
    AROUND_NS,
    COMPLETE_NS,
    LAUNCH_NS,
    PUBLISH_NS,
    REPLY_NS,
)
from tests.toy import TOY_COSTS_NS as C
from tests.toy import toy_profile

# The second call follows the first at once: its publication, and its way into the worker's hands.
PUBLISH_SECOND_NS = C["encode_request"] + C["ring_publish"]
READ_SECOND_NS = C["ring_read"] + C["decode_request"]
# After its launch a worker has the second call in its hands, and its reply thread the step.
AFTER_LAUNCH_NS = {1: 0, 2: READ_SECOND_NS}
HOST_NS = {1: PUBLISH_NS + COMPLETE_NS, 2: PUBLISH_NS + PUBLISH_SECOND_NS + COMPLETE_NS}


def spinners_by_hand(n, in_flight, calls, step_ns, c):
    """Instants of each step: published, launched, done, replied, seen."""
    scheduler = worker = device = replying = 0
    sent, steps = [], []
    for taken in range(n):
        while len(sent) < min(n, taken + in_flight):
            published = scheduler + c["schedule"] + c["encode_request"] + c["ring_publish"]
            scheduler = published
            launched = max(worker, published) + c["ring_read"] + c["decode_request"] + c["launch"]
            worker = launched
            if calls == 2:
                scheduler += c["encode_request"] + c["ring_publish"]
                worker = max(worker, scheduler) + c["ring_read"] + c["decode_request"]
            device = max(launched, device) + step_ns
            replying = max(worker, replying, device) + c["encode_reply"] + c["ring_publish"]
            sent.append((published, launched, device, replying))
        seen = max(scheduler, sent[taken][-1])
        steps.append((*sent[taken], seen))
        scheduler = seen + c["ring_read"] + c["decode_reply"] + c["complete"]
    return steps


def instants_of(records):
    return [
        (s.published_ns, s.launched_ns, s.done_ns, s.replied_ns, s.seen_ns) for s in records.steps
    ]


def over(records, n_steps):
    """How long that many steps took, wherever one counts between the start and the last batches."""
    seen_ns = [step.seen_ns for step in records.steps[len(records.steps) // 2 : -n_steps]]
    return {b - a for a, b in zip(seen_ns, seen_ns[n_steps:], strict=False)}


COSTS_ON_THE_WAY = (
    "schedule",
    "complete",
    "encode_request",
    "decode_request",
    "encode_reply",
    "decode_reply",
    "ring_publish",
    "ring_read",
    "launch",
)


@settings(deadline=None, max_examples=60)
@given(
    costs=st.fixed_dictionaries({name: st.integers(1, 100 * US) for name in COSTS_ON_THE_WAY}),
    in_flight=st.integers(2, 7),
    calls=st.integers(1, 2),
    workers=st.integers(1, 2),
    step_ns=st.integers(1, 500 * US),
)
def test_every_instant_is_the_latest_of_what_it_waits_for(
    costs, in_flight, calls, workers, step_ns
):
    n = 25
    records = run(
        BusySpin(),
        one_request(n),
        profile=toy_profile(**costs),
        step_time=StepTime(step_ns),
        scheduling="async",
        in_flight=in_flight,
        calls=calls,
        workers=workers,
        n_slots=2 * in_flight + 2,
    )
    assert instants_of(records) == spinners_by_hand(n, in_flight, calls, step_ns, C | costs)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("in_flight", [2, 3, 5])
@pytest.mark.parametrize("step_ns", [1, 10 * US, 52 * US, 65 * US, 100 * US, 2 * MS])
def test_the_slowest_of_host_device_and_the_way_round_sets_the_pace(
    step_ns, in_flight, calls, workers
):
    records = run(
        BusySpin(),
        one_request(80),
        step_time=StepTime(step_ns),
        scheduling="async",
        in_flight=in_flight,
        calls=calls,
        workers=workers,
        n_slots=16,
    )
    round_ns = AROUND_NS + max(step_ns, AFTER_LAUNCH_NS[calls])
    slowest_ns = max(in_flight * HOST_NS[calls], in_flight * step_ns, round_ns)
    assert over(records, in_flight) == {slowest_ns}


@pytest.mark.parametrize(
    ("in_flight", "pace"), [(2, "the way round"), (3, "the device"), (4, "the device")]
)
def test_a_third_batch_in_flight_fills_a_device_that_two_leave_idle(in_flight, pace):
    step_ns = 60 * US  # longer than the host's 46, shorter than half of the way round, 65
    records = run(
        BusySpin(),
        one_request(60),
        step_time=StepTime(step_ns),
        scheduling="async",
        in_flight=in_flight,
    )
    paces = {"the way round": 65 * US, "the device": step_ns}
    assert over(records, in_flight) == {in_flight * paces[pace]}


@pytest.mark.parametrize("policy", [BusySpin(), Park()])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("in_flight", [2, 3])
def test_a_device_that_is_slower_than_all_else_hides_everything_but_itself(
    policy, workers, calls, in_flight
):
    # The next step is launched long before the device is done with this one, parked or not.
    records = run(
        policy,
        one_request(20),
        scheduling="async",
        calls=calls,
        workers=workers,
        in_flight=in_flight,
    )
    assert {b.done_ns - a.done_ns for a, b in pairwise(records.steps)} == {2 * MS}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("in_flight", [2, 3])
def test_where_the_scheduler_never_rests_parking_costs_it_the_rings_alone(
    workers, calls, in_flight
):
    """Workers wake up beside it. Of two calls the second comes before they are awake."""
    schedule_ns = 200 * US
    spun, parked = (
        run(
            policy,
            one_request(30),
            profile=toy_profile(schedule=schedule_ns),
            step_time=StepTime(30 * US),
            scheduling="async",
            calls=calls,
            workers=workers,
            in_flight=in_flight,
        ).steps
        for policy in (BusySpin(), Park())
    )
    host_ns = HOST_NS[calls] + schedule_ns - C["schedule"]
    # Without the batches that are sent before the first reply, and the replies after the last one.
    for steps, gap_ns in ((spun, host_ns), (parked, host_ns + workers * C["notify_armed"])):
        assert {b.seen_ns - a.seen_ns for a, b in pairwise(steps[5:-5])} == {gap_ns}


def test_parked_on_the_way_round_a_wake_up_for_either_direction_is_on_the_path():
    # Two steps take as long as the way round, and whoever waits is asleep by the time.
    step_ns = 150 * US
    records = run(Park(), one_request(40), step_time=StepTime(step_ns), scheduling="async")
    assert over(records, 2) == {AROUND_NS + step_ns + 2 * C["wake_latency"]}


# CPU time.


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize(
    ("in_flight", "step_ns"), list(product([2, 3], [10 * US, 60 * US, 2 * MS]))
)
def test_spinners_are_on_the_cpu_all_the_time_and_reply_threads_to_reply(in_flight, step_ns, calls):
    n = 20
    records = run(
        BusySpin(),
        one_request(n),
        step_time=StepTime(step_ns),
        scheduling="async",
        calls=calls,
        in_flight=in_flight,
        workers=2,
    )
    scheduler, output, other = records.processes
    assert scheduler.cpu_ns == scheduler.wall_ns
    assert output.cpu_ns == output.wall_ns + n * REPLY_NS
    assert other.cpu_ns == other.wall_ns  # nobody asks it for a reply


@pytest.mark.parametrize("in_flight", [2, 3])
def test_parked_beside_a_slow_device_a_step_costs_two_wake_ups_and_the_work(in_flight):
    n_more = 30

    def cpu_ns(n):
        workload = one_request(n)
        records = run(Park(), workload, scheduling="async", in_flight=in_flight)
        return [process.cpu_ns for process in records.processes]

    (scheduler, worker), (scheduler_of_more, worker_of_more) = cpu_ns(20), cpu_ns(20 + n_more)
    asleep_ns = C["park_cpu"] + C["notify_armed"]  # and whoever wakes it
    assert scheduler_of_more - scheduler == n_more * (PUBLISH_NS + COMPLETE_NS + asleep_ns)
    assert worker_of_more - worker == n_more * (LAUNCH_NS + REPLY_NS + asleep_ns)


# More in flight.


@pytest.mark.parametrize("policy", [BusySpin(), Park()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("calls", [1, 2])
def test_no_token_of_a_loop_that_waits_for_its_device_is_later_with_more_in_flight(
    policy, workers, calls
):
    for step_ns in (400 * US, 2 * MS):  # longer than the publication of five batches
        times = [
            token_times(
                run(
                    policy,
                    one_request(25),
                    step_time=StepTime(step_ns),
                    scheduling="async",
                    calls=calls,
                    workers=workers,
                    in_flight=in_flight,
                    n_slots=16,
                )
            )[0]
            for in_flight in (2, 3, 4, 5)
        ]
        for fewer, more in pairwise(times):
            assert all(a <= b for a, b in zip(more, fewer, strict=True))
