"""The event engine gives the records of SimPy, bit for bit, whatever runs."""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given, settings
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
from shmsim.inputs.catalog import load_gpu, load_model
from shmsim.laws import BrokenLawError
from shmsim.metrics import summarize
from shmsim.policies import PRESETS, BusySpin, Park, StepAhead, WakeAhead
from shmsim.roofline import RooflineStepTime
from shmsim.routing import MIB
from shmsim.sim.engine import summarize_with
from shmsim.sim.events import simulate_arrays, simulate_events, simulate_events_box, supports
from shmsim.sim.events import words as w
from shmsim.sim.events.build import build
from shmsim.sim.events.compiling import compiled, first_word
from shmsim.sim.events.laws import draw_ns
from shmsim.sim.events.luck import BLOCK, number_at
from shmsim.sim.events.machine import carry_out, go_on
from shmsim.sim.events.memory import Memory
from shmsim.sim.events.records import records_of
from shmsim.sim.events.step_law import StepLuck, store_law
from shmsim.sim.events.store import compiled_engine, enter, fingerprint, keep_on_disk
from shmsim.sim.kept import cache_folder
from shmsim.sim.race import race
from shmsim.sim.run import simulate, simulate_box
from shmsim.steptime import MeasuredStepTime, StepTime, TableStepTime
from shmsim.tape import Tape
from shmsim.units import MS, US
from shmsim.wait import SPIN, Stage, WaitContext, WaitOutcome, WaitPlan, then_park
from tests.events_runs import (
    PROFILES,
    configs,
    every_policy,
    first_difference,
    policies,
)
from tests.theory.noisy import noisy_profile, resting_at
from tests.theory.test_payloads import bulk_profile
from tests.toy import toy_profile

SHORT = WorkloadConfig(
    requests=4, prompt_p50=64, prompt_p95=64, output_p50=10, output_p95=10, concurrency=2
)
SHARED = RunConfig(EngineConfig(workers=2), workload=SHORT, cores=CoresConfig(n=2))


@pytest.fixture(scope="module", autouse=True)
def _engine():
    """Compile once, outside of the time limit of a test."""
    compiled_engine()


pytestmark = pytest.mark.timeout(400)  # the first test waits for the compiler


def check_equal(config, policy, profile, replication=0):
    """Run both engines; they agree on every row, or on why there is none."""
    try:
        expected = simulate_box(config, policy, profile, replication)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            simulate_events_box(config, policy, profile, replication)
        return
    found = simulate_events_box(config, policy, profile, replication)
    assert len(found) == len(expected)
    for simpy, events in zip(expected, found, strict=True):
        assert first_difference(simpy, events) is None, first_difference(simpy, events)
        assert simpy.meta | {"engine": "events"} == events.meta


@settings(max_examples=60, deadline=None)
@given(config=configs(), policy=policies(), profile=st.sampled_from(sorted(PROFILES)))
def test_a_run_has_the_records_of_simpy(config, policy, profile):
    check_equal(config, policy, PROFILES[profile])


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=150, deadline=None)
@given(config=configs(), policy=every_policy(), profile=st.sampled_from(sorted(PROFILES)))
def test_many_runs_have_the_records_of_simpy_under_every_policy(config, policy, profile):
    check_equal(config, policy, PROFILES[profile])


# Mechanisms that short random runs meet too seldom.


def test_luck_goes_on_where_a_block_of_steps_thefts_or_rows_ends():
    workload = WorkloadConfig(
        requests=6, prompt_p50=9, prompt_p95=9, output_p50=480, output_p95=480, concurrency=2
    )
    stolen = CoresConfig(n=2, steal_every_ns=500 * US, steal_ns=100 * US)
    config = RunConfig(EngineConfig(workers=2), workload=workload, cores=stolen)
    expected = simulate(config, Park(), noisy_profile())
    assert len(expected.steps) > 1024
    assert len(expected.waits) > 8192
    found = simulate_events(config, Park(), noisy_profile())
    assert first_difference(expected, found) is None


def test_several_engines_are_one_record_as_in_simpy():
    config = replace(SHARED, cores=CoresConfig(n=2, engines=2))
    expected = simulate(config, PRESETS["wake-ahead"], noisy_profile(), 1)
    found = simulate_events(config, PRESETS["wake-ahead"], noisy_profile(), 1)
    assert first_difference(expected, found) is None
    assert found.meta == expected.meta | {"engine": "events"}


def test_yielders_may_hand_a_core_on_by_the_hundred_at_one_instant():
    crowded = CoresConfig(
        n=3,
        engines=2,
        quota=0.3,
        period_ns=10 * MS,
        slice_ns=100 * US,
        tick_ns=100 * US,
        steal_every_ns=10 * MS,
        steal_ns=3 * MS,
    )
    config = RunConfig(
        EngineConfig(workers=3, max_sequences=1, max_batched_tokens=1),
        workload=WorkloadConfig(requests=6, prompt_p50=200, prompt_p95=600, concurrency=4),
        cores=crowded,
        seed=2,
    )
    check_equal(config, PRESETS["vllm-1s"], PROFILES["h100-tp2"])


def test_who_goes_on_in_one_event_with_others_does_not_move_the_clock():
    """Three workers copy, and a step that ends lets all of them go on at once."""
    config = RunConfig(
        EngineConfig(workers=3, scheduling="async"),
        HandoffConfig(slot_bytes=64 * MIB),
        workload=SHORT,
        device=DeviceConfig(step_ns=9 * MS, jitter=0.1),
        payload=PayloadConfig(bytes_per_step=20 * MIB, memory="pageable", divert_bytes=MIB),
    )
    check_equal(config, Park(), bulk_profile(noisy_profile(), h2d_call_pageable=(1, 0)))


def test_a_policy_that_remembers_goes_through_the_same_states():
    config = replace(SHARED, workload=replace(SHORT, requests=12))
    for replication in (0, 1):
        check_equal(config, PRESETS["rehearse-ahead"], noisy_profile(), replication)


def test_a_policy_that_rests_costs_what_it_does_in_simpy():
    config = replace(
        SHARED,
        workload=replace(SHORT, requests=2, output_p50=200, output_p95=200),
        delay_price=1.0,
    )
    check_equal(config, StepAhead(), resting_at(noisy_profile(), 9 * US))


# The comparison can fail.


def test_a_wrong_engine_is_caught(monkeypatch):
    expected = simulate(SHARED, Park(), noisy_profile())
    slower = noisy_profile()
    name = "wake_latency"
    curve = slower.costs[name]
    points = tuple(p._replace(quantiles=tuple(q + 1 for q in p.quantiles)) for p in curve.points)
    slower.costs[name] = curve._replace(points=points)
    found = simulate_events(SHARED, Park(), slower)
    difference = first_difference(expected, found)
    assert difference is not None
    # The first who wakes, in the table that comes second.
    assert re.match(
        r"waits\[\d+\]\n  SimPy  WaitRow\(process='worker\d', site=0.*step=0", difference
    )
    assert "\n  events WaitRow(" in difference


def test_an_order_of_events_of_one_instant_that_is_not_simpys_is_caught():
    """Whoever starts last goes first: on one core that decides who works first."""
    one_core = replace(SHARED, cores=CoresConfig(n=1))
    expected = simulate(one_core, BusySpin(), PROFILES["free"])
    run = build(one_core, BusySpin(), PROFILES["free"], 0, keeps_rows=True)
    heap = int(run.s[w.HEAP])
    processes = run.s[heap + 3 : heap + 3 * w.ENTRY : w.ENTRY].copy()
    assert len(set(processes.tolist())) == 3
    run.s[heap + 3 : heap + 3 * w.ENTRY : w.ENTRY] = processes[::-1]
    found = records_of(go_on(run))[0]
    assert first_difference(expected, found) is not None


# Arrays.


def test_figures_of_arrays_are_those_of_the_records():
    for config in (SHARED, replace(SHARED, cores=CoresConfig(engines=2))):
        expected = simulate(config, Park(), noisy_profile())
        for keeps_rows in (False, True):
            run = simulate_arrays(config, Park(), noisy_profile(), keeps_rows=keeps_rows)
            assert repr(run.summary()) == repr(summarize(expected))  # NaN is not equal to itself
            assert run.n_steps == len(expected.steps)
            assert len(run.steps) == (len(expected.steps) if keeps_rows else 0)


def test_a_summary_is_taken_from_the_arrays_and_not_from_rows(monkeypatch):
    shared = replace(SHARED, cores=CoresConfig(n=2, engines=2))
    expected = [repr(summarize(simulate(shared, Park(), noisy_profile(), i))) for i in range(2)]

    def rows(*_):
        raise AssertionError("a row for each step or wait")

    monkeypatch.setattr("shmsim.sim.events.records.step_rows", rows)
    monkeypatch.setattr("shmsim.sim.events.records.wait_rows", rows)
    for engine in ("events", "auto"):
        assert repr(summarize_with(shared, Park(), noisy_profile(), 0, engine)) == expected[0]
    raced = race([NamedPolicy("park", Park())], shared, noisy_profile(), n_steps=0, replications=2)
    assert raced[0].tpot_ns.n == 2
    # Who does not compile runs in SimPy.
    spinner = NotCompiled()
    found = summarize_with(shared, spinner, noisy_profile())
    assert repr(found) == repr(summarize(simulate(shared, spinner, noisy_profile())))


class NotCompiled(NamedTuple):
    """It looks into a dictionary, which no compiled engine knows."""

    def plan(self, ctx: WaitContext) -> WaitPlan:
        return then_park({"spin": SPIN}["spin"], 1000, 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "NotCompiled":
        return self


def _token_lost(finished):
    s, engine = finished.run.s, finished.run.engines[0]
    s[engine.requests + w.RQ_N_TOKENS] -= 1


def _token_moved(finished):
    s, engine = finished.run.s, finished.run.engines[0]
    s[s[engine.requests + w.RQ_TOKENS] + 1] = 0


def _core_busy(finished):
    host = finished.run.s[w.HOST]
    finished.run.s[finished.run.s[host + w.H_CORES] + w.K_BUSY] += 1


@pytest.mark.parametrize(
    ("harm", "law"),
    [
        (_token_lost, "tokens of requests"),
        (_token_moved, "tokens of requests"),
        (_core_busy, "CPU on cores"),
    ],
)
def test_arrays_that_cannot_be_true_are_refused_as_records_are(monkeypatch, harm, law):
    def harmed(*args, **kwargs):
        finished = carry_out(*args, **kwargs)
        harm(finished)
        return finished

    monkeypatch.setattr("shmsim.sim.events.run.carry_out", harmed)
    with pytest.raises(BrokenLawError) as broken:
        simulate_arrays(SHARED, Park(), noisy_profile())
    assert broken.value.law == law


def test_arrays_hold_what_rows_hold():
    expected = simulate(SHARED, Park(), noisy_profile())
    run = simulate_arrays(SHARED, Park(), noisy_profile(), keeps_rows=True)
    for name in expected.steps[0]._fields:
        assert run.steps[name].tolist() == [getattr(row, name) for row in expected.steps]
    mine = run.waits[run.waits["process"] == run.process_names.index("worker1")]
    theirs = [row for row in expected.waits if row.process == "worker1"]
    assert mine["seen_ns"].tolist() == [row.seen_ns for row in theirs]


# What it cannot do, it says.


def test_traces_are_left_to_simpy():
    with pytest.raises(ValueError, match=r"records no slices.*traces=True"):
        simulate_events(SHARED, Park(), toy_profile(), traces=True)


def test_more_processes_than_it_can_tell_apart_are_refused_with_the_way_out():
    config = replace(SHARED, cores=CoresConfig(n=2, engines=9000))
    reason = supports(config, toy_profile())
    assert reason is not None
    assert reason.startswith("27005 processes")
    with pytest.raises(ValueError, match=r"lower cores\.engines"):
        simulate_events(config, Park(), toy_profile())
    assert supports(SHARED, toy_profile()) is None


class Unsound(NamedTuple):
    """Its plan has no stage that lasts for ever."""

    def plan(self, ctx: WaitContext) -> WaitPlan:
        return WaitPlan(Stage(SPIN, 1, 0), Stage(SPIN, 2, 0), Stage(SPIN, 3, 0), Stage(SPIN, 4, 0))

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Unsound":
        return self


@pytest.mark.parametrize(
    ("config", "policy", "words"),
    [
        (SHARED, Unsound(), "last stage must last for ever"),
        (
            replace(SHARED, payload=PayloadConfig(bytes_per_step=10, routes="all-socket")),
            Park(),
            "needs the cost socket_send",
        ),
    ],
)
def test_what_simpy_refuses_is_refused_in_its_words(config, policy, words):
    with pytest.raises(ValueError, match=words) as simpy:
        simulate(config, policy, toy_profile())
    with pytest.raises(ValueError, match=re.escape(str(simpy.value))):
        simulate_events(config, policy, toy_profile())


def test_a_cost_below_zero_is_refused_as_in_simpy():
    profile = toy_profile(wait_enter=-5_000)
    with pytest.raises(ValueError, match=r"Negative delay") as simpy:
        simulate(RunConfig(workload=SHORT), Park(), profile)
    with pytest.raises(ValueError, match=re.escape(str(simpy.value))):
        simulate_events(RunConfig(workload=SHORT), Park(), profile)


class Raising(NamedTuple):
    """It cannot plan its sixth wait."""

    n_waits: int = 0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        return then_park(SPIN, 1000 // (5 - self.n_waits), 0)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Raising":
        return Raising(self.n_waits + 1)


def test_what_a_policy_raises_comes_out_of_the_engine():
    with pytest.raises(ZeroDivisionError):
        simulate(SHARED, Raising(), toy_profile())
    with pytest.raises(ZeroDivisionError):
        simulate_events(SHARED, Raising(), toy_profile())


def test_a_field_of_another_type_than_its_annotation_is_refused():
    with pytest.raises(TypeError, match=r"WakeAhead\.smoothing must be of the type float"):
        simulate_events(SHARED, WakeAhead(smoothing=1), toy_profile())


# Parts.


@compiled
def _many(s, x, stream, n, out):
    for index in range(n):
        x[out + index] = number_at(s, x, stream, index)


@numba.njit
def draw_many(s, x, stream, n, out):
    _many(first_word(s), first_word(x), stream, n, out)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), entity=st.text(max_size=5))
def test_random_numbers_are_those_of_the_tape(seed, entity):
    n = 3 * BLOCK
    tape = Tape(seed, 1)
    key = tape.generator(entity, "x").bit_generator.state["state"]["key"].view(np.int64).tolist()
    memory = Memory()
    memory.words(8)
    at = memory.numbers(BLOCK)
    values = {w.S_KEY: key[0], w.S_KEY + 1: key[1], w.S_BLOCK: -1, w.S_AT: at}
    stream = memory.record(w.STREAM, values)
    out = memory.numbers(n)
    s, x = memory.arrays()
    draw_many(s, x, stream, n, out)
    stream_of_tape = tape.uniform(entity, "x")
    assert x[out:].tolist() == [stream_of_tape.at(index) for index in range(n)]


TABLE = TableStepTime((1, 4, 9), (0, 50), (0, 100, 1000), tuple(1e6 + 7e4 * i for i in range(18)))
LAWS = [
    StepTime(1 * MS, 10 * US, 1 * US, 0.2),
    TABLE._replace(jitter=0.1),
    TableStepTime((2,), (0,), (0, 64), (1e6, 3e6), 900),
    MeasuredStepTime((1, 4), (0.1, 0.5, 0.9), (1e6, 2e6, 4e6, 2e6, 3e6, 7e6), 300),
    MeasuredStepTime((8,), (0.5,), (1.5e6,)),
    RooflineStepTime(
        load_model("llama-3.1-8b"), load_gpu("h200"), 2, 0.9, 0.6, 20_000, 9_000, 0.05
    ),
    RooflineStepTime(load_model("qwen3-0.6b"), load_gpu("h100-sxm")),
]


@numba.njit
def draw_step(s, x, device, message):
    return draw_ns(first_word(s), first_word(x), device, message)


@settings(max_examples=40, deadline=None)
@given(
    law=st.sampled_from(LAWS),
    batches=st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 60), st.integers(0, 1100)),
        min_size=8,
        max_size=8,
    ),
    seed=st.integers(0, 9),
)
def test_step_times_are_those_of_the_law(law, batches, seed):
    memory = Memory()
    memory.words(w.GLOBALS)
    luck = StepLuck(law, Tape(seed))
    kind, words, numbers = store_law(memory, law)
    assert kind != w.LAW_ASKED
    values = {
        w.DE_LAW: kind,
        w.DE_LAW_WORDS: words,
        w.DE_LAW_NUMBERS: numbers,
        w.DE_LUCK: memory.store_numbers(luck.next(8)),
    }
    device = memory.record(w.DEVICE, values)
    messages = [
        memory.record(w.MESSAGE, {w.M_STEP: step, w.M_N_DECODE: d, w.M_N_PREFILL: p, w.M_N_KV: k})
        for step, (d, p, k) in enumerate(batches)
    ]
    s, x = memory.arrays()
    for step, (batch, message) in enumerate(zip(batches, messages, strict=True)):
        try:
            expected = law.draw_ns(*batch, luck.normal.at(step))
        except ValueError:
            expected = 0  # which leaves it to Python, whose words these are
        assert draw_step(s, x, device, message) == expected


class Odd(NamedTuple):
    """A law that the engine does not know."""

    def mean_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int) -> float:
        return 1e6 + 100.0 * n_kv_tokens

    def draw_ns(self, n_decode: int, n_prefill_tokens: int, n_kv_tokens: int, normal: float) -> int:
        return int(self.mean_ns(n_decode, n_prefill_tokens, n_kv_tokens) + abs(1e4 * normal))


def test_a_law_that_is_not_known_is_asked(monkeypatch):
    monkeypatch.setattr(DeviceConfig, "step_time", property(lambda _: Odd()))
    check_equal(SHARED, Park(), noisy_profile())


# What is kept on disk.


def compile_kept(monkeypatch, folder, value):
    """A function whose helper, in another file, adds a value; returns whether it is kept, and hits.

    Compiled and kept as the engine is.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sources = {
        "helping": "from shmsim.sim.events.compiling import compiled\n"
        f"@compiled\ndef helper(a):\n    return a + {value}\n",
        "using": "from helping import helper\ndef use(a):\n    return helper(a)\n",
    }
    modules = {}
    for name, source in sources.items():
        path = folder / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        modules[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, modules[name])
        spec.loader.exec_module(modules[name])
    function = numba.njit(modules["using"].use)
    is_kept = keep_on_disk(function)
    assert function(1) == 1 + value
    return is_kept, sum(function.stats.cache_hits.values())


def test_what_is_kept_is_found_again_and_never_once_a_helper_has_changed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compile_kept(monkeypatch, tmp_path, 5) == (True, 0)
    assert compile_kept(monkeypatch, tmp_path, 5) == (True, 1)
    assert compile_kept(monkeypatch, tmp_path, 6) == (True, 0)
    assert compile_kept(monkeypatch, tmp_path, 5) == (True, 1)


def test_other_constants_of_a_module_have_another_name(monkeypatch):
    before = fingerprint(enter)
    assert fingerprint(enter) == before
    monkeypatch.setattr(w, "PARK_CPU", 99)
    assert fingerprint(enter) != before


def test_without_a_folder_of_ones_own_nothing_is_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_kept(monkeypatch, tmp_path, 7) == (False, 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compile_kept(monkeypatch, tmp_path, 7) == (True, 0)
    for made in cache_folder().iterdir():
        made.chmod(0o777)
    assert compile_kept(monkeypatch, tmp_path, 7) == (False, 0)


# Without a compiler.


def test_the_engine_is_the_same_in_plain_python():
    code = (
        "from tests.theory.test_events import SHARED, first_difference, noisy_profile\n"
        "from shmsim.policies import PRESETS\n"
        "from shmsim.sim.events import simulate_events\n"
        "from shmsim.sim.run import simulate\n"
        "run = SHARED, PRESETS['wake-ahead'], noisy_profile()\n"
        "assert first_difference(simulate(*run), simulate_events(*run)) is None\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        cwd=Path(__file__).parents[2],
    )
