"""Timelines of the model, read back."""

import json
from dataclasses import replace
from itertools import product

import pytest
from typer.testing import CliRunner

from shmsim.cli import app
from shmsim.config import CoresConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.metrics import step_time_ns
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.records import CoreRow, RunRecords, SliceRow
from shmsim.sim.box import Box
from shmsim.sim.cores import Schedule
from shmsim.sim.run import simulate_box, together
from shmsim.timeline import Window, window_of_steps, write_timeline
from shmsim.units import MS, US
from shmsim.wait import DEVICE_DONE, DOZE, KIND_NAMES, PARK, SPIN, WORKER_SLOT
from shmsim.workload import Request, Workload
from tests.theory.runs import run
from tests.timelines import Timeline, check_timeline

WORKLOAD = Workload((Request(0, 10, 4), Request(1 * MS, 20, 5), Request(30 * MS, 5, 3)), 0)
ENGINES = list(product((1, 2), (1, 2), ("sync", "async")))


def records_of(workers=1, calls=2, scheduling="sync", policy="wake-ahead", **more):
    return run(
        PRESETS[policy], WORKLOAD, workers=workers, calls=calls, scheduling=scheduling, **more
    )


def written(records, folder, window=None):
    path = folder / "trace.json"
    n_events = write_timeline(records, path, window)
    found = Timeline(path)
    assert n_events == len(found.trace["traceEvents"])
    return found


@pytest.mark.parametrize(("workers", "calls", "scheduling"), ENGINES)
@pytest.mark.parametrize("policy", ["spin", "park", "wake-ahead"])
def test_the_timeline_of_a_run_shows_all_of_it(tmp_path, workers, calls, scheduling, policy):
    records = records_of(workers, calls, scheduling, policy)
    path = tmp_path / "trace.json"
    write_timeline(records, path)
    found = check_timeline(records, path)
    device = found.on("device")
    assert [s.ended_ns - s.begun_ns for s in device] == step_time_ns(records.steps).tolist()


def test_all_workers_that_reply_have_arrows(tmp_path):
    records = records_of(workers=3, n_replies=3)
    path = tmp_path / "trace.json"
    write_timeline(records, path)
    found = check_timeline(records, path)
    writers = {arrow["pid"] for arrow in found.arrows if arrow["ph"] == "s"}
    assert writers == {found.tracks[name][0] for name in ("scheduler", *names(3))}


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_waits_for_the_device_and_for_slots_are_shown_like_others(tmp_path, scheduling):
    records = records_of(
        scheduling=scheduling, policy="park", device_policy=PRESETS["park"], n_slots=1
    )
    path = tmp_path / "trace.json"
    write_timeline(records, path)
    found = check_timeline(records, path)
    sites = {span.args["site"] for span in found.spans if span.category == "wait"}
    assert sites >= {"worker_recv", "scheduler_recv", "device_done"}
    assert ("reply" in {span.name for span in found.on("worker0")}) == (scheduling == "sync")


def names(workers):
    return [f"worker{rank}" for rank in range(workers)]


def test_a_reply_thread_has_a_track_of_its_own(tmp_path):
    records = records_of(scheduling="async", policy="park")
    found = written(records, tmp_path)
    replies = found.on("worker0 replies")
    assert len(replies) == len(records.steps)
    assert [s.ended_ns for s in replies] == [step.replied_ns for step in records.steps]
    assert "worker0 replies" not in written(records_of(policy="park"), tmp_path).tracks


def test_waits_that_overlap_those_for_messages_are_on_another_track(tmp_path):
    records = records_of()
    wait = next(w for w in records.waits if w.process == "worker0" and w.seen_ns > w.started_ns)
    slot = wait._replace(site=WORKER_SLOT, published_ns=wait.started_ns)
    end = wait._replace(site=DEVICE_DONE, started_ns=wait.started_ns + 1)
    found = written(replace(records, waits=[*records.waits, slot, end]), tmp_path)
    for name, row in (("worker_slot", slot), ("device_done", end)):
        (shown,) = found.on(f"worker0 {name}")
        assert (shown.begun_ns, shown.ended_ns) == (row.started_ns, row.seen_ns)
        assert shown.args["site"] == name


def test_without_a_request_the_scheduler_is_shown_idle(tmp_path):
    found = written(records_of(), tmp_path)
    idle = found.on("scheduler", "idle")
    third_ns = WORKLOAD.requests[2].arrival_ns
    assert [span.ended_ns for span in idle] == [third_ns]
    assert third_ns - 10 * MS > idle[0].begun_ns > 0
    assert idle[0].depth == 1


def test_a_wait_is_named_by_the_stage_that_saw_it_and_by_what_ended_it(tmp_path):
    records = records_of()
    first, *rest = [w._replace(stage_kind=-1) for w in records.waits]
    pending = first._replace(published_ns=first.started_ns + 1, belled=False, stage=2)
    told = {
        "stage 2": pending,
        "spin": pending._replace(stage_kind=SPIN),
        "park, rung": pending._replace(stage_kind=PARK, belled=True),
        "doze, at once": pending._replace(stage_kind=DOZE, published_ns=first.started_ns),
    }
    for name, wait in told.items():
        found = written(replace(records, waits=[wait, *rest]), tmp_path)
        assert name in {span.name for span in found.spans}
    assert KIND_NAMES[PARK] == "park"


def test_the_cpu_on_the_core_tracks_is_the_cpu_accounted(tmp_path):
    records = records_of(policy="spin")
    slices, cores = [], []
    for core, row in enumerate(records.processes):
        for begun_ns in range(0, row.cpu_ns, 700 * US + 1):
            ended_ns = min(begun_ns + 700 * US + 1, row.cpu_ns)
            slices.append(SliceRow(row.process, core, begun_ns, ended_ns))
        cores.append(CoreRow(core, row.wall_ns, row.cpu_ns, 0, row.wall_ns - row.cpu_ns))
    found = written(replace(records, slices=slices, cores=cores), tmp_path)
    for core, row in enumerate(records.processes):
        on_core = found.on(f"core {core}")
        assert {span.name for span in on_core} == {row.process}
        assert sum(span.ended_ns - span.begun_ns for span in on_core) == row.cpu_ns


@pytest.mark.parametrize("n_cores", [1, 2, 3])
@pytest.mark.parametrize("policy", ["spin", "park", "wake-ahead"])
def test_the_core_tracks_of_a_run_on_shared_cores_are_the_cpu_accounted(tmp_path, policy, n_cores):
    records = records_of(2, policy=policy, box=Box(Schedule(n_cores), 3, traces=True))
    path = tmp_path / "trace.json"
    write_timeline(records, path)
    found = check_timeline(records, path)
    assert {row.core for row in records.cores} == set(range(n_cores))
    assert found.on("core 0", "core")


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_engines_that_share_a_box_do_not_share_tracks(tmp_path, scheduling):
    config = RunConfig(
        engine=EngineConfig(workers=2, scheduling=scheduling),
        workload=WorkloadConfig(requests=3, output_p50=4, output_p95=4),
        cores=CoresConfig(n=3, engines=2),
    )
    engines = simulate_box(config, PRESETS["park"], MachineProfile.shipped("vm-2cpu"), traces=True)
    records = together(engines)
    path = tmp_path / "trace.json"
    write_timeline(records, path, None)
    found = check_timeline(records, path, engines)
    for number in range(2):
        names = ("scheduler", "worker0", "worker1", "device")
        assert {f"engine{number}/{name}" for name in names} <= set(found.tracks)
        assert found.counters[f"engine{number}/requests in the system"][-1][1] == 0
    assert window_of_steps(records, ":2")[1] == engines[0].steps[1].seen_ns


def test_rows_that_do_not_say_of_which_engine_they_are_are_refused(tmp_path):
    config = RunConfig(
        workload=WorkloadConfig(requests=2, output_p50=2, output_p95=2),
        cores=CoresConfig(n=2, engines=2),
    )
    first, second = simulate_box(config, PRESETS["park"], MachineProfile.shipped("vm-2cpu"))
    records = replace(together([first, second]), steps=first.steps)
    with pytest.raises(ValueError, match=r"of 2 engines, steps of 1 and requests of 2"):
        write_timeline(records, tmp_path / "trace.json")


@pytest.mark.parametrize("policy", ["spin", "park", "wake-ahead"])
def test_without_an_idle_moment_waits_and_work_are_all_the_cpu_time(tmp_path, policy):
    """To the nanosecond, until the goodbye: the last that one publishes and the other sees."""
    workload = Workload(tuple(Request(0, n, 5) for n in (10, 20)), 0)
    records = run(PRESETS[policy], workload, calls=2, device_policy=PRESETS[policy])
    found = written(records, tmp_path)
    goodbye = max(records.waits, key=lambda wait: wait.seen_ns)
    scheduler, worker = records.processes
    ends_ns = {scheduler: goodbye.published_ns, worker: goodbye.seen_ns}
    unseen_ns = {}
    for row, until_ns in ends_ns.items():
        spans = [s for s in found.on(row.process) if s.depth == 0 and s.begun_ns < until_ns]
        waited_ns = sum(s.args["cpu_ns"] for s in spans if s.category == "wait")
        worked_ns = sum(
            min(s.ended_ns, until_ns) - s.begun_ns for s in spans if s.category == "work"
        )
        unseen_ns[row.process] = row.cpu_ns - waited_ns - worked_ns
    assert unseen_ns["worker0"] == worker.wall_ns - goodbye.seen_ns
    assert 0 <= unseen_ns["scheduler"] <= scheduler.wall_ns - goodbye.published_ns


def test_counters_follow_requests_and_batches(tmp_path):
    records = records_of()
    counters = written(records, tmp_path).counters
    first, second, third = records.requests
    assert counters["requests in the system"] == [
        (0, 1),
        (1 * MS, 2),
        (first.token_ns[-1], 1),
        (second.token_ns[-1], 0),
        (30 * MS, 1),
        (third.token_ns[-1], 0),
    ]
    assert counters["sequences in decode"] == [(s.scheduled_ns, s.n_decode) for s in records.steps]
    assert [n for _, n in counters["prefill tokens"]] == [s.n_prefill_tokens for s in records.steps]


def test_a_window_cuts_spans_at_its_edges_and_shows_whole_arrows_only(tmp_path):
    records = records_of()
    whole = written(records, tmp_path)
    window = window_of_steps(records, "2:4")
    assert window == (records.steps[2].scheduled_ns, records.steps[3].seen_ns)
    part = written(records, tmp_path, window)
    assert 0 < part.n_arrows < whole.n_arrows
    for span in part.spans:
        assert window.from_ns <= span.begun_ns <= span.ended_ns <= window.until_ns
    main = [s.ended_ns - s.begun_ns for s in part.on("worker0") if s.depth == 0]
    assert sum(main) == window.until_ns - window.from_ns
    assert [s.args["step"] for s in part.on("device")] == [2, 3]
    assert part.counters["requests in the system"][0] == (window.from_ns, 2)


def test_a_window_without_anything_in_it_is_empty(tmp_path):
    found = written(records_of(), tmp_path, Window(10**12, 10**12 + 1))
    assert not found.spans
    assert not found.arrows


@pytest.mark.parametrize("text", ["", "4", "a:b", "3:2", "-1:2", "0:999", "2:2"])
def test_steps_that_a_run_does_not_have_are_refused(text):
    records = records_of()
    with pytest.raises(ValueError, match=rf"0 <= FIRST < LAST <= {len(records.steps)}, .* got"):
        window_of_steps(records, text)


def test_either_end_of_a_window_of_steps_may_be_left_out():
    records = records_of()
    assert window_of_steps(records, ":") == window_of_steps(records, f"0:{len(records.steps)}")
    assert window_of_steps(records, "3:")[0] == records.steps[3].scheduled_ns


def test_nanoseconds_survive_a_day(tmp_path):
    records = records_of()
    day_ns = 86_400 * 10**9 + 1
    slices = [SliceRow("scheduler", 0, day_ns, day_ns + 1)]
    (shown,) = written(replace(records, slices=slices), tmp_path).on("core 0")
    assert (shown.begun_ns, shown.ended_ns) == (day_ns, day_ns + 1)


def test_the_command_reads_records_and_writes_a_timeline(tmp_path):
    records = records_of()
    records.meta["world"] = "model"
    records.write(tmp_path / "run")
    out = tmp_path / "trace.json.gz"
    result = CliRunner().invoke(
        app, ["timeline", str(tmp_path / "run"), "-o", str(out), "--steps", "1:3"]
    )
    assert result.exit_code == 0, result.output
    found = Timeline(out)
    assert found.trace["otherData"] == {"world": "model"}
    assert f"{len(found.trace['traceEvents'])} events" in result.output
    assert json.dumps(found.on("device")[0].args["step"]) == "1"
    refused = CliRunner().invoke(app, ["timeline", str(tmp_path / "run"), "--steps", "5"])
    assert refused.exit_code == 2


SHORT = """
[workload]
requests = 2
output_p50 = 5
output_p95 = 5
"""


def simulated(folder, text, *options):
    (folder / "config.toml").write_text(text)
    command = ["simulate", str(folder / "config.toml"), "-p", "vm-2cpu", "--policy", "spin", "-r2"]
    return CliRunner().invoke(app, [*command, *options])


def test_the_command_records_who_was_on_which_core_if_it_is_asked_to(tmp_path):
    config = f"{SHORT}[cores]\nn = 2\n"
    figures = []
    for name, options in (("without", ()), ("with", ("--cores",))):
        out = tmp_path / name
        done = simulated(tmp_path, config, "-o", str(out), "--json", *options)
        assert done.exit_code == 0, done.output
        figures.append(json.loads(done.stdout)["policies"])
    plain, traced = (RunRecords.read(tmp_path / name / "spin") for name in ("without", "with"))
    assert not plain.slices
    assert {row.core for row in traced.slices} == {0, 1}
    assert (plain.waits, figures[0]) == (traced.waits, figures[1])


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ("[cores]\nn = 2\n", (), "--out"),
        ("", ("-o", "records"), "set cores.n"),
    ],
)
def test_cores_that_nobody_would_see_are_refused(tmp_path, monkeypatch, more, options, said):
    monkeypatch.chdir(tmp_path)
    done = simulated(tmp_path, SHORT + more, "--cores", *options)
    assert done.exit_code == 2
    assert said in done.stderr
