"""Laws of one wait carried out in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.profile import Curve, Distribution
from shmsim.sim.draws import Draws
from shmsim.sim.waiter import DOZED, PARKED, SPUN, VirtualWait
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import (
    ASLEEP,
    DOZE,
    NAP,
    PARK,
    POLL,
    SPIN,
    YIELD,
    Stage,
    WaitPlan,
    check_plan,
    doze_spin_park,
    only,
    then_park,
)
from tests.toy import TOY_COSTS_NS, toy_profile

WAKE_NS, OVERSHOOT_NS = TOY_COSTS_NS["wake_latency"], TOY_COSTS_NS["timer_overshoot"]
PARK_CPU_NS, DOZE_CPU_NS = TOY_COSTS_NS["park_cpu"], TOY_COSTS_NS["doze_cpu"]
DETECTION = {"spin_detection": 1 * US, "yield_detection": 2 * US}

INSTANTS = st.integers(-MS, 20 * MS)


def draws(profile):
    return Draws(profile, Tape(1), "worker0")


TOY = draws(toy_profile())
DETECTED = draws(toy_profile(**DETECTION))


def waiting(plan, costs=TOY, index=0):
    check_plan(plan)
    return VirtualWait(plan, costs, index)


@st.composite
def plans(draw):
    kinds = draw(st.lists(st.sampled_from([SPIN, YIELD, NAP, DOZE, POLL, PARK]), max_size=3))
    ends = sorted(draw(st.integers(0, 10 * MS)) for _ in kinds)
    stages = [Stage(k, end, 300 * US * (k == POLL)) for k, end in zip(kinds, ends, strict=True)]
    last = draw(st.sampled_from([SPIN, YIELD, DOZE, POLL, PARK]))
    stages.append(Stage(last, FOREVER_NS, 700 * US * (last == POLL)))
    return WaitPlan(*[*stages, ASLEEP, ASLEEP, ASLEEP][:4])


def noisy_profile():
    """The toy profile with costs that vary and depend on the time asleep."""
    profile = toy_profile(**DETECTION)
    for name in ("wake_latency", "timer_overshoot", "park_cpu", "doze_cpu"):
        low, high = (
            Distribution.of([[scale * TOY_COSTS_NS[name] * share for share in (0.5, 1.0, 3.0)]])
            for scale in (1, 2)
        )
        profile.costs[name] = Curve("asleep_ns", (1e5, 1e7), (low, high))
    return profile


NOISY = draws(noisy_profile())


@given(plans(), INSTANTS, st.integers(0, 50))
def test_nothing_is_seen_before_it_is_published_or_the_wait_begins(plan, published_ns, index):
    seen = waiting(plan, NOISY, index).see(published_ns)
    assert seen.seen_after_ns >= max(published_ns, 0)


@given(plans(), st.integers(-MS, 0))
def test_what_is_published_already_is_seen_at_once_whatever_the_plan(plan, published_ns):
    seen = waiting(plan, NOISY).see(published_ns)
    assert seen.seen_after_ns == 0
    assert seen.stage == 0
    assert seen.cpu_ns == (0, 0, 0, 0)
    assert not seen.belled
    assert (seen.resumed_from, seen.rested_ns) == (SPUN, 0)
    assert waiting(plan).armed_for(published_ns) is None


@given(plans(), INSTANTS, st.integers(0, 50))
def test_only_an_armed_waiter_is_belled_and_an_armed_one_unless_its_timer_was_first(
    plan, published_ns, index
):
    wait = waiting(plan, NOISY, index)
    seen, armed = wait.see(published_ns), wait.armed_for(published_ns) is not None
    if seen.belled:
        assert armed
    if armed and not seen.belled:
        # Its timer had ended, and it was on its way back.
        stage = plan[seen.stage]
        assert stage.kind in (DOZE, PARK)
        assert stage.until_ns < published_ns <= stage.until_ns + seen.overshoot_ns
        assert seen.seen_after_ns == stage.until_ns + seen.overshoot_ns


@given(plans(), INSTANTS, st.integers(0, 50))
def test_cpu_time_is_spent_up_to_the_stage_that_saw_it_and_never_exceeds_what_passed(
    plan, published_ns, index
):
    seen = waiting(plan, NOISY, index).see(published_ns)
    assert min(seen.cpu_ns) >= 0
    assert not any(seen.cpu_ns[seen.stage + 1 :])
    for stage, cpu_ns in zip(plan, seen.cpu_ns, strict=True):
        if stage.kind in (SPIN, YIELD):
            assert cpu_ns <= seen.seen_after_ns


@given(plans(), INSTANTS)
def test_the_same_luck_gives_the_same_wait(plan, published_ns):
    one, other = waiting(plan, NOISY, 7), waiting(plan, draws(noisy_profile()), 7)
    one.see(published_ns + 5)  # what one asked before does not matter
    one.armed_for(published_ns)
    assert one.see(published_ns) == other.see(published_ns)


@given(plans(), INSTANTS, st.integers(0, 2 * MS), st.integers(0, 50))
def test_a_ring_that_comes_late_delays_who_sleeps_until_it_or_until_a_timer_before(
    plan, published_ns, late_ns, index
):
    at_once = waiting(plan, NOISY, index).see(published_ns)
    later = waiting(plan, NOISY, index).see(published_ns, late_ns)
    if not at_once.belled:
        assert later == at_once
    elif later.belled:
        seen_ns = at_once.seen_after_ns + late_ns
        assert later == at_once._replace(seen_after_ns=seen_ns, late_ns=late_ns)
    else:
        assert later.stage == at_once.stage
        until_ns = plan[later.stage].until_ns
        assert published_ns <= until_ns < published_ns + late_ns
        assert later.seen_after_ns == until_ns + later.overshoot_ns


@given(st.integers(1, 10 * MS), st.integers(0, MS))
def test_who_looks_by_itself_need_not_wait_for_a_late_ring(published_ns, late_ns):
    plan = WaitPlan(Stage(PARK, FOREVER_NS, 300 * US), ASLEEP, ASLEEP, ASLEEP)
    at_once, later = (waiting(plan).see(published_ns, late) for late in (0, late_ns))
    next_look_ns = -(-published_ns // (300 * US)) * 300 * US
    reached_ns = min(published_ns + late_ns, next_look_ns)
    assert later.seen_after_ns == reached_ns + WAKE_NS
    assert (later.cpu_ns, later.rested_ns) == (at_once.cpu_ns, at_once.rested_ns)


# Each kind of stage.


@pytest.mark.parametrize(("kind", "late_ns"), [(SPIN, 1 * US), (YIELD, 2 * US)])
@given(published_ns=st.integers(1, 10 * MS))
def test_a_looker_sees_it_after_its_detection_time_and_is_on_the_cpu_throughout(
    kind, late_ns, published_ns
):
    seen = waiting(only(kind), DETECTED).see(published_ns)
    assert seen.seen_after_ns == published_ns + late_ns
    assert seen.cpu_ns.first == seen.seen_after_ns
    assert (seen.resumed_from, seen.rested_ns, seen.belled) == (SPUN, published_ns, False)


@given(st.integers(1, 10 * MS))
def test_a_parked_waiter_is_belled_and_wakes_after_its_latency(published_ns):
    seen = waiting(only(PARK)).see(published_ns)
    assert seen.seen_after_ns == published_ns + WAKE_NS
    assert sum(seen.cpu_ns) == PARK_CPU_NS
    assert (seen.resumed_from, seen.rested_ns, seen.belled) == (PARKED, published_ns, True)


@given(st.integers(1, 10 * MS))
def test_rechecks_of_a_parked_waiter_cost_a_doze_each(published_ns):
    plan = then_park(SPIN, 0, 1 * MS)
    seen = waiting(plan).see(published_ns)
    assert seen.seen_after_ns == published_ns + WAKE_NS
    assert seen.cpu_ns.second == PARK_CPU_NS + published_ns // MS * DOZE_CPU_NS


@given(st.integers(1, 1 * MS))
def test_a_napper_is_deaf_until_its_timer_ends(published_ns):
    plan = then_park(NAP, 1 * MS, 0)
    seen = waiting(plan).see(published_ns)
    assert seen.seen_after_ns == 1 * MS + OVERSHOOT_NS
    assert (seen.stage, seen.belled, seen.overshoot_ns) == (0, False, OVERSHOOT_NS)
    assert sum(seen.cpu_ns) == DOZE_CPU_NS
    assert waiting(plan).armed_for(published_ns) is None


@given(st.integers(1, 1 * MS))
def test_a_dozer_hears_the_bell(published_ns):
    plan = then_park(DOZE, 1 * MS, 0)
    seen = waiting(plan).see(published_ns)
    assert seen.seen_after_ns == published_ns + WAKE_NS
    assert (seen.stage, seen.belled, seen.overshoot_ns) == (0, True, 0)
    assert waiting(plan).armed_for(published_ns) is not None


@pytest.mark.parametrize("kind", [NAP, DOZE])
@given(published_ns=st.integers(1 * MS + OVERSHOOT_NS + 1, 10 * MS))
def test_past_its_timer_a_sleeper_goes_on_to_the_next_stage(kind, published_ns):
    seen = waiting(then_park(kind, 1 * MS, 0)).see(published_ns)
    assert (seen.stage, seen.belled, seen.overshoot_ns) == (1, True, OVERSHOOT_NS)
    assert seen.seen_after_ns == published_ns + WAKE_NS
    assert seen.rested_ns == published_ns - 1 * MS - OVERSHOOT_NS
    assert seen.cpu_ns == (DOZE_CPU_NS, PARK_CPU_NS, 0, 0)


@given(st.integers(1, 10 * MS))
def test_a_poller_sees_it_at_its_next_look_and_pays_a_sleep_for_each(published_ns):
    period_ns = 300 * US
    plan = WaitPlan(Stage(POLL, FOREVER_NS, period_ns), ASLEEP, ASLEEP, ASLEEP)
    seen = waiting(plan).see(published_ns)
    between_ns = period_ns + OVERSHOOT_NS
    assert seen.seen_after_ns % between_ns == 0
    assert 0 <= seen.seen_after_ns - published_ns < between_ns
    assert seen.cpu_ns.first == seen.seen_after_ns // between_ns * DOZE_CPU_NS
    assert waiting(plan).armed_for(published_ns) is None


def test_a_poller_that_oversleeps_its_stage_is_not_yet_armed():
    # Looks at 330, 660, 990 and 1320 µs; the stage ends at 1 ms, in the middle of a sleep.
    plan = WaitPlan(Stage(POLL, 1 * MS, 300 * US), ASLEEP, ASLEEP, ASLEEP)
    assert waiting(plan).see(1100 * US).seen_after_ns == 1320 * US
    assert waiting(plan).armed_for(1100 * US) is None
    assert waiting(plan).armed_for(1321 * US) is not None
    assert waiting(plan).see(1321 * US).belled


@given(st.integers(1 * MS + OVERSHOOT_NS + 1, 3 * MS))
def test_after_a_doze_a_short_spin_meets_the_event_awake(published_ns):
    seen = waiting(doze_spin_park(1 * MS, 3 * MS), DETECTED).see(published_ns)
    assert seen.seen_after_ns == published_ns + 1 * US
    assert (seen.stage, seen.belled) == (1, False)
    assert seen.cpu_ns == (DOZE_CPU_NS, seen.seen_after_ns - 1 * MS - OVERSHOOT_NS, 0, 0)
    assert (seen.resumed_from, seen.rested_ns) == (DOZED, 1 * MS)


@given(plans(), st.integers(1, 20 * MS))
def test_a_stage_of_no_length_changes_nothing_but_its_place(plan, published_ns):
    shifted = WaitPlan(Stage(SPIN, 0, 0), *plan[:3])
    if plan[2].until_ns < FOREVER_NS:
        return  # the last stage would be cut off
    one, other = waiting(plan).see(published_ns), waiting(shifted).see(published_ns)
    assert other._replace(stage=other.stage - 1, cpu_ns=one.cpu_ns) == one
    assert other.cpu_ns == (0, *one.cpu_ns[:3])
