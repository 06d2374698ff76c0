"""What the records of every run on the machine keep to, and what they share with the model."""

import os
import platform
from collections import Counter
from itertools import pairwise, product

import pytest

from realrun.run import make_spec, run_once
from shmsim.config import parse_config
from shmsim.policies import PRESETS
from shmsim.records import RunRecords
from shmsim.sim.run import simulate
from shmsim.tape import Tape
from shmsim.units import US
from tests.real.policies import EveryKind
from tests.real.runs import N_REQUESTS, N_TOKENS, ROOT, config, spec
from tests.toy import toy_profile

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

ENGINES = list(product((1, 2), (1, 2), ("sync", "async")))
IDS = [f"{workers} workers, {calls} calls, {how}" for workers, calls, how in ENGINES]


@pytest.fixture(scope="module", autouse=True)
def _children_find_the_policies():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module", params=ENGINES, ids=IDS)
def engine(request):
    """Workers, calls per step, scheduling."""
    return request.param


@pytest.fixture(scope="module")
def run(engine, _children_find_the_policies) -> RunRecords:
    return run_once(spec(config(*engine), EveryKind()))


def step_times_ns(records: RunRecords) -> list[int]:
    """From the start of each step on the device to its end; its start is not in the records."""
    first = records.steps[0]
    times_ns = [first.done_ns - first.launched_ns]
    for before, step in pairwise(records.steps):
        times_ns.append(step.done_ns - max(step.launched_ns, before.done_ns))
    return times_ns


def test_every_request_gets_all_of_its_tokens_in_order(run):
    assert [len(request.token_ns) for request in run.requests] == [N_TOKENS] * N_REQUESTS
    for request in run.requests:
        assert request.token_ns == sorted(set(request.token_ns))
        assert request.token_ns[0] > request.arrival_ns


def test_every_token_leaves_when_the_reply_of_its_step_is_seen(run):
    tokens = Counter(token_ns for request in run.requests for token_ns in request.token_ns)
    assert tokens.total() == N_REQUESTS * N_TOKENS
    assert {step.seen_ns for step in run.steps} == set(tokens)
    for step in run.steps:
        assert tokens[step.seen_ns] >= step.n_decode


def test_the_instants_of_every_step_are_in_the_order_of_their_causes(run):
    for step in run.steps:
        instants = step[step._fields.index("scheduled_ns") :]
        assert list(instants) == sorted(instants)
        assert step.done_ns > step.launched_ns


def test_steps_are_numbered_without_a_gap_and_end_in_order(run, engine):
    assert [step.step for step in run.steps] == list(range(len(run.steps)))
    for before, step in pairwise(run.steps):
        assert step.scheduled_ns > before.scheduled_ns
        assert step.done_ns > before.done_ns
        assert step.seen_ns > before.seen_ns
        if engine[2] == "sync":
            assert step.scheduled_ns >= before.seen_ns


def test_a_wait_ends_after_it_began_and_after_the_publication(run):
    for wait in run.waits:
        assert wait.seen_ns >= max(wait.started_ns, wait.published_ns)
        assert wait.stage in (0, 1)
        assert wait.cpu_ns > 0 or wait.seen_ns - wait.started_ns < 10 * US
        assert wait.overshoot_ns >= 0


def test_a_process_waits_once_at_a_time_and_for_every_message(run, engine):
    workers, calls, how = engine
    n_steps = len(run.steps)
    of = {name: [w for w in run.waits if w.process == name] for name in names(workers)}
    assert sum(map(len, of.values())) == len(run.waits)
    assert len(of["scheduler"]) == n_steps * (calls if how == "sync" else 1)
    for rank in range(workers):
        assert len(of[f"worker{rank}"]) == n_steps * calls
    for waits in of.values():
        assert all(after.started_ns >= before.seen_ns for before, after in pairwise(waits))
        assert [w.step for w in waits] == sorted(w.step for w in waits)


def test_a_worker_launches_a_step_after_it_saw_the_call_and_the_scheduler_sees_the_reply(run):
    calls = {}
    for wait in run.waits:
        if wait.process != "scheduler" and wait.call == 0:
            calls[wait.step] = max(calls.get(wait.step, 0), wait.seen_ns)
    for step in run.steps:
        assert step.published_ns <= calls[step.step] <= step.launched_ns


def test_every_publication_was_notified_or_elided(run, engine):
    workers, calls, how = engine
    n_steps = len(run.steps)
    rung = {row.process: row.notified + row.elided for row in run.processes}
    expected = dict.fromkeys(names(workers), 0)  # only the output rank replies
    expected["scheduler"] = n_steps * calls
    expected["worker0"] = n_steps * (calls if how == "sync" else 1)
    assert rung == expected


def test_every_process_says_what_it_consumed(run, engine):
    last_seen_ns = run.steps[-1].seen_ns
    assert [row.process for row in run.processes] == names(engine[0])
    for row in run.processes:
        assert row.wall_ns >= last_seen_ns - run.steps[0].scheduled_ns
        assert row.cpu_ns > 0
        assert (row.emulation_cpu_ns > 0) == (row.process != "scheduler")


def test_a_step_takes_on_the_device_what_the_tape_says(run, engine):
    law = config(*engine).device.step_time
    noise = Tape(config().seed, 0).normal("device", "step")
    assert step_times_ns(run) == [
        law.draw_ns(step.n_decode, step.n_prefill_tokens, 0, noise.at(step.step))
        for step in run.steps
    ]


def test_model_and_machine_form_the_same_batches_and_draw_the_same_step_times(run, engine):
    model = simulate(config(*engine), EveryKind(), toy_profile())
    work = [[(s.n_decode, s.n_prefill_tokens) for s in r.steps] for r in (run, model)]
    assert work[0] == work[1]
    assert step_times_ns(run) == step_times_ns(model)
    assert [len(r.token_ns) for r in run.requests] == [len(r.token_ns) for r in model.requests]


def test_records_say_which_world_they_are_from(run):
    assert run.meta["world"] == "machine"
    assert run.meta["policy"]["name"] == "EveryKind"


def test_in_an_open_loop_nothing_is_served_before_it_arrives():
    arrivals = config(kind="open", rate_per_s=40.0)
    records = run_once(spec(arrivals))
    requests = arrivals.workload.build(Tape(arrivals.seed, 0)).requests
    assert [r.arrival_ns for r in records.requests] == [r.arrival_ns for r in requests]
    for request in records.requests:
        assert len(request.token_ns) == N_TOKENS
        assert request.token_ns[0] > request.arrival_ns
    idle = [wait for wait in records.waits if not wait.pending]
    assert all(wait.process == "worker0" for wait in idle)


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_processes_without_the_extension_do_the_same_work(tmp_path, monkeypatch, scheduling):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the fallback is for x86 only: nothing in it orders stores elsewhere")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['realrun._native'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    how = config(scheduling=scheduling)
    records = run_once(spec(how, EveryKind()))
    assert step_times_ns(records) == step_times_ns(simulate(how, EveryKind(), toy_profile()))
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS


def names(workers: int) -> list[str]:
    return ["scheduler", *[f"worker{rank}" for rank in range(workers)]]


@pytest.mark.parametrize(
    "table",
    [
        {"engine": {"device_wait": "spin"}},
        {"engine": {"workers": 2, "devices": 1}},
        {"cores": {"engines": 2}},
        {"payload": {"output_bytes": 9}},
    ],
    ids=["device-wait", "devices", "engines", "payload"],
)
def test_what_only_the_model_has_is_refused(table):
    with pytest.raises(ValueError, match="is for the model only"):
        make_spec(parse_config(table), PRESETS["spin"], toy_profile(), 0)
