"""The way to observe a GPU's ends of steps is in every figure of the model, and in all the same."""

from dataclasses import replace
from itertools import pairwise

import pytest

from realrun.validate import on_this_box
from realrun.validate import predict as predict_run
from shmsim.config import parse_policy
from shmsim.figures import figures_of
from shmsim.metrics import summarize
from shmsim.sim.engine import simulate_with
from shmsim.sim.recurrence import run_many
from shmsim.sim.sweep import sweep
from shmsim.sim.tune import QUICK, tune
from shmsim.sweep.plan import plan_of
from shmsim.tuner import parse_goal
from shmsim.wait import DEVICE_DONE
from tests.theory.noisy import noisy_profile
from tests.toy import toy_profile
from tests.ways import LATE_NS, LAUNCH_NS, STEP_NS, observed, with_ways

SPIN = parse_policy("spin")
WAYS = ("write", "blocking")
GPU = with_ways(toy_profile())


def seen_every_ns(records):
    """Time from step to step as the scheduler sees it, the first, with the prompts, left out."""
    seen_ns = [step.seen_ns for step in records.steps[1:]]
    return {b - a for a, b in pairwise(seen_ns)}


def test_steps_are_longer_by_how_much_later_their_ends_are_seen():
    every_ns = {}
    for way in WAYS:
        records = simulate_with(observed(way), SPIN.policy, GPU, engine="simpy")
        (every_ns[way],) = seen_every_ns(records)
        waits = [wait for wait in records.waits if wait.site == DEVICE_DONE]
        assert {wait.seen_ns - wait.published_ns for wait in waits} == {LATE_NS[way]}
        assert every_ns[way] > STEP_NS + LAUNCH_NS + LATE_NS[way]
    assert every_ns["blocking"] - every_ns["write"] == LATE_NS["blocking"] - LATE_NS["write"]


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_all_engines_give_the_same_records(way, scheduling):
    config = observed(way)
    config = replace(config, engine=replace(config.engine, scheduling=scheduling))
    profile = with_ways(noisy_profile())
    expected = simulate_with(config, SPIN.policy, profile, engine="simpy")
    for engine in ("events", "recurrence"):
        found = simulate_with(config, SPIN.policy, profile, engine=engine)
        found.meta.pop("engine", None)
        assert found == expected, engine
    (many,) = run_many(config, [SPIN.policy], profile)
    assert repr(many) == repr(summarize(expected))


@pytest.fixture(scope="module")
def predicted():
    """What `realrun validate` expects, by way."""
    profile = with_ways(noisy_profile())
    return {way: predict_run(observed(way), SPIN.policy, profile, 0) for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
def test_simulate_and_sweep_say_what_validate_predicts(way, predicted):
    config, profile = on_this_box(observed(way)), with_ways(noisy_profile())
    assert simulate_with(config, SPIN.policy, profile) == predicted[way]
    (row,) = sweep(plan_of(config, [SPIN], profile, replications=1), jobs=1).to_pylist()
    expected = figures_of(summarize(predicted[way]))
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=0, nan_ok=True)


def test_tune_goes_by_what_validate_predicts(predicted):
    profile = with_ways(noisy_profile())
    budget = QUICK._replace(factors=(), finalists=1, least=3, most=3, held_out=2, profiles=1)
    found = {}
    for way in WAYS:
        config = on_this_box(replace(observed(way), policies=(SPIN,)))
        tuned = tune(config, profile, parse_goal("then tpot-mean"), budget=budget, jobs=1)
        (default,) = (s for s in tuned.searched if s.candidate.name == tuned.default)
        expected = figures_of(summarize(predicted[way]))
        known = {name: expected[name] for name in default.figures.keys() & expected.keys()}
        found[way] = {name: default.figures[name] for name in known}
        assert found[way] == pytest.approx(known, rel=1e-12, nan_ok=True)
        assert tuned.sensitivity.n_costs < len(profile.costs), "the ways not asked for play no part"
    more_ns = found["blocking"]["tpot_p50_ns"] - found["write"]["tpot_p50_ns"]
    assert more_ns == pytest.approx(LATE_NS["blocking"] - LATE_NS["write"], rel=0.1)
