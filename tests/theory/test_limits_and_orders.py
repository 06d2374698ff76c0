"""Limiting cases, order, conservation and repeatability of whole runs."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.config import CoresConfig, DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.metrics import summarize
from shmsim.policies import (
    PRESETS,
    BusySpin,
    GraceThenPark,
    Park,
    SpinThenPark,
    WakeAhead,
    YieldSpin,
)
from shmsim.profile import Curve, Distribution, MachineProfile
from shmsim.sim.compiled import random_waits
from shmsim.sim.run import simulate
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import PARK, SPIN, WORKER_RECV, only
from shmsim.workload import Lengths, Request, Workload, closed_loop, open_loop
from tests.every_policy import is_deaf
from tests.theory.noisy import JITTERY, noisy_profile
from tests.theory.runs import FREE, one_request, run, token_times
from tests.toy import toy_profile

MIXED = closed_loop(12, 3, Lengths(40, 300, 600), Lengths(8, 20, 30), Tape(5))
POISSON = open_loop(12, 200.0, 1.0, Lengths(40, 300, 600), Lengths(8, 20, 30), Tape(5))
ENGINES = [
    {"calls": calls, "workers": workers, "scheduling": scheduling}
    for calls in (1, 2)
    for workers in (1, 2)
    for scheduling in ("sync", "async")
] + [{"calls": 2, "workers": 2, "scheduling": "async", "in_flight": 3}]


# Limiting cases.

#: What the doorbell can always wake.
AWAKENED = [name for name, p in PRESETS.items() if not is_deaf(p, random_waits(300, 1))]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("name", sorted(AWAKENED))
def test_when_waking_costs_nothing_every_policy_is_busy_spin(name, engine):
    engine = {**engine, "profile": toy_profile(**FREE), "step_time": JITTERY}
    expected = token_times(run(BusySpin(), MIXED, **engine))
    assert token_times(run(PRESETS[name], MIXED, **engine)) == expected


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_with_an_endless_window_spin_then_park_is_busy_spin(engine):
    engine = {**engine, "profile": noisy_profile(), "step_time": JITTERY}
    assert run(SpinThenPark(FOREVER_NS), MIXED, **engine) == run(BusySpin(), MIXED, **engine)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_without_a_window_spin_then_park_is_park(engine):
    engine = {**engine, "profile": noisy_profile(), "step_time": JITTERY}
    windowed, parked = run(SpinThenPark(0), MIXED, **engine), run(Park(), MIXED, **engine)
    # Parking is its second stage, after a spin of no length, in which a look may still be booked.
    for records in (windowed, parked):
        records.waits = [w._replace(stage=0, stage_kind=PARK) for w in records.waits]
    assert windowed == parked


def test_without_a_grace_the_grace_is_park():
    graced, parked = (run(p, MIXED, profile=noisy_profile()) for p in (GraceThenPark(0, 0), Park()))
    assert token_times(graced) == token_times(parked)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_further_workers_with_the_same_constant_costs_change_no_token(calls, scheduling):
    engine = {"calls": calls, "scheduling": scheduling}
    one, four = (run(BusySpin(), MIXED, workers=w, **engine) for w in (1, 4))
    assert token_times(one) == token_times(four)
    assert one.steps == four.steps
    assert len(four.processes) == 5
    cpu_ns = {p.cpu_ns for p in four.processes[2:]}
    assert len(cpu_ns) == 1  # ranks without a reply do the same work


def test_a_parked_reader_wakes_later_by_what_waking_those_before_it_costs():
    one, four = (run(Park(), one_request(20), workers=w) for w in (1, 4))
    # A step begins when the last worker has launched: three more wake-ups of 9 µs each, a step.
    later_ns = [a - b for a, b in zip(*token_times(four), *token_times(one), strict=True)]
    assert later_ns == [3 * 9 * US * step for step in range(1, 21)]
    extra_ns = 21 * 3 * 9 * US  # the scheduler pays for them too, and once more at the goodbye
    assert four.processes[0].cpu_ns - one.processes[0].cpu_ns == extra_ns


def test_of_eight_parked_readers_each_is_seven_tenths_of_a_microsecond_behind_the_one_before():
    profile = toy_profile()
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0,), (Distribution.of([[700]]),))
    records = run(Park(), one_request(9), workers=8, profile=profile)
    late_ns = {
        (w.process, w.seen_ns - w.published_ns) for w in records.waits if w.site == WORKER_RECV
    }
    assert late_ns == {(f"worker{rank}", 50 * US + 700 * rank) for rank in range(8)}
    stamps_ns = {s.step: s.published_ns for s in records.steps}
    for wait in records.waits:  # the stamp is that of the message, whoever wakes when
        if wait.site == WORKER_RECV and wait.step in stamps_ns:
            assert wait.published_ns == stamps_ns[wait.step]


@pytest.mark.parametrize("policy", [Park(), PRESETS["wake-ahead"], BusySpin()])
def test_one_reader_does_not_notice_what_a_further_one_costs(policy):
    dear = noisy_profile()
    dear.costs["notify_further"] = Curve("asleep_ns", (0.0,), (Distribution.of([[1 * MS]]),))
    plain, other = (run(policy, MIXED, profile=p, calls=2) for p in (noisy_profile(), dear))
    assert plain == other


class SpinsOrParks(NamedTuple):
    """By its luck, which is another one for each reader."""

    def plan(self, ctx):
        return only(SPIN if ctx.uniform < 0.5 else PARK)

    def after(self, ctx, outcome):
        return self


def test_spinners_are_neither_delayed_nor_does_anybody_wait_for_them():
    further_ns = 40 * US
    profile = toy_profile(spin_detection=1 * US)
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0,), (Distribution.of([[further_ns]]),))
    records = run(SpinsOrParks(), one_request(30), workers=5, profile=profile)
    by_message: dict[int, list] = {}
    for wait in records.waits:
        if wait.site == WORKER_RECV:
            by_message.setdefault(wait.published_ns, []).append(wait)
    assert len(by_message) == 31
    met = set()
    for waits in by_message.values():
        n_before = 0
        for wait in sorted(waits, key=lambda w: w.process):
            late_ns = wait.seen_ns - wait.published_ns
            if wait.stage_kind == PARK:
                assert late_ns == 50 * US + n_before * further_ns
                n_before += 1
            else:
                assert late_ns == 1 * US
                met.add(n_before)
    assert met >= {0, 1, 2, 3}, "spinners with sleepers before them"


# The same luck.


def stored(records, folder):
    records.write(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("policy", [BusySpin(), WakeAhead()])
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(policy, tmp_path):
    def bytes_of(name, **key):
        records = run(policy, POISSON, profile=noisy_profile(), step_time=JITTERY, **key)
        return stored(records, tmp_path / name)

    first = bytes_of("first")
    assert first == bytes_of("again")
    for key in ({"seed": 2}, {"replication": 1}):
        other = bytes_of(str(key), **key)
        assert other["steps.parquet"] != first["steps.parquet"]
        assert other["waits.parquet"] != first["waits.parquet"]


def test_policies_are_compared_on_the_same_luck():
    """The device draws the same for every policy, however long the waits between.

    So two policies that wait alike differ by exactly zero, and a difference is not noise.
    """
    spun, parked = (
        run(p, MIXED, profile=noisy_profile(), step_time=JITTERY) for p in (BusySpin(), Park())
    )
    took = [[s.done_ns - s.launched_ns for s in records.steps] for records in (spun, parked)]
    assert took[0] == took[1]
    assert token_times(spun) != token_times(parked)


def test_the_difference_of_two_policies_that_wait_alike_is_exactly_zero():
    spun, yielded = (run(p, MIXED, step_time=JITTERY) for p in (BusySpin(), YieldSpin()))
    assert summarize(spun) == summarize(yielded)


# Order.


@settings(max_examples=25)
@given(
    st.sampled_from([Park(), GraceThenPark(700 * US), SpinThenPark(300 * US)]),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(1, 2),
)
def test_a_slower_wake_up_never_lowers_tpot(policy, wake_us, more_us, calls):
    """For policies whose plan depends on no cost and on no time that the wake-up changes."""
    slow, slower = (
        summarize(
            run(policy, one_request(10), profile=toy_profile(wake_latency=us * US), calls=calls)
        ).tpot.mean
        for us in (wake_us, wake_us + more_us)
    )
    assert slow <= slower
    if isinstance(policy, Park):
        assert slower - slow == pytest.approx(2 * more_us * US)  # once for either direction


@st.composite
def any_runs(draw):
    n = draw(st.integers(1, 6))
    sizes = [(draw(st.integers(1, 60)), draw(st.integers(1, 6))) for _ in range(n)]
    concurrency = draw(st.integers(0, 3))
    arrivals = [
        0 if concurrency else t for t in sorted(draw(st.integers(0, 20 * MS)) for _ in range(n))
    ]
    workload = Workload(
        tuple(Request(t, *size) for t, size in zip(arrivals, sizes, strict=True)), concurrency
    )
    engine = draw(st.sampled_from(ENGINES))
    limits = {
        "max_sequences": draw(st.integers(1, 4)),
        "max_batched_tokens": draw(st.integers(1, 64)),
    }
    policy = draw(st.sampled_from([*PRESETS.values()]))
    return policy, workload, {**engine, **limits, "seed": draw(st.integers(0, 1000))}


@given(any_runs())
def test_nothing_happens_before_its_cause_and_every_token_comes_from_a_step(drawn):
    policy, workload, engine = drawn
    records = run(policy, workload, profile=noisy_profile(), step_time=JITTERY, **engine)
    for step in records.steps:
        instants = step[3:]
        assert list(instants) == sorted(instants), step
    for one, other in pairwise(records.steps):
        assert other.step == one.step + 1
        assert all(a <= b for a, b in zip(one[3:], other[3:], strict=True)), (one, other)
        # One device: it works on one step at a time, each for at least a nanosecond.
        assert other.done_ns > one.done_ns
    seen_ns = {step.seen_ns for step in records.steps}
    scheduled_ns = records.steps[0].scheduled_ns
    for request, row in zip(workload.requests, records.requests, strict=True):
        assert len(row.token_ns) == request.output_tokens
        assert set(row.token_ns) <= seen_ns
        assert row.token_ns[0] > max(row.arrival_ns, scheduled_ns)
        assert all(a < b for a, b in pairwise(row.token_ns))
    n_tokens = sum(step.n_decode for step in records.steps)
    assert n_tokens == sum(r.output_tokens - 1 for r in workload.requests)
    n_prompt = sum(step.n_prefill_tokens for step in records.steps)
    assert n_prompt == sum(r.prompt_tokens for r in workload.requests)
    for wait in records.waits:
        assert wait.seen_ns >= max(wait.started_ns, wait.published_ns)
        assert wait.cpu_ns >= 0
    for process in records.processes:
        waits = [w for w in records.waits if w.process == process.process]
        assert all(a.seen_ns <= b.started_ns for a, b in pairwise(waits))
        assert sum(w.cpu_ns for w in waits) <= process.cpu_ns
        if engine["scheduling"] == "sync":
            assert process.cpu_ns <= process.wall_ns


class Diary(NamedTuple):
    """Notes every wait it learns from, by the random number of that wait."""

    learnt: list

    def plan(self, ctx):
        return only(SPIN)

    def after(self, ctx, outcome):
        self.learnt.append(ctx.uniform)
        return self


@given(any_runs())
def test_a_policy_learns_once_from_every_wait_but_the_last_of_each_process(drawn):
    _, workload, engine = drawn
    diary = Diary([])
    records = run(diary, workload, step_time=JITTERY, **engine)
    tape = Tape(engine["seed"])
    expected = []
    for process in records.processes:
        n_waits = sum(w.process == process.process for w in records.waits)
        numbers = tape.uniform(process.process, "policy")
        expected += [numbers.at(i) for i in range(n_waits - 1)]
    assert sorted(diary.learnt) == sorted(expected)


@given(any_runs())
def test_a_step_decodes_whoever_has_a_first_and_no_last_token(drawn):
    policy, workload, engine = drawn
    engine = {**engine, "scheduling": "sync", "max_sequences": 64, "max_batched_tokens": 4096}
    records = run(policy, workload, profile=noisy_profile(), step_time=JITTERY, **engine)
    for step in records.steps:
        decoding = [
            r for r in records.requests if r.token_ns[0] <= step.scheduled_ns < r.token_ns[-1]
        ]
        assert step.n_decode == len(decoding)


@given(any_runs())
def test_the_device_is_never_idle_while_a_step_is_launched(drawn):
    policy, workload, engine = drawn
    step_time = StepTime(1 * MS, 10 * US, 1 * US)
    records = run(policy, workload, profile=noisy_profile(), step_time=step_time, **engine)
    free_ns = 0
    for step in records.steps:
        duration_ns = int(step_time.mean_ns(step.n_decode, step.n_prefill_tokens, 0))
        assert step.done_ns == max(step.launched_ns, free_ns) + duration_ns
        free_ns = step.done_ns


def test_a_closed_loop_is_full_until_its_last_request_came_in():
    records = run(BusySpin(), MIXED, step_time=JITTERY)
    changes: dict[int, int] = {}
    for row in records.requests:
        changes[row.arrival_ns] = changes.get(row.arrival_ns, 0) + 1
        changes[row.token_ns[-1]] = changes.get(row.token_ns[-1], 0) - 1
    last_in_ns = max(row.arrival_ns for row in records.requests)
    n_inside = 0
    for instant_ns in sorted(changes):
        n_inside += changes[instant_ns]
        assert n_inside == MIXED.concurrency or instant_ns >= last_in_ns


def test_a_run_takes_at_least_the_device_time_of_its_steps():
    records = run(PRESETS["wake-ahead"], MIXED, step_time=StepTime(2 * MS))
    assert records.processes[0].wall_ns > len(records.steps) * 2 * MS
    assert records.processes[0].wall_ns < 10 * S


def test_every_further_sleeper_costs_the_ringer_what_the_profile_says():
    def to_launch_ns(profile):
        records = run(Park(), one_request(30), workers=3, profile=profile)
        return np.mean([s.launched_ns - s.published_ns for s in records.steps[5:]])

    def cpu_ns(profile):
        records = run(Park(), one_request(30), workers=3, profile=profile)
        return records.processes[0].cpu_ns

    plain, cheaper = toy_profile(), toy_profile()
    cheaper.costs["notify_further"] = Curve("asleep_ns", (0.0,), (Distribution.of([[1 * US]]),))
    # The last of three launches behind two of them.
    assert to_launch_ns(plain) - to_launch_ns(cheaper) == 2 * (9 * US - 1 * US)
    # 30 calls and the last word, each to three sleepers.
    assert cpu_ns(plain) - cpu_ns(cheaper) == 31 * 2 * (9 * US - 1 * US)


@pytest.mark.parametrize("n_cores", [1, 2, 3])
def test_where_processes_outnumber_cores_step_ahead_has_the_tokens_of_parking(n_cores):
    device = DeviceConfig(step_ns=2 * MS, per_sequence_ns=0, jitter=0.05)
    lengths = {"prompt_p50": 16, "prompt_p95": 16, "output_p50": 80, "output_p95": 80}
    workload = WorkloadConfig(requests=2, concurrency=2, kind="closed", **lengths)
    config = RunConfig(
        EngineConfig(workers=2), workload=workload, device=device, cores=CoresConfig(n=n_cores)
    )
    ahead, park = (
        summarize(simulate(config, PRESETS[name], MachineProfile.shipped("vm-2cpu"))).tpot.p50
        for name in ("step-ahead", "park")
    )
    if n_cores < 3:
        assert ahead == pytest.approx(park, rel=0.01)
    else:
        assert ahead < 0.98 * park
