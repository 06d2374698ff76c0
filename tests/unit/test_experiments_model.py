"""Experiments 02, 11 and 12, on made-up numbers: what they fit, compare and claim."""

import subprocess
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from realrun.equivalence import Estimate
from realrun.vllm.prediction import ArmPrediction, Outcome, write_predictions
from shmsim.config import EngineConfig, RunConfig, WorkloadConfig, parse_config
from shmsim.fitting import level, log_normal_curve, scaled, solve, with_costs
from shmsim.laws import BrokenLawError, check_laws
from shmsim.metrics import summarize
from shmsim.policies import PRESETS, BusySpin, WakeAhead
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from shmsim.units import MS, US
from shmsim.wait import DEVICE_DONE
from tests.scripts import EXPERIMENTS, imported
from tests.toy import TOY_COSTS_NS, toy_profile

SLOW = dict.fromkeys(
    (f"{who}slow_after_{rest}" for who in ("", "worker_") for rest in ("park", "doze")), 30 * US
)


@pytest.fixture(scope="module")
def seed_modules():
    folders = [EXPERIMENTS, EXPERIMENTS / "02_seed_cells"]
    with imported(folders, "seed_cells", "seed_follow_ups", "run") as modules:
        yield tuple(modules.values())


@pytest.fixture(scope="module")
def h200_rows():
    with imported([EXPERIMENTS, EXPERIMENTS / "12_h200_tables"], "h200_rows") as modules:
        yield modules["h200_rows"]


@pytest.fixture(scope="module")
def live_order():
    with imported([EXPERIMENTS, EXPERIMENTS / "11_live_vllm_order"], "live_order") as modules:
        yield modules["live_order"]


def plan_of(folder, **changes):
    return tomllib.loads((EXPERIMENTS / folder / "config.toml").read_text()) | changes


def silent(label, share):
    assert 0.0 <= share <= 1.0, label


# Fitting.


def test_a_scaled_cost_is_so_much_dearer_at_every_quantile_and_is_marked():
    base = toy_profile()
    profile = scaled(base, ["schedule", "launch"], 3.0)
    for name in ("schedule", "launch"):
        assert profile.costs[name].at(0.99) == 3 * TOY_COSTS_NS[name]
        assert profile.source_of(name).mark == "assumed"
    assert profile.costs["complete"] is base.costs["complete"]
    assert base.costs["schedule"].at(0.5) == TOY_COSTS_NS["schedule"]


def test_what_is_made_level_is_everywhere_as_it_was_there():
    curve = log_normal_curve("bytes", [(1.0, 100.0, 150.0), (3.0, 300.0, 450.0)])
    base = replace(toy_profile(), costs=toy_profile().costs | {"pickle": curve})
    found = level(base, ["pickle"], 2.0).costs["pickle"]
    for u in (0.1, 0.5, 0.9):
        assert found.at(u, 1e6) == found.at(u, 0.0) == pytest.approx(curve.at(u, 2.0), rel=0.02)


def test_a_log_normal_cost_has_the_quantiles_it_was_given():
    curve = log_normal_curve("asleep_ns", [(1e3, 50.0, 80.0), (1e6, 90.0, 90.0)])
    assert curve.at(0.5, 1e3) == pytest.approx(50.0, rel=0.01)
    assert curve.at(0.9, 1e3) == pytest.approx(80.0, rel=0.01)
    assert curve.at(0.1, 2e6) == curve.at(0.99, 2e6) == pytest.approx(90.0)


def test_a_target_outside_the_range_is_refused_with_what_can_be_reached():
    assert solve(lambda x: 2 * x, 3.0, 0.0, 10.0, "scale") == pytest.approx(1.5, rel=1e-3)
    with pytest.raises(ValueError, match=r"no scale from 0 to 1 meets 3: the prediction runs from"):
        solve(lambda x: 2 * x, 3.0, 0.0, 1.0, "scale")
    with pytest.raises(ValueError, match="the profile has no cost skedule"):
        scaled(toy_profile(), ["skedule"], 1.0)
    with pytest.raises(ValueError, match="scaled by 0 or more"):
        scaled(toy_profile(), ["schedule"], float("nan"))


# Workers that only receive.


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_worker_without_a_device_receives_and_holds_nobody_up(scheduling, calls):
    def run(workers, devices):
        engine = EngineConfig(workers, calls, scheduling, device_wait="spin", devices=devices)
        workload = WorkloadConfig(
            requests=2, prompt_p50=8, prompt_p95=8, output_p50=30, output_p95=30
        )
        return simulate(RunConfig(engine, workload=workload), BusySpin(), toy_profile())

    alone, received, shared = run(1, 0), run(3, 1), run(3, 0)
    # Spinners are woken by nobody, so that two more of them cost the scheduler nothing either.
    assert summarize(received).tpot == summarize(alone).tpot
    waiting = {w.process for w in received.waits if w.site == DEVICE_DONE}
    assert waiting == {"worker0"}
    assert {w.process for w in shared.waits if w.site == DEVICE_DONE} == {
        "worker0", "worker1", "worker2",
    }  # fmt: skip
    for name in ("worker1", "worker2"):
        calls_seen = sum(w.process == name for w in received.waits)
        assert calls_seen == calls * len(received.steps) + 1  # and the goodbye


def test_a_reply_thread_that_still_works_at_the_end_is_booked_to_its_process():
    # Rank 1 replies to nobody: nothing waits for its reply thread, and goodbye overtakes it.
    law = log_normal_curve("", [(0.0, 3e6, 3e6 * 1.06)])
    shipped = MachineProfile.shipped("vm-2cpu")
    profile = with_costs(shipped, {"schedule": law, "launch": law}, "made up")
    config = parse_config(
        {
            "engine": {"workers": 2, "scheduling": "async", "device_wait": "spin"},
            "device": {"step": "1us", "per_prefill_token": "0us", "jitter": 0.0},
            "cores": {"n": 2, "guarded": False},
            "workload": {"requests": 1, "concurrency": 1, "prompt_p50": 8, "prompt_p95": 8}
            | {"output_p50": 200, "output_p95": 200},
        }
    )
    records = simulate(config, PRESETS["vllm-1s"], profile, 1)  # checks that CPU adds up
    assert len(records.steps) == 200


# 02: the seed's cells.


def seed_of(seed_modules, **changes):
    seed_cells, _, _ = seed_modules
    short = {"requests": 2, "output": 40}
    plan = plan_of("02_seed_cells", length={"fit": short, "predict": short})
    plan["prior"] |= {"draws": 2}
    plan["ttft"] |= {"pairs": 4}
    return seed_cells.Seed(plan | changes, toy_profile(**SLOW))


def measured_by(seed, fit):
    """What the cells would show if the machine were the model with these scales."""
    names = ("sync_spin", "sync_wait", "async_spin", "async_wait")
    tpots = {name: round(seed.tpot_ns(fit, name, "fit", 0)) for name in names}
    return {
        name: {"tpot": f"{ns}ns", "ttft_mean": "10ms", "ttft_p50": "10ms"}
        for name, ns in tpots.items()
    } | {
        f"{mode}_wait": {
            "tpot": f"{tpots[f'{mode}_wait']}ns",
            "ttft_mean": "12ms",
            "ttft_p50": "11ms",
        }
        for mode in ("sync", "async")
    }


def test_the_sync_pair_gives_back_the_scales_that_made_it(seed_modules):
    seed_cells, _, _ = seed_modules
    truth = seed_cells.Fit(0.3, 6.0, 2.0)
    seed = seed_of(seed_modules)
    seed.plan["measured"] = measured_by(seed, truth)
    found = seed.fit(0.3, 0)
    assert found.host_scale == pytest.approx(6.0, rel=2e-3)
    assert found.wake_scale == pytest.approx(2.0, rel=2e-3)


def test_what_can_be_overlapped_costs_a_sync_step_alike_and_an_async_step_nothing(seed_modules):
    seed_cells, _, _ = seed_modules
    seed = seed_of(seed_modules)
    fits = [seed_cells.Fit(overlap, 6.0, 1.0) for overlap in (0.2, 0.6)]
    sync = [seed.tpot_ns(fit, "sync_spin", "fit", 0) for fit in fits]
    assert sync[0] == pytest.approx(sync[1], rel=1e-3)
    asynchronous = [seed.tpot_ns(fit, "async_spin", "fit", 0) for fit in fits]
    names = seed.plan["host"]["costs"]
    work_ns = 6.0 * sum(TOY_COSTS_NS[name] for name in names)
    assert asynchronous[0] - asynchronous[1] == pytest.approx(0.4 * work_ns, rel=0.02)


def test_draws_of_the_prior_are_equally_likely_and_their_interval_is_compared(seed_modules):
    seed_cells, _, _ = seed_modules
    seed = seed_of(seed_modules)
    truth = seed_cells.Fit(0.24, 6.0, 2.0)
    seed.plan["measured"] = measured_by(seed, truth)
    assert np.mean(seed.overlaps()) == pytest.approx(0.24, abs=0.01)
    draws = [seed.draw(*each) for each in enumerate(seed.overlaps())]
    found = seed_cells.intervals(draws, seed.plan)
    assert [d.fit.overlap for d in draws] == seed.overlaps()
    assert found["tpot/sync_spin"].error == pytest.approx(0.0, abs=2e-3)
    assert found["tpot/async_spin"].covers
    assert found["ttft_shift_mean/sync"].measured == 2 * MS
    assert found["ttft_shift_p50/async"].measured == 1 * MS
    assert found["ttft_shift_mean/sync"].median > 0
    claims = {c.id: c for c in seed_cells.claims(found, len(draws), 1)}
    assert set(claims) == {
        "model/seed_async_spin_error",
        "model/seed_async_wait_error",
        "model/seed_sync_ttft_shift_error",
        "model/seed_async_ttft_shift_error",
        "model/seed_async_cells_covered",
    }
    assert claims["model/seed_async_spin_error"].holds


@pytest.mark.parametrize(
    ("interval", "covers", "value", "least", "most"),
    [
        ((90, 100, 110, 105), True, 5 / 105, 0.0, 15 / 105),
        ((90, 95, 98, 100), False, 0.05, 0.02, 0.1),
    ],
)
def test_a_claim_of_an_interval_ranges_over_it(seed_modules, interval, covers, value, least, most):
    seed_cells, _, _ = seed_modules
    found = seed_cells.Interval(*map(float, interval))
    assert found.covers == covers
    claim = found.claim("x", 0.1, 3, 1)
    assert (claim.value, claim.low, claim.high) == pytest.approx((value, least, most))
    assert ("inside" if covers else "OUTSIDE") in seed_cells.describe(found)


def test_what_follows_has_the_cliff_the_windows_and_eight_workers(seed_modules):
    seed_cells, follow_ups, run = seed_modules
    plan = run.quick(plan_of("02_seed_cells"))
    plan["follow"]["cliff"] |= {"requests": 20}
    seed = seed_cells.Seed(plan, toy_profile(**SLOW))
    fit = seed_cells.Fit(0.3, 2.0, 1.0)
    found = {
        name: list(part(seed, fit, plan["follow"][name])) for name, part in follow_ups.PARTS.items()
    }
    cliff = {row["policy"]: row for row in found["cliff"]}
    # The worker is up to a period late, and the scheduler, which polls too, sees the reply a period
    # after it sent the call.
    late_ns = (
        cliff["sleep-100ms"]["ttft_after_idle_p50_ns"] - cliff["yield"]["ttft_after_idle_p50_ns"]
    )
    assert 90 * MS < late_ns < 110 * MS
    assert cliff["yield"]["worker_cores"] > 0.99
    assert cliff["park"]["worker_cores"] < 0.05
    windows = {(row["step"], row["policy"]): row for row in found["windows"]}
    for step in ("2ms", "10ms", "20ms"):
        forks, spin = windows[step, "forks-2ms"], windows[step, "yield"]
        assert forks["tpot_mean_ns"] > spin["tpot_mean_ns"]
    assert windows["20ms", "forks-2ms"]["cores"] < windows["2ms", "forks-2ms"]["cores"]
    assert len(found["tp8"]) == 16
    assert all(row["cores"] <= 9.01 for row in found["tp8"] if row["scheduling"] == "sync")


# 12: the H200's tables.


def predicted_rows(h200_rows, machine, fit):
    arms = [(table, arm) for table in h200_rows.TABLES for arm in machine.plan[table]["rows"]]
    return h200_rows.rows_of(machine.plan, {each: machine.predict(fit, *each) for each in arms})


def h200_of(h200_rows):
    plan = plan_of("12_h200_tables", steps=60, settle=20, replications=1)
    return h200_rows.H200(plan, toy_profile(**SLOW))


def test_batch_2_gives_back_the_scales_and_the_other_rows_are_met(h200_rows):
    machine, truth = h200_of(h200_rows), h200_rows.Fit(1.5, 2.0)
    # The machine is the model: what it shows, the model must find again from two rows of it.
    for table in h200_rows.TABLES:
        for arm, row in machine.plan[table]["rows"].items():
            seen = machine.run(truth, table, arm, 0)
            row["step_us"] = seen.step_ns / US
            row |= {k: getattr(seen, k) for k in ("scheduler", "worker", "receiver") if k in row}
            if "total" in row:
                row["total"] = seen.scheduler + seen.worker
    fit = machine.fit()
    assert fit == pytest.approx(truth, rel=5e-3)
    rows = predicted_rows(h200_rows, machine, fit)
    assert len(rows) == 18
    assert sum(row.is_fitted for row in rows) == 2
    for row in rows:
        assert abs(row.error) < 3e-3
        assert row.cores_error < 0.03
    claims = h200_rows.claims(rows, machine.plan)
    assert [c.id for c in claims if c.id.startswith("h200/batch_64")] == [
        "h200/batch_64_step_worst_error",
        "h200/batch_64_against_spin_worst_error",
        "h200/batch_64_cores_worst_error",
    ]
    assert all(c.holds for c in claims)


def test_a_row_that_is_missed_is_the_worst_of_its_table(h200_rows):
    machine, fit = h200_of(h200_rows), h200_rows.Fit(1.0, 1.0)
    for table in h200_rows.TABLES:
        for arm, row in machine.plan[table]["rows"].items():
            row["step_us"] = machine.run(fit, table, arm, 0).step_ns / US
    machine.plan["eight_readers"]["rows"]["park / spin"]["step_us"] *= 1.25
    rows = predicted_rows(h200_rows, machine, fit)
    claims = {c.id: c for c in h200_rows.claims(rows, machine.plan)}
    worst = claims["h200/eight_readers_step_worst_error"]
    assert worst.value == pytest.approx(0.2, abs=0.01)
    assert not worst.holds
    assert claims["h200/batch_64_step_worst_error"].holds


def test_eight_readers_are_one_worker_with_a_device_and_seven_without(h200_rows):
    machine = h200_of(h200_rows)
    engine = machine.config("eight_readers", "park / spin").engine
    assert (engine.workers, engine.n_devices, engine.device_wait) == (8, 1, "spin")
    seen = machine.run(h200_rows.Fit(1.0, 1.0), "eight_readers", "park / spin", 0)
    assert seen.worker > 0.5 > seen.receiver


def test_a_step_does_not_wait_for_a_worker_that_only_receives(h200_rows):
    machine = h200_of(h200_rows)
    config = machine.config("eight_readers", "doze 100 us / nap")
    records = simulate(config, WakeAhead(), machine.profile)
    check_laws(records, n_workers=8, n_devices=1)
    with pytest.raises(BrokenLawError, match="launched before every worker that launches saw it"):
        check_laws(records, n_workers=8)


# 11: what ways to wait change in a live vLLM.


def test_the_order_of_arms_counts_only_pairs_that_the_machine_tells_apart(live_order):
    measured = {"a": [1.0, 1.2], "b": [1.05, 1.1], "c": [2.0, 2.2], "d": [3.0, 3.0]}
    predicted = {"a": 1.0, "b": 0.9, "c": 5.0, "d": 4.0}
    found = live_order.order("tp1", "ms", measured, predicted, 0.02)
    assert (found.n_right, found.n_pairs) == (4, 5)
    assert found.wrong == (("c", "d"),)
    assert found.tau == pytest.approx(4 / 6)
    reversed_ = {arm: -value for arm, value in predicted.items()}
    assert live_order.order("tp1", "ms", measured, reversed_, 0.02).n_right == 1
    (claim,) = live_order.claims({}, [found], 1)
    assert (claim.id, claim.value, claim.holds) == ("live_vllm/tp1_ms_pairs_right", 0.8, True)


def test_a_drift_from_start_to_start_hides_no_order(live_order):
    measured = {"a": [1.0, 2.0, 3.0], "b": [1.1, 2.2, 3.3]}
    found = live_order.order("tp1", "ms", measured, {"a": 1.0, "b": 2.0}, 0.02)
    assert (found.n_right, found.n_pairs) == (1, 1)


def test_an_effect_is_counted_within_each_start(live_order):
    # The second start runs at half the speed, in both worlds.
    reference = live_order.Arm([3.0, 6.0], [0.9, 0.9], [3.3, 6.6], [1.0, 1.0])
    arm = live_order.Arm([3.6, 7.2], [0.2, 0.3], [3.63, 7.26], [0.1, 0.2])
    found = live_order.effect(arm, reference)
    assert found.measured.value == pytest.approx(1.2)
    assert found.predicted.value == pytest.approx(1.1)
    assert found.error.value == pytest.approx(1.1 / 1.2 - 1)
    assert found.error.low == pytest.approx(found.error.high)
    assert found.cores_error.value == pytest.approx(-0.1)


def test_an_error_is_claimed_at_the_end_that_is_further_from_nothing(live_order):
    reference = live_order.Arm([3.0, 3.0], [0.9, 0.9], [3.0, 3.0], [0.9, 0.9])
    arm = live_order.Arm([3.0, 3.03], [0.5, 0.5], [3.0, 3.0], [0.55, 0.55])
    found = live_order.claims({("tp1", "park"): live_order.effect(arm, reference)}, [], 0)
    by_id = {claim.id: claim for claim in found}
    error = by_id["live_vllm/effect_error/tp1-park"]
    assert error.low == 0.0  # the interval holds 0
    assert error.value == error.high > 0.03  # its mean is half a percent
    assert not error.holds
    assert by_id["live_vllm/cores_error/tp1-park"].holds


def test_predictions_are_read_as_vllm_ab_stores_them(live_order, tmp_path):
    said = [Outcome(0.003, {"scheduler": 1.0, "worker0": 1.0})]
    came = [Outcome(0.0031, {"scheduler": 0.9, "worker0": 0.95})]
    write_predictions(tmp_path, [ArmPrediction("vllm", said, came, Estimate.of([0.1, 0.2]))])
    (path,) = tmp_path.iterdir()
    assert live_order.read_arms(path) == {"vllm": live_order.Arm([3.1], [0.9], [3.0], [1.0])}


@pytest.mark.parametrize("text", [None, "{", '{"vllm": {}}', "[]"])
def test_what_is_no_prediction_is_refused_by_name(live_order, tmp_path, text):
    path = tmp_path / "cells.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"cells.json is no predictions of 'realrun vllm-ab"):
        live_order.read_arms(path)


# The command.


def test_what_cannot_be_met_ends_in_one_line(tmp_path):
    text = (EXPERIMENTS / "02_seed_cells" / "config.toml").read_text()
    config = tmp_path / "config.toml"
    config.write_text(text.replace("1960us", "1us"))
    command = [sys.executable, str(EXPERIMENTS / "run.py"), "02", "--quick"]
    command += ["--config", str(config), "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: no scale of the host's work from 0 to 40 meets 1000:")
