"""Sweeps: what is run, what is kept, and what is said about it."""

import io
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import shmsim.sim.sweep as running
from shmsim.cli import app
from shmsim.config import (
    CoresConfig,
    DeviceConfig,
    NamedPolicy,
    PayloadConfig,
    RunConfig,
    WorkloadConfig,
    parse_policy,
)
from shmsim.figures import FIGURES, figures_of, shown, summarize_with_intervals, warm_ups
from shmsim.metrics import summarize, tpot_ns, ttft_ns
from shmsim.policies import PRESETS, BusySpin
from shmsim.sim.engine import summarize_with
from shmsim.sim.run import simulate
from shmsim.sim.sweep import sweep
from shmsim.stats import Precision, mser5
from shmsim.sweep.key import _profile_hash, model_files, point_key, profile_hash
from shmsim.sweep.plan import Cell, SweepPlan, plan_of
from shmsim.sweep.report import cell_table, footnotes
from shmsim.sweep.store import PointStore, only_one
from shmsim.sweep.tables import points_table, results, write_tables
from shmsim.units import MS
from tests.toy import toy_profile

SHORT = RunConfig(
    workload=WorkloadConfig(requests=3, output_p50=5, output_p95=9, prompt_p50=20, prompt_p95=30)
)
PROFILE = toy_profile()
POLICIES = [parse_policy(name) for name in ("spin", "park")]


def plan(**more):
    return plan_of(SHORT, POLICIES, PROFILE, **{"replications": 3, **more})


@pytest.fixture
def runs(monkeypatch):
    """What was really run, as (policy, replication)."""
    done = []

    def watched(config, policy, profile, replication, engine):
        done.append((type(policy).__name__, replication))
        return summarize_with(config, policy, profile, replication, engine)

    monkeypatch.setattr(running, "summarize_with", watched)
    return done


def point_files(folder):
    return sorted((folder / "points").glob("*/*"))


def test_a_point_is_one_run_with_its_figures():
    table = sweep(plan(), jobs=1)
    assert table.num_rows == 6
    rows = table.to_pylist()
    assert [(row["policy"], row["replication"]) for row in rows] == [
        (policy, i) for policy in ("spin", "park") for i in range(3)
    ]
    expected = figures_of(summarize(simulate(SHORT, PRESETS["park"], PROFILE, 1)))
    assert {name: rows[4][name] for name in FIGURES} == pytest.approx(expected, nan_ok=True)


def test_what_is_there_is_not_run_again_and_holes_are_filled(tmp_path, runs):
    first = sweep(plan(), tmp_path, jobs=1)
    assert len(runs) == 6
    assert sweep(plan(), tmp_path, jobs=1) == first
    assert len(runs) == 6
    point_files(tmp_path)[2].unlink()
    assert sweep(plan(), tmp_path, jobs=1) == first
    assert len(runs) == 7


def test_more_replications_or_policies_run_only_what_is_new(tmp_path, runs):
    sweep(plan(), tmp_path, jobs=1)
    runs.clear()
    sweep(plan(replications=4), tmp_path, jobs=1)
    assert runs == [("BusySpin", 3), ("Park", 3)]
    runs.clear()
    more = replace(plan(), policies=(*POLICIES, parse_policy("wake-ahead")))
    sweep(more, tmp_path, jobs=1)
    assert runs == [("WakeAhead", 0), ("WakeAhead", 1), ("WakeAhead", 2)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"n_steps": ', '"n_steps": 1'),
        lambda text: "[]",
    ],
    ids=["torn", "empty", "a digit more", "something else"],
)
def test_a_damaged_file_is_a_hole_and_is_written_anew(tmp_path, runs, caplog, damage):
    first = sweep(plan(), tmp_path, jobs=1)
    path = point_files(tmp_path)[0]
    whole = path.read_text()
    path.write_text(damage(whole))
    assert sweep(plan(), tmp_path, jobs=1) == first
    assert len(runs) == 7
    assert "is damaged" in caplog.text
    assert path.read_text() == whole


def test_what_a_killed_writer_left_is_swept_up(tmp_path):
    sweep(plan(), tmp_path, jobs=1)
    left = point_files(tmp_path)[0].parent / "key.json.123.unfinished"
    left.write_text("half")
    sweep(plan(), tmp_path, jobs=1)
    assert not left.exists()


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    with (
        only_one(tmp_path),
        pytest.raises(RuntimeError, match="another sweep is running in"),
    ):
        sweep(plan(), tmp_path, jobs=1)
    assert sweep(plan(), tmp_path, jobs=1).num_rows == 6


def test_a_store_gives_back_every_bit(tmp_path):
    store = PointStore(tmp_path)
    figures = {"a": 0.1 + 0.2, "b": math.nan, "c": 1e300}
    store.put("ab" * 32, figures)
    found = store.get("ab" * 32)
    assert (found["a"], found["c"], math.isnan(found["b"])) == (0.1 + 0.2, 1e300, True)
    assert store.get("cd" * 32) is None


def test_processes_find_the_same_as_one(tmp_path):
    assert sweep(plan(), jobs=2) == sweep(plan(), tmp_path, jobs=1)


def test_two_runs_write_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_tables(tmp_path / name, plan(), sweep(plan(), tmp_path / name, jobs=1))
    for name in ("points.parquet", "estimates.parquet", "comparisons.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_what_cannot_run_says_where(tmp_path):
    config = replace(SHORT, payload=PayloadConfig(bytes_per_step=1 << 20, memory="pageable"))
    broken = plan_of({"a": SHORT, "b": config}, POLICIES, {"toy": PROFILE}, replications=1)
    with pytest.raises(ValueError, match=r"b on toy, spin: .*h2d_call_pageable"):
        sweep(broken, tmp_path, jobs=1)
    # What ran before is kept.
    assert len(point_files(tmp_path)) == 2


def test_a_cell_that_the_profile_does_not_stand_for_is_refused_before_anything_runs():
    config = replace(SHORT, handoff=replace(SHORT.handoff, doorbell="zmq"))
    with pytest.raises(ValueError, match="b on toy: the profile holds the costs of the futex"):
        plan_of({"a": SHORT, "b": config}, POLICIES, {"toy": PROFILE})


# Engines.


def test_few_steps_run_in_simpy_and_many_by_an_engine_that_must_be_compiled_first(monkeypatch):
    asked = plan()
    points = asked.points(0, 0, 3)
    assert set(running.engines_for(asked, points).values()) == {"simpy"}
    monkeypatch.setattr(running, "_COMPILES_FROM_STEPS", {"fastest": 50})
    monkeypatch.setattr(running, "compiles", lambda policy: isinstance(policy, BusySpin))
    monkeypatch.setattr(running, "choose", lambda config, profile: "fastest")
    found = running.engines_for(asked, points)
    assert [found[p] for p in points] == ["fastest"] * 3 + ["simpy"] * 3


def test_the_recurrence_runs_all_policies_of_a_tape_at_once(tmp_path, monkeypatch):
    expected = sweep(plan(), jobs=1)
    together = []

    def run_many(config, policies, profile, replication, threads):
        together.append((len(policies), replication, threads))
        return [summarize(simulate(config, policy, profile, replication)) for policy in policies]

    monkeypatch.setattr("shmsim.sim.recurrence.run_many", run_many)
    chosen = lambda plan, points: dict.fromkeys(points, "recurrence")  # noqa: E731
    monkeypatch.setattr(running, "engines_for", chosen)
    assert sweep(plan(), tmp_path, jobs=4) == expected
    assert together == [(2, i, 4) for i in range(3)]
    assert len(point_files(tmp_path)) == 6


@pytest.mark.timeout(400)  # who comes first waits for the compiler
def test_a_sweep_by_the_compiled_engines_finds_the_bits_of_simpy(monkeypatch):
    shared = replace(SHORT, cores=CoresConfig(n=2))
    two = [parse_policy(f"SpinThenPark:window={window}") for window in ("100us", "2ms")]
    asked = plan_of({"own": SHORT, "shared": shared}, two, PROFILE, replications=2)
    expected = sweep(asked, jobs=1)
    of_cells = [("own", "recurrence"), ("shared", "events")]
    monkeypatch.setattr(running, "_COMPILES_FROM_STEPS", {"recurrence": 0, "events": 0})
    engines = running.engines_for(asked, [p for cell in (0, 1) for p in asked.points(cell, 0, 2)])
    assert {(asked.cells[p.cell].name, engine) for p, engine in engines.items()} == set(of_cells)
    monkeypatch.setattr("shmsim.sim.run.simulate_box", None)  # it does run elsewhere
    found = sweep(asked, jobs=1)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())


# Keys.


def key(config=SHORT, policy=PRESETS["park"], profile=PROFILE, replication=0):
    return point_key(config, policy, profile, replication)


def test_a_key_holds_what_a_run_depends_on_and_nothing_else(tmp_path):
    step = replace(SHORT, device=DeviceConfig(step_ns=3 * MS))
    others = [
        key(replace(SHORT, seed=2)),
        key(step),
        key(policy=PRESETS["spin"]),
        key(policy=PRESETS["forks-2ms"]),
        key(policy=PRESETS["vllm-1s"]),
        key(profile=toy_profile(launch=5)),
        key(replication=1),
    ]
    assert len({key(), *others}) == 1 + len(others)
    assert key() == key(replace(SHORT, repeats=9, policies=(NamedPolicy("x", BusySpin()),)))
    assert key() == key(profile=replace(PROFILE, measured_at="later"))


ENGINES = "shmsim.sim.run, shmsim.sim.recurrence, shmsim.sim.events, shmsim.sim.engine"


def test_the_model_imports_nothing_whose_source_a_key_leaves_out():
    code = f"import sys, {ENGINES}; print(*(n for n in sys.modules if n.startswith('shmsim.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"shmsim.wait", "shmsim.sim.recurrence.work", "shmsim.sim.events.engine"} <= loaded
    assert loaded <= set(model_files())


def test_what_a_run_does_not_go_through_costs_no_result():
    known = set(model_files())
    assert {"shmsim.policies.ahead", "shmsim.metrics", "shmsim.sim.run"} <= known
    for part in ("tuner", "sim.tune", "sim.race", "sweep", "plots", "stats", "cli", "export"):
        assert not {name for name in known if f"{name}.".startswith(f"shmsim.{part}.")}


def test_a_key_goes_with_the_content_of_a_trace_and_not_with_its_place(tmp_path):
    keys = []
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).write_text(content)
        keys.append(
            key(replace(SHORT, workload=WorkloadConfig("trace", trace=str(tmp_path / name))))
        )
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(ValueError, match="cannot read"):
        key(replace(SHORT, workload=WorkloadConfig("trace", trace=str(tmp_path / "d"))))


NOTEBOOK = """
from shmsim.policies import BusySpin, Park

WINDOW_NS = 5

def helper():
    return WINDOW_NS

class Mine(BusySpin):
    def after(self, ctx, outcome):
        helper()
        return self
"""


def of_a_notebook(source=NOTEBOOK):
    """A policy that somebody has defined in a cell, so that its source is in no file."""
    names = {"__name__": "notebook"}
    exec(source, names)
    return names["Mine"]()


def test_a_policy_of_ones_own_is_known_by_its_code_and_that_of_its_helpers(tmp_path, runs):
    assert key(policy=of_a_notebook()) == key(policy=of_a_notebook())
    others = [
        NOTEBOOK.replace("BusySpin)", "Park)"),
        NOTEBOOK.replace("WINDOW_NS = 5", "WINDOW_NS = 6"),
        NOTEBOOK.replace("return WINDOW_NS", "return 2 * WINDOW_NS"),
    ]
    keys = {key(policy=of_a_notebook(source)) for source in (NOTEBOOK, *others)}
    assert len(keys) == 1 + len(others)
    for _ in range(2):
        mine = NamedPolicy("mine", of_a_notebook())
        sweep(plan_of(SHORT, [mine], PROFILE, replications=1), tmp_path, jobs=1)
    assert len(runs) == 1


def test_a_policy_that_refers_to_what_may_change_cannot_be_kept(tmp_path):
    policy = of_a_notebook(NOTEBOOK.replace("WINDOW_NS = 5", "WINDOW_NS = [5]"))
    mine = NamedPolicy("mine", policy)
    with pytest.raises(ValueError, match=r"refers to \[5\], .* sweep without a folder"):
        sweep(plan_of(SHORT, [mine], PROFILE, replications=1), tmp_path, jobs=1)
    assert sweep(plan_of(SHORT, [mine], PROFILE, replications=1), jobs=1).num_rows == 1


def test_policies_of_different_kinds_have_different_keys_also_where_their_numbers_are_equal():
    assert PRESETS["spin"] == PRESETS["park"]  # as tuples, both without a field
    keys = {(type(policy), repr(policy)): key(policy=policy) for policy in PRESETS.values()}
    assert len(set(keys.values())) == len(keys)


def test_what_ran_on_a_file_that_was_changed_meanwhile_is_not_kept(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"2026-01-01 00:00:00.{i}00000,10,{5 + i}\n" for i in range(3)]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows)
    path.write_text(text)
    config = replace(SHORT, workload=WorkloadConfig("trace", trace=str(path)))
    asked = plan_of(config, POLICIES, PROFILE, replications=2)

    def change_it(done, total):
        if done == 1:
            path.write_text(text.replace(",7\n", ",8\n"))

    with pytest.raises(RuntimeError, match=r"was changed while the sweep ran: .*trace\.csv"):
        sweep(asked, tmp_path, jobs=1, progress=change_it)
    assert len(point_files(tmp_path)) == 1
    assert sweep(asked, tmp_path, jobs=2).num_rows == 4
    assert len(point_files(tmp_path)) == 1 + 4


def test_the_hashes_of_few_profiles_are_kept_in_memory():
    most = _profile_hash.cache_info().maxsize
    found = {profile_hash(toy_profile(launch=n)) for n in range(1, most + 9)}
    assert len(found) == most + 8  # also where an object has the address of one that is gone
    assert _profile_hash.cache_info().currsize == most
    hits = _profile_hash.cache_info().hits
    assert profile_hash(PROFILE) == profile_hash(PROFILE)
    assert _profile_hash.cache_info().hits > hits


# What is said.


def test_the_same_policy_under_two_names_differs_by_exactly_nothing():
    twice = [NamedPolicy("one", PRESETS["park"]), NamedPolicy("other", PRESETS["park"])]
    same = plan_of(SHORT, twice, PROFILE, replications=4)
    (result,) = results(same, sweep(same, jobs=1))
    for comparison in result.comparisons["other"].values():
        assert comparison.difference[:3] == (0.0, 0.0, 0.0)
        assert (comparison.p_value, comparison.is_significant) == (1.0, False)


def test_a_difference_is_told_on_common_tapes(tmp_path):
    asked = plan(replications=6, figures=("tpot_mean_ns", "scheduler_cores"))
    (result,) = write_tables(tmp_path, asked, sweep(asked, jobs=1))
    slower, cores = (result.comparisons["park"][f] for f in asked.figures)
    assert slower.is_significant
    assert slower.difference.low > 0
    assert cores.difference.high < 0
    each = result.estimates["park"]["tpot_mean_ns"]
    assert (each.n, each.method, each.seed) == (6, "replications", SHORT.seed)
    assert "each run" in result.estimates["park"]["tpot_p99_ns"].method
    stored = pq.read_table(tmp_path / "comparisons.parquet").to_pylist()
    assert [(row["policy"], row["reference"], row["figure"]) for row in stored] == [
        ("park", "spin", "tpot_mean_ns"),
        ("park", "spin", "scheduler_cores"),
    ]
    assert [row["is_significant"] for row in stored] == [True, True]
    estimates = pq.read_table(tmp_path / "estimates.parquet")
    assert estimates.num_rows == 2 * len(FIGURES)
    for name in ("value", "low", "high", "n", "method", "seed"):
        assert name in estimates.column_names


def test_the_table_shows_estimates_differences_and_what_is_significant():
    asked = plan(replications=6)
    found = results(asked, sweep(asked, jobs=1))
    console = Console(width=140, file=io.StringIO(), highlight=False)
    console.print(cell_table(asked, found[0]))
    for note in footnotes(asked, found):
        console.print(note)
    text = console.file.getvalue()
    assert "TPOT p50 ms" in text
    assert " ± " in text
    assert "*" in text.split("estimate ±")[0]
    assert "6 replications, seed 1" in text
    assert "difference to spin on the same tapes" in text


def test_over_many_cells_p_values_are_adjusted_once_more(tmp_path):
    configs = {str(n): replace(SHORT, seed=n) for n in range(3)}
    asked = plan_of(configs, POLICIES, {"toy": PROFILE}, replications=6)
    found = write_tables(tmp_path, asked, sweep(asked, jobs=1))
    rows = pq.read_table(tmp_path / "comparisons.parquet").to_pylist()
    assert len(rows) == 3 * len(asked.figures)
    assert all(row["p_value"] <= row["p_value_of_sweep"] for row in rows)
    least = min(row["p_value"] for row in rows)
    assert min(row["p_value_of_sweep"] for row in rows) == pytest.approx(len(rows) * least)
    assert any("over all 3 tables together" in note for note in footnotes(asked, found))


def test_one_replication_has_no_interval_and_no_difference():
    asked = plan(replications=1)
    found = results(asked, sweep(asked, jobs=1))
    assert found[0].comparisons == {}
    assert math.isnan(found[0].estimates["spin"]["tpot_p50_ns"].half_width)
    notes = list(footnotes(asked, found))
    assert "no differences: they take at least 2 replications" in notes
    assert any("run at least 2" in note for note in notes)


def test_settings_are_columns_of_their_own_kind():
    cells = [
        Cell(
            "a", {"workload.requests": 3, "device.step": "2ms", "mixed": 1}, SHORT, "toy", PROFILE
        ),
        Cell("b", {"workload.requests": 4, "mixed": "x"}, SHORT, "toy", PROFILE),
    ]
    asked = SweepPlan(tuple(cells), tuple(POLICIES[:1]), replications=1)
    point, other = (asked.points(i, 0, 1)[0] for i in range(2))
    table = points_table(
        asked, {point: dict.fromkeys(FIGURES, 1.0), other: dict.fromkeys(FIGURES, 2.0)}
    )
    assert table["workload.requests"].to_pylist() == [3, 4]
    assert table["device.step"].to_pylist() == ["2ms", None]
    assert table["mixed"].to_pylist() == ["1", "x"]


def test_replications_are_added_until_all_policies_are_known_well_enough(runs):
    precision = Precision(relative=0.1, least=4, most=90)
    asked = plan(replications=4, precision=precision, stop_figure="duration_s")
    (result,) = results(asked, sweep(asked, jobs=1))
    numbers = {policy: figures["duration_s"].n for policy, figures in result.estimates.items()}
    assert 4 < numbers["spin"] == numbers["park"] < 90
    for figures in result.estimates.values():
        assert figures["duration_s"].relative <= 0.1
        assert figures["duration_s"].caveat == ""
    assert len(runs) == len(set(runs)) == 2 * numbers["spin"]


def test_a_precision_that_is_not_reached_is_said():
    precision = Precision(relative=1e-6, least=2, most=4)
    asked = plan(replications=2, precision=precision)
    found = results(asked, sweep(asked, jobs=1))
    assert found[0].estimates["spin"]["tpot_p50_ns"].n == 4
    assert any("asked for a half-width of 0.0001 %" in note for note in footnotes(asked, found))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"replications": 0}, "replications must be at least 1"),
        ({"reference": "none"}, "none of the policies"),
        ({"figures": ("tpot",)}, "unknown figure 'tpot'"),
        ({"precision": Precision()}, "positive half-width"),
    ],
)
def test_a_plan_that_means_nothing_is_refused(more, said):
    with pytest.raises(ValueError, match=said):
        plan(**more)


def test_progress_is_told_from_nothing_to_all():
    told = []
    sweep(plan(), jobs=1, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 6) for i in range(7)]


# Figures with intervals.


def test_every_figure_has_an_interval_from_replications():
    found = [simulate(SHORT, PRESETS["spin"], PROFILE, i) for i in range(5)]
    estimates = summarize_with_intervals(found, seed=SHORT.seed)
    assert tuple(estimates) == FIGURES
    each = [summarize(run).tpot.mean for run in found]
    assert estimates["tpot_mean_ns"].value == pytest.approx(sum(each) / 5)
    pooled = estimates["itl_p50_ns"]
    assert (pooled.n, pooled.method) == (5, "sectioning, 5 sections")
    assert all(e.seed == SHORT.seed for e in estimates.values())


def test_one_long_run_has_intervals_from_its_own_stretches():
    workload = replace(SHORT.workload, kind="open", requests=1_500, rate_per_s=5.0)
    run = simulate(replace(SHORT, workload=workload), PRESETS["spin"], PROFILE)
    estimates = summarize_with_intervals([run])
    assert estimates["ttft_mean_ns"].method.startswith("regenerative")
    assert estimates["tpot_mean_ns"].method.startswith("batch means")
    cuts = warm_ups(run)
    for name in ("tpot", "itl"):
        said = f"{cuts[name].n_cut} of {cuts[name].n} values cut (MSER-5)"
        assert estimates[f"{name}_mean_ns"].method.endswith(f" batches, {said}")
        assert estimates[f"{name}_p50_ns"].method == f"sectioning, 16 sections, {said}"
    assert cuts["ttft"] == mser5(ttft_ns(run.requests))
    assert estimates["tpot_p50_ns"].low < estimates["tpot_p50_ns"].high
    mean = np.nanmean(tpot_ns(run.requests))  # a request of one token has none
    assert estimates["tpot_mean_ns"].value == pytest.approx(mean, rel=0.05)
    assert math.isnan(estimates["scheduler_cores"].half_width)
    few = summarize_with_intervals([simulate(SHORT, PRESETS["spin"], PROFILE)])
    assert "at least 32 values" in few["tpot_mean_ns"].caveat
    with pytest.raises(ValueError, match="no run"):
        summarize_with_intervals([])


def test_figures_are_written_for_people():
    assert [shown(f).label for f in ("ttft_after_idle_p50_ns", "output_tokens_per_s")] == [
        "TTFT after idle p50 ms",
        "output tokens/s",
    ]


def test_a_stored_point_is_json_with_a_checksum(tmp_path):
    PointStore(tmp_path).put("ab" * 32, {"a": 1.0})
    (path,) = point_files(tmp_path)
    content = json.loads(path.read_text())
    assert set(content) == {"key", "figures", "sha256"}


def test_simulate_says_what_one_run_was_cut_by_and_what_its_intervals_rest_on(tmp_path):
    lengths = "prompt_p50 = 9\nprompt_p95 = 9\noutput_p50 = 6\noutput_p95 = 9\n"
    (tmp_path / "config.toml").write_text(f"[workload]\nrequests = 60\n{lengths}")
    command = ["simulate", str(tmp_path / "config.toml"), "-p", "vm-2cpu", "--policy", "spin"]

    def told(*more):
        return CliRunner().invoke(app, [*command, *more]).output

    found = json.loads(told("-r", "1", "--json"))
    cut = found["warm_up"]["spin"]["itl"]
    assert cut["n"] > 200
    of_itl = f"{cut['n_cut']} of {cut['n']}"
    estimate = found["policies"]["spin"]["itl_mean_ns"]
    assert estimate["method"].endswith(f", {of_itl} values cut (MSER-5)")
    said = " ".join(told("-r", "1").split())
    assert "from batches and sections of one run of seed" in said
    assert "n = 1 replications" not in said
    assert "values of spin that were cut: TTFT 0 of 60, TTFT after idle" in said
    assert f"ITL {of_itl}" in said
    assert "95 % intervals, n = 2 replications of seed" in " ".join(told("-r", "2").split())
    assert "warm_up" not in json.loads(told("-r", "2", "--json"))
