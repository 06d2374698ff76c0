"""The recurrence gives the records of the model's definition in SimPy, bit for bit."""

from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmsim.config import (
    CoresConfig,
    DeviceConfig,
    EngineConfig,
    HandoffConfig,
    NamedPolicy,
    PayloadConfig,
    RunConfig,
    WorkloadConfig,
)
from shmsim.distribution import Curve, Distribution
from shmsim.figures import figures_of
from shmsim.metrics import quantiles, summarize
from shmsim.policies import StepAhead, WakeAhead
from shmsim.profile import AT_DEVICE, MachineProfile
from shmsim.sim.engine import choose, simulate_with, summarize_with
from shmsim.sim.recurrence import (
    UndecidedError,
    drawing,
    engine_run,
    luck,
    refuses,
    run_many,
    simulate_recurrence,
    tapes,
)
from shmsim.sim.recurrence.figures import _weighted
from shmsim.sim.run import simulate
from shmsim.sim.sweep import _run_tape
from shmsim.sweep.plan import Point, plan_of
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import (
    ASLEEP,
    DOZE,
    NAP,
    PARK,
    POLL,
    REHEARSE,
    SPIN,
    YIELD,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
)
from tests.theory.noisy import noisy_profile, resting_at
from tests.toy import toy_profile


class Learnt(NamedTuple):
    """What `Anything` carries from wait to wait."""

    n: int = 0
    last_ns: tuple[float, float] = (0.0, 0.0)
    belled: bool = False


class Anything(NamedTuple):
    """Every kind of stage in turn, of lengths that depend on all that a policy is told."""

    scale_ns: int = 100_000
    learnt: Learnt = Learnt()

    def plan(self, ctx: WaitContext) -> WaitPlan:
        kind = int(ctx.uniform * 97.0) % 8 if ctx.pending else self.learnt.n % 8
        step_ns = int(ctx.uniform * self.scale_ns) + ctx.n_decode + ctx.n_prefill_tokens % 7
        step_ns += ctx.n_kv_tokens % 11 + ctx.since_seen_ns % 13 + int(self.learnt.last_ns[0]) // 3
        period_ns = self.scale_ns // 5 + 1
        if kind == 0:
            return WaitPlan(
                Stage(DOZE, step_ns, 0),
                Stage(REHEARSE, step_ns, 0),
                Stage(SPIN, 3 * step_ns, 0),
                Stage(PARK, FOREVER_NS, 2 * period_ns),
            )
        if kind == 1:
            return WaitPlan(
                Stage(NAP, step_ns, 0),
                Stage(YIELD, 2 * step_ns, 0),
                Stage(DOZE, 4 * step_ns, 0),
                Stage(POLL, FOREVER_NS, period_ns),
            )
        if kind == 2:
            return WaitPlan(Stage(POLL, 2 * step_ns, period_ns), ASLEEP, ASLEEP, ASLEEP)
        if kind == 3:
            return WaitPlan(Stage(SPIN, step_ns // 2, 0), Stage(NAP, step_ns, 0), ASLEEP, ASLEEP)
        if kind == 4:
            return WaitPlan(Stage(YIELD, FOREVER_NS, 0), ASLEEP, ASLEEP, ASLEEP)
        if kind == 5:
            return WaitPlan(
                Stage(REHEARSE, 0, 0), Stage(DOZE, step_ns, 0), Stage(REHEARSE, step_ns, 0), ASLEEP
            )
        if kind == 6:
            return WaitPlan(Stage(SPIN, step_ns, 0), ASLEEP, ASLEEP, ASLEEP)
        return WaitPlan(Stage(DOZE, step_ns, 0), Stage(SPIN, step_ns + 50_000, 0), ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Anything":
        cpu_ns = outcome.cpu_ns
        used_ns = cpu_ns.first + cpu_ns.second + cpu_ns.third + cpu_ns.fourth
        last_ns = 0.5 * (self.learnt.last_ns[1] + ctx.uniform * float(outcome.seen_after_ns % 5000))
        other_ns = float((used_ns + outcome.overshoot_ns + outcome.stage) % 1000)
        if outcome.published_after_ns < 0 or outcome.preempted > 0:
            other_ns += 1.0
        return Anything(
            self.scale_ns,
            Learnt(self.learnt.n + 1, (last_ns, other_ns), outcome.belled != self.learnt.belled),
        )


def carried_profile():
    """The noisy profile; I/O threads carry its rings, and policies cost something."""
    profile = noisy_profile()
    costs = profile.costs
    for name, ns in (("io_thread_cpu", 9 * US), ("notify_further", 4 * US), ("d2h", 20 * US)):
        values = ns + np.random.default_rng(2).exponential(5 * US, 200)
        costs[name] = Curve("", (0.0,), (Distribution.of([values]),))
    for name in ("plan", "after"):
        for both in profile.policy_costs.values():
            hot = 1 * US + np.random.default_rng(3).exponential(US, 200)
            points = tuple(Distribution.of([times * hot]) for times in (1, 3, 20))
            both[name] = Curve("asleep_ns", (0.0, 1.0 * MS, 5.0 * MS), points)
    return profile


def slow_rings_profile():
    """The carried profile; rings reach further readers so late that timers end before."""
    profile = carried_profile()
    points = tuple(Distribution.of([[ns, 3 * ns]]) for ns in (20 * US, 90 * US))
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0, 1.0 * MS), points)
    return profile


PROFILES = {
    "toy": toy_profile(),
    "noisy": noisy_profile(),
    "carried": carried_profile(),
    "slow rings": slow_rings_profile(),
    "vm-2cpu": MachineProfile.shipped("vm-2cpu"),
    "h200": MachineProfile.shipped("h200"),
    "h100-tp2": MachineProfile.shipped("h100-tp2"),
}
WAITS = {"anything": Anything(), "ahead": WakeAhead(), "rehearse": WakeAhead(50 * US, 0.3, True)}


def workloads(most_tokens):
    lengths = st.tuples(st.integers(1, 40), st.integers(0, 60)).map(lambda p: (p[0], sum(p)))
    outputs = st.tuples(st.integers(1, most_tokens), st.integers(0, 30)).map(
        lambda p: (p[0], sum(p))
    )
    return st.builds(
        lambda kind, n, rate, burst, together, prompt, output: WorkloadConfig(
            kind, n, rate, burst, together, *prompt, *output
        ),
        st.sampled_from(("closed", "open")),
        st.integers(1, 8),
        st.sampled_from((3.0, 60.0, 2000.0)),
        st.sampled_from((1.0, 0.2)),
        st.integers(1, 9),
        lengths,
        outputs,
    )


@st.composite
def runs(draw, most_workers=4, most_tokens=12):
    """A config that the recurrence runs, and the name of a profile."""
    name = draw(st.sampled_from(list(PROFILES)))
    device_wait = draw(st.sampled_from(("", "wake-ahead", "rehearse-ahead")))
    engine = EngineConfig(
        draw(st.integers(1, most_workers)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from(("sync", "async"))),
        draw(st.integers(1, 6)),
        draw(st.integers(6, 80)),
        device_wait,
        batches_in_flight=2 if device_wait else draw(st.sampled_from((2, 3, 4, 6))),
    )
    config = RunConfig(
        engine,
        HandoffConfig(slots=16, replies=draw(st.sampled_from(("rank0", "all")))),
        draw(workloads(most_tokens)),
        DeviceConfig(
            step_ns=draw(st.sampled_from((5 * US, 300 * US, 2 * MS))),
            jitter=draw(st.sampled_from((0.0, 0.1))),
        ),
        seed=draw(st.integers(0, 99)),
        cores=CoresConfig(engines=draw(st.sampled_from((1, 1, 1, 2)))),
    )
    if name == "carried":
        config = replace(config, payload=PayloadConfig(output_bytes=draw(st.integers(0, 9))))
    if PROFILES[name].machine.get("doorbell", "futex") != "futex":
        handoff = replace(config.handoff, doorbell=PROFILES[name].machine["doorbell"])
        config = replace(config, handoff=handoff)
    return config, name


def assert_same(found, expected):
    """Fail with the first row that differs, both sides of it."""
    for name in ("steps", "waits", "processes", "requests"):
        pairs = zip_longest(getattr(found, name), getattr(expected, name))
        for number, (ours, theirs) in enumerate(pairs):
            assert ours == theirs, (
                f"row {number} of {name} differs:\n  recurrence {ours}\n  SimPy      {theirs}"
            )
    assert found == expected


def check(config, policy, profile, replication=0):
    assert refuses(config, profile) is None
    expected = simulate(config, policy, profile, replication)
    assert_same(simulate_recurrence(config, policy, profile, replication), expected)


def make_short(monkeypatch, n_steps):
    monkeypatch.setattr(tapes, "_LEAST_STEPS", n_steps)
    monkeypatch.setattr(tapes, "_MOST_STEPS", n_steps)
    monkeypatch.setattr(tapes, "_FIRST_SIZED", 2)


@pytest.fixture
def short_windows(monkeypatch):
    """Windows of a few steps, so that short runs go through many."""
    make_short(monkeypatch, 8)


@pytest.fixture
def windows_for_six(monkeypatch):
    """The shortest windows in which up to six batches may be in flight."""
    make_short(monkeypatch, 16)


IN_SHORT_WINDOWS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.timeout(240)  # loops compile for one worker and for several
@given(run=runs(), wait=st.sampled_from(list(WAITS)))
@settings(IN_SHORT_WINDOWS, max_examples=40)
def test_the_records_are_those_of_simpy(windows_for_six, run, wait):
    config, name = run
    if wait != "anything":  # fewer pairs of classes to compile
        config = replace(config, engine=replace(config.engine, device_wait=""))
    check(config, WAITS[wait], PROFILES[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(run=runs(8, 60), wait=st.sampled_from(list(WAITS)), replication=st.integers(0, 3))
@settings(IN_SHORT_WINDOWS, max_examples=60)
def test_the_records_are_those_of_simpy_in_a_longer_search(windows_for_six, run, wait, replication):
    config, name = run
    check(config, WAITS[wait], PROFILES[name], replication)


# What random configs hardly meet.


def config_of(**changes):
    """A short run with two workers and two calls."""
    sections = {
        "engine": EngineConfig(2, 2, "sync", 8, 64),
        "workload": WorkloadConfig("open", 6, 20.0, 0.5, 2, 20, 50, 12, 30),
        "device": DeviceConfig(step_ns=400 * US, jitter=0.05),
    }
    return RunConfig(**(sections | changes))


@pytest.mark.parametrize("in_flight", [3, 16])
@pytest.mark.parametrize(("workers", "calls"), [(1, 1), (3, 2)])
def test_many_batches_in_flight_are_those_of_simpy(workers, calls, in_flight):
    engine = EngineConfig(workers, calls, "async", 8, 64, batches_in_flight=in_flight)
    workload = WorkloadConfig("open", 6, 200.0, 0.5, 2, 20, 50, 150, 300)
    handoff = HandoffConfig(slots=2 * in_flight + 1)
    config = config_of(engine=engine, workload=workload, handoff=handoff)
    for name in ("carried", "vm-2cpu"):
        check(config, Anything(), PROFILES[name])
    # In a run without an end for the host every batch is in flight that may be.
    quick = replace(config, device=DeviceConfig(step_ns=5 * MS))
    steps = simulate_recurrence(quick, Anything(), PROFILES["vm-2cpu"]).steps
    n_seen = np.searchsorted([s.seen_ns for s in steps], [s.scheduled_ns for s in steps], "right")
    assert max(np.arange(1, len(steps) + 1) - n_seen) == in_flight


def test_what_a_late_worker_did_not_launch_yet_is_not_known_to_one_that_is_ahead():
    """With three in flight a worker may be two steps behind another."""
    profile = noisy_profile()
    values = np.array([5.0 * US] * 4 + [5.0 * MS])  # now and then a worker takes very long
    profile.costs["launch"] = Curve("", (0.0,), (Distribution.of([values]),))
    workload = WorkloadConfig("closed", 2, 1.0, 1.0, 1, 9, 9, 150, 150)
    device = DeviceConfig(step_ns=1 * MS, jitter=0.5)
    for in_flight in (2, 3, 4):
        engine = EngineConfig(3, 1, "async", 8, 64, batches_in_flight=in_flight)
        config = config_of(
            engine=engine, workload=workload, device=device, handoff=HandoffConfig(slots=16)
        )
        check(config, WakeAhead(), profile)


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_a_policy_that_rests_costs_what_it_does_in_simpy(short_windows, scheduling):
    # Where delay is cheap and deciding dear StepAhead leaves most waits undecided.
    workload = WorkloadConfig("closed", 2, 1.0, 1.0, 2, 9, 9, 200, 200)
    engine = EngineConfig(1, 2, scheduling, 8, 64)
    device = DeviceConfig(step_ns=400 * US)
    config = replace(config_of(engine=engine, workload=workload, device=device), delay_price=1.0)
    dear, cheap = (resting_at(noisy_profile(), ns) for ns in (9 * US, 5 * US))
    check(config, StepAhead(), dear)
    assert simulate_recurrence(config, StepAhead(), cheap) != simulate_recurrence(
        config, StepAhead(), dear
    )


def test_many_sequences_are_those_of_simpy(short_windows):
    workload = WorkloadConfig("closed", 120, 1.0, 1.0, 50, 3, 9, 4, 12)
    config = config_of(engine=EngineConfig(1, 1, "async", 60, 80), workload=workload)
    check(config, WakeAhead(), PROFILES["vm-2cpu"])


STEP_TABLE = "n_decode,n_prefill_tokens,n_kv_tokens,step_ns\n" + "\n".join(
    f"{n},{prompt},{context},{300_000 + 7_000.3 * n + 900.7 * prompt + 20.1 * context}"
    for n in (1, 8)
    for prompt in (0, 64)
    for context in (0, 4000)
)
MEASURED = "n_decode,quantile,step_ns\n" + "\n".join(
    f"{n},{level},{300_000 + 9_000.7 * n + 50_000.3 * level}"
    for n in (2, 8)
    for level in (0.0, 0.3, 0.9, 1.0)
)


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("kind", ["table", "measured", "roofline"])
def test_every_step_time_law_is_that_of_simpy(tmp_path, kind, scheduling):
    path = tmp_path / "steps.csv"
    path.write_text(STEP_TABLE if kind == "table" else MEASURED)
    device = {
        "table": DeviceConfig("table", file=str(path), jitter=0.03),
        "measured": DeviceConfig("measured", file=str(path), per_prefill_token_ns=700),
        "roofline": DeviceConfig(
            "roofline", model="llama-3.2-1b", gpu="h200", tensor_parallel=2, jitter=0.02,
            overhead_ns=200 * US, all_reduce_ns=3 * US,
        ),
    }[kind]  # fmt: skip
    config = config_of(device=device, engine=EngineConfig(2, 2, scheduling, 8, 64))
    check(config, WakeAhead(), PROFILES["noisy"])


def test_a_plan_that_nobody_can_carry_out_is_refused_in_the_words_of_check_plan():
    with pytest.raises(ValueError, match="before it begins at"):
        simulate_recurrence(config_of(), Anything(-(10**9)), toy_profile())


def test_a_batch_outside_the_step_table_is_refused_in_the_words_of_the_law(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(STEP_TABLE.replace("4000", "60"))
    config = config_of(device=DeviceConfig("table", file=str(path)))
    with pytest.raises(ValueError, match="tokens of context lies outside the step-time table"):
        simulate_recurrence(config, WakeAhead(), toy_profile())


def test_a_policy_with_an_int_for_a_float_is_refused():
    with pytest.raises(TypeError, match=r"smoothing must be of the type float, got 1"):
        simulate_recurrence(config_of(), WakeAhead(100 * US, 1), toy_profile())


# What is refused.

REFUSED = {
    "cores": config_of(cores=CoresConfig(n=2)),
    "bulk": config_of(payload=PayloadConfig(bytes_per_step=100)),
    "ring": config_of(handoff=HandoffConfig(slots=2)),
    "engine.devices": config_of(engine=EngineConfig(2, devices=1)),
    "max_batched_tokens": config_of(engine=EngineConfig(1, 1, "sync", 64, 32)),
    "batches_in_flight = 3": config_of(
        engine=EngineConfig(1, 1, "async", 8, 64, "park", batches_in_flight=3)
    ),
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_config_that_needs_events_is_refused_with_its_reason(word):
    reason = refuses(REFUSED[word], toy_profile())
    assert word in reason
    with pytest.raises(ValueError, match="cannot run this config: "):
        simulate_recurrence(REFUSED[word], WakeAhead(), toy_profile())


def test_costs_that_can_be_negative_or_all_zero_are_refused():
    profile = toy_profile(ring_read=0, decode_request=0)
    assert "can all be 0" in refuses(config_of(), profile)
    assert "launch can be negative: -5 ns" in refuses(config_of(), toy_profile(launch=-5))
    assert refuses(config_of(), toy_profile(slow_after_park=-5)) is None
    profile = toy_profile()
    profile.costs["notify_further"] = Curve("", (0.0,), (Distribution.of([[-7]]),))
    assert "notify_further can be negative: -7 ns" in refuses(config_of(), profile)


def test_the_engine_is_chosen_by_what_the_config_needs():
    profile = toy_profile()
    assert choose(config_of(), profile) == "recurrence"
    assert choose(REFUSED["cores"], profile) != "recurrence"
    assert choose(config_of(), profile, "simpy") == "simpy"
    with pytest.raises(ValueError, match=r"'recurrence' cannot run this config: threads.*'simpy'"):
        choose(REFUSED["cores"], profile, "recurrence")
    with pytest.raises(ValueError, match="no engine 'fast'; there are auto, recurrence"):
        choose(config_of(), profile, "fast")


class Uncompiled(NamedTuple):
    """A policy that numba does not compile."""

    n: int = 0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        return WaitPlan(ASLEEP, ASLEEP, ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Uncompiled":
        return self._replace(n=self.n + 1)


def test_a_policy_that_does_not_compile_runs_in_simpy_unless_an_engine_was_named():
    config, profile = config_of(), toy_profile()
    expected = simulate(config, Uncompiled(), profile)
    assert simulate_with(config, Uncompiled(), profile) == expected
    with pytest.raises(TypeError, match=r"Uncompiled\.after does not compile"):
        simulate_with(config, Uncompiled(), profile, engine="recurrence")


def test_whoever_is_asked_to_choose_gets_the_same_records_from_either():
    config, profile = config_of(), noisy_profile()
    expected = simulate_with(config, WakeAhead(), profile, 1, "simpy")
    assert_same(simulate_with(config, WakeAhead(), profile, 1), expected)


def test_a_reply_thread_that_is_later_than_is_remembered_is_left_to_another_engine(monkeypatch):
    monkeypatch.setattr(engine_run, "N_LATE_BATCHES", 4)
    config = config_of(engine=EngineConfig(2, 1, "async", 8, 64, "wake-ahead"))
    profile = noisy_profile()
    with pytest.raises(UndecidedError, match=r"reply thread of worker\d is \d+ steps behind"):
        simulate_recurrence(config, Anything(), profile)
    found = simulate_with(config, Anything(), profile)
    expected = simulate(config, Anything(), profile)
    expected.meta = found.meta  # which may name the engine
    assert_same(found, expected)

    assert repr(summarize_with(config, Anything(), profile)) == repr(summarize(expected))
    with pytest.raises(UndecidedError):
        summarize_with(config, Anything(), profile, engine="recurrence")
    plan = plan_of(config, [NamedPolicy("any", Anything())], {"noisy": profile}, replications=1)
    (figures,) = _run_tape(plan, [Point(0, 0, 0)], 1)
    assert repr(figures) == repr(figures_of(summarize(expected)))


def test_a_reply_thread_that_lags_into_the_next_window_is_left_to_another_engine(short_windows):
    # Nobody awaits it: with replies from rank 0, worker 1 may be as late as it likes.
    profile = carried_profile()
    now_and_then = Distribution.of([[10 * US] * 90 + [8 * MS] * 10])
    profile.costs[AT_DEVICE + "wake_latency"] = Curve("", (0.0,), (now_and_then,))
    config = config_of(
        engine=EngineConfig(2, 1, "async", 8, 64, "park"),
        device=DeviceConfig(step_ns=300 * US),
        workload=WorkloadConfig("closed", 3, 1.0, 1.0, 3, 20, 50, 60, 61),
    )
    with pytest.raises(UndecidedError, match=r"reply thread of worker1 is \d+ steps behind"):
        simulate_recurrence(config, WakeAhead(), profile)


# Figures of many policies.

POLICIES = [
    WakeAhead(guard_ns, rehearse=r) for guard_ns in (0, 40_000, 90_000) for r in (0 > 1, True)
]
POLICIES += [Anything(scale_ns) for scale_ns in (100_000, 400_000)]


@pytest.mark.parametrize("n_engines", [1, 2])
@pytest.mark.parametrize("kind", ["open", "closed"])
def test_the_figures_are_those_of_the_records(short_windows, kind, n_engines):
    workload = replace(config_of().workload, kind=kind)
    config = config_of(workload=workload, cores=CoresConfig(engines=n_engines))
    expected = [summarize(simulate(config, p, PROFILES["vm-2cpu"], 2)) for p in POLICIES]
    for threads in (1, 3):
        found = run_many(config, POLICIES, PROFILES["vm-2cpu"], 2, threads)
        for ours, theirs in zip(found, expected, strict=True):
            # NaN, where there is no value, is not equal to itself.
            assert repr(ours) == repr(theirs)


# What was drawn is drawn once.


@pytest.fixture
def nothing_kept():
    luck._KEPT.clear()


def test_the_numbers_of_a_window_are_those_of_the_tape():
    tape, n_steps = Tape(5, 3), 64
    costs = luck.Costs()
    for rate in (1, 2, 3):
        costs.add(None, "worker", f"at {rate}", rate)
    passage = luck.Passage(luck.Luck(tape, n_steps, 6, costs.all()))
    for number in range(3):
        for index, rate in enumerate((1, 2, 3)):
            row = passage.window.costs[index]
            assert row["at"] == 0
            at = drawing.drawer().ctypes(passage.window.costs[index:].ctypes.data)
            assert at == row["at"]
            first, n = number * n_steps * rate, int(row["length"])
            expected = tape.generator("worker", f"at {rate}").random(first + n)[first:]
            start = (at + 8 * first - passage.window.numbers.ctypes.data) // 8
            assert passage.window.numbers[start : start + n].tolist() == expected.tolist()
        passage.move_on()


def test_a_second_run_finds_drawn_what_it_needs(short_windows, nothing_kept):
    config, profile = config_of(), PROFILES["vm-2cpu"]
    first = run_many(config, POLICIES, profile, 1)
    kept = list(luck._KEPT.values())
    windows = [window for each in kept for window in each._windows]
    assert len(windows) > 2 * len(kept)
    for window in windows:
        window.costs["key_0"] = -1  # whoever drew now would draw something else
    assert repr(run_many(config, POLICIES, profile, 1)) == repr(first)
    assert list(luck._KEPT.values()) == kept
    luck._KEPT.clear()
    assert repr(run_many(config, POLICIES, profile, 1)) == repr(first)


def test_a_slider_meets_the_luck_of_simpy_wherever_it_is_moved(short_windows, nothing_kept):
    profile = PROFILES["vm-2cpu"]
    for config, policy in (
        (config_of(), WakeAhead()),
        (config_of(), WakeAhead(30 * US)),
        (config_of(), Anything()),
        (config_of(device=DeviceConfig(step_ns=300 * US, jitter=0.2)), WakeAhead()),
        (replace(config_of(), delay_price=99.0), WakeAhead()),
    ):
        check(config, policy, profile)
    assert len(luck._KEPT) == 3  # one of all that costs, and what each class takes to decide


@pytest.mark.parametrize("replies", ["rank0", "all"])
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_what_is_drawn_for_a_batch_that_has_settled_is_that_of_simpy(
    nothing_kept, scheduling, replies
):
    engine = EngineConfig(2, 2, scheduling, 8, 64)
    workload = WorkloadConfig("closed", 5, 1.0, 1.0, 3, 3, 9, 90, 140)
    config = config_of(engine=engine, workload=workload, handoff=HandoffConfig(replies=replies))
    check(config, WakeAhead(), PROFILES["vm-2cpu"])
    rows = np.concatenate([w.costs for each in luck._KEPT.values() for w in each._windows])
    settled = (rows["settled"] != 0).any(axis=1)
    assert settled.sum() > 10
    assert (rows["kind"][settled] == luck.COUNTED).all()


def test_what_exceeds_the_room_is_drawn_in_one_place(short_windows, nothing_kept, monkeypatch):
    monkeypatch.setattr(luck, "_MOST_BYTES_EACH", 0)
    monkeypatch.setattr(luck, "_MOST_BYTES", 0)
    for replication in (0, 1):
        check(config_of(), WakeAhead(), PROFILES["vm-2cpu"], replication)
        check(config_of(), Anything(), PROFILES["carried"], replication)
    assert len(luck._KEPT) == 1
    assert [len(each._windows) for each in luck._KEPT.values()] == [1]


@given(st.lists(st.tuples(st.integers(0, 1 << 44), st.integers(1, 4)), min_size=1, max_size=60))
def test_quantiles_of_counted_values_are_those_of_the_values(pairs):
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    expected = quantiles(np.repeat(values, counts).astype(np.float64))
    assert _weighted(values, counts.astype(np.uint16)) == expected


# The comparison can fail.


def test_one_nanosecond_of_one_cost_is_noticed():
    config, profile = config_of(), noisy_profile()
    expected = simulate(config, WakeAhead(), profile)
    curve = profile.costs["encode_reply"]
    ((ns, *_),) = (point.quantiles for point in curve.points)
    profile.costs["encode_reply"] = Curve("", (0.0,), (Distribution.of([[ns + 1]]),))
    with pytest.raises(AssertionError, match=r"row 0 of steps differs:\n +recurrence StepRow"):
        assert_same(simulate_recurrence(config, WakeAhead(), profile), expected)


def test_other_numbers_of_half_the_streams_are_noticed(monkeypatch):
    config, profile = config_of(), noisy_profile()
    expected = simulate(config, WakeAhead(), profile)
    window = luck.Luck.window

    def other_numbers(*arguments):
        found = window(*arguments)
        found.costs["key_0"][len(found.costs) // 2 :] += 1
        return found

    monkeypatch.setattr(luck.Luck, "window", other_numbers)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(simulate_recurrence(config, WakeAhead(), profile), expected)
