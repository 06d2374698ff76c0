"""An arena is a loss system: Erlang's formula, its intervals, and the model's own counters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmsim.arena_sizing.erlang import erlang_b, slots_for
from shmsim.arena_sizing.growth import exact_fit_keep, geometric_free
from shmsim.arena_sizing.payloads import payloads_of
from shmsim.arena_sizing.rare import rare_share
from shmsim.arena_sizing.replay import replay
from shmsim.arena_sizing.retention import CopyTime
from shmsim.arena_sizing.search import erlang_of, smallest_arena
from shmsim.arena_sizing.steps import payloads_of_steps
from shmsim.config import PayloadConfig
from shmsim.policies import BusySpin
from shmsim.routing import MIB, ArenaPlan, SlotClass
from shmsim.tape import Tape
from shmsim.units import MS, US
from shmsim.workload import Lengths, closed_loop
from tests.theory.runs import run
from tests.theory.test_payloads import bulk_profile

MEAN_HOLD_NS = 10 * MS
HOLDS = {
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "constant": lambda rng, n: np.ones(n),
    "log-normal": lambda rng, n: rng.lognormal(-0.5 * np.log(5.0), np.sqrt(np.log(5.0)), n),
}


def poisson_payloads(load, n, seed, law="exponential", n_bytes=16 * MIB):
    """Poisson arrivals that would keep ``load`` slots busy in the mean."""
    rng = np.random.default_rng(seed)
    arrival_ns = np.cumsum(rng.exponential(MEAN_HOLD_NS / load, n)).astype(np.int64)
    hold_ns = np.maximum(MEAN_HOLD_NS * HOLDS[law](rng, n), 1).astype(np.int64)
    return payloads_of(arrival_ns, np.full(n, n_bytes), hold_ns)


def slots(n, size=64 * MIB):
    return ArenaPlan((SlotClass(size, n),), 8 * MIB)


def test_the_formula_agrees_with_its_recursion():
    # B(n) = a B(n-1) / (n + a B(n-1)), the usual way to compute it.
    for load in (0.01, 0.7, 5.0, 40.0):
        blocked = 1.0
        for n in range(1, 30):
            blocked = load * blocked / (n + load * blocked)
            assert erlang_b(n, load) == pytest.approx(blocked, rel=1e-9)


def test_the_slots_for_a_probability_are_the_fewest_that_keep_it():
    for load in (0.05, 1.0, 12.0):
        for probability in (0.1, 1e-2, 1e-4):
            n = slots_for(load, probability)
            assert erlang_b(n, load) <= probability
            assert n == 0 or erlang_b(n - 1, load) > probability


@pytest.mark.parametrize("law", HOLDS)
@pytest.mark.parametrize(("load", "n_slots"), [(0.5, 1), (1.0, 3), (3.0, 6)])
def test_payloads_find_no_slot_as_often_as_erlang_says_whatever_the_law_of_the_holds(
    law, load, n_slots
):
    usage = replay(slots(n_slots), poisson_payloads(load, 40_000, 7, law))
    expected = erlang_b(n_slots, load)
    found = usage.fallback
    # Twice the half-width of a 95 % interval: one law in ten thousand would be further off.
    assert abs(found.value - expected) <= found.high - found.low


# Rare, and common.
@pytest.mark.parametrize(("load", "n_slots"), [(1.0, 4), (3.0, 3)])
def test_the_interval_of_a_share_holds_the_truth_as_often_as_it_says(load, n_slots):
    runs = 120
    expected = erlang_b(n_slots, load)
    held = 0
    for seed in range(runs):
        found = replay(slots(n_slots), poisson_payloads(load, 1_500, seed)).fallback
        held += found.low <= expected <= found.high
    # 95 % of them, less four standard errors; the first payloads find an empty arena.
    assert held / runs >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / runs)


def test_clusters_count_as_events_and_their_sizes_widen_the_interval():
    n = 10_000
    happened = np.zeros(n, dtype=np.bool_)
    for at in range(0, 4_000, 1_000):
        happened[at : at + 3] = True
    found = rare_share(happened, np.arange(n, dtype=np.int64), 10.0)
    # Four events, each three times: Garwood's interval of 4, times 3.
    assert (found.value, found.n) == (12 / n, 4)
    assert (found.low, found.high) == pytest.approx((3 * 1.0899 / n, 3 * 10.2416 / n), rel=1e-4)
    apart = rare_share(happened, np.arange(n, dtype=np.int64), 0.5)
    assert apart.n == 12
    assert apart.low > found.low
    assert apart.high < found.high


def test_a_share_that_never_was_has_the_rule_of_three_and_a_caveat():
    found = replay(slots(50), poisson_payloads(1.0, 1_000, 1)).fallback
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(3.69 / 1_000, rel=0.01)  # -ln 0.025
    assert "never happened in 1000" in found.caveat


@pytest.mark.parametrize("probability", [1e-1, 1e-2, 1e-3])
def test_the_smallest_arena_of_one_size_has_as_many_slots_as_erlang_asks_for(probability):
    load = 2.0
    payloads = poisson_payloads(load, 60_000, 3)
    found = smallest_arena(payloads, probability, 8 * MIB, 1, lambda plan: None)
    ((size, n_slots),) = found.plan.classes
    assert size == 16 * MIB
    # The upper end of the interval has to keep it, which may cost a slot.
    assert slots_for(load, probability) <= n_slots <= slots_for(load, probability) + 1
    assert found.usage.fallback.high <= probability
    assert found.erlang == erlang_of(found.plan, payloads)
    # Four standard errors of the load in the sample, to which B reacts with a power below n.
    error = 4 * np.sqrt(2 / payloads.n) * n_slots
    assert found.erlang == pytest.approx(erlang_b(n_slots, load), rel=error)


# Against the model.


@pytest.mark.parametrize("n_slots", [1, 2])
def test_the_payloads_of_a_run_find_no_slot_as_often_as_the_model_counts(n_slots):
    """The steps of a run whose copies are slow, replayed by themselves."""
    profile = bulk_profile(h2d_registered=(15 * US, 300 * US))
    config = PayloadConfig(
        bytes_per_prefill_token=MIB,
        bytes_per_step=8 * MIB,
        routes="all-shm",
        arena=(SlotClass(64 * MIB, n_slots),),
        memory="registered",
    )
    records = run(
        BusySpin(),
        closed_loop(12, 2, Lengths(20, 40, 50), Lengths(20, 30, 40), Tape(3)),
        profile=profile,
        scheduling="async",
        max_batched_tokens=32,
        payload=config,
    )
    row = records.processes[0]
    payloads = payloads_of_steps(records.steps, config, CopyTime.of(profile, "registered"))
    usage = replay(config.plan, payloads)
    assert usage.n_diverted == row.payloads
    assert row.arena_most == usage.n_most_held
    in_model = row.payloads - row.arena
    assert (in_model > 0) == (n_slots == 1)
    assert abs(usage.n_fallback - in_model) <= 0.05 * row.payloads


# Buffers that grow.


@given(sizes=st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_keeping_costs_the_sum_of_all_records_and_doubling_less_than_twice_the_largest(sizes):
    n_bytes = np.array(sizes, dtype=np.int64)
    kept, doubled = exact_fit_keep(n_bytes), geometric_free(n_bytes)
    records = [s for i, s in enumerate(sizes) if s > max([0, *sizes[:i]])]
    assert kept.resident_bytes[-1] == kept.peak_bytes == sum(records)
    assert kept.n_grown == len(records)
    assert max(sizes) <= doubled.resident_bytes[-1] < 2 * max(max(sizes), 1)
    assert doubled.peak_bytes <= 3 * max(sizes)
    assert np.all(np.diff(kept.resident_bytes) >= 0)
    assert np.all(doubled.resident_bytes >= np.maximum.accumulate(n_bytes))


def test_growing_payloads_make_keeping_quadratic():
    n_bytes = np.arange(1, 101, dtype=np.int64)
    assert exact_fit_keep(n_bytes).resident_bytes[-1] == 5050
    assert geometric_free(n_bytes).resident_bytes[-1] == 128
    assert geometric_free(n_bytes).n_grown == 8


def test_sizes_in_random_order_set_a_record_as_often_as_the_harmonic_numbers_say():
    n, runs = 100, 400
    rng = np.random.default_rng(5)
    records = [exact_fit_keep(rng.permutation(n).astype(np.int64) + 1).n_grown for _ in range(runs)]
    harmonic = sum(1 / k for k in range(1, n + 1))
    variance = harmonic - sum(1 / k**2 for k in range(1, n + 1))
    assert abs(np.mean(records) - harmonic) < 4 * np.sqrt(variance / runs)


# Orders.


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), load=st.floats(0.2, 6.0))
def test_another_slot_of_one_size_never_makes_more_fall_back(seed, load):
    payloads = poisson_payloads(load, 300, seed, "log-normal")
    fell = [replay(slots(n), payloads).n_fallback for n in range(1, 8)]
    assert fell == sorted(fell, reverse=True)
