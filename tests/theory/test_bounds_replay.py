"""A replay costs what the model says, and recorded waits are those of the run."""

from dataclasses import replace

import numpy as np
import pytest

from shmsim.bounds.recorded import recorded_waits
from shmsim.bounds.replay import Clairvoyant, TimerOracle, alert_cost_ns, replay
from shmsim.bounds.synthetic import PREDICTABLE, UNPREDICTABLE, assumed_profile
from shmsim.bounds.trace import trace_of
from shmsim.distribution import Curve
from shmsim.policies import (
    PRESETS,
    BusySpin,
    GraceThenPark,
    Park,
    StepAhead,
    WakeAhead,
)
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import (
    ASLEEP,
    DOZE,
    PARK,
    REHEARSE,
    SCHEDULER_RECV,
    SPIN,
    WORKER_RECV,
    Stage,
    WaitPlan,
    block_penalty_ns,
    doze_spin_park,
    only,
    then_park,
)
from shmsim.workload import Lengths, closed_loop
from tests.theory.noisy import JITTERY, noisy_profile
from tests.theory.runs import run
from tests.toy import constant, toy_profile

WORKLOAD = closed_loop(40, 3, Lengths(40, 300, 600), Lengths(8, 20, 30), Tape(5))
#: Records lack the tokens of context, which `StepAhead` alone asks for.
KNOWS_NO_CONTEXT = sorted(n for n, policy in PRESETS.items() if not isinstance(policy, StepAhead))


@pytest.mark.parametrize("name", KNOWS_NO_CONTEXT)
def test_a_replay_of_a_run_of_the_model_gives_its_delays_and_cpu_times(name):
    # A row of a wait does not hold what deciding took.
    profile = replace(noisy_profile(), policy_costs=toy_profile().policy_costs)
    records = run(PRESETS[name], WORKLOAD, profile=profile, step_time=JITTERY, seed=3)
    trace = recorded_waits(records, "scheduler", SCHEDULER_RECV)
    found = replay(PRESETS[name], trace, profile, Tape(3), entity="scheduler")
    rows = [row for row in records.waits if row.site == SCHEDULER_RECV]
    assert found.delay_ns.tolist() == [
        row.seen_ns - max(row.published_ns, row.started_ns) for row in rows
    ]
    assert found.cpu_ns.tolist() == [row.cpu_ns for row in rows]
    assert trace.n_waits == len(rows) > 100


def test_recorded_waits_carry_the_batch_that_the_waiter_knew():
    records = run(Park(), WORKLOAD, profile=noisy_profile(), step_time=JITTERY, calls=2)
    steps = records.steps
    ours = recorded_waits(records, "scheduler", SCHEDULER_RECV, 1)
    assert ours.n_prefill_tokens.tolist() == [s.n_prefill_tokens for s in steps]
    theirs = recorded_waits(records, "worker0", WORKER_RECV, 0)
    assert theirs.n_decode.tolist()[: len(steps)] == [0, *(s.n_decode for s in steps[:-1])]
    second = recorded_waits(records, "worker0", WORKER_RECV, 1)
    assert second.n_decode.tolist() == [s.n_decode for s in steps]
    with pytest.raises(ValueError, match=r"no waits of worker7 at worker_recv, call 0; they hold"):
        recorded_waits(records, "worker7", WORKER_RECV)


def test_a_trace_is_refused_that_has_no_wait_or_columns_of_two_lengths():
    with pytest.raises(ValueError, match="at least one wait"):
        trace_of([])
    with pytest.raises(ValueError, match=r"n_decode has the shape \(2,\), and gap_ns \(3,\)"):
        trace_of([1, 2, 3], [1, 2])


def test_the_cost_is_cpu_and_the_price_of_delay():
    trace = trace_of([1 * MS, 2 * MS])
    found = replay(Park(), trace, assumed_profile(), Tape(1), 7.0)
    assert found.cost_ns.tolist() == (found.cpu_ns + 7.0 * found.delay_ns).tolist()
    assert found.cpu_ns.tolist() == [12 * US] * 2


def test_policies_meet_the_same_luck():
    trace = trace_of([50 * MS] * 100)
    one, other = (
        replay(policy, trace, assumed_profile(), Tape(1)) for policy in (Park(), GraceThenPark(0))
    )
    assert one.delay_ns.tolist() == other.delay_ns.tolist()


def always(ns):
    """A cost that nothing changes."""
    return Curve("", (0.0,), (constant(ns),))


def test_a_wait_that_was_left_undecided_is_charged_what_a_policy_that_decides_nothing_takes():
    profile = assumed_profile()
    prices = {"StepAhead": 100 * US, "AtRest": 1 * US}
    priced = replace(
        profile,
        policy_costs={
            name: {"plan": always(ns), "after": always(0)} for name, ns in prices.items()
        },
    )
    trace = trace_of([5 * MS] * 40)
    assert (replay(StepAhead(), trace, priced, Tape(1)).cpu_ns >= 100 * US).all()
    resting = replay(StepAhead(learnt_looks=0.1), trace, priced, Tape(1), 1.0).cpu_ns
    numbers = Tape(1).uniform("replay", "policy")
    first_look = next(i for i in range(40) if numbers.at(i) < 0.1)
    assert first_look > 3
    assert resting[:first_look].tolist() == [13 * US] * first_look
    assert resting[first_look + 1] >= 100 * US


# Without mechanism.

B = 600_000.0


@pytest.mark.parametrize(
    ("plan", "gap_ns", "cost_ns"),
    [
        (only(SPIN), 5 * MS, 5 * MS),
        (only(PARK), 5 * MS, B),
        (then_park(SPIN, MS, 0), 5 * MS, MS + B),
        (doze_spin_park(2 * MS, 3 * MS), 1 * MS, B),
        (doze_spin_park(2 * MS, 3 * MS), 2.5 * MS, MS / 2),
        (doze_spin_park(2 * MS, 3 * MS), 4 * MS, MS + B),
        (doze_spin_park(2 * MS, 3 * MS), -1, 0),
        (
            WaitPlan(
                Stage(DOZE, MS, 0), Stage(REHEARSE, MS, 0), Stage(SPIN, FOREVER_NS, 0), ASLEEP
            ),
            3 * MS,
            2 * MS,
        ),
    ],
)
def test_a_plan_without_mechanism_costs_what_is_spun_or_the_penalty(plan, gap_ns, cost_ns):
    assert alert_cost_ns(plan, int(gap_ns), B) == cost_ns
    is_met_awake = gap_ns > 0 and cost_ns not in (B, MS + B)
    assert alert_cost_ns(plan, int(gap_ns), B, 9.0) == cost_ns + 9.0 * is_met_awake


# Oracles.


@pytest.mark.parametrize("make", [*PREDICTABLE.values(), *UNPREDICTABLE.values()])
def test_no_policy_beats_the_oracle_that_may_use_what_it_uses(make):
    trace = make(Tape(1), 600) if make.__name__ != "<lambda>" else make(Tape(1))
    profile = assumed_profile()
    clairvoyant = replay(Clairvoyant(), trace, profile, Tape(2)).alert_ns
    for policy in (BusySpin(), Park(), PRESETS["competitive"], PRESETS["karlin"]):
        assert (replay(policy, trace, profile, Tape(2)).alert_ns >= clairvoyant).all()
    penalty = block_penalty_ns(profile.wait_costs(10.0))
    assert clairvoyant.tolist() == np.minimum(trace.gap_ns, penalty).tolist()


def test_the_timer_oracle_beats_the_other_one_on_steps_and_learning_ones_do_not_beat_it():
    trace = PREDICTABLE["A decode"](Tape(1))
    cost = {
        type(policy).__name__: replay(policy, trace, assumed_profile(), Tape(2)).cost_ns.mean()
        for policy in (TimerOracle(), Clairvoyant(), WakeAhead(), StepAhead())
    }
    assert cost["TimerOracle"] < 0.2 * cost["Clairvoyant"]
    assert cost["TimerOracle"] < min(cost["WakeAhead"], cost["StepAhead"])
