"""Every law is kept by every run of the model, and catches the smallest lie against it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.laws import EVERY_WORLD, MODEL_ONLY, BrokenLawError, check_laws
from shmsim.policies import PRESETS
from shmsim.records import CoreRow, RunRecords, SliceRow
from shmsim.sim.box import Box
from shmsim.sim.cores import Schedule
from shmsim.steptime import StepTime
from shmsim.units import MS, US
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV
from shmsim.workload import Request, Workload
from tests.theory.runs import run
from tests.toy import TOY_COSTS_NS, toy_profile

TWO_REQUESTS = Workload((Request(0, 10, 4), Request(3 * MS, 20, 3)), 0)


def of_model(records):
    """Records as `simulate` returns them."""
    return replace(records, meta={"world": "model"})


def with_cores(records):
    """Each process on a core of its own, where it ran first and then rested."""
    slices, cores = [], []
    for core, row in enumerate(records.processes):
        used_ns = row.cpu_ns + row.emulation_cpu_ns
        half_ns = used_ns // 2
        slices.append(SliceRow(row.process, core, 0, half_ns))
        slices.append(SliceRow(row.process, core, half_ns, used_ns))
        cores.append(CoreRow(core, row.wall_ns, used_ns, 0, row.wall_ns - used_ns))
    return replace(records, slices=slices, cores=cores)


@pytest.fixture(scope="module")
def true_records():
    """Two workers, two calls, two requests, parking."""
    return with_cores(of_model(run(PRESETS["park"], TWO_REQUESTS, workers=2, calls=2)))


def test_the_records_that_the_lies_start_from_break_no_law(true_records):
    check_laws(true_records, n_workers=2)


def changed(table, index, **values):
    """A lie: other values in one row."""

    def tell(records):
        rows = list(getattr(records, table))
        rows[index] = rows[index]._replace(**values)
        return replace(records, **{table: rows})

    return tell


def shifted(table, name, by, which=lambda row: True):
    """A lie: one field of the first such row, moved."""

    def tell(records):
        index = next(i for i, row in enumerate(getattr(records, table)) if which(row))
        row = getattr(records, table)[index]
        return changed(table, index, **{name: getattr(row, name) + by})(records)

    return tell


def without(table, which=lambda row: True):
    """A lie: the first such row is missing."""

    def tell(records):
        rows = list(getattr(records, table))
        rows.remove(next(row for row in rows if which(row)))
        return replace(records, **{table: rows})

    return tell


def twice(table, which):
    """A lie: the first such row is there twice."""

    def tell(records):
        rows = list(getattr(records, table))
        return replace(records, **{table: [next(filter(which, rows)), *rows]})

    return tell


def tokens(change):
    """A lie: other token times of the first request."""

    def tell(records):
        first = records.requests[0]
        return changed("requests", 0, token_ns=change(first.token_ns))(records)

    return tell


def received(process, call, step=1):
    """The wait of a process for a message."""
    site = SCHEDULER_RECV if process == "scheduler" else WORKER_RECV
    return lambda row: (row.process, row.site, row.call, row.step) == (process, site, call, step)


def one_stays(records):
    """One of two workers did not see the goodbye, which counts as a step beyond the last."""
    return without("waits", lambda row: row.step == len(records.steps))(records)


def seen_early(records):
    """A worker saw the second call a nanosecond before it was published."""
    index = next(i for i, row in enumerate(records.waits) if received("worker1", 1)(row))
    row = records.waits[index]
    return changed("waits", index, seen_ns=row.published_ns - 1)(records)


def launched_early(records):
    """A step was launched before the slower worker saw it."""
    launched_ns = max(row.seen_ns for row in records.waits if received("worker1", 0)(row)) - 1
    return changed("steps", 1, launched_ns=launched_ns)(records)


def ends_early(records):
    """The run ended before the last token left."""
    wall_ns = records.requests[-1].token_ns[-1] - 1
    return replace(records, processes=[r._replace(wall_ns=wall_ns) for r in records.processes])


def arrived_late(records):
    """The first request arrived after its first step was scheduled."""
    return changed("requests", 0, arrival_ns=records.steps[0].scheduled_ns + 1)(records)


def more_than_busy(records):
    """A core was busy for longer than the run, and idle for less than nothing."""
    row = records.cores[0]
    return changed("cores", 0, busy_ns=row.wall_ns + 1, idle_ns=-1)(records)


def idle_instead(records):
    """A nanosecond of a core's busy time was booked as idle."""
    row = records.cores[0]
    return changed("cores", 0, busy_ns=row.busy_ns - 1, idle_ns=row.idle_ns + 1)(records)


def all_in_waits(records):
    """Waits of the scheduler used more CPU time than it has."""
    (row,) = [row for row in records.processes if row.process == "scheduler"]
    return shifted("waits", "cpu_ns", row.cpu_ns + 1, received("scheduler", 0))(records)


LIES = [
    ("tokens of requests", tokens(lambda ns: ns[:-1])),
    ("tokens of requests", tokens(lambda ns: [*ns, ns[-1]])),
    ("tokens of requests", tokens(lambda ns: [ns[1], ns[0], *ns[2:]])),
    ("tokens of requests", shifted("requests", "arrival_ns", 10**9)),
    ("tokens of requests", changed("requests", 0, output_tokens=0, token_ns=[])),
    ("tokens of steps", tokens(lambda ns: [*ns[:-1], ns[-1] + 1])),
    ("tokens of steps", tokens(lambda ns: [*ns[:-1], ns[-2]])),
    ("tokens of steps", shifted("steps", "n_prefill_tokens", 1)),
    ("tokens of steps", shifted("steps", "n_decode", 1)),
    ("messages to workers", without("waits", received("worker1", 0))),
    ("messages to workers", twice("waits", received("worker0", 1))),
    ("messages to workers", shifted("waits", "published_ns", -1, received("worker1", 1))),
    ("messages to workers", shifted("steps", "published_ns", -1)),
    ("messages to workers", shifted("processes", "elided", 1)),
    ("messages to workers", one_stays),
    ("messages to workers", changed("waits", -1, process="worker7")),
    ("messages to the scheduler", without("waits", received("scheduler", 0))),
    ("messages to the scheduler", twice("waits", received("scheduler", 1))),
    ("messages to the scheduler", shifted("waits", "published_ns", -1, received("scheduler", 1))),
    ("messages to the scheduler", shifted("waits", "seen_ns", 1, received("scheduler", 1))),
    (
        "messages to the scheduler",
        shifted("processes", "notified", 1, lambda row: row.process == "worker0"),
    ),
    ("seen after published", seen_early),
    ("one wait at a time", shifted("waits", "started_ns", -5 * MS, received("worker0", 1, 2))),
    ("causality", shifted("steps", "scheduled_ns", 5 * MS)),
    ("causality", shifted("steps", "done_ns", -5 * MS)),
    ("causality", launched_early),
    ("steps in order", changed("steps", -1, step=99)),
    ("steps in order", shifted("steps", "scheduled_ns", -5 * MS, lambda row: row.step == 3)),
    ("CPU within wall time", shifted("processes", "cpu_ns", 10**9)),
    ("CPU within wall time", changed("processes", 0, cpu_ns=-1)),
    ("Little", ends_early),
    ("Little", arrived_late),
    ("utilisation", more_than_busy),
    ("one thread on a core", shifted("slices", "ended_ns", 1)),
    ("core time", shifted("cores", "stolen_ns", 1)),
    ("CPU on cores", idle_instead),
    ("slices on cores", without("slices")),
    ("CPU of waits", all_in_waits),
    ("payloads", shifted("processes", "inline", 1, lambda row: row.process == "worker1")),
    ("arena", shifted("processes", "arena_released", 1)),
    ("arena", shifted("processes", "arena_most", 1)),
]


@pytest.mark.parametrize(
    ("law", "tell"), LIES, ids=[f"{law}-{n}" for n, (law, _) in enumerate(LIES)]
)
def test_the_smallest_lie_is_caught_by_the_law_it_breaks(true_records, law, tell):
    with pytest.raises(BrokenLawError, match=f"law of {law}: .") as caught:
        check_laws(tell(true_records), n_workers=2)
    assert caught.value.law == law


def test_every_law_has_a_lie_that_it_alone_must_catch():
    assert {law for law, _ in LIES} == EVERY_WORLD.keys() | MODEL_ONLY.keys()


@pytest.mark.parametrize("lie", [idle_instead, shifted("cores", "stolen_ns", 1), all_in_waits])
def test_a_machine_is_not_asked_for_sums_that_no_clock_can_keep(true_records, lie):
    machine = replace(lie(true_records), meta={"world": "machine"})
    check_laws(machine, n_workers=2)


def test_a_finding_gives_the_numbers_and_the_first_rows(true_records):
    wrong = shifted("cores", "stolen_ns", 1)(true_records)
    with pytest.raises(BrokenLawError, match=r"in 1 of 3 rows: CoreRow\(core=0, wall_ns=\d+"):
        check_laws(wrong, n_workers=2)
    wrong = without("waits", received("worker1", 0))(true_records)
    with pytest.raises(BrokenLawError, match="worker1 saw call 0 of step 1 0 times"):
        check_laws(wrong, n_workers=2)


def test_records_of_no_known_world_are_refused():
    with pytest.raises(ValueError, match="must be 'model' or 'machine', got None"):
        check_laws(RunRecords(), n_workers=1)


lengths = st.integers(1, 6)
requests = st.lists(
    st.builds(Request, st.integers(0, 20 * MS), st.integers(1, 300), lengths),
    min_size=1,
    max_size=6,
)


@st.composite
def workloads(draw):
    """An open or a closed loop."""
    of = tuple(sorted(draw(requests)))
    return Workload(of, draw(st.integers(0, 3)))


@st.composite
def profiles(draw):
    """Toy costs from nothing to twice as usual.

    The CPU time of falling asleep and waking up has to fit into the time that takes: the model
    books it without asking, and a profile in which it does not fit is no machine.
    """
    costs = {name: draw(st.integers(0, 2 * cost)) for name, cost in TOY_COSTS_NS.items()}
    costs["park_cpu"] = draw(st.integers(0, costs["wake_latency"]))
    costs["doze_cpu"] = draw(st.integers(0, costs["timer_overshoot"]))
    return toy_profile(**costs)


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(sorted(PRESETS)),
    workload=workloads(),
    workers=st.integers(1, 3),
    calls=st.integers(1, 2),
    scheduling=st.sampled_from(["sync", "async"]),
    in_flight=st.sampled_from([2, 2, 3, 5]),
    step_ns=st.integers(50 * US, 3 * MS),
    max_sequences=st.integers(1, 4),
    max_batched_tokens=st.integers(16, 400),
    profile=profiles(),
    n_replies=st.integers(1, 3),
    n_slots=st.integers(2, 4),
    device_policy=st.sampled_from(["", "spin", "park", "wake-ahead"]),
)
def test_every_run_of_the_model_keeps_every_law(
    policy,
    workload,
    workers,
    calls,
    scheduling,
    in_flight,
    step_ns,
    max_sequences,
    max_batched_tokens,
    profile,
    n_replies,
    n_slots,
    device_policy,
):
    records = run(
        PRESETS[policy],
        workload,
        profile=profile,
        step_time=StepTime(step_ns),
        workers=workers,
        calls=calls,
        scheduling=scheduling,
        in_flight=in_flight,
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
        n_replies=min(n_replies, workers),
        n_slots=n_slots,
        device_policy=PRESETS[device_policy] if device_policy else None,
    )
    n_threads = 2 if scheduling == "async" else 1
    check_laws(of_model(records), n_workers=workers, n_threads=n_threads)


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(sorted(PRESETS)),
    workload=workloads(),
    workers=st.integers(1, 2),
    scheduling=st.sampled_from(["sync", "async"]),
    profile=profiles(),
    n_cores=st.integers(1, 4),
    pins=st.booleans(),
)
def test_runs_on_shared_cores_keep_every_law(
    policy, workload, workers, scheduling, profile, n_cores, pins
):
    records = run(
        PRESETS[policy],
        workload,
        profile=profile,
        workers=workers,
        calls=2,
        scheduling=scheduling,
        box=Box(Schedule(n_cores), 1 + workers, pins=pins, traces=True),
    )
    assert records.cores
    n_threads = 2 if scheduling == "async" else 1
    check_laws(of_model(records), n_workers=workers, n_threads=n_threads)
