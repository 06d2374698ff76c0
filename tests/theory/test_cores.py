"""Cores of the model: enough of them change nothing, too few are shared as Linux shares them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.policies import PRESETS, BusySpin, SpinThenPark
from shmsim.profile import Curve, Distribution
from shmsim.records import SliceRow
from shmsim.sim.box import Box
from shmsim.sim.clock import VirtualClock
from shmsim.sim.cores import Host, Schedule
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.workload import Lengths, closed_loop, open_loop
from tests.theory.noisy import JITTERY, noisy_profile
from tests.theory.runs import one_request, run
from tests.toy import toy_profile

RULES = Schedule(1)
WORKLOADS = {
    "closed": closed_loop(8, 3, Lengths(40, 300, 600), Lengths(8, 20, 30), Tape(5)),
    "idle": open_loop(8, 200.0, 1.0, Lengths(40, 300, 600), Lengths(8, 20, 30), Tape(5)),
}


def box(n_cores, workers=1, **options):
    return Box(Schedule(n_cores), 1 + workers, **options)


# Shortcuts.


@settings(deadline=None, max_examples=40)
@given(
    policy=st.sampled_from(sorted(PRESETS)),
    workload=st.sampled_from(sorted(WORKLOADS)),
    workers=st.integers(1, 3),
    scheduling=st.sampled_from(["sync", "async"]),
    n_cores=st.sampled_from([0, 1, 2, 4]),
    quota_ns=st.sampled_from([0, 90 * MS]),
    seed=st.integers(0, 3),
)
def test_who_goes_on_without_an_event_does_what_it_would_do_with_one(
    policy, workload, workers, scheduling, n_cores, quota_ns, seed
):
    found = []
    for goes_on_at in (VirtualClock.goes_on_at, lambda *_: False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VirtualClock, "goes_on_at", goes_on_at)
            rules = Schedule(n_cores, quota_ns=quota_ns if n_cores else 0)
            found.append(
                run(
                    PRESETS[policy],
                    WORKLOADS[workload],
                    profile=noisy_profile(),
                    step_time=JITTERY,
                    workers=workers,
                    calls=2,
                    scheduling=scheduling,
                    seed=seed,
                    box=Box(rules, 1 + workers, tape=Tape(seed)),
                )
            )
    shortly, by_events = found
    assert shortly == by_events


# Cores suffice.


@settings(deadline=None, max_examples=60)
@given(
    policy=st.sampled_from(sorted(PRESETS)),
    device_policy=st.sampled_from([None, "spin", "park", "wake-ahead"]),
    workload=st.sampled_from(sorted(WORKLOADS)),
    workers=st.integers(1, 3),
    calls=st.integers(1, 2),
    scheduling=st.sampled_from(["sync", "async"]),
    in_flight=st.sampled_from([2, 2, 3, 5]),
    n_slots=st.sampled_from([2, 3, 8]),
    pins=st.booleans(),
    further_us=st.sampled_from([1, 30, 300]),
    seed=st.integers(0, 3),
)
def test_a_core_for_every_thread_is_as_good_as_no_cores_at_all(
    policy,
    device_policy,
    workload,
    workers,
    calls,
    scheduling,
    in_flight,
    n_slots,
    pins,
    further_us,
    seed,
):
    n_threads = 1 + 2 * workers
    profile = noisy_profile()
    further = Distribution.of([[further_us * US, 2 * further_us * US]])
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0,), (further,))
    what = {
        "profile": profile,
        "step_time": JITTERY,
        "workers": workers,
        "calls": calls,
        "scheduling": scheduling,
        "in_flight": in_flight,
        "seed": seed,
        "n_slots": n_slots,
        "device_policy": PRESETS[device_policy] if device_policy else None,
    }
    # Pinned, the threads of a worker share a core: as good only where there is one.
    pins = pins and scheduling == "sync"
    alone = run(PRESETS[policy], WORKLOADS[workload], **what)
    there = box(n_threads, workers, pins=pins)
    shared = run(PRESETS[policy], WORKLOADS[workload], **what, box=there)
    assert shared.steps == alone.steps
    assert shared.waits == alone.waits
    assert shared.requests == alone.requests
    assert [(p.process, p.cpu_ns) for p in shared.processes] == [
        (p.process, p.cpu_ns) for p in alone.processes
    ]


@pytest.mark.parametrize("policy", ["spin", "vllm-1s", "park", "wake-ahead"])
@pytest.mark.parametrize("n_cores", [1, 2, 3])
def test_the_time_of_every_core_adds_up(n_cores, policy):
    there = box(n_cores, 2, traces=True, pins=True)
    records = run(PRESETS[policy], WORKLOADS["idle"], workers=2, calls=2, box=there)
    for core in records.cores:
        assert core.busy_ns + core.stolen_ns + core.idle_ns == core.wall_ns
        assert core.idle_ns >= 0
        shown = sum(s.ended_ns - s.started_ns for s in records.slices if s.core == core.core)
        assert shown <= core.busy_ns
    unplaced = sum(
        lane.unplaced_ns for p in records.processes for lane in there.lanes_of(p.process)
    )
    used = sum(p.cpu_ns + p.emulation_cpu_ns for p in records.processes)
    assert used == unplaced + sum(core.busy_ns for core in records.cores)


# Cores do not suffice.


def host(rules, slices=None):
    env = VirtualClock()
    return env, Host(env, rules, rules.n_cores, slices)


def spins(thread, *, yields=False):
    thread.wake()
    yield thread.spin(lambda: False, FOREVER_NS, yields=yields)


def test_two_spinners_on_one_core_take_turns_of_a_tick():
    slices = []
    env, there = host(RULES, slices)
    threads = [there.thread(f"spinner{i}") for i in range(2)]
    for thread in threads:
        env.process(spins(thread))
    env.run(until=100 * MS)
    assert {s.ended_ns - s.started_ns for s in slices} == {4 * MS}
    assert [s.process for s in slices[:4]] == ["spinner0", "spinner1"] * 2
    there.rows(100 * MS)
    assert [thread.cpu_ns for thread in threads] == [48 * MS + 4 * MS, 48 * MS]


@pytest.mark.parametrize("yields", [False, True], ids=["spinners", "yielders"])
def test_three_on_two_cores_get_two_thirds_each_by_turns(yields):
    slices = []
    env, there = host(RULES._replace(n_cores=2), slices)
    threads = [there.thread(f"spinner{i}") for i in range(3)]
    for thread in threads:
        env.process(spins(thread, yields=yields))
    there.start([])
    env.run(until=10 * S)
    there.rows(10 * S)
    for thread in threads:
        assert thread.cpu_ns == pytest.approx(10 * S * 2 / 3, rel=0.2), "0.55 to 0.75 on a machine"
    moves = [
        later.started_ns
        for process in {s.process for s in slices}
        for earlier, later in pairwise(s for s in slices if s.process == process)
        if earlier.core != later.core
    ]
    assert 10 * S / 172e6 < len(moves) < 10 * S / 116e6, "what was seen on a machine"


def test_who_is_pinned_is_not_moved():
    env, there = host(RULES._replace(n_cores=2))
    threads = [there.thread(f"spinner{i}", core) for i, core in enumerate((0, 0, 1))]
    for thread in threads:
        env.process(spins(thread))
    there.start([])
    env.run(until=2 * S)
    there.rows(2 * S)
    assert threads[2].cpu_ns == 2 * S
    assert [t.cpu_ns for t in threads[:2]] == pytest.approx([1 * S] * 2, rel=0.01)


def naps(thread, env, gap_ns, work_ns, latencies):
    while True:
        yield env.timeout(gap_ns)
        woken_ns = env.now_ns
        thread.wake()
        yield thread.run(work_ns)
        latencies.append(env.now_ns - woken_ns - work_ns)
        thread.sleep()


def test_who_sleeps_most_of_the_time_hardly_ever_waits_for_a_spinner():
    env, there = host(RULES)
    env.process(spins(there.thread("spinner")))
    latencies = []
    env.process(naps(there.thread("napper"), env, 7 * MS, 20 * US, latencies))
    env.run(until=1 * S)
    assert len(latencies) > 100
    # Now and then it has used up what it was behind by, and waits for a tick.
    assert sum(latency > 0 for latency in latencies) < len(latencies) / 30


@pytest.mark.parametrize(
    ("work_ns", "gap_ns", "at_once"),
    [(20 * US, 500 * US, True), (20 * US, 1 * MS, True), (1 * MS, 1 * MS, False)],
)
def test_who_works_for_long_waits_for_ticks_and_who_does_not_hardly_ever(work_ns, gap_ns, at_once):
    # A light sleeper is behind its share, so that a spinner, however lately it was picked, is not
    # eligible beside it.
    env, there = host(RULES)
    env.process(spins(there.thread("spinner")))
    latencies = []
    env.process(naps(there.thread("napper"), env, gap_ns, work_ns, latencies))
    env.run(until=1 * S)
    n_waited = sum(latency > 0 for latency in latencies)
    assert max(latencies) <= 4 * MS
    share = n_waited / len(latencies)
    assert share < 1 / 30 if at_once else share > 1 / 10


def test_two_jobs_of_a_tick_each_are_done_one_after_the_other():
    env, there = host(RULES)
    done = []

    def works(thread):
        thread.wake()
        yield thread.run(4 * MS)
        done.append(env.now_ns)
        thread.sleep()

    for i in range(2):
        env.process(works(there.thread(f"worker{i}")))
    env.run(until=20 * MS)
    assert done == [4 * MS, 8 * MS]


def test_a_spin_whose_end_passes_while_it_has_no_core_ends():
    there = box(1, 2)
    records = run(SpinThenPark(5 * MS), WORKLOADS["closed"], workers=2, box=there)
    assert len(records.requests) == 8


def test_a_theft_that_is_not_over_is_stolen_time_too():
    env, there = host(Schedule(2, steal_every_ns=5 * MS, steal_ns=50 * MS))
    thread = there.thread("worker", 0)
    thread.wake()
    thread.run(20 * MS)
    there.start([lambda: 1.0])
    env.run(until=30 * MS)
    core, _ = there.rows(30 * MS)
    assert (core.busy_ns, core.stolen_ns, core.idle_ns) == (5 * MS, 25 * MS, 0)


def test_a_thread_whose_core_is_stolen_cannot_move_to_another():
    env, there = host(Schedule(2, steal_every_ns=5 * MS, steal_ns=50 * MS))

    def works(thread, duration_ns):
        thread.wake()
        yield thread.run(duration_ns)
        thread.sleep()

    long = env.process(works(there.thread("long"), 20 * MS))
    env.process(works(there.thread("short"), 6 * MS))
    there.start([lambda: 1.0])
    env.run(until=long)
    assert env.now_ns >= 70 * MS


def test_a_yielder_leaves_its_core_to_whoever_wants_it():
    env, there = host(RULES)
    yielder, spinner = there.thread("yielder"), there.thread("spinner")
    env.process(spins(yielder, yields=True))
    env.process(spins(spinner))
    env.run(until=1 * S)
    there.rows(1 * S)
    assert yielder.cpu_ns < 10 * MS < spinner.cpu_ns


def test_a_thread_in_line_moves_to_the_core_that_falls_idle():
    env, there = host(Schedule(2))

    def works(thread):
        thread.wake()
        yield thread.run(10 * MS)
        thread.sleep()

    done = [env.process(works(there.thread(f"worker{i}"))) for i in range(3)]
    env.run(until=env.all_of(done))
    # Two share a core until the third is done; then nobody waits.
    assert 15 * MS <= env.now_ns <= 18 * MS
    assert [thread.cpu_ns for thread in there.threads] == [10 * MS] * 3


@pytest.mark.parametrize(("quota", "share"), [(0.5, 0.25), (1.0, 0.5), (2.0, 1.0)])
def test_a_quota_is_kept_in_every_period(quota, share):
    slices = []
    env, there = host(Schedule(2, quota_ns=int(quota * 100 * MS)), slices)
    for i in range(2):
        env.process(spins(there.thread(f"spinner{i}")))
    there.start([])
    env.run(until=1 * S + 1)
    rows = there.rows(1 * S)
    assert sum(row.busy_ns for row in rows) == pytest.approx(2 * share * S, rel=0.001)
    for begin_ns in range(0, 1 * S, 100 * MS):
        used = sum(
            min(s.ended_ns, begin_ns + 100 * MS) - max(s.started_ns, begin_ns)
            for s in slices
            if s.started_ns < begin_ns + 100 * MS and s.ended_ns > begin_ns
        )
        assert used <= quota * 100 * MS + 2


def test_a_stolen_core_stands_still():
    env, there = host(Schedule(1, steal_every_ns=10 * MS, steal_ns=1 * MS))
    thread = there.thread("worker")
    thread.wake()
    done = thread.run(100 * MS)
    there.start([lambda: 1.0])
    env.run(until=done)
    # A theft every 10 ms: nine of them within 100 ms of work.
    assert env.now_ns == 100 * MS + there.rows(env.now_ns)[0].stolen_ns
    assert there.rows(env.now_ns)[0].stolen_ns in (9 * MS, 10 * MS)


def test_three_naive_spinners_on_two_cores_collapse_and_guarded_ones_collapse_less():
    def step_ns(n_cores, workers, is_guarded):
        there = box(n_cores, workers, is_guarded=is_guarded)
        spin = {"device_policy": BusySpin(), "workers": workers, "box": there}
        records = run(BusySpin(), one_request(100), **spin)
        return (records.steps[-1].seen_ns - records.steps[10].seen_ns) / 89

    enough, naive = step_ns(3, 2, is_guarded=False), step_ns(2, 2, is_guarded=False)
    assert naive > 3 * enough
    assert step_ns(2, 2, is_guarded=True) < naive / 2


def test_slices_of_one_core_never_overlap():
    there = box(2, 3, traces=True)
    records = run(PRESETS["vllm-1s"], WORKLOADS["closed"], workers=3, calls=2, box=there)
    assert records.slices
    ends: dict[int, int] = {}
    for row in sorted(records.slices, key=lambda s: (s.core, s.started_ns)):
        assert isinstance(row, SliceRow)
        assert row.started_ns >= ends.get(row.core, 0)
        ends[row.core] = row.ended_ns


def test_busy_cores_slow_the_device_where_they_share_its_power():
    def step_ns(policy, slowdown):
        there = box(2, 1, slowdown=slowdown)
        records = run(PRESETS[policy], one_request(50), box=there)
        return records.steps[-1].done_ns - records.steps[-1].launched_ns

    assert step_ns("spin", 0.0) == step_ns("park", 0.0) == 2 * MS
    # Whoever launches is busy, and the scheduler is if it spins.
    assert step_ns("park", 0.1) == pytest.approx(2.2 * MS, abs=2)
    assert step_ns("spin", 0.1) == pytest.approx(2.4 * MS, abs=2)


def with_io_threads():
    profile = toy_profile()
    for name, ns in (("wake_latency", 90 * US), ("io_thread_cpu", 20 * US)):
        profile.costs[name] = Curve("asleep_ns", (0.0,), (Distribution.of([[ns]]),))
    return profile


def test_io_threads_cost_cpu_and_where_there_is_a_core_for_them_no_time():
    def of(profile, there):
        return run(PRESETS["park"], one_request(30), profile=profile, box=there)

    plain = with_io_threads()
    del plain.costs["io_thread_cpu"]
    carried, alone, roomy = (
        of(plain, None),
        of(with_io_threads(), None),
        of(with_io_threads(), box(6)),
    )
    assert [s.seen_ns for s in carried.steps] == [s.seen_ns for s in alone.steps]
    assert [s.seen_ns for s in carried.steps] == [s.seen_ns for s in roomy.steps]
    # Each ring is carried by the I/O thread of either process.
    n_rings = sum(w.belled for w in alone.waits)
    for records in (alone, roomy):
        extra = [
            p.cpu_ns - q.cpu_ns for p, q in zip(records.processes, carried.processes, strict=True)
        ]
        assert extra == [n_rings * 20 * US] * 2


def test_a_spinner_on_the_only_core_keeps_io_threads_from_it():
    def late_ns(policy, n_cores):
        # Whoever waits for the device spins too, so that the cores are taken.
        there = box(n_cores, 1, is_guarded=False)
        records = run(
            PRESETS[policy],
            one_request(60),
            profile=with_io_threads(),
            device_policy=BusySpin(),
            box=there,
        )
        waits = [w for w in records.waits if w.belled and w.pending]
        return max(w.seen_ns - w.published_ns for w in waits)

    assert late_ns("park", 4) == 90 * US
    assert late_ns("park", 1) > 90 * US
