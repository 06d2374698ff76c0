"""Experiments 04 and 05, on short made-up traces: what they change, replay and report."""

import tomllib

import numpy as np
import pytest

from shmsim.bounds.synthetic import level_shifts, steady_decode
from shmsim.policies import PRESETS, StepAhead
from shmsim.profile import MachineProfile
from shmsim.tape import Tape
from shmsim.units import MS, US
from shmsim.wait import DOZE, NAP, SPIN
from tests.scripts import EXPERIMENTS, imported
from tests.unit.waits import after_waits, context, outcome

PROFILE = MachineProfile.shipped("vm-2cpu")


@pytest.fixture
def distance():
    folders = [EXPERIMENTS, EXPERIMENTS / "04_distance_to_bound"]
    with imported(folders, "distances", "recording", "run") as modules:
        yield modules


@pytest.fixture
def ablations():
    folders = [EXPERIMENTS, EXPERIMENTS / "05_stepahead_ablations"]
    with imported(folders, "ablated", "arms", "replays", "run") as modules:
        yield modules


def plan_of(folder):
    return tomllib.loads((EXPERIMENTS / folder / "config.toml").read_text())


def silent(label, share):
    assert 0 <= share <= 1, label


def steady(n=200, seed=1):
    rng = np.random.default_rng(seed)
    return (2 * MS * (1 + 0.02 * rng.standard_normal(n))).astype(int).tolist()


def results_of(module, plan, content):
    worlds = {cell.name: cell.world for cell in module.EXPERIMENT.cells(plan)}
    return module.Results(plan, content, {}, worlds)


# 04


def test_every_policy_is_replayed_at_every_price_and_the_bounds_are_in_order(distance):
    found = distance["distances"].distances(
        steady_decode(Tape(1), 120), PROFILE, [10.0, 100.0], 1, silent
    )
    assert set(found["policies"]) == set(PRESETS)
    for price in ("10", "100"):
        bounds = found["bounds"][price]
        assert bounds["L0_ns"] < bounds["L2_ns"] < min(bounds["spin_ns"], bounds["park_ns"])
        spin = found["policies"]["spin"][price]
        assert spin["cost_ns"][0] == pytest.approx(bounds["spin_ns"], abs=1)
        assert spin["cpu_share"] == pytest.approx(1, abs=0.02)
    assert found["waits"]["n"] == 120
    assert found["waits"]["residual_share"] == pytest.approx(0.03, rel=0.3)


def test_its_report_claims_what_the_replays_said(distance, tmp_path):
    run = distance["run"]
    plan = {**plan_of("04_distance_to_bound"), "prices": [10.0]}
    trace = distance["distances"].distances(
        steady_decode(Tape(1), 200), PROFILE, plan["prices"], 1, silent
    )
    content = {"costs": {}, "sync_2ms": {"sync_2ms": trace}}
    found = run.EXPERIMENT.report(results_of(run, plan, content), tmp_path)
    claims = {claim.id: claim for claim in found.claims}
    ours = trace["policies"]["step-ahead"]["10"]
    assert claims["distance/gap_closed/sync_2ms/r10"].value == ours["gap_closed"][0]
    assert claims["distance/worst_vs_park"].value == pytest.approx(
        ours["cost_ns"][0] / trace["bounds"]["10"]["park_ns"] - 1
    )
    assert found.summary["sync_2ms"]["10"]["best_other"] in PRESETS


def test_recordings_are_configs_and_a_quick_plan_asks_the_same_in_little(distance):
    plan = plan_of("04_distance_to_bound")
    quick = distance["run"].quick(plan)
    assert set(quick["record"]) == set(plan["record"])
    for name in plan["record"]:
        config, short = (distance["recording"].config_of(p, name) for p in (plan, quick))
        assert short.device == config.device
        assert short.engine == config.engine


# 05


def test_a_deaf_policy_naps_where_the_whole_one_dozes(ablations):
    whole = after_waits(StepAhead(), *steady())
    deaf = after_waits(ablations["ablated"].Deaf(), *steady())
    assert deaf.inner == whole
    assert deaf.plan(context()).first.kind == NAP
    assert whole.plan(context()).first.kind == DOZE
    assert deaf.plan(context())[1:] == whole.plan(context())[1:]
    assert ablations["ablated"].Deaf().plan(context()).first.kind == SPIN


def test_without_features_all_batches_are_alike(ablations):
    policy = after_waits(ablations["ablated"].NoFeatures(), *steady(), n_prefill_tokens=700)
    assert policy.plan(context()) == policy.plan(context(n_prefill_tokens=2000, n_decode=60))


def test_without_the_flag_an_arrival_is_planned_and_learnt_like_a_step(ablations):
    policy = after_waits(ablations["ablated"].NoPendingFlag(), *steady())
    assert policy.plan(context(pending=False)) == policy.plan(context())
    later = policy.after(context(pending=False), outcome(2 * MS))
    assert later == policy.after(context(), outcome(2 * MS))


@pytest.mark.parametrize("of", ["SelfMeasured", "Deaf"])
def test_without_stamps_what_counts_is_when_the_event_was_seen(ablations, of):
    make = getattr(ablations["ablated"], of)
    blind = make(stamped=False) if of == "Deaf" else make()
    for wait_ns in steady():
        blind = blind.after(context(), outcome(wait_ns - 70 * US, wait_ns))
    assert blind.inner == after_waits(StepAhead(), *steady())


def test_every_arm_of_the_plan_is_known_and_charged_what_the_whole_policy_takes(ablations):
    plan = plan_of("05_stepahead_ablations")
    arms = ablations["arms"].ARMS
    named = {arm for names in plan["replay"].values() for arm in names}
    named |= {arm for run in plan["runs"].values() for arm in run["arms"]}
    assert named <= set(arms)
    charged = ablations["arms"].charged_alike(PROFILE)
    assert charged.costs_of_policy("Deaf") == PROFILE.costs_of_policy("StepAhead")
    assert charged.costs_of_policy("Park") == PROFILE.costs_of_policy("Park")


def test_an_announced_trace_tells_the_kind_of_step_and_keeps_the_gaps(ablations):
    trace = level_shifts(Tape(1), 300)
    levels = [int(1.5 * MS), int(0.9 * MS), int(2.5 * MS)]
    told = ablations["replays"].announced(trace, levels)
    assert told.gap_ns is trace.gap_ns
    kinds = told.n_kv_tokens * 64
    assert np.abs(kinds / trace.gap_ns - 1).max() < 0.2
    assert len(set(kinds.tolist())) == 3


def test_arms_are_held_against_the_whole_policy_on_the_same_luck(ablations):
    plan = {**plan_of("05_stepahead_ablations"), "waits": 150, "prices": [10.0]}
    found = ablations["replays"].ablation("A decode", plan, silent)["10"]
    assert found["step-ahead"]["ratio"] == [1.0, 1.0, 1.0]
    assert found["no clamp"]["ratio"][0] == pytest.approx(1.0, abs=0.05)
    assert set(found) == {"step-ahead", *plan["replay"]["A decode"]}


def test_its_report_holds_turns_against_the_whole_policy(ablations, tmp_path):
    run = ablations["run"]
    plan = run.quick(plan_of("05_stepahead_ablations"))
    figures = dict.fromkeys(("itl_p99_ns", "delay_p50_ns", "delay_p99_ns"), 1000.0)
    turns = [
        {
            arm: {**figures, "tpot_ns": (2 * MS + turn) * (0.99 if arm == "rehearsal" else 1.0),
                  "cores": 0.2 + (arm == "spin")}
            for arm in plan["runs"]["decode"]["arms"]
        }
        for turn in range(2)
    ]  # fmt: skip
    content = {f"machine/decode/{turn}": row for turn, row in enumerate(turns)}
    content["model/decode"] = {"turns": turns}
    found = run.EXPERIMENT.report(results_of(run, plan, content), tmp_path)
    (claim,) = [c for c in found.claims if c.id == "ablations/rehearsal/decode/tpot"]
    assert claim.value == pytest.approx(0.99)
    assert claim.holds
    assert found.summary["decode"]["machine"]["spin"]["cores_more"][0] == pytest.approx(1.0)
