import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.units import FOREVER_NS, US
from shmsim.wait import (
    ASLEEP,
    DOZE,
    NAP,
    PARK,
    POLL,
    SPIN,
    YIELD,
    Stage,
    WaitCosts,
    WaitPlan,
    block_penalty_ns,
    check_plan,
    doze_spin_park,
    only,
    then_park,
)

KINDS = st.sampled_from([SPIN, YIELD, NAP, DOZE, POLL, PARK])


@given(st.lists(st.tuples(KINDS, st.integers(0, 10**12)), max_size=3))
def test_stages_in_order_with_an_unbounded_end_are_a_plan(parts):
    ends = sorted(until_ns for _, until_ns in parts)
    stages = [Stage(kind, end, kind == POLL) for (kind, _), end in zip(parts, ends, strict=True)]
    check_plan(WaitPlan(*[*stages, ASLEEP, ASLEEP, ASLEEP, ASLEEP][:4]))


@pytest.mark.parametrize("kind", [SPIN, YIELD, DOZE, PARK])
def test_one_way_of_waiting_is_a_plan(kind):
    check_plan(only(kind))


@given(st.sampled_from([SPIN, YIELD, NAP, DOZE]), st.integers(0, 10**12), st.integers(0, 10**12))
def test_the_ready_made_plans_are_plans(kind, until_ns, longer_ns):
    check_plan(then_park(kind, until_ns, longer_ns))
    check_plan(doze_spin_park(until_ns, until_ns + longer_ns))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            WaitPlan(Stage(SPIN, 50 * US, 0), Stage(DOZE, 20 * US, 0), ASLEEP, ASLEEP),
            "stage 1 (doze) ends at 20000 ns (20 µs), before it begins at 50000 ns (50 µs)",
        ),
        (then_park(SPIN, -1, 0), "stage 0 (spin) ends at -1 ns (-1 ns), before it begins at 0 ns"),
        (only(9), "stage 0 has the unknown kind 9; known are 0 (spin), 1 (yield)"),
        (only(-1), "stage 0 has the unknown kind -1"),
        (only(POLL), "stage 0 (poll).period_ns must be at least 1 ns, got 0"),
        (then_park(SPIN, 5, -7), "stage 1 (park).period_ns must be at least 0 ns, got -7"),
        (only(NAP), "stage 0 is a nap without end, which nothing can cut short"),
        (
            WaitPlan(*[Stage(SPIN, 2_000, 0)] * 4),
            "the plan ends after 2 µs; its last stage must last for ever, so that no event is "
            "missed: give it until_ns=FOREVER_NS",
        ),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_with_the_way_out(plan, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_plan(plan)


def test_stages_behind_an_unbounded_one_may_be_anything():
    check_plan(WaitPlan(Stage(SPIN, FOREVER_NS, 0), Stage(9, -1, -1), ASLEEP, ASLEEP))


def test_the_block_penalty_is_price_times_wake_up_plus_cpu():
    assert block_penalty_ns(WaitCosts(60 * US, 15 * US, 0, 0, 0, 2.5)) == 165 * US
    assert block_penalty_ns(WaitCosts(60 * US, 15 * US, 0, 0, 0, 0.0)) == 15 * US
