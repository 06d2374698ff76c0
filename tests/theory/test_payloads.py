"""Large payloads: what routes and copies cost, who holds a slot of the arena, and who waits."""

import heapq
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.config import EngineConfig, PayloadConfig, RunConfig
from shmsim.laws import BrokenLawError, check_laws
from shmsim.policies import PRESETS, BusySpin, Park
from shmsim.profile import OPTIONAL_COSTS, Curve, MachineProfile
from shmsim.routing import MIB, ROUTE_PRESETS, ArenaPlan, SlotClass
from shmsim.sim.arena import VirtualArena
from shmsim.sim.box import Box
from shmsim.sim.cores import Schedule
from shmsim.sim.loop import StepLoop
from shmsim.sim.run import simulate
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.units import MS, US
from shmsim.workload import Lengths, closed_loop
from tests.theory.noisy import JITTERY, noisy_profile
from tests.theory.runs import one_request, run
from tests.theory.test_critical_path import AROUND_NS, PUBLISH_NS, step_gaps
from tests.theory.test_laws import of_model
from tests.toy import TOY_COSTS_NS as C
from tests.toy import constant, toy_profile

#: Fixed cost, and cost of each MiB.
BULK_COSTS_NS = {
    "pickle": (3 * US, 400 * US),
    "unpickle": (2 * US, 50 * US),
    "memcpy": (0, 100 * US),
    "socket_send": (30 * US, 0),
    "socket_receive": (25 * US, 0),
    "h2d_call_registered": (5 * US, 0),
    "h2d_registered": (15 * US, 20 * US),
    "h2d_call_pageable": (6 * US, 80 * US),
    "h2d_pageable": (16 * US, 80 * US),
    "d2h": (11 * US, 0),
}
ONE_SLOT = (SlotClass(64 * MIB, 1),)
TWO_SLOTS = (SlotClass(64 * MIB, 2),)
MIXED = closed_loop(8, 3, Lengths(40, 300, 600), Lengths(8, 20, 30), Tape(5))


def bulk_profile(base=None, **costs_ns):
    """A toy profile with costs by size; keyword arguments replace `BULK_COSTS_NS`."""
    profile = base or toy_profile()
    for name, (fixed_ns, per_mib_ns) in (BULK_COSTS_NS | costs_ns).items():
        points = constant(fixed_ns), constant(fixed_ns + 64 * per_mib_ns)
        profile.costs[name] = Curve("bytes", (0.0, 64.0 * MIB), points)
    return profile


def cost_ns(name, n_mib):
    fixed_ns, per_mib_ns = BULK_COSTS_NS[name]
    return round(fixed_ns + n_mib * per_mib_ns)


def run_with(payload, *, policy=BusySpin(), n_output=20, **more):  # noqa: B008 - immutable
    profile = more.pop("profile", None) or bulk_profile()
    return run(policy, one_request(n_output), profile=profile, payload=payload, **more)


def sent(records):
    """What the scheduler counted: payloads, parts by route, fallbacks."""
    row = records.processes[0]
    return row.payloads, (row.inline, row.arena, row.socket), row.fallbacks


# Hand-computed sums: one step of one call, on a core each.

#: Writing, and taking, 8 MiB kept out of the stream.
STUBS_NS = cost_ns("pickle", 0) + cost_ns("unpickle", 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_by_the_arena_one_copy_serves_all_readers(workers):
    payload = PayloadConfig(0, 8 * MIB, "all-shm", arena=TWO_SLOTS)
    records = run_with(payload, workers=workers)
    assert step_gaps(records) == {AROUND_NS + 2 * MS + STUBS_NS + cost_ns("memcpy", 8)}
    assert sent(records) == (20, (20, 20, 0), 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_inline_every_reader_copies_out_what_was_copied_in_once(workers):
    payload = PayloadConfig(0, 8 * MIB, "all-shm")
    records = run_with(payload, workers=workers, slot_bytes=16 * MIB)
    assert step_gaps(records) == {AROUND_NS + 2 * MS + STUBS_NS + 2 * cost_ns("memcpy", 8)}
    assert sent(records) == (20, (40, 0, 0), 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_by_socket_the_whole_message_is_sent_to_each_reader_in_turn(workers):
    payload = PayloadConfig(0, 8 * MIB, "vllm")
    records = run_with(payload, workers=workers)
    # The stream and the bulk, each of which costs the same here.
    both_ns = 2 * (workers * cost_ns("socket_send", 8) + cost_ns("socket_receive", 8))
    assert step_gaps(records) == {AROUND_NS + 2 * MS + STUBS_NS + both_ns}
    assert sent(records) == (20, (0, 0, 40), 0)


def test_what_is_too_small_to_divert_is_pickled_in_band():
    records = run_with(PayloadConfig(0, MIB // 2, "all-shm", arena=ONE_SLOT), slot_bytes=MIB)
    in_band_ns = cost_ns("pickle", 0.5) + cost_ns("unpickle", 0.5) + 2 * cost_ns("memcpy", 0.5)
    assert step_gaps(records) == {AROUND_NS + 2 * MS + in_band_ns}
    assert sent(records) == (20, (20, 0, 0), 0)


def test_bulk_of_prompts_is_carried_by_the_steps_that_work_on_them():
    payload = PayloadConfig(bytes_per_prefill_token=MIB, routes="all-shm", arena=ONE_SLOT)
    records = run_with(payload)
    assert sent(records) == (1, (1, 1, 0), 0)  # 10 prompt tokens in one step, then decode
    first, *others = records.steps
    copied_ns = cost_ns("pickle", 0) + cost_ns("memcpy", 10)
    assert first.published_ns - first.scheduled_ns == PUBLISH_NS + copied_ns
    assert {s.published_ns - s.scheduled_ns for s in others} == {PUBLISH_NS}


@pytest.mark.parametrize("memory", ["registered", "pageable"])
def test_the_step_begins_when_its_copy_has_landed_but_only_a_pageable_one_holds_the_worker_up(
    memory,
):
    payload = PayloadConfig(0, 8 * MIB, "all-shm", arena=TWO_SLOTS, memory=memory)
    copied, plain = run_with(payload), run_with(replace(payload, memory="none"))
    # Launching takes place while the copy is on its way.
    call_ns, landed_ns = cost_ns(f"h2d_call_{memory}", 8), cost_ns(f"h2d_{memory}", 8)
    (with_ns,), (without_ns,) = step_gaps(copied), step_gaps(plain)
    assert with_ns - without_ns == max(landed_ns - C["launch"], call_ns)
    for record, plain_record in zip(copied.steps, plain.steps, strict=True):
        before_ns = plain_record.launched_ns - plain_record.published_ns
        assert record.launched_ns - record.published_ns == before_ns + call_ns
    worker, plain_worker = copied.processes[1], plain.processes[1]
    spun = [sum(w.cpu_ns for w in r.waits if w.process == "worker0") for r in (copied, plain)]
    assert (worker.cpu_ns - spun[0]) - (plain_worker.cpu_ns - spun[1]) == 20 * call_ns


def test_all_workers_wait_for_the_slowest_copy():
    payload = PayloadConfig(0, 8 * MIB, "all-shm", arena=TWO_SLOTS, memory="registered")
    one, two = (run_with(payload, workers=n) for n in (1, 2))
    assert step_gaps(one) == step_gaps(two)
    profile = bulk_profile(noisy_profile())
    records = run_with(payload, workers=2, profile=profile)
    landed_ns = cost_ns("h2d_registered", 8)
    for step in records.steps:
        assert step.done_ns - step.launched_ns >= 2 * MS
        assert step.done_ns - step.published_ns > landed_ns + 2 * MS


def test_a_reply_waits_for_the_copy_of_the_output():
    plain, copied = (
        run_with(PayloadConfig(output_bytes=n), workers=2, policy=Park()) for n in (0, 4096)
    )
    (without_ns,), (with_ns,) = step_gaps(plain), step_gaps(copied)
    assert with_ns - without_ns == cost_ns("d2h", 0)
    # A worker that does not reply copies nothing out.
    extra_ns = [b.cpu_ns - a.cpu_ns for a, b in zip(plain.processes, copied.processes, strict=True)]
    assert extra_ns == [0, 20 * cost_ns("d2h", 0), 0]


def test_beyond_what_was_measured_a_cost_grows_with_the_size():
    payload = PayloadConfig(0, 128 * MIB, "all-shm", arena=(SlotClass(256 * MIB, 2),))
    records = run_with(payload)
    assert step_gaps(records) == {AROUND_NS + 2 * MS + STUBS_NS + 128 * 100 * US}


# One stream: copies follow the steps that were launched before.


def launches_before_the_end_of_the_step_before(records):
    return [b.launched_ns < a.done_ns for a, b in pairwise(records.steps)]


@pytest.mark.parametrize("on_cores", [False, True])
@pytest.mark.parametrize(
    ("memory", "n_mib", "returns_at_once"),
    [("registered", 16, True), ("pageable", 16, False), ("pageable", 8, True)],
)
def test_behind_a_running_step_a_large_pageable_copy_blocks_and_a_registered_one_returns(
    memory, n_mib, returns_at_once, on_cores
):
    payload = PayloadConfig(0, n_mib * MIB, "all-shm", arena=TWO_SLOTS, memory=memory)
    box = Box(Schedule(3), 2) if on_cores else None
    long = StepTime(10 * MS)  # longer than all copies
    records = run_with(payload, scheduling="async", step_time=long, box=box)
    found = launches_before_the_end_of_the_step_before(records)
    assert found[1:-1] == [returns_at_once] * (len(found) - 2)
    if returns_at_once:
        # In the stream, what the call has not covered comes between two steps.
        rest_ns = cost_ns(f"h2d_{memory}", n_mib) - cost_ns(f"h2d_call_{memory}", n_mib)
        assert {b.done_ns - a.done_ns for a, b in pairwise(records.steps)} == {10 * MS + rest_ns}
    else:
        # The worker spins in the driver all the time, one core long.
        worker = records.processes[1]
        assert worker.cpu_ns > 0.9 * worker.wall_ns


# Retention.


def async_run(arena, h2d_us, **more):
    """Two batches in flight; a copy stays on its way for so long behind each step.

    The bulk is meant for the arena, and fits into a slot of the ring; the stream goes by socket.
    """
    payload = PayloadConfig(0, 8 * MIB, "flipped", arena=arena, memory="registered")
    profile = bulk_profile(h2d_registered=(h2d_us * US, 0))
    return run_with(payload, scheduling="async", profile=profile, slot_bytes=16 * MIB, **more)


def test_a_slot_is_held_until_the_copy_has_landed_and_whoever_finds_none_takes_another_way():
    # A slot comes free 25 µs after the end of the step before, and the next payload is placed 56 µs
    # after it. Only the second of all comes too early, right behind the first.
    assert sent(async_run(ONE_SLOT, 30)) == (20, (1, 19, 20), 1)
    # 595 µs after: every other one finds it in use.
    late = async_run(ONE_SLOT, 600)
    assert sent(late) == (20, (10, 10, 20), 10)
    assert late.processes[0].arena_most == 1
    ample = async_run(TWO_SLOTS, 600)
    assert sent(ample) == (20, (0, 20, 20), 0)
    assert ample.processes[0].arena_most == 2


@pytest.mark.parametrize(("routes", "fallbacks"), [("all-shm", 0), ("flipped", 20)])
def test_a_part_that_went_where_the_policy_did_not_want_it_is_a_fallback(routes, fallbacks):
    """`flipped` wants the stream by socket and the bulk in the arena, which there is none of."""
    records = run_with(PayloadConfig(0, 8 * MIB, routes), slot_bytes=16 * MIB)
    assert records.processes[0].fallbacks == fallbacks


def test_by_a_pinned_buffer_the_slot_is_free_before_the_copy_lands():
    payload = PayloadConfig(0, 8 * MIB, "all-shm", arena=TWO_SLOTS, memory="registered")
    registered, pinned = run_with(payload), run_with(replace(payload, memory="pinned"))
    (gap_ns,), (longer_ns,) = step_gaps(registered), step_gaps(pinned)
    assert longer_ns == gap_ns + cost_ns("memcpy", 8)
    assert pinned.processes[1].arena_released == 20
    # Two batches in flight and one slot: a copy from the arena holds it while the step before runs.
    many = {"scheduling": "async", "n_output": 20}
    one_slot = replace(payload, arena=ONE_SLOT)
    registered, pinned = (
        run_with(replace(one_slot, memory=memory), **many) for memory in ("registered", "pinned")
    )
    assert sent(registered)[2] > 5
    assert sent(pinned)[2] <= 2, "as it begins"


def test_a_fallback_is_copied_from_pageable_memory():
    payload = PayloadConfig(0, 8 * MIB, "flipped", arena=ONE_SLOT, memory="registered")
    roomy = run_with(payload)
    cramped = run_with(replace(payload, arena=(SlotClass(4 * MIB, 9),)), slot_bytes=16 * MIB)
    assert roomy.processes[0].fallbacks == 0
    assert cramped.processes[0].fallbacks == 20
    called = [
        {s.launched_ns - s.published_ns for s in records.steps[1:]} for records in (roomy, cramped)
    ]
    (roomy_ns,), (cramped_ns,) = called
    calls_ns = cost_ns("h2d_call_pageable", 8) - cost_ns("h2d_call_registered", 8)
    assert cramped_ns - roomy_ns == calls_ns + cost_ns("memcpy", 8)


# Limits.


ENGINES = [
    {"calls": calls, "workers": workers, "scheduling": scheduling}
    for calls in (1, 2)
    for workers in (1, 2)
    for scheduling in ("sync", "async")
]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_bulk_of_no_bytes_changes_nothing(engine):
    empty = PayloadConfig(0, 0, "flipped", arena=TWO_SLOTS, memory="registered")
    engine = {**engine, "step_time": JITTERY}
    for policy in (BusySpin(), Park()):
        plain = run(policy, MIXED, profile=noisy_profile(), **engine)
        assert run(policy, MIXED, profile=noisy_profile(), payload=empty, **engine) == plain


any_payload = st.builds(
    PayloadConfig,
    bytes_per_prefill_token=st.sampled_from([0, 1, 5_000, 200_000]),
    bytes_per_step=st.sampled_from([0, 100, 3 * MIB, 20 * MIB]),
    routes=st.sampled_from(sorted(ROUTE_PRESETS)),
    divert_bytes=st.sampled_from([1, 100_000, MIB]),
    arena=st.sampled_from([(), ONE_SLOT, (SlotClass(2 * MIB, 1), SlotClass(64 * MIB, 2))]),
    memory=st.sampled_from(["none", "registered", "pinned", "pageable"]),
    output_bytes=st.sampled_from([0, 4096]),
)
any_engine = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 3),
        "calls": st.integers(1, 2),
        "scheduling": st.sampled_from(["sync", "async"]),
        "in_flight": st.sampled_from([2, 2, 3, 5]),
        "n_slots": st.sampled_from([2, 8]),
        "slot_bytes": st.sampled_from([1 << 13, 8 * MIB]),
        "seed": st.integers(0, 3),
        "step_time": st.sampled_from([JITTERY, StepTime(50 * US)]),
    }
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["spin", "park", "wake-ahead"]), any_payload, any_engine, st.integers(1, 4))
def test_every_law_is_kept_whatever_is_carried_and_on_however_many_cores(
    policy, payload, engine, n_cores
):
    profile = bulk_profile(noisy_profile())
    n_threads = 2 if engine["scheduling"] == "async" else 1
    boxes = None, Box(Schedule(n_cores), 1 + engine["workers"], traces=True)
    for box in boxes:
        records = run(PRESETS[policy], MIXED, profile=profile, payload=payload, box=box, **engine)
        check_laws(of_model(records), n_workers=engine["workers"], n_threads=n_threads)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["spin", "park", "wake-ahead"]), any_payload, any_engine)
def test_a_core_for_every_thread_is_as_good_as_no_cores_at_all(policy, payload, engine):
    what = {"profile": bulk_profile(noisy_profile()), "payload": payload, **engine}
    alone = run(PRESETS[policy], MIXED, **what)
    there = Box(Schedule(1 + 2 * engine["workers"]), 1 + engine["workers"])
    shared = run(PRESETS[policy], MIXED, **what, box=there)
    assert (shared.steps, shared.waits, shared.requests) == (
        alone.steps,
        alone.waits,
        alone.requests,
    )
    assert [p._replace(unplaced_ns=0, run_queue_ns=0) for p in shared.processes] == [
        p._replace(run_queue_ns=0) for p in alone.processes
    ]


def test_workers_without_a_device_take_the_payload_and_let_go_of_it():
    payload = PayloadConfig(0, 8 * MIB, "all-shm", arena=TWO_SLOTS, memory="registered")
    engine = EngineConfig(workers=3, calls_per_step=1, devices=1)
    loop = StepLoop(
        bulk_profile(), engine, StepTime(2 * MS), one_request(20), BusySpin(), Tape(1), 10.0,
        payload=payload,
    )  # fmt: skip
    records = loop.run()
    check_laws(of_model(records), n_workers=3)
    assert [p.arena_released for p in records.processes] == [20] * 4
    _, worker, *readers = records.processes
    assert all(reader.arena == worker.arena for reader in readers)


def lie(records, index, **by):
    """Other counts in the row of one process."""
    rows = list(records.processes)
    rows[index] = rows[index]._replace(
        **{name: getattr(rows[index], name) + n for name, n in by.items()}
    )
    return replace(records, processes=rows)


@pytest.mark.parametrize(
    ("law", "index", "by"),
    [
        ("payloads", 0, {"inline": 30}),
        ("payloads", 0, {"payloads": 1}),
        ("payloads", 1, {"inline": -1, "socket": 1}),
        ("payloads", 0, {"fallbacks": 41}),
        ("arena", 0, {"arena_released": -1}),
        ("arena", 1, {"arena_released": -1}),
        ("arena", 0, {"arena_slots": -1}),
    ],
)
def test_a_payload_lost_on_the_way_or_a_slot_kept_breaks_a_law(law, index, by):
    records = of_model(async_run(TWO_SLOTS, 600, workers=2))
    check_laws(records, n_workers=2, n_threads=2)
    with pytest.raises(BrokenLawError, match=f"law of {law}: ."):
        check_laws(lie(records, index, **by), n_workers=2, n_threads=2)


# Costs that a profile may lack.


@pytest.mark.parametrize(
    ("payload", "missing", "way_out"),
    [
        (PayloadConfig(0, 8 * MIB), "socket_send", "choose payload.routes"),
        (
            PayloadConfig(0, 8 * MIB, "all-shm", arena=ONE_SLOT, memory="registered"),
            "h2d_call_registered",
            'payload.memory = "none"',
        ),
        (PayloadConfig(0, 1, memory="pageable"), "h2d_call_pageable", 'payload.memory = "none"'),
        (PayloadConfig(output_bytes=1), "d2h", "payload.output_bytes = 0"),
    ],
)
def test_a_cost_that_the_profile_lacks_is_named_with_the_way_out(payload, missing, way_out):
    config = RunConfig(payload=payload)
    profile = MachineProfile.shipped("vm-2cpu")
    match = re.escape(f"the cost {missing} ({OPTIONAL_COSTS[missing][1]})") + f".*{way_out}"
    with pytest.raises(ValueError, match=match):
        simulate(config, BusySpin(), profile)


def test_the_shipped_h200_carries_images_by_the_arena():
    payload = PayloadConfig(
        0, 16 * MIB, "all-shm", arena=TWO_SLOTS, memory="registered", output_bytes=4096
    )
    config = RunConfig(payload=payload)
    config = replace(config, workload=replace(config.workload, requests=2, max_output_tokens=10))
    profile = MachineProfile.shipped("h200")
    registered = simulate(config, BusySpin(), profile)
    config = replace(config, payload=replace(payload, memory="pageable"))
    pageable = simulate(config, BusySpin(), profile)
    assert registered.processes[0].arena == len(registered.steps)
    assert pageable.processes[0].wall_ns > registered.processes[0].wall_ns


# The arena as a loss system.


def erlang_b(load, n_slots):
    """Share of Poisson arrivals that find all slots in use (Erlang 1917), by its recursion."""
    blocked = 1.0
    for k in range(1, n_slots + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


def share_that_falls_back(plan, n_readers, holding_of, rate, n, rng):
    """Poisson payloads at the arena, each held by its readers for their own times."""
    arena = VirtualArena(plan, n_readers)
    due = []
    n_lost = n_offered = 0
    arrivals = np.cumsum(rng.exponential(1 / rate, n))
    held_for = holding_of(rng, (n, n_readers))
    for index, (now, times) in enumerate(zip(arrivals, held_for, strict=True)):
        while due and due[0][0] <= now:
            arena.let_go(heapq.heappop(due)[2])
        is_counted = now > 20  # mean holding times after an empty start
        n_offered += is_counted
        if not arena.n_free_for(MIB):
            n_lost += is_counted
            continue
        hold = arena.take(MIB)
        for reader, time in enumerate(times):
            heapq.heappush(due, (now + time, (index, reader), hold))
    return n_lost / n_offered


@pytest.mark.parametrize(
    ("n_readers", "holding_of", "mean"),
    [
        (1, lambda rng, shape: rng.exponential(1.0, shape), 1.0),
        (1, lambda rng, shape: np.ones(shape), 1.0),
        # Until the last of two readers lets go: the mean of the greater of two exponentials.
        (2, lambda rng, shape: rng.exponential(1.0, shape), 1.5),
    ],
    ids=["exponential", "constant", "two readers"],
)
@pytest.mark.parametrize(("n_slots", "rate"), [(1, 0.5), (8, 5.0)])
def test_the_share_of_fallbacks_is_erlangs_formula(n_slots, rate, n_readers, holding_of, mean):
    """Whatever the law of the holding time (insensitivity), only its mean counts."""
    plan = ArenaPlan((SlotClass(MIB, n_slots),), MIB)
    rng = np.random.default_rng(20261130)
    shares = [
        share_that_falls_back(plan, n_readers, holding_of, rate, 3000, rng) for _ in range(16)
    ]
    standard_error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert standard_error < 0.01
    assert abs(np.mean(shares) - erlang_b(rate * mean, n_slots)) < 4 * standard_error


def test_a_burst_of_small_payloads_takes_the_slots_of_large_ones():
    arena = VirtualArena(ArenaPlan((SlotClass(1 * MIB, 1), SlotClass(8 * MIB, 1)), MIB), 1)
    first, second = arena.take(MIB), arena.take(MIB)
    assert (first.index, second.index) == (0, 1)
    assert arena.n_free_for(8 * MIB) == 0
    arena.let_go(second)
    assert (arena.n_free_for(8 * MIB), arena.n_free_for(MIB)) == (1, 1)
    assert (arena.n_held, arena.n_most_held, arena.n_released) == (1, 2, 1)
