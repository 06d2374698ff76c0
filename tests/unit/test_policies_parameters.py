"""Parameters: what is allowed, how they are written, and that they come back as they were."""

import json

import pytest
from typer.testing import CliRunner

from realrun.spec import policy_from_json, policy_to_json
from shmsim.cli import app, describe
from shmsim.config import ConfigError, NamedPolicy, parse_config, parse_policy
from shmsim.policies import (
    POLICIES,
    PRESETS,
    SOURCES,
    Clamped,
    EmaGrace,
    GrowShrink,
    IfPreempted,
    Ladder,
    Park,
    Pas,
    SpinBudget,
    SpinThenPark,
    StepAhead,
    check_parameters,
)
from shmsim.policies.parameters import RANGES, is_learnt, parameters_of
from shmsim.policy_file import read_policy, write_policy
from shmsim.sim.compiled import random_waits
from shmsim.units import MS, US
from tests.every_policy import EVERY_POLICY

each = pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)


@each
def test_all_that_comes_along_has_parameters_in_range(policy):
    check_parameters(policy)


@pytest.mark.parametrize("kind", POLICIES.values(), ids=POLICIES)
def test_every_parameter_has_a_range_and_a_sentence(kind):
    for name in parameters_of(kind()):
        assert name == "inner" or name in RANGES
        assert name in kind.__doc__, f"{kind.__name__} does not say what {name} is"
    for name in kind._fields:
        assert is_learnt(name) == (name not in parameters_of(kind()))


@each
def test_a_policy_file_gives_the_policy_back_with_nothing_learnt(policy, tmp_path):
    state = policy
    for ctx, outcome in random_waits(50, 1):
        state = state.after(ctx, outcome)
    path = tmp_path / "policy.json"
    write_policy(path, NamedPolicy("mine", state), {})
    found = read_policy(path).policy
    assert (type(found), found) == (type(policy), policy)


@each
def test_a_worker_process_gets_the_same_policy_with_all_it_learnt(policy):
    for ctx, outcome in random_waits(50, 1):
        policy = policy.after(ctx, outcome)
    found = policy_from_json(json.loads(json.dumps(policy_to_json(policy))))

    def types(value):
        return type(value), tuple(map(types, value)) if isinstance(value, tuple) else ()

    assert found == policy
    assert types(found) == types(policy)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("StepAhead:rehearse=true,clamp=0.5", StepAhead(True, 0.5)),
        ("GrowShrink:start=10us,most=200us,shrink=0", GrowShrink(10 * US, 200 * US, 2, 0)),
        ("Pas:up=0.02,doze=true", Pas(0.02, doze=True)),
        ("Clamped:inner=step-ahead,clamp=0.1", Clamped(StepAhead(), 0.1)),
        ("SpinBudget:inner=vllm-1s,share=0.1", SpinBudget(PRESETS["vllm-1s"], 0.1)),
        ("IfPreempted:inner=Park", IfPreempted(Park())),
    ],
)
def test_parameters_are_written_on_the_command_line(text, policy):
    assert parse_policy(text).policy == policy


def test_a_wrapped_policy_is_a_table_in_a_config():
    table = {"kind": "Clamped", "inner": {"kind": "SpinThenPark", "window": "3ms"}, "clamp": 1.0}
    (found,) = parse_config({"policy": [table]}).policies
    assert found.policy == Clamped(SpinThenPark(3 * MS), 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Clamped:clamp=2.0", r"clamp must be from 1e-06 to 1.0, got 2.0"),
        ("Pas:up=0.0", r"up must be from"),
        ("EmaGrace:least=3ms,most=2ms", r"EmaGrace.most must be at least least.*3 ms; got 2 ms"),
        ("Ladder:spin=1ms", r"Ladder.yield must be at least spin, which is 1 ms; got 5.4 µs"),
        ("Clamped:inner=stepahead", r"unknown policy 'stepahead'; did you mean step-ahead"),
        ("StepAhead:learnt=1", r"unknown key policy.learnt"),
        ("GrowShrink:grow=1.5", r"grow must be a whole number"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_with_the_way_out(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_policy(text)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (SpinThenPark(-2), r"SpinThenPark.window must be from 0 ns to 86400 s, got -2 ns"),
        (Clamped(Pas(least_ns=0)), r"Pas.least must be from 1 ns"),
        (EmaGrace(most_ns=-1), r"EmaGrace.most must be from 0 ns"),
        (IfPreempted(waits=5, most_waits=4), r"IfPreempted.most_waits must be at least waits"),
        (Ladder(settled_ns=1), r"Ladder.settled must be at least yield"),
    ],
)
def test_a_value_made_in_python_can_be_checked_too(policy, message):
    with pytest.raises(ValueError, match=message):
        check_parameters(policy)


def test_the_command_lists_every_policy_and_preset():
    listed = CliRunner().invoke(app, ["policies"])
    assert listed.exit_code == 0
    words = " ".join(listed.output.split())
    for name in (*POLICIES, *PRESETS):
        assert name in words
    assert set(SOURCES) == set(POLICIES)
    assert "learnt" not in listed.output


def test_a_wrapped_policy_is_described_with_what_is_in_it():
    assert describe(Clamped(Park(), 0.5)) == "Clamped inner Park, clamp 0.5"
