"""A policy gives the same bits in CPython and compiled by numba."""

from collections import Counter

import pytest

from shmsim.policies import (
    POLICIES,
    BusySpin,
    Clamped,
    EmaGrace,
    GraceThenPark,
    GraceThenPoll,
    GrowShrink,
    HazardBayes,
    HybridFraction,
    Ladder,
    Park,
    Pas,
    PlanHedge,
    QuantileDoze,
    SpinThenPark,
    StepAhead,
    WakeAhead,
)
from shmsim.sim.compiled import check_policy, compile_policy, random_waits
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import KIND_NAMES, SITE_NAMES
from tests.every_policy import EVERY_POLICY

OTHER_SETTINGS = [
    SpinThenPark(0),
    SpinThenPark(FOREVER_NS),
    GraceThenPark(0, 0),
    GraceThenPark(37 * US, 1),
    GraceThenPoll(0, 1),
    WakeAhead(0, 1.0),
    WakeAhead(250 * US, 0.013, mean_wait_ns=1.5e6),
    WakeAhead(80 * US, 0.5, rehearse=True),
    WakeAhead(60 * S),
    Ladder(0, 0, 1, 0, 0),
    GrowShrink(1, 0, 1000, 1),
    EmaGrace(1e-6, 1, 1),
    HybridFraction(1.0, 1, self_measured=True),
    Pas(0.999, 0.999, 1, doze=True),
    QuantileDoze(1.0, deaf=True),
    PlanHedge(1.0, 1.0),
    HazardBayes(by_class=False, clamp=1e-6),
    StepAhead(rehearse=True, clamp=1.0),
]


def from_cell(body: str):
    """A policy class as a notebook makes it: everything in one namespace without a module."""
    names: dict = {"__name__": "__main__"}
    cell = (
        "import math\n"
        "from typing import NamedTuple\n"
        "import shmsim.wait as wait\n"
        "from shmsim.wait import *\n" + body
    )
    exec(compile(cell, "<cell>", "exec"), names)
    return names["Mine"]


GOOD_CELL = """
LIMIT_NS = 40_000

def clipped(x, most=LIMIT_NS):
    return x if x < most else most

def longest(a, b):
    best = 0
    for x in (a, b):
        if x > best:
            best = x
    return best

def limited(scale):
    def limit(x):
        return clipped(int(x * scale))
    return limit

class Mine(NamedTuple):
    n: int = 0
    mean_ns: float = 0.0
    spun: bool = False
    last_ns: tuple[float, float] = (0.0, 0.0)

    def plan(self, ctx):
        if self.spun:
            return wait.then_park(wait.SPIN, longest(clipped(self.n), half(self.mean_ns)), 0)
        return wait.doze_spin_park(half(self.mean_ns), 2 * LIMIT_NS)

    def after(self, ctx, outcome):
        root = math.sqrt(float(outcome.seen_after_ns)) + math.log1p(self.mean_ns)
        mean_ns = self.mean_ns + 0.1 * (root * ctx.uniform - self.mean_ns)
        last_ns = (self.last_ns[1], root)
        return Mine(self.n + 1, mean_ns, not self.spun and ctx.pending, last_ns)

half = limited(0.5)
"""

SPIN_ONLY = "    def plan(self, ctx):\n        return only(SPIN)\n"
UNCHANGED = "    def after(self, ctx, outcome):\n        return self\n"


@pytest.mark.slow
@pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)
def test_a_policy_gives_the_same_bits_compiled(policy):
    check_policy(policy, 30_000)


@pytest.mark.slow
@pytest.mark.parametrize("policy", OTHER_SETTINGS, ids=repr)
def test_a_policy_gives_the_same_bits_compiled_in_any_setting(policy):
    check_policy(policy, 30_000, seed=2)


def test_every_policy_is_checked():
    assert {type(p) for p in EVERY_POLICY.values()} == set(POLICIES.values())


def test_a_policy_in_a_wrapper_is_compiled_with_it_whatever_it_is():
    for inner in (Park(), StepAhead(), Clamped(BusySpin())):
        check_policy(Clamped(inner, 0.5), 500)


def test_a_wrapper_needs_a_value_for_nobody_knows_what_is_in_it_by_its_class():
    with pytest.raises(TypeError, match=r"Clamped.inner can be any policy; .*Clamped\(Park\(\)\)"):
        compile_policy(Clamped)
    with pytest.raises(TypeError, match=r"Clamped.inner can be any policy"):
        compile_policy(Clamped(3))


def test_a_policy_from_a_notebook_cell_passes_with_its_helpers_closures_and_constants():
    check_policy(from_cell(GOOD_CELL)(), 20_000)


def test_running_a_cell_again_with_another_constant_compiles_the_new_one():
    ctx = next(random_waits(1, 1))[0]
    for limit_ns in (40_000, 70_000):
        policy = from_cell(GOOD_CELL.replace("40_000", str(limit_ns)))(0, 1e9)
        plan = compile_policy(type(policy)).plan(policy, ctx)
        assert plan.first.until_ns == limit_ns


def test_a_class_already_compiled_is_not_compiled_again():
    assert compile_policy(WakeAhead) == compile_policy(WakeAhead)


def test_a_policy_without_fields_compiles_to_a_function_of_an_empty_value():
    ctx, outcome = next(random_waits(1, 1))
    plan, after = compile_policy(BusySpin)
    assert plan(BusySpin(), ctx) == BusySpin().plan(ctx)
    assert after(BusySpin(), ctx, outcome) == BusySpin()
    assert type(after(BusySpin(), ctx, outcome)) is BusySpin


# What leaves the subset is refused before the first wait.

REFUSED = {
    "fields are int, float or bool": (
        "class Mine(NamedTuple):\n    seen: list = []\n" + SPIN_ONLY + UNCHANGED,
        r"Mine\.seen has the type list.*tuple\[float, float\]",
    ),
    "a NamedTuple": (
        "class Mine:\n" + SPIN_ONLY + UNCHANGED,
        r"Mine is no NamedTuple.*class Mine\(NamedTuple\)",
    ),
    "no _replace": (
        "class Mine(NamedTuple):\n    n: int = 0\n"
        + SPIN_ONLY
        + "    def after(self, ctx, outcome):\n        return self._replace(n=1)\n",
        r"Mine\.after does not compile: Unknown attribute '_replace'.*write the whole value",
    ),
    "no with": (
        "class Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n        with open('x') as file:\n            return file\n"
        + UNCHANGED,
        r"Mine\.plan does not compile: .*context manager",
    ),
    "no clock": (
        "import time\nclass Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n        return then_park(SPIN, time.monotonic_ns(), 0)\n"
        + UNCHANGED,
        r"Mine\.plan does not compile: .*monotonic_ns",
    ),
    "no recursion": (
        "def down(n):\n    return n if n < 1 else down(n - 1)\n"
        "class Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n        return then_park(SPIN, down(3), 0)\n" + UNCHANGED,
        r"Mine\.plan does not compile: down calls itself; write a loop",
    ),
    "ints in a plan": (
        "class Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n        return then_park(SPIN, 0.5 * self.n, 0)\n" + UNCHANGED,
        r"Mine\.plan must return WaitPlan\(.*float64.*int\(\) or float\(\)",
    ),
    "one type on both branches": (
        "class Mine(NamedTuple):\n    x: float = 0.0\n"
        + SPIN_ONLY
        + "    def after(self, ctx, outcome):\n"
        "        return Mine(1) if ctx.pending else Mine(0.5)\n",
        r"Mine\.after does not compile: .*[Uu]nify.*float64",
    ),
    "a plan on every branch": (
        "class Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n        if ctx.pending:\n            return only(SPIN)\n"
        + UNCHANGED,
        r"Mine\.plan must return WaitPlan",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
def test_a_policy_outside_the_subset_is_refused_with_reason_and_way_out(body, message):
    with pytest.raises(TypeError, match=f"(?s){message}"):
        compile_policy(from_cell(body))


def test_a_parameter_of_another_type_than_annotated_is_refused():
    with pytest.raises(TypeError, match=r"WakeAhead\.smoothing must be of the type float, got 1"):
        check_policy(WakeAhead(100 * US, 1))


# What compiles but means something else compiled is caught at the first wait that shows it.

DEVIANTS = {
    "an int on one branch and a float on the other": (
        "class Mine(NamedTuple):\n    n: int = 0\n    x: float = 0.5\n"
        + SPIN_ONLY
        + "    def after(self, ctx, outcome):\n        x = 0.5\n        if self.n == 17:\n"
        "            x = 0\n        return Mine(self.n + 1, x)\n",
        r"Mine\.after gives another .*first at wait 17:.*"
        r"CPython  Mine\(n=18, x=0\).*compiled Mine\(n=18, x=0\.0\)",
    ),
    "a product beyond 64 bits": (
        "class Mine(NamedTuple):\n    n: int = 3\n"
        + SPIN_ONLY
        + "    def after(self, ctx, outcome):\n        return Mine(self.n * self.n)\n",
        r"Mine\.after gives another .*first at wait 5:.*64 bits",
    ),
    "a state outside the value": (
        "import random\nclass Mine(NamedTuple):\n    n: int = 3\n"
        "    def plan(self, ctx):\n        return then_park(SPIN, int(1e9 * random.random()), 0)\n"
        + UNCHANGED,
        r"Mine\.plan gives another .*first at wait 0",
    ),
    "a plan that ends": (
        "class Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n"
        "        end_ns = 5 if self.n == 41 else FOREVER_NS\n"
        "        stage = Stage(SPIN, end_ns, 0)\n"
        "        return WaitPlan(stage, stage, stage, stage)\n"
        "    def after(self, ctx, outcome):\n        return Mine(self.n + 1)\n",
        r"Mine\.plan failed at wait 41: .*its last stage must last for ever",
    ),
    "a division by what may be zero": (
        "class Mine(NamedTuple):\n    n: int = 0\n"
        "    def plan(self, ctx):\n        return then_park(SPIN, 9 // ctx.n_decode, 0)\n"
        + UNCHANGED,
        r"Mine\.plan failed at wait \d+: ZeroDivisionError.*context WaitContext\(",
    ),
}


@pytest.mark.parametrize(("body", "message"), DEVIANTS.values(), ids=DEVIANTS)
def test_a_deviating_policy_is_caught_at_the_first_wait_that_shows_it(body, message):
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
        check_policy(from_cell(body)(), 1_000)


# The random waits go where policies break.


def test_random_waits_have_every_corner():
    waits = list(random_waits(20_000, 1))
    published = [outcome.published_after_ns for _, outcome in waits]
    assert min(published) < -1 * S
    assert max(published) > 10 * S
    assert published.count(0) > 100
    assert sum(0 < p < 1_000 for p in published) > 100
    assert any(ctx.since_seen_ns == 0 for ctx, _ in waits)
    assert any(ctx.since_seen_ns > 3600 * S for ctx, _ in waits)
    assert any(ctx.uniform == 0.0 for ctx, _ in waits)
    assert max(ctx.uniform for ctx, _ in waits) < 1.0
    assert any(ctx.costs.wake_latency_ns == 0 for ctx, _ in waits)
    ways = Counter((ctx.site, ctx.call, ctx.pending) for ctx, _ in waits)
    assert len(ways) == 4 * len(SITE_NAMES)
    assert min(ways.values()) > 500
    for ctx, outcome in waits:
        assert outcome.seen_after_ns >= max(outcome.published_after_ns, 0)
        assert ctx.since_seen_ns >= 0


def test_random_waits_lead_the_learning_policy_into_each_kind_of_plan():
    policy, firsts = WakeAhead(), set()
    for ctx, outcome in random_waits(5_000, 1):
        plan = policy.plan(ctx)
        firsts.add((KIND_NAMES[plan.first.kind], ctx.pending, policy.mean_wait_ns < 1 * MS))
        policy = policy.after(ctx, outcome)
    assert {("spin", False, True), ("spin", True, True), ("doze", True, True)} <= firsts
    assert ("doze", True, False) in firsts
